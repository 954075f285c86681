"""Check how the bytes of a trace are cut into blocks of events, and the errors for bytes that are no trace."""

import bz2
import gzip
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rankscope.measure.errors import CutOffError, TraceError
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.kineto_json import DAMAGED_EVENT_BYTES_MAX, HEAD_BYTES_MAX, TraceBlocks
from tests.unit.measure.written_traces import differences, event, read, to_json

TRACES = Path(__file__).parents[2] / "traces"
ONE = b'{"ph": "X", "name": "a", "ts": 1, "dur": 2}'


def names_in(text: bytes) -> list[str]:
    return list(read(text).names)


def refusal(text: bytes) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(text)
    return caught.value


def count_blocks(chunks: Iterable[bytes], block_bytes: int) -> list[int]:
    """Return how many events each block has."""
    blocks = TraceBlocks(block_bytes)
    found = [len(block.events) for chunk in chunks for block in blocks.feed(chunk)]
    return found + [len(block.events) for block in blocks.finish()]


# -- what a trace may look like ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"[" + ONE + b"]",
        b'{"traceEvents": [' + ONE + b"]}",
        b' \r\n\t{ "traceEvents" :\n[ ' + ONE + b" ] } \n",
        b"\xef\xbb\xbf[" + ONE + b"]\n",
        b'\xef\xbb\xbf{"traceEvents": [' + ONE + b"]}",
    ],
    ids=["list", "object", "white space", "byte order mark before a list", "byte order mark before an object"],
)
def test_events_are_found_in_either_form(text: bytes) -> None:
    assert names_in(text) == ["a"]


@pytest.mark.parametrize("text", [b"[]", b'{"traceEvents": []}', b'{"traceEvents": [ \n ]}'])
def test_a_trace_may_have_no_events(text: bytes) -> None:
    assert read(text).event_count == 0


def test_head_is_everything_before_and_behind_the_events() -> None:
    text = b'{"schemaVersion": 1, "traceEvents": [' + ONE + b'], "list": [{"a": 1}, {"b": 2}]}'
    assert read(text).head == {"schemaVersion": 1, "list": [{"a": 1}, {"b": 2}]}


def test_a_list_has_no_head() -> None:
    assert read(b"[" + ONE + b"]").head == {}


def test_a_key_of_an_inner_object_is_not_taken_for_the_events() -> None:
    text = b'{"before": {"traceEvents": [{"x": 1}, {"y": 2}]}, "traceEvents": [' + ONE + b"]}"
    assert names_in(text) == ["a"]
    assert list(read(text).head) == ["before"]


def test_value_that_looks_like_the_key_is_not_the_events() -> None:
    text = json.dumps({"note": '"traceEvents": [', "traceEvents": [event("", "a", 1, 2)]}).encode()
    assert names_in(text) == ["a"]


# -- cutting ----------------------------------------------------------------------------------------------------------


def test_a_block_ends_at_the_last_comma_between_events() -> None:
    # The second chunk has the remainder of the second event and all of the third, up to its comma.
    text = b"[" + b", ".join([ONE] * 4) + b"]"
    second = len(b"[" + ONE) + 10
    fourth = text.rindex(b"{") + 3
    assert count_blocks([text[:second], text[second:fourth], text[fourth:]], block_bytes=8) == [1, 2, 1]


def test_nothing_is_cut_before_a_block_is_full() -> None:
    text = b"[" + b", ".join([ONE] * 4) + b"]"
    assert count_blocks([text[:100], text[100:]], block_bytes=10_000) == [4]


@pytest.mark.parametrize(
    "inner",
    [
        b'"a},{b"',
        b'"a\\"},{\\"b"',
        b'[{"x": 1}, {"y": [{"z": 2}, {}]}]',
        b'"a\x01},{b"',
        b'"a\\q},{b"',
        b'"\\ud83d},{"',
    ],
    ids=["text", "text with quotes", "lists", "text with a control character", "bad escape", "half a pair"],
)
def test_a_comma_inside_an_event_does_not_end_it(inner: bytes) -> None:
    args = b'{"ph": "X", "name": "a", "ts": 1, "dur": 2, "args": {"x": ' + inner + b"}}"
    text = b"[" + b",".join([args] * 3) + b"]"
    for at in range(len(text)):
        assert sum(count_blocks([text[:at], text[at:]], block_bytes=1)) == 3


