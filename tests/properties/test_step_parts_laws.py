"""Laws of the parts of steps: they sum to the breakdown of the same steps, and differences are antisymmetric."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.traces.rank_analysis import RankAnalysis, reduce_trace
from rankscope.collector.traces.step_comparison import compare_steps
from rankscope.collector.traces.step_parts import DividedSteps, find_last_started
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events

STEP_US = 100
KINDS = ("gemm", "relu", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD")

spans = st.tuples(st.integers(0, 60), st.integers(0, 40))


@st.composite
def device_traces(draw: st.DrawFn) -> list[Event]:
    """Work at any times, on several streams at once, launched in any step, some by calls that are not in the trace."""
    steps = draw(st.integers(1, 4))
    events = [event("user_annotation", f"ProfilerStep#{n}", n * STEP_US, STEP_US) for n in range(steps)]
    for number in range(draw(st.integers(1, 12))):
        (start_ns, length_ns), step = draw(spans), draw(st.integers(0, steps - 1))
        name, host_us = draw(st.sampled_from(KINDS)), step * STEP_US + draw(st.integers(0, 80))
        if draw(st.booleans()):
            events.append(event("cpu_op", draw(st.sampled_from(["aten::mm", "aten::item"])), host_us, 3))
        if draw(st.integers(0, 9)):
            events.append(launch(host_us, number + 1))
        work: dict[str, Any] = {"correlation": number + 1, "stream": draw(st.integers(7, 9))}
        found = kernel(name, step * STEP_US + start_ns * 1.001, length_ns * 1.007, **work)
        events.append(found if name != "Memcpy HtoD" else {**found, "cat": "gpu_memcpy"})
    return events


@st.composite
def cpu_traces(draw: st.DrawFn) -> list[Event]:
    """Operators on two threads, nested in any way, and ranges of gloo on a third."""
    events = [event("user_annotation", f"ProfilerStep#{n}", n * STEP_US, STEP_US) for n in range(3)]
    for _ in range(draw(st.integers(1, 12))):
        start_us, length_us = draw(spans)
        tid, name = draw(st.sampled_from([(1, "aten::mm"), (1, "aten::relu"), (2, "aten::mm"), (3, "gloo:all_reduce")]))
        category = "user_annotation" if tid == 3 else "cpu_op"
        events.append(event(category, name, draw(st.integers(0, 200)) + start_us, length_us, tid=tid))
    return events


traces = st.one_of(device_traces(), cpu_traces())


def reduce(events: list[Event]) -> RankAnalysis:
    return reduce_trace(read_events(*events), "rank0.json", divides_steps=True)


def sums_by_kind(divided: DividedSteps, table: str) -> tuple[int, ...]:
    found: Counter[str] = Counter()
    for label, amount in divided.tables[table].items():
        found[label.kind] += amount.total_ns
    return tuple(found[kind] for kind in ("compute", "communication", "copy", "idle"))


@given(traces)
def test_parts_sum_to_the_breakdown_of_the_steps_in_each_table(events: list[Event]) -> None:
    found = reduce(events)
    if found.parts is None:
        return
    clocks: list[tuple[DividedSteps, list[Any]]] = [(found.parts.by_host, found.report.steps)]
    if found.parts.by_device is not None:
        clocks.append((found.parts.by_device, [step.on_device for step in found.report.steps]))
    for divided, steps in clocks:
        expected = tuple(
            sum(getattr(step, name) for step in steps)
            for name in ("compute_ns", "exposed_communication_ns", "copy_ns", "idle_ns")
        )
        assert divided.total_ns == sum(step.window_ns for step in steps) == sum(expected)
        for table in divided.tables:
            assert sums_by_kind(divided, table) == expected, table


@given(traces, traces)
def test_part_differences_are_antisymmetric_and_sum_to_the_step(ours: list[Event], theirs: list[Event]) -> None:
    here, there = [reduce(ours)], [reduce(theirs)]
    forth, back = compare_steps(here, there), compare_steps(there, here)
    assert (forth.refused is None) == (back.refused is None)
    for one, other in zip(forth.tables, back.tables, strict=True):
        assert sum(row.difference_ns for row in one.rows) + one.remainder_ns == forth.difference_ns
        assert abs(one.remainder_ns) <= len(one.rows)
        assert one.remainder_ns == -other.remainder_ns
        mirrored = {(row.kind, row.name): -row.difference_ns for row in other.rows}
        assert {(row.kind, row.name): row.difference_ns for row in one.rows} == mirrored


@given(traces)
def test_nothing_differs_from_itself(events: list[Event]) -> None:
    found = compare_steps([reduce(events)], [reduce(events)])
    assert found.difference_ns in {0, None}
    assert all(row.difference_ns == 0 and row.share_ratio is None for table in found.tables for row in table.rows)


@given(st.lists(spans, max_size=12))
def test_every_moment_belongs_to_the_interval_that_started_last(raw: list[tuple[int, int]]) -> None:
    intervals = np.array([(start, start + length) for start, length in raw], dtype=np.int64).reshape(-1, 2)
    segments, owner = find_last_started(intervals)
    for moment in range(100):
        opened = [(start, -end) for start, end in intervals.tolist() if start <= moment < end]
        painted = [
            tuple(intervals[place])
            for (start, end), place in zip(segments, owner, strict=True)
            if start <= moment < end
        ]
        assert [(start, -end) for start, end in painted] == ([max(opened)] if opened else [])
