"""Laws of reading traces: chunking, order of events and absolute time do not matter."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankscope.collector.traces.asked import Asked
from rankscope.collector.traces.memory_stretch import MemoryStretch
from rankscope.collector.traces.operator_groups import GroupsAsked
from rankscope.collector.traces.rank_analysis import reduce_trace
from rankscope.collector.traces.report import RankReport
from rankscope.collector.traces.timeline_events import read_raw_events
from rankscope.collector.traces.windows import draw_timeline
from rankscope.measure.errors import TraceError
from rankscope.measure.nesting import OUTSIDE, Nesting, nest
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import (
    Event,
    allocation,
    differences,
    event,
    kernel,
    launch,
    read,
    read_events,
)

# -- how the bytes are cut --------------------------------------------------------------------------------------------

# Pieces of names: some look like the end of an event, some are escapes, some were written by Kineto against JSON's
# rules.
FRAGMENTS = (
    b"gemm", b"},{", b"}],", b"[{", b"nan", b":", b",", b"\\\\", b'\\"', b"\\u00e9", b"\xc3\xa9", b"\\ud83d\\ude00",
    b"\xff", b"\xc3", b"\x01", b"\n", b"\\q", b"\\u12", b"\\ud83d", b"\\udc00",
)  # fmt: skip
NUMBERS = (
    b"0", b"7", b"12.5", b"1.0005", b"3.1415926", b"1e3", b"-4", b"null", b'"5"', b'"1.0015"', b"nan", b"-inf",
    b"Infinity", b"9e99", b"1718000000000000.123", b"1718000000000001", b"123456789012345678901234567890",
)  # fmt: skip
OTHERS = (
    b"5", b"null", b"[1]", b'"text"', b"{}", b'{"ph": "?"}', b'{"ph": "M", "name": "process_name", "args": {"a": 1}}',
    b'{"ph": "B", "name": "half"}', b'{"ph": "X", "name": 5, "ts": 1, "dur": 1}',
    b'{"ph": "i", "name": "[memory]", "ts": 3, "args": {"Bytes": 64, "Device Type": 0, "Device Id": -1}}',
)  # fmt: skip

names = st.lists(st.sampled_from(FRAGMENTS), max_size=4).map(b"".join)
spaces = st.sampled_from([b"", b" ", b"\n  "])
NESTED = (b"", b', "list": [{"a": 1}, {"b": [{}, {}]}]', b', "correlation": 3', b', "External id": "4"')


@st.composite
def event_texts(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(OTHERS))
    inner = b'"stream": 7' + draw(st.sampled_from(NESTED)) + b', "Call stack": "' + draw(names) + b'"'
    return (
        b'{"ph": "X", "cat": "kernel", "ts": ' + draw(st.sampled_from(NUMBERS)) + b', "dur": '
        + draw(st.sampled_from(NUMBERS)) + b', "args": {' + inner + b'}, "name": "' + draw(names) + b'"}'
    )  # fmt: skip


@st.composite
def trace_texts(draw: st.DrawFn) -> bytes:
    """Return a whole file: an object with metadata before and behind its events, or only the list of them."""
    between = draw(spaces) + b"," + draw(spaces)
    events = b"[" + draw(spaces) + between.join(draw(st.lists(event_texts(), max_size=6))) + draw(spaces) + b"]"
    if draw(st.booleans()):
        return events
    head = draw(st.sampled_from([b"", b'"deep": {"traceEvents": [{"ph": 1}, {"ph": 2}]}, ', b'"host": "a\x02", ']))
    tail = draw(st.sampled_from([b"", b', "last": [{"a": 1}, {"b": 2}]', b', "name": "},{", "x": -nan']))
    return b"{" + head + b'"traceEvents":' + draw(spaces) + events + tail + b"}" + draw(spaces)


@settings(max_examples=300)
@given(trace_texts(), st.integers(1, 400), st.integers(1, 300))
def test_any_way_to_cut_the_bytes_gives_the_same_trace(text: bytes, chunk_bytes: int, block_bytes: int) -> None:
    assert differences(read(text), read(text, chunk_bytes=chunk_bytes, block_bytes=block_bytes)) == []


# -- damage -----------------------------------------------------------------------------------------------------------

INSERTED = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b'"}, {"ph": "X"',
    b'{"ph": "X", ',
    b"\n",
)


@st.composite
def damaged_texts(draw: st.DrawFn) -> bytes:
    """Return a trace with some bytes inserted, lost, or cut off at its end."""
    text = draw(trace_texts())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        lost = draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from((b"", *INSERTED))) + text[at + lost :]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@example(rb'{"\"traceEvents":[]}', 1, 1)  # another key, whose end looks like that of the events
@settings(max_examples=500)
@given(damaged_texts(), st.integers(1, 400), st.integers(1, 300))
def test_damaged_trace_is_read_or_refused_with_a_reason(text: bytes, chunk_bytes: int, block_bytes: int) -> None:
    with contextlib.suppress(TraceError):
        trace = read(text, chunk_bytes=chunk_bytes, block_bytes=block_bytes)
        assert trace.event_count <= text.count(b"{") + text.count(b",") + 1
    with contextlib.suppress(TraceError):
        for events, dropped in read_raw_events([text]):
            assert dropped >= 0
            assert all("ph" in one for one in events)


@given(
    st.lists(st.sampled_from([b"a", b'"', b'"b"', b" ", b"{", b"}", b":", b"x, y"]), max_size=6), st.integers(1, 300)
)
def test_quotes_in_a_name_cost_no_other_event(parts: list[bytes], block_bytes: int) -> None:
    one = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 1, "ts": %d, "dur": 1}'
    bad = b'{"ph": "X", "cat": "kernel", "name": "' + b"".join(parts) + b'", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    text = b'{"traceEvents": [' + b", ".join([one % 1, bad, one % 9]) + b'], "last": 1}'
    trace = read(text, block_bytes=block_bytes, chunk_bytes=50)
    starts_ns = trace.events.start_ns.tolist()
    assert (starts_ns[0], starts_ns[-1], trace.head) == (1_000, 9_000, {"last": 1})


# -- order and time ---------------------------------------------------------------------------------------------------

OPERATORS = ("aten::mm", "aten::item", "autograd::engine::evaluate_function: MmBackward0", "aten::copy_")
RANGES = (
    "Optimizer.step#SGD.step",
    "enumerate(DataLoader)#_Iter.__next__",
    "nccl:all_reduce",
    "gloo:broadcast",
    "mine",
)
KERNELS = ("sgemm", "elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD", "Memset")
SHORT_US = st.integers(0, 6)


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Start and end of ranges of one thread that nest as calls do; some have no length, some are equal."""
    now = draw(SHORT_US)
    opened: list[int] = []
    found: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 8))):
        if len(opened) > 0 and draw(st.booleans()):
            found.append((opened.pop(), now))
        else:
            opened.append(now)
        now += draw(st.integers(0, 3))
    return found + [(start, now) for start in reversed(opened)]