def test_event_with_too_many_inner_commas_waits_for_more_bytes() -> None:
    long = b'{"ph": "X", "name": "long", "ts": 1, "dur": 2, "args": {"x": [' + b", ".join([b"{}"] * 200) + b"]}}"
    text = b"[" + ONE + b"," + long + b"," + ONE + b"]"
    assert sum(count_blocks([text[:700], text[700:]], block_bytes=8)) == 3


@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(97, 64), (1_009, 300), (100_003, 1)])
@pytest.mark.parametrize("name", ["mi250_minitoy", "v100_dlrm_8ranks_r0"])
def test_a_real_trace_is_the_same_however_it_is_cut(name: str, chunk_bytes: int, block_bytes: int) -> None:
    text = gzip.decompress((TRACES / f"{name}.json.gz").read_bytes())
    assert differences(read(text), read(text, chunk_bytes=chunk_bytes, block_bytes=block_bytes)) == []


def test_the_end_of_the_events_is_found_while_cutting() -> None:
    text = b'{"traceEvents": [' + ONE + b'], "last": [{"a": 1}, {"b": 2}, {"c": 3}]}'
    at = text.index(b'{"c"') + 1
    assert count_blocks([text[:at], text[at:]], block_bytes=8) == [1]


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"a\xffb", "a?b"),
        (b"a\xc3\xa9\xc3", "a\u00e9?"),
        (b"a\x00\x1f\nb", "a???b"),
        (b"C:\\Windows\\system", "C:?Windows?system"),
        (b"a\\u12zz", "a??12zz"),
        (b"\\ud83d", "??????"),
        (b"\\ude00\\ud83d", "????????????"),
        (b"\\ud83d\\ude00\x01", "\U0001f600?"),
        (b"\\\\x\\\\\x01", "\\x\\?"),
        (b"nan, inf\x01", "nan, inf?"),
    ],
)
def test_names_that_are_no_json_are_kept_as_far_as_they_go(written: bytes, expected: str) -> None:
    assert names_in(b'[{"ph": "X", "ts": 1, "dur": 2, "name": "' + written + b'"}]') == [expected]


@pytest.mark.parametrize("number", [b"nan", b"NaN", b"-nan", b"inf", b"Infinity", b"-Infinity"])
def test_a_number_that_json_does_not_have_is_missing(number: bytes) -> None:
    inner = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"blocks per SM": ' + number + b"}}"
    trace = read(b"[" + inner + b"]")
    assert trace.device_work.blocks_per_sm.tolist() == pytest.approx([float("nan")], nan_ok=True)


@pytest.mark.parametrize(
    "other", [b"5", b"null", b'"text"', b"[1]", b"{}", b'{"ph": "?"}', b'{"ph": "X", "name": 5, "ts": 1, "dur": 1}']
)
def test_what_is_no_event_is_counted_and_the_others_are_used(other: bytes) -> None:
    trace = read(b"[" + ONE + b"," + other + b"," + ONE + b"]")
    assert (trace.event_count, len(trace.events)) == (3, 2)
    assert trace.warnings[0].startswith("1 x not used: ")


