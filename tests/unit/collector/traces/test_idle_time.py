"""Idle time by kind and stream, on traces whose gaps are known."""

from pathlib import Path
from random import Random

import pytest

from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import IdleRow
from rankscope.collector.traces.windows import sum_idle
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events, to_json

TRACES = Path(__file__).parents[3] / "traces"
WITH_ONE_DEVICE = ["a100_nccl_2ranks_r0", "h100_bert_small", "mi300x_resnet18", "v100_dlrm_8ranks_r0"]


def idle_of(*events: Event) -> list[IdleRow]:
    return sum_idle(RankView(read_events(*events))).lanes


def kinds(row: IdleRow) -> tuple[int, int, int]:
    return row.host_wait_ns, row.kernel_wait_ns, row.other_ns


def test_gap_before_work_launched_in_it_waits_for_the_host() -> None:
    # Idle from 10 to 30 us; launched at 25.
    device, stream = idle_of(
        launch(0, 1), kernel("a", 5, 5, correlation=1), launch(25, 2), kernel("b", 30, 5, correlation=2)
    )
    assert (kinds(stream), stream.gap_count, stream.longest_ns) == ((20_000, 0, 0), 1, 20_000)
    assert (device.is_device, stream.is_device, stream.stream) == (True, False, 7)


def test_gap_before_work_launched_earlier_waits_on_the_device() -> None:
    # Both launched before 5 us; idle from 10 to 13.
    _, stream = idle_of(launch(0, 1), launch(2, 2), kernel("a", 5, 5, correlation=1), kernel("b", 13, 5, correlation=2))
    assert kinds(stream) == (0, 3_000, 0)


def test_launch_just_as_the_stream_idles_counts_to_the_host() -> None:
    _, stream = idle_of(
        launch(0, 1), kernel("a", 5, 5, correlation=1), launch(10, 2), kernel("b", 13, 5, correlation=2)
    )
    assert kinds(stream) == (3_000, 0, 0)


def test_gap_before_work_of_unknown_launch_is_other() -> None:
    _, stream = idle_of(launch(0, 1), kernel("a", 5, 5, correlation=1), kernel("b", 14, 5))
    assert kinds(stream) == (0, 0, 4_000)


def test_waiting_stream_leaves_the_device_at_work() -> None:
    # Stream 8 idles from 2 to 6 us, while stream 7 works from 0 to 10; all is launched before.
    launches = [launch(-9, 1), launch(-8, 2), launch(-7, 3)]
    other = [kernel("b", 1, 1, stream=8, correlation=2), kernel("c", 6, 1, stream=8, correlation=3)]
    device, main, side = idle_of(*launches, kernel("a", 0, 10, correlation=1), *other)
    assert (device.idle_ns, main.idle_ns) == (0, 0)
    assert (side.window_ns, side.idle_ns, kinds(side)) == (6_000, 4_000, (0, 4_000, 0))


def test_work_under_longer_work_ends_no_gap() -> None:
    # On one device: 0 to 10 us, inside it 2 to 3; then nothing until 12.
    device, *_ = idle_of(kernel("a", 0, 10), kernel("b", 2, 1, stream=8), kernel("c", 12, 1))
    assert (device.gap_count, device.idle_ns, device.window_ns) == (1, 2_000, 13_000)


def test_one_piece_of_work_has_no_gap() -> None:
    device, stream = idle_of(kernel("a", 0, 10))
    assert (device.gap_count, device.longest_ns, stream.idle_ns) == (0, 0, 0)


def test_each_device_has_its_own_gaps() -> None:
    rows = idle_of(kernel("a", 0, 1), kernel("a", 5, 1), kernel("b", 0, 1, device=1), kernel("b", 3, 1, device=1))
    assert [(row.device, row.is_device, row.idle_ns) for row in rows] == [
        (0, True, 4_000),
        (0, False, 4_000),
        (1, True, 2_000),
        (1, False, 2_000),
    ]


def test_unknown_stream_and_device_have_no_number() -> None:
    device, stream = idle_of(kernel("a", 0, 1, stream="x", device="y"))
    assert (device.device, stream.stream, stream.is_device) == (None, None, False)