@st.composite
def recorded(draw: st.DrawFn) -> list[Event]:
    """Events of one rank: steps, operators and ranges on two threads, launches, work on two streams, allocations."""
    found: list[Event] = []
    for tid in (1, 2):
        for start, end in draw(nested_ranges()):
            category, known = draw(st.sampled_from([("cpu_op", OPERATORS), ("user_annotation", RANGES)]))
            found.append(event(category, draw(st.sampled_from(known)), start, end - start, tid=tid))
    for correlation in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            found.append(launch(draw(SHORT_US), correlation, tid=draw(st.integers(1, 2))))
        name, start, length = draw(st.sampled_from(KERNELS)), draw(st.integers(0, 20)), draw(SHORT_US)
        category = {"Memcpy HtoD": "gpu_memcpy", "Memset": "gpu_memset"}.get(name, "kernel")
        work = kernel(name, start, length, correlation=correlation, stream=draw(st.integers(7, 8)))
        found.append({**work, "cat": category})
    begins = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3, unique=True))
    for start, following in itertools.pairwise([*sorted(begins), 30]):
        length = draw(st.integers(0, min(6, following - start)))
        found.append(event("user_annotation", f"ProfilerStep#{start}", start, length))
    # No two at one time: for those the order in the file is the order in which they happened.
    moments = draw(st.lists(st.integers(0, 20), max_size=4, unique=True))
    sizes = [draw(st.integers(-64, 64)) for _ in moments]
    return found + [allocation(at, size, Addr=draw(st.integers(1, 2))) for at, size in zip(moments, sizes, strict=True)]