def test_damage_in_the_head_does_no_harm() -> None:
    assert read(b'{"host": "a\x01\xff", "x": nan, "traceEvents": [' + ONE + b"]}").head == {"host": "a??", "x": ""}


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the file is empty (at byte 0)"),
        (b" \n", "the file is empty (at byte 0)"),
        (b"hello", "not JSON: it begins with b'hello' (at byte 0)"),
        (b"5", "not JSON: it begins with b'5' (at byte 0)"),
        (b"prose " * 200, "not JSON: it begins with b'prose prose ' (at byte 0)"),
        (gzip.compress(b"{}", mtime=0), "not JSON: it is compressed by gzip twice: decompress it once (at byte 0)"),
        (bz2.compress(b"{}"), "not JSON: it is compressed by bzip2: decompress it first (bunzip2) (at byte 0)"),
        (lzma.compress(b"{}"), "not JSON: it is compressed by xz: decompress it first (unxz) (at byte 0)"),
        (b"PK\x03\x04..", "not JSON: it is a ZIP archive: unpack it first (at byte 0)"),
        (b"rank0.json".ljust(257, b"\0") + b"ustar", "not JSON: it is a tar archive: unpack it first (at byte 0)"),
        ("{}".encode("utf-32"), "not JSON: it is UTF-32 text: convert it to UTF-8 first (at byte 0)"),
        ("{}".encode("utf-16"), "not JSON: it is UTF-16 text: convert it to UTF-8 first (at byte 0)"),
        (b'{"a": 1}', 'JSON without "traceEvents": not a Kineto trace (at byte 0)'),
        (b'{"traceEvents": null}', 'JSON without "traceEvents": not a Kineto trace (at byte 0)'),
        (b'{"a": 1', "the JSON is broken (Input data was truncated) (at byte 0)"),
        (b'{"traceEvents": [{"ph": "X" "cat": 1}]}', "the JSON is broken (at byte 17)"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(text: bytes, message: str) -> None:
    assert str(refusal(text)) == message


@pytest.mark.parametrize("end", [16, 17, 30, 58])
def test_file_cut_off_before_its_first_event_ends_is_refused(end: int) -> None:
    # 16 bytes up to the bracket, 43 bytes of the event.
    text = b'{"traceEvents": [' + ONE + b"]}"
    error = refusal(text[:end])
    assert "cut off" in str(error) or "truncated" in str(error)


# -- mended structure -------------------------------------------------------------------------------------------------

KINETO_2_13 = b"""{"schemaVersion": 1, "traceEvents": [
  {
    "ph": "X", "cat": "python_function", "name": "q.py(3): {"device": "cpu"}", "pid": 1, "tid": 1,
    "ts": 5.250, "dur": 2.500
    ,
    "args": {
      "Python id": 2
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1,
    "ts": 6, "dur": 1
  }
  ],"traceName": "q.json" }"""
"""As torch 2.13.0 writes a code object named `{"device": "cpu"}` under `with_stack`."""


def mended(text: bytes) -> tuple[list[str], list[str]]:
    trace = read(text)
    return [trace.name(row) for row in range(len(trace.events))], list(trace.warnings)


def test_name_with_unescaped_quotes_is_mended() -> None:
    names, warnings = mended(KINETO_2_13)
    assert names == ['q.py(3): {"device": "cpu"}', "aten::add"]
    assert warnings == ["1 x mended: quotes without a backslash in a name or a text"]
    assert read(KINETO_2_13).head == {"schemaVersion": 1, "traceName": "q.json"}


@pytest.mark.parametrize("name", [b'a"b', b'"', b'"a"', b'a", b', b'{"x": 1}', b'C:\\"q"', b'\\" "'])
def test_other_events_are_kept_beside_quotes_in_a_name(name: bytes) -> None:
    bad = b'{"ph": "X", "name": "' + name + b'", "pid": 1, "ts": 3, "dur": 1}'
    names, warnings = mended(b"[" + ONE + b", " + bad + b",\n" + ONE.replace(b'"ts": 1', b'"ts": 9') + b"]")
    assert (len(names), names[0], names[2]) == (3, "a", "a")
    assert warnings == ["1 x mended: quotes without a backslash in a name or a text"]


def test_quotes_in_an_argument_are_mended() -> None:
    bad = b'{"ph": "X", "name": "f", "ts": 3, "dur": 1, "args": {"Call stack": "f "g"; h", "x": [1]}}'
    assert list(read(b"[" + bad + b"," + ONE + b"]").stacks.values()) == ['f "g"; h']


@pytest.mark.parametrize("block_bytes", [8, 100, 1 << 20])
def test_damaged_events_are_the_same_however_the_file_is_cut(block_bytes: int) -> None:
    bad = [b'{"ph": "X", "name": "%d "q"", "ts": %d, "dur": 1,}' % (k, k) for k in range(20)]
    text = b'{"traceEvents": [' + b", ".join([ONE, *bad, ONE]) + b',], "x": 1}'
    trace = read(text, chunk_bytes=61, block_bytes=block_bytes)
    assert (len(trace.events), trace.head) == (22, {"x": 1})
    assert sorted(trace.warnings) == [
        "20 x mended: quotes without a backslash in a name or a text",
        "21 x mended: a comma without a value behind it",
    ]


def test_event_beyond_mending_is_counted_and_left_out() -> None:
    names, warnings = mended(b"[" + ONE + b', {"ph": "X" "cat": 1}, ' + ONE + b"]")
    assert (names, warnings) == (["a", "a"], ["1 x not used: its JSON is broken"])


def test_last_event_beyond_mending_leaves_what_follows() -> None:
    text = b'{"traceEvents": [' + ONE + b', {"ph": "X" "cat": 1}], "x": 1}'
    assert (mended(text), read(text).head) == ((["a"], ["1 x not used: its JSON is broken"]), {"x": 1})


@pytest.mark.parametrize("end", [b"", b",", b" ,\n", b"}", b', "x": 1}'])
def test_missing_bracket_is_mended(end: bytes) -> None:
    text = b'{"traceEvents": [' + ONE + b"," + ONE + end
    names, warnings = mended(text)
    assert (len(names), len(warnings)) == (2, 1)
    assert warnings[0].startswith("the list of events has no closing bracket")
    assert read(text).head == ({"x": 1} if b"x" in end else {})


@pytest.mark.parametrize("end", range(106, 148))
def test_events_whole_before_a_cut_are_used(end: int) -> None:
    # 17 bytes and the first event to byte 60, a comma, the second to byte 104, a comma and a part of the third.
    text = b'{"traceEvents": [' + b",".join([ONE] * 3) + b"]}"
    names, warnings = mended(text[:end])
    assert names == ["a", "a"]
    what = "what follows is missing (a profiler writes device work last)"
    assert warnings == [f"the file is cut off at byte {end}: {what}"]


@pytest.mark.parametrize("end", [61, 62, 65, 69])
def test_file_cut_off_behind_its_events_is_used(end: int) -> None:
    # 61 bytes up to the bracket that closes the events, 70 in all.
    text = b'{"y": 2, "traceEvents": [' + ONE + b'], "x": 1}'
    names, warnings = mended(text[: end + 8])
    assert (names, warnings) == (
        ["a"],
        [f"the trace is cut off behind its events (at byte {end + 8}): what stands there is not used"],
    )
    assert read(text[: end + 8]).head == {"y": 2}


def test_text_behind_a_list_of_events_is_noted() -> None:
    assert mended(b"[" + ONE + b"] x")[1] == [
        "text follows the array of events: b'x' (at byte 45): what stands there is not used"
    ]


def test_broken_structure_behind_the_events_is_noted() -> None:
    assert read(to_json() + b" x").warnings[0].startswith("the JSON behind the events is broken (JSON is malformed: tr")


def test_quotes_before_the_events_cost_only_what_stands_there() -> None:
    text = b'{"note": "say "traceEvents"", "traceEvents": [' + ONE + b'], "x": 1}'
    names, warnings = mended(text)
    assert (names, read(text).head) == (["a"], {"x": 1})
    assert warnings == ["the JSON in front of the events is broken: what stands there is not used"]
    with pytest.raises(TraceError, match="the JSON is broken"):
        list(TraceBlocks(mends=False).read([text]))


def test_long_trace_with_a_broken_head_is_read() -> None:
    blocks = TraceBlocks()
    text = b'{"note": "a "b"", "traceEvents": [' + ONE + b","
    assert sum(len(block.events) for block in blocks.feed(text + b" " * HEAD_BYTES_MAX + ONE + b"," + ONE)) == 2


def test_comma_too_many_around_the_events_is_mended() -> None:
    text = b'{"x": {"y": 1,}, "traceEvents": [' + ONE + b'], "z": [1,],}'
    assert read(text).head == {"x": {"y": 1}, "z": [1]}


def test_compressed_file_that_ends_too_early_is_used() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"[" + ONE + b"," + ONE[:20]
        raise CutOffError("the gzip file is cut off")

    trace = read_trace(chunks())
    assert len(trace.events) == 1
    assert trace.warnings[0].startswith("the file is cut off at byte ")


def test_compressed_file_cut_in_its_checksum_is_used_and_warned() -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"traceEvents": [' + ONE + b'], "x": 1}'
        raise CutOffError("the gzip file is cut off")

    trace = read_trace(chunks())
    assert (len(trace.events), trace.head) == (1, {"x": 1})
    assert trace.warnings[0].startswith("the file is cut off at byte ")