def test_cpu_has_no_idle_time_of_a_device() -> None:
    assert idle_of(event("cpu_op", "aten::mm", 0, 5)) == []


@pytest.mark.parametrize("seed", range(5))
def test_gaps_of_drawn_kinds_are_summed_as_drawn(seed: int) -> None:
    chance, time_us, events, truth = Random(seed), 100, [], [0, 0, 0]
    for number in range(200):
        gap_us, kind = chance.randrange(1, 50), chance.randrange(3)
        # Called within the gap, or up to 80 us before it, or not in the trace.
        call_us = time_us + chance.randrange(gap_us) if kind == 0 else time_us - 1 - chance.randrange(80)
        events += [launch(call_us, number)] if kind < 2 else []
        events.append(kernel("a", time_us + gap_us, 3, correlation=number))
        truth[kind] += gap_us if number else 0  # nothing was in front of the first
        time_us += gap_us + 3
    _, stream = idle_of(*events)
    assert kinds(stream) == tuple(1_000 * us for us in truth)


@pytest.mark.parametrize("name", WITH_ONE_DEVICE)
def test_idle_time_of_a_device_is_that_of_its_breakdown(name: str) -> None:
    (rank,) = analyze(str(TRACES / f"{name}.json.gz")).ranks
    (device,) = (row for row in rank.idle_time if row.is_device)
    assert device.idle_ns == rank.devices[0].idle_ns == sum(kinds(device))


def test_table_shows_the_device_before_its_streams(tmp_path: Path) -> None:
    # Idle 4 of 6 us, launched before.
    events = [launch(-9, 1), launch(-8, 2), kernel("a", 0, 1, correlation=1), kernel("a", 5, 1, correlation=2)]
    (tmp_path / "rank3.json").write_bytes(to_json(*events))
    sections = build_sections(analyze(str(tmp_path)), 20)
    (found,) = (one for one in sections if one.key == "idle_time")
    line = ["0.006", "0.004", "66.7", "1", "0.004", "0.000", "0.0", "0.004", "100.0", "0.000", "0.0"]
    assert [[cell.text for cell in row] for row in found.rows] == [["3", "0", "all", *line], ["3", "0", "7", *line]]


def test_gaps_of_a_kind_have_their_quantiles() -> None:
    # Gaps of 2, 4, 6 and 12 us before work that was launched in them, one of 3 us before work launched earlier.
    events, at_us = [launch(0, 9), kernel("a", 1, 1, correlation=9), launch(0, 8)], 2
    for correlation, gap_us in enumerate((2, 4, 6, 12)):
        events += [launch(at_us + 1, correlation), kernel("k", at_us + gap_us, 1, correlation=correlation)]
        at_us += gap_us + 1
    found = sum_idle(RankView(read_events(*events, kernel("b", at_us + 3, 1, correlation=8)))).gaps
    stream = {row.kind: row for row in found if not row.is_device}
    host, device = stream["host_wait"], stream["kernel_wait"]
    assert (host.count, host.total_ns, host.mean_ns, host.min_ns, host.max_ns) == (4, 24_000, 6_000, 2_000, 12_000)
    # Between 2 and 4 at three quarters, between 4 and 6 in the middle, between 6 and 12 at a quarter.
    assert (host.p25_ns, host.median_ns, host.p75_ns) == (3_500, 5_000, 7_500)
    assert host.deviation_ns == pytest.approx(4_320.494)
    assert (device.count, device.median_ns, device.deviation_ns) == (1, 3_000, None)
    assert "other" not in stream


@pytest.mark.parametrize("name", WITH_ONE_DEVICE)
def test_gaps_sum_to_the_idle_time_of_their_lane(name: str) -> None:
    (rank,) = analyze(TRACES / f"{name}.json.gz").ranks
    for row in rank.idle_time:
        of_lane = [one for one in rank.idle_gaps if (one.stream, one.is_device) == (row.stream, row.is_device)]
        total_ns = {one.kind: one.total_ns for one in of_lane}
        assert [total_ns.get(kind, 0) for kind in ("host_wait", "kernel_wait", "other")] == list(kinds(row))
        assert sum(one.count for one in of_lane) == row.gap_count