def to_report(events: Sequence[Event]) -> RankReport:
    asked = Asked(
        operator_groups=GroupsAsked(nests=True), launches=True, arguments=True, allocations=True, events=True,
        memory_between=MemoryStretch(None, None, is_steps=False),
    )  # fmt: skip
    return reduce_trace(read_events(*events), "trace.json", asked=asked).report


def to_plain(report: RankReport) -> Any:
    return msgspec.to_builtins(report, enc_hook=list)  # of tables of columns


def shift(events: Sequence[Event], shift_us: int) -> list[Event]:
    return [{**one, "ts": one["ts"] + shift_us} for one in events]


@given(recorded(), st.data())
def test_the_order_of_the_events_does_not_matter_to_any_table(events: list[Event], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(events))
    assert to_plain(to_report(shuffled)) == to_plain(to_report(events))


@given(recorded(), st.integers(-(10**15), 10**15))
def test_the_time_of_day_does_not_matter_to_any_table(events: list[Event], shift_us: int) -> None:
    assert to_plain(to_report(shift(events, shift_us))) == to_plain(to_report(events))


@given(recorded())
def test_an_event_that_is_written_twice_counts_once(events: list[Event]) -> None:
    numbered = [{**one, "args": {**one["args"], "External id": n}} for n, one in enumerate(events) if one["ph"] == "X"]
    numbered = [one for one in numbered if one["dur"] > 0]
    assert differences(read_events(*numbered).events, read_events(*numbered, *numbered).events) == []


# -- sums -------------------------------------------------------------------------------------------------------------


@given(recorded())
def test_the_parts_sum_to_the_window_in_every_breakdown(events: list[Event]) -> None:
    report = to_report(events)
    for one in (report, *report.steps, *report.devices):
        alone_ns = one.compute_ns - one.overlap_ns
        parts = (alone_ns, one.overlap_ns, one.exposed_communication_ns, one.copy_ns, one.idle_ns)
        assert min(parts) >= 0
        assert sum(parts) == one.window_ns


@given(recorded())
def test_kinds_of_events_and_stages_sum_to_the_steps(events: list[Event]) -> None:
    report = to_report(events)
    steps_ns = sum(step.window_ns for step in report.steps)
    assert sum(row.host_ns for row in report.model) == steps_ns
    assert sum(row.total_ns for row in report.event_types) == (steps_ns if report.steps else report.window_ns)
    by_step = {row.step: sum(msgspec.to_builtins(row).values()) - row.step for row in report.step_event_types}
    assert by_step == {step.step: step.window_ns for step in report.steps}


@given(recorded())
def test_single_allocations_sum_to_what_was_allocated_and_freed(events: list[Event]) -> None:
    report = to_report(events)
    rows = list(report.allocations or ())
    made = sum(row.bytes for row in rows if row.allocated_ns is not None)
    assert made == sum(row.allocated_bytes for row in report.memory_stretch or ())
    assert made == sum(row.allocated_bytes for row in report.memory_stretch_operators or ())
    for row in report.memory_stretch or ():
        assert row.peak_bytes >= max(row.start_bytes, row.end_bytes)


@given(recorded())
def test_every_event_begins_in_its_parent(events: list[Event]) -> None:
    rows = list(to_report(events).events or ())
    assert len(rows) == sum(one["ph"] == "X" for one in events)
    for row in rows:
        if row.parent is not None and row.device is None:
            above = rows[row.parent]
            assert (above.process, above.thread) == (row.process, row.thread)
            assert above.start_ns <= row.start_ns
            assert above.start_ns + above.duration_ns >= row.start_ns + row.duration_ns


@given(recorded())
def test_kernels_of_ranges_and_by_launch_sum_to_all_work(events: list[Event]) -> None:
    report = to_report(events)
    kernels_ns = sum(row.total_ns for row in report.kernels)
    assert sum(row.own_ns for row in report.range_kernels or ()) == kernels_ns + sum(r.total_ns for r in report.copies)
    assert sum(row.total_ns for row in report.kernel_launches or ()) == kernels_ns