def test_compressed_file_that_ends_before_its_events_is_refused() -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"a": 1'
        raise CutOffError("the gzip file is cut off")

    with pytest.raises(CutOffError, match="the gzip file is cut off"):
        read_trace(chunks())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" + ONE + b"," + ONE[:9], "it ends inside its events"),
        (b"[" + ONE + b",]", "trailing comma"),
        (b"[" + ONE + b"] x", "text follows"),
        (b'{"traceEvents": [' + ONE + b'], "x"', "cut off behind its events"),
    ],
)
def test_reader_that_mends_nothing_refuses_damage(text: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(TraceBlocks(mends=False).read([text]))


def test_reader_that_mends_nothing_refuses_damaged_full_blocks() -> None:
    with pytest.raises(TraceError, match="the JSON is broken"):
        list(TraceBlocks(8, mends=False).feed(b"[" + ONE + b', {"ph": "X" "cat": 1},' + ONE + b"," + ONE))


def test_reader_that_mends_nothing_passes_on_a_cut_compression() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"[" + ONE + b"]"
        raise CutOffError("the gzip file is cut off")

    with pytest.raises(CutOffError):
        list(TraceBlocks(mends=False).read(chunks()))


def test_damaged_event_waits_for_more_bytes() -> None:
    bad = b'{"ph": "X", "name": "a "b"", "ts": 3, "dur": 1, "args": {"x": [{"y": 1}, {"z": 2}]}}'
    trace = read(b"[" + bad + b"," + ONE + b"]", chunk_bytes=10, block_bytes=8)
    assert (len(trace.events), len(trace.warnings)) == (2, 1)


@pytest.mark.parametrize("inside", [b'"open": {"a": 1}', b'"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_event_that_does_not_end_or_is_too_deep_is_left_out(inside: bytes) -> None:
    bad = b'{"ph": "X" "cat": 1}'
    text = b"[" + bad + b', {"ph": "X", ' + inside + b", " + ONE + b"]"
    assert mended(text) == (["a"], ["2 x not used: its JSON is broken"])


def test_times_since_1970_are_exact_beside_what_is_no_event() -> None:
    bad = b'{"ph": "X", "name": "q "q"", "ts": 1718000000000000.123, "dur": 1}'
    trace = read(b"[" + bad + b', {"ph": "?"}]')
    assert trace.events.start_ns.tolist() == [1_718_000_000_000_000_123]


def test_damaged_event_without_an_end_is_not_read_for_ever() -> None:
    blocks = TraceBlocks(8)
    inner = b"{}," * (DAMAGED_EVENT_BYTES_MAX // 3)
    with pytest.raises(TraceError, match="no event ends within"):
        list(blocks.feed(b'[{"ph": "X" "x": [' + inner + b"{}"))


DEEP = b"[" * 100_000 + b"]" * 100_000


def test_nesting_too_deep_is_an_error() -> None:
    assert "nested too deeply" in str(refusal(b"[" + DEEP + b"]"))


@pytest.mark.parametrize("text", [b'{"x": %s, "traceEvents": []}', b'{"traceEvents": [], "x": %s}'])
def test_nesting_too_deep_around_the_events_is_noted(text: bytes) -> None:
    (warning,) = read(text % DEEP).warnings
    assert warning.endswith("what stands there is not used")


def test_early_head_is_known_once_the_events_begin() -> None:
    blocks = TraceBlocks()
    assert (list(blocks.feed(b'{"a": 1, ')), blocks.early_head) == ([], None)
    assert (list(blocks.feed(b'"traceEvents": [' + ONE)), blocks.early_head) == ([], {"a": 1})
    plain = TraceBlocks()
    assert (list(plain.feed(b"[")), plain.early_head) == ([], {})


def test_bytes_without_events_are_not_read_for_ever() -> None:
    blocks = TraceBlocks()
    with pytest.raises(TraceError, match=r'no "traceEvents" in its first 67,108,865 bytes: not a Kineto trace'):
        list(blocks.feed(b"{" + b" " * HEAD_BYTES_MAX))
