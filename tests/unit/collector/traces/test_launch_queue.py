"""Launch delays and queues over time, on traces in which each launch and start is known."""

from pathlib import Path
from random import Random
from statistics import median_low

import pytest

from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.launch_queue import sum_queues
from rankscope.collector.traces.report import QueueRow
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events, to_json


def step(number: int, start_us: int, length_us: int) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, length_us)


def queues_of(*events: Event, steps: tuple[int | None, int | None] | None = None) -> list[QueueRow]:
    return sum_queues(RankView(read_events(*events), steps))


def work(*called_start_length_us: tuple[int, int, int], device: int = 0, first: int = 1) -> list[Event]:
    found = []
    for number, (called_us, start_us, length_us) in enumerate(called_start_length_us, first):
        found += [launch(called_us, number), kernel("a", start_us, length_us, device=device, correlation=number)]
    return found


# Steps of 100 us. Step 1 launches at 10, 20 and 30 us what starts at 40, 60 and 110; step 2 at 150 what starts at 160.
KNOWN = (step(1, 0, 100), step(2, 100, 100), *work((10, 40, 20), (20, 60, 20), (30, 110, 30), (150, 160, 10)))


def test_delay_is_from_call_to_start_by_step_of_the_launch() -> None:
    # Step 1: 30, 40 and 80 us; step 2: 10 us.
    whole, first, second = queues_of(*KNOWN)
    assert [(row.step, row.launch_count) for row in (whole, first, second)] == [(None, 4), (1, 3), (2, 1)]
    assert [row.delay_median_ns for row in (whole, first, second)] == [30_000, 40_000, 10_000]
    assert [row.delay_p99_ns for row in (whole, first, second)] == [80_000, 80_000, 10_000]


def test_queue_is_what_was_launched_and_has_not_started() -> None:
    # Step 1: 0 until 10 us, 1, 2 and 3 for 10 us each, 2 from 40, 1 from 60 to 100: 10, 50, 30 and 10 us at 0 to 3.
    _, first, second = queues_of(*KNOWN)
    assert (first.queue_median, first.queue_p99, first.queue_max) == (1, 3, 3)
    # Step 2: 1 from 100 to 110 us and from 150 to 160, else 0.
    assert (second.queue_median, second.queue_p99, second.queue_max) == (0, 1, 1)


def test_queue_is_empty_before_the_first_launch_and_between() -> None:
    whole, first, second = queues_of(*KNOWN)
    assert [row.empty_ns for row in (whole, first, second)] == [90_000, 10_000, 80_000]


def test_device_is_starved_when_all_that_was_launched_has_ended() -> None:
    # Step 2: the third ends at 140 us, the fourth is launched at 150 and ends at 170.
    whole, first, second = queues_of(*KNOWN)
    assert [row.starved_ns for row in (whole, first, second)] == [50_000, 10_000, 40_000]


def test_stream_queue_is_full_from_the_last_launch_it_can_hold() -> None:
    # A launch each us from 0 on: the 1,024th waits from 1,023 us on. A start each us from 2,000 on: when the 77th of
    # 1,100 starts, at 2,076 us, 1,023 wait.
    calls = [(one, 2_000 + one, 1) for one in range(1_100)]
    (whole, *_) = queues_of(*work(*calls))
    assert whole.full_ns == (2_076 - 1_023) * 1_000
    (other, *_) = queues_of(*work(*calls[:1_023]))
    assert other.full_ns == 0


def test_steps_have_their_place_in_the_trace() -> None:
    # The first event is step 1, at 0 us.
    rows = queues_of(*KNOWN)
    assert [(row.start_ns, row.window_ns) for row in rows] == [(0, 200_000), (0, 100_000), (100_000, 100_000)]


def test_chosen_steps_alone_are_shown() -> None:
    # What step 1 left in the queue is there at the start of step 2.
    whole, second = queues_of(*KNOWN, steps=(2, None))
    assert (whole.step, whole.queue_max, second.step, second.empty_ns) == (None, 1, 2, 80_000)


def test_trace_without_steps_is_cut_into_tenths() -> None:
    # From the first call, at 0 us, to the end of the last work, at 100.
    whole, *parts = queues_of(*work((0, 10, 5), (95, 96, 4)))
    assert [row.part for row in parts] == list(range(1, 11))
    assert {row.window_ns for row in parts} == {10_000}
    assert (whole.part, whole.launch_count, whole.empty_ns, parts[0].queue_median) == (None, 2, 89_000, 1)


