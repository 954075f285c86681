"""Check how the bytes of a trace are cut into blocks of events, and the errors for bytes that are no trace."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankscope.measure.errors import TraceError
from rankscope.measure.kineto_json import HEAD_BYTES_MAX, TraceBlocks
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
        (b'{"a": 1}', 'JSON without "traceEvents": not a Kineto trace (at byte 0)'),
        (b'{"traceEvents": null}', 'JSON without "traceEvents": not a Kineto trace (at byte 0)'),
        (b'{"a": 1', "the JSON is broken (Input data was truncated) (at byte 0)"),
        (b"[" + ONE + b"] x", "text follows the array of events: b'x' (at byte 45)"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(text: bytes, message: str) -> None:
    assert str(refusal(text)) == message


@pytest.mark.parametrize("end", [17, 18, 30, 59, 60])
def test_file_cut_off_inside_its_events_says_so_with_length(end: int) -> None:
    # 16 bytes, the bracket, 43 bytes of the event.
    text = b'{"traceEvents": [' + ONE + b"]}"
    error = refusal(text[:end])
    assert str(error).startswith("the trace is cut off: it ends inside its events. Was it still being written")
    assert error.byte == end


@pytest.mark.parametrize("end", [61, 62, 65, 69])
def test_file_cut_off_behind_its_events_says_so_with_length(end: int) -> None:
    # 61 bytes up to the bracket that closes the events, 70 in all.
    text = b'{"traceEvents": [' + ONE + b'], "x": 1}'
    error = refusal(text[:end])
    assert str(error).startswith("the trace is cut off behind its events")
    assert error.byte == end


def test_broken_structure_is_an_error_with_its_byte() -> None:
    text = b'{"traceEvents": [' + ONE + b",]}"
    # The bracket that should be an event.
    assert (
        str(refusal(text)) == "the JSON is broken (JSON is malformed: trailing comma in array (byte 45)) (at byte 61)"
    )
    assert text[61:62] == b"]"


def test_broken_structure_behind_the_events_is_an_error() -> None:
    assert str(refusal(to_json() + b" x")).startswith("the JSON behind the events is broken (JSON is malformed: trail")


@pytest.mark.parametrize("where", ['{"x": %s, "traceEvents": []}', '{"traceEvents": [], "x": %s}', "[%s]"])
def test_nesting_too_deep_is_an_error(where: str) -> None:
    assert "nested too deeply" in str(refusal((where % ("[" * 100_000 + "]" * 100_000)).encode()))


def test_bytes_without_events_are_not_read_for_ever() -> None:
    blocks = TraceBlocks()
    with pytest.raises(TraceError, match=r'no "traceEvents" in its first 67,108,865 bytes: not a Kineto trace'):
        list(blocks.feed(b"{" + b" " * HEAD_BYTES_MAX))