@given(nested_ranges(), st.data())
def test_kernels_of_ranges_are_those_whose_launch_is_inside(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    ranges = [(start, end, data.draw(st.sampled_from("abc"))) for start, end in spans]
    calls = data.draw(st.lists(st.integers(0, 20), max_size=6))
    events = [event("user_annotation", name, start, end - start) for start, end, name in ranges]
    expected: dict[tuple[str | None, str], int] = {}
    for number, call in enumerate(calls):
        name = data.draw(st.sampled_from("kl"))
        events += [launch(call, number), kernel(name, 100 + number, 1, correlation=number)]
        around: set[str | None] = {of for start, end, of in ranges if start <= call < end}
        for one in around or {None}:
            expected[one, name] = expected.get((one, name), 0) + 1
    report = to_report(events) if events else None
    rows = (report.range_kernels if report is not None else None) or []
    assert {(row.range_name, row.name): row.count for row in rows} == expected


@given(recorded(), st.integers(1, 40))
def test_the_bins_of_the_timeline_sum_to_the_breakdown(events: list[Event], bins: int) -> None:
    trace = read_events(*events)
    report, timeline = reduce_trace(trace, "trace.json").report, draw_timeline(RankView(trace), bins)
    if timeline is None:
        assert report.window_ns == 0
        return
    assert len(timeline.compute) <= bins
    assert sum(timeline.compute) == report.compute_ns - report.overlap_ns
    assert sum(timeline.overlap) == report.overlap_ns
    assert sum(timeline.communication) == report.exposed_communication_ns
    assert sum(timeline.copy) == report.copy_ns
    filled = np.array([timeline.compute, timeline.overlap, timeline.communication, timeline.copy]).sum(axis=0)
    assert filled.max(initial=0) <= timeline.bin_ns


# -- who encloses whom ------------------------------------------------------------------------------------------------


def nest_spans(spans: Sequence[tuple[int, int, int]]) -> Nesting:
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return nest(columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2])


@st.composite
def threads_of_ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Return (thread, start, end) in any order."""
    spans = [(thread, *span) for thread in range(3) for span in draw(nested_ranges())]
    return list(draw(st.permutations(spans)))


def slow_parents(spans: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return, of those before a range by start and length, the last one that ends no earlier."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1], -spans[i][2]))
    parents = [OUTSIDE] * len(spans)
    for place, mine in enumerate(order):
        around = [i for i in order[:place] if spans[i][0] == spans[mine][0] and spans[i][2] >= spans[mine][2]]
        parents[mine] = around[-1] if around else OUTSIDE
    return parents


@given(threads_of_ranges())
def test_parents_are_those_found_by_comparing_every_pair(spans: list[tuple[int, int, int]]) -> None:
    assert nest_spans(spans).parent.tolist() == slow_parents(spans)


@given(threads_of_ranges())
def test_depth_is_the_number_of_ranges_around(spans: list[tuple[int, int, int]]) -> None:
    parents = slow_parents(spans)

    def depth(place: int) -> int:
        return 0 if parents[place] == OUTSIDE else 1 + depth(parents[place])

    assert nest_spans(spans).depth.tolist() == [depth(place) for place in range(len(spans))]


@given(threads_of_ranges())
def test_time_of_their_own_sums_to_the_time_covered(spans: list[tuple[int, int, int]]) -> None:
    own_ns = nest_spans(spans).self_ns()
    assert own_ns.min(initial=0) >= 0
    assert own_ns.sum() == len({(thread, ns) for thread, start, end in spans for ns in range(start, end)})


@given(threads_of_ranges(), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 30)), max_size=5))
def test_the_innermost_open_range_is_the_one_that_began_last(
    spans: list[tuple[int, int, int]], moments: list[tuple[int, int]]
) -> None:
    asked = np.array(moments, dtype=np.int64).reshape(-1, 2)
    found = nest_spans(spans).find_innermost(asked[:, 0].astype(np.int32), asked[:, 1]).tolist()
    for place, (thread, moment) in zip(found, moments, strict=True):
        is_open = [span for span in spans if span[0] == thread and span[1] <= moment < span[2]]
        if not is_open:
            assert place == OUTSIDE
        else:
            assert spans[place] == max(is_open, key=lambda span: (span[1], -span[2]))


@given(threads_of_ranges(), st.data())
def test_a_range_sums_up_what_it_and_all_inside_it_have(spans: list[tuple[int, int, int]], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 9), min_size=len(spans), max_size=len(spans)))
    expected = list(values)
    parents = slow_parents(spans)
    for place, value in enumerate(values):
        above = parents[place]
        while above != OUTSIDE:
            expected[above] += value
            above = parents[above]
    assert nest_spans(spans).sum_up(np.array(values, dtype=np.int64)).tolist() == expected