def test_part_without_launches_has_no_delay() -> None:
    parts = queues_of(*work((0, 10, 5), (95, 96, 4)))
    assert (parts[5].launch_count, parts[5].delay_median_ns, parts[5].delay_p99_ns) == (0, None, None)


def test_work_of_unknown_launch_waits_in_no_queue_but_is_work() -> None:
    # In a step of 100 us the device works from 50 to 80 on what was launched before the record.
    _, only = queues_of(step(1, 0, 100), kernel("a", 50, 30), *work((90, 92, 8)))
    assert (only.launch_count, only.empty_ns, only.starved_ns) == (1, 98_000, 60_000)


def test_start_before_its_launch_has_no_delay() -> None:
    _, only = queues_of(step(1, 0, 100), *work((20, 18, 10)))
    assert (only.delay_median_ns, only.queue_max, only.starved_ns) == (0, 0, 90_000)


def test_graph_launches_all_its_work_at_once() -> None:
    kernels = [kernel("a", start, 5, correlation=1) for start in (20, 30, 40)]
    _, only = queues_of(step(1, 0, 100), launch(10, 1, "cudaGraphLaunch"), *kernels)
    assert (only.launch_count, only.queue_max, only.delay_p99_ns) == (3, 3, 30_000)


def test_each_device_has_its_own_queue() -> None:
    rows = queues_of(step(1, 0, 100), *work((10, 20, 5)), *work((10, 50, 5), device=1, first=2))
    assert [(row.device, row.step, row.delay_median_ns) for row in rows] == [
        (0, None, 10_000),
        (0, 1, 10_000),
        (1, None, 40_000),
        (1, 1, 40_000),
    ]


def test_unknown_device_has_no_number() -> None:
    rows = queues_of(launch(0, 1), kernel("a", 5, 5, device="y", correlation=1))
    assert {row.device for row in rows} == {None}


def test_step_without_length_has_no_queue() -> None:
    whole, only = queues_of(step(1, 50, 0), *work((10, 60, 5)))
    assert (whole.window_ns, only.queue_median, only.queue_max, only.empty_ns) == (0, None, None, 0)


@pytest.mark.parametrize("events", [(event("cpu_op", "aten::mm", 0, 5),), (kernel("a", 0, 5),)])
def test_nothing_is_said_without_launches(events: tuple[Event, ...]) -> None:
    assert queues_of(*events) == []


@pytest.mark.parametrize("seed", range(5))
def test_queue_of_drawn_work_is_as_counted_at_each_us(seed: int) -> None:
    chance, calls, free_us = Random(seed), [], 0
    for called_us in sorted(chance.sample(range(1, 900), 60)):
        start_us = max(called_us + chance.randrange(1, 8), free_us)
        free_us = start_us + chance.randrange(1, 30)
        calls.append((called_us, start_us, free_us - start_us))
    at_us = range(1_000)
    counts = [sum(called <= us < start for called, start, _ in calls) for us in at_us]
    _, found = queues_of(step(1, 0, 1_000), *work(*calls))
    assert (found.queue_median, found.queue_max) == (median_low(counts), max(counts))
    assert (found.queue_p99, found.empty_ns) == (sorted(counts)[989], 1_000 * counts.count(0))
    at_work = [any(called <= us < start + length for called, start, length in calls) for us in at_us]
    assert found.starved_ns == 1_000 * at_work.count(False)


def test_table_names_steps_and_tenths(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(to_json(*KNOWN))
    (tmp_path / "rank1.json").write_bytes(to_json(*work((0, 10, 5), (95, 96, 4))))
    sections = build_sections(analyze(str(tmp_path)), 20)
    (found,) = (one for one in sections if one.key == "launch_queue")
    shown = [[cell.text for cell in row] for row in found.rows]
    assert shown[1] == ["0", "0", "step 1", "0.100", "3", "40.0", "80.0", "1", "3", "3", "10.0", "10.0"]
    assert [row[:3] for row in shown[3:5]] == [["1", "0", "all"], ["1", "0", "tenth 1"]]
