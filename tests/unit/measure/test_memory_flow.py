"""What a chart of memory flow shows, and that it stays small."""

import random
from collections.abc import Sequence

import numpy as np

from rankscope.collector.reports.memory_flow import render_flow
from rankscope.measure.memory_flow import (
    BINS_MAX,
    RECTANGLES_MAX,
    FlowLabels,
    MemoryFlow,
    build_flow,
    compress_addresses,
    find_most_by_bin,
)
from rankscope.measure.memory_timeline import MemoryCategory, hold_by_events, pair_events

A, B = 1 << 40, 1 << 46


def draw(*events: tuple[int, int, int], older: int = 0, rectangles_max: int = RECTANGLES_MAX) -> MemoryFlow:
    """Draw events of (time, address, bytes)."""
    time_ns, address, size = np.array(events, dtype=np.int64).T
    paired = pair_events(address, size)
    none = np.zeros(len(paired.lifetimes.bytes), dtype=np.int64)
    labels = FlowLabels(none + MemoryCategory.UNKNOWN, ["aten::<mm>"], none)
    held = hold_by_events(paired, older)
    return build_flow(paired, held, time_ns, labels, device=0, rectangles_max=rectangles_max)


def boxes(flow: MemoryFlow) -> Sequence[tuple[int, int, int, int, bool]]:
    return [(one.start_ns, one.end_ns, one.offset_bytes, one.bytes, one.is_open) for one in flow.rectangles]


def test_rectangle_is_the_lifetime_by_the_range_of_addresses() -> None:
    flow = draw((100, A, 10), (110, B, 20), (150, A, -10), (180, B, -20), (200, A + 4, 6))
    assert boxes(flow) == [(0, 50, 0, 10, False), (10, 80, 10, 20, False), (100, 100, 4, 6, True)]
    assert (flow.span_ns, flow.height_bytes, flow.peak_ns, flow.peak_bytes) == (100, 30, 10, 30)
    assert (flow.merged_count, set(flow.merged_bytes)) == (0, {0})


def test_smaller_lifetimes_are_merged_and_counted() -> None:
    flow = draw((0, A, 10), (1, B, 30), (2, A + 100, 5), (3, A, -10), (4, B, -30), rectangles_max=1)
    assert boxes(flow) == [(1, 4, 0, 30, False)]
    # 10 bytes from 0 on, 15 from 2 on, 5 from 3 on; the rectangle is not in them.
    assert (flow.merged_count, flow.merged_bytes) == (2, [10, 10, 15, 15])


def test_of_equal_lifetimes_the_first_are_drawn() -> None:
    assert [one[0] for one in boxes(draw((0, A, 5), (1, B, 5), (2, A + 64, 5), rectangles_max=2))] == [0, 1]


def test_older_memory_is_part_of_what_is_merged() -> None:
    flow = draw((0, A, 10), (8, B, -40), older=7)
    assert (flow.older_bytes, flow.merged_bytes[0], flow.merged_bytes[-1]) == (47, 47, 47)
    assert "allocated before the first event" in render_flow([("device 0", flow)])


def test_one_event_is_a_chart_too() -> None:
    flow = draw((5, A, 10))
    assert (boxes(flow), flow.span_ns, flow.merged_bytes) == ([(0, 0, 0, 10, True)], 0, [0])
    assert "<svg" in render_flow([("device 0", flow)])


def test_chart_without_a_lifetime_is_empty() -> None:
    flow = draw((5, A, -10))
    assert (flow.rectangles, flow.height_bytes) == ([], 0)
    assert compress_addresses(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))[1] == 0


def test_names_are_escaped_in_the_chart() -> None:
    text = render_flow([("device 0", draw((0, A, 10 << 20), (1, A, -(10 << 20))))])
    assert "10.00 MiB, unknown, from 0 ns, freed after 1 ns: aten::&lt;mm&gt;" in text


def test_bins_hold_the_most_of_their_time() -> None:
    assert find_most_by_bin(np.array([0, 10]), np.array([3, 4]), bins=2) == [3, 4]
    assert len(find_most_by_bin(np.array([0, 10**9]), np.array([3, 4]))) == BINS_MAX


def test_chart_of_100000_lifetimes_is_bounded() -> None:
    chance = random.Random(7)
    events, live, held, peak = [], [], 0, 0
    for number in range(100_000):
        events.append((2 * number, number << 24, chance.randrange(1, 1 << 20)))
        live.append(events[-1])
        held += events[-1][2]
        peak = max(peak, held)
        if len(live) > 50:
            _, address, size = live.pop(chance.randrange(50))
            events.append((2 * number + 1, address, -size))
            held -= size
    flow = draw(*events)
    assert (len(flow.rectangles), flow.merged_count) == (RECTANGLES_MAX, 100_000 - RECTANGLES_MAX)
    smallest = min(one.bytes for one in flow.rectangles)
    assert sum(size > smallest for _, _, size in events) <= RECTANGLES_MAX
    assert (flow.peak_bytes, len(flow.merged_bytes)) == (peak, BINS_MAX)
    assert len(render_flow([("device 0", flow)])) < 2_000_000
