"""WindowResults: what becomes of finished windows, and what they teach the plan about their cost."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from rankscope.agent.capture_settings import CaptureSteps
from rankscope.agent.captures.captured_steps import CapturedTrace
from rankscope.agent.captures.timed_entries import RecorderReading, TimedEntry
from rankscope.agent.config import read_config
from rankscope.agent.governor import COLLECTIVE_TIMES
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.device_gate import DeviceGate
from rankscope.agent.profiler.nccl_timing import TIMING_VARIABLE
from rankscope.agent.profiler.operator_gate import OperatorGate
from rankscope.agent.profiler.window_results import RECORDED_EVENT_NS, WindowResults
from rankscope.agent.profiler.window_scheduler import PART, RawWindow, WindowScheduler
from rankscope.agent.profiler.windows import RAW_WINDOWS_MAX, ProfilerWindows
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_S
from tests.unit.agent.profiler.test_window_reduction import EVENTS_MAX, WORLD, gloo, operator, window
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of
from tests.unit.agent.sidecar.watched_node import Clock as FixedClock

TRAINING_COST_NS = 5_000_000


class NoRecorder:
    """The source of timed collectives of a rank without any."""

    server_ns = 0
    skipped: dict[str, int] = {}  # noqa: RUF012

    def request(self, since_wall_ns: int) -> bool:
        raise AssertionError(since_wall_ns)

    def collect(self) -> None:
        raise AssertionError


class Rank:
    """The windows of one rank without a profiler, whose finished ones the test makes."""

    def __init__(
        self,
        groups: Callable[[], dict[str, GroupInfo]] = lambda: {"0": WORLD},
        source: Any = None,
        clock: Any = None,
        timing: str = "1",
        **settings: str,
    ) -> None:
        config = read_config({"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0", **settings})
        self.guard = Guard(error_budget=20)
        self.windows = ProfilerWindows(
            config,
            identity_of(0, pid=1),
            {} if source is None else {TIMING_VARIABLE: timing},
            self.guard,
            GraphCaptures(lambda: False),
            find_resident_bytes=lambda: None,
        )
        self.windows.progress.find_groups = groups  # type: ignore[method-assign]
        self.windows.progress.read_entries = lambda: ([], {})  # type: ignore[method-assign]
        self.full_costs_ns: list[int] = []
        self.light_costs: list[tuple[int, int, float | None]] = []
        self.too_large: list[bool] = []
        plan: Any = self.windows.plan
        plan.learn_full = self.full_costs_ns.append
        plan.learn_light = lambda *cost: self.light_costs.append(cost)
        plan.learn_too_large = lambda _steps, *, full: self.too_large.append(full)
        self.results = WindowResults(
            self.windows, self.guard, clock or SystemClock(), lambda: source or NoRecorder(), events_max=EVENTS_MAX
        )

    def finish(self, *windows: RawWindow) -> None:
        """End these windows on the training thread."""
        for one in windows:
            self.windows.finished.append(one._replace(training_cost_ns=TRAINING_COST_NS))

    def collect(self, *steps: StepRecord) -> Sequence[Any]:
        """Collect results on the agent thread."""
        return self.results.collect(steps, last=False)


def full() -> RawWindow:
    return window([operator("aten::mm", 0, 60)], {}, full=True)


def light(count: int = 2) -> RawWindow:
    """A light window of two steps with so many collectives."""
    activities = [gloo("all_reduce", 5_100 + 10 * place, 5) for place in range(count)]
    return window(activities, {0: (1, count)})


def assert_costs(cost_ns: int, reduced_ns: int, *, events: int) -> None:
    """Assert that the plan has learned all that the window has cost; its heap's relief is in `reduced_ns` only."""
    fixed_ns = TRAINING_COST_NS + events * RECORDED_EVENT_NS
    assert fixed_ns < cost_ns <= fixed_ns + reduced_ns


def test_without_windows_there_are_no_results() -> None:
    rank = Rank()
    assert rank.collect() == []
    assert (rank.results.skipped, rank.results.child_cpu_ns) == ({}, 0)


def test_light_window_gives_its_collectives_and_teaches_its_cost() -> None:
    rank = Rank()
    rank.finish(light())
    (found,) = rank.collect()
    assert [(one.step, one.sequence) for one in found.collectives] == [(5, 1), (5, 2)]
    ((cost_ns, steps, events_a_step),) = rank.light_costs
    assert (steps, events_a_step) == (2, 1.0)
    assert_costs(cost_ns, rank.results.light_reduced_ns, events=2)
    assert rank.results.light_recording_ns == 2 * RECORDED_EVENT_NS
    assert (rank.results.full_reduced_ns, rank.results.full_recording_ns) == (0, 0)


def test_a_full_window_costs_what_its_operators_take_to_record() -> None:
    rank = Rank()
    operators = [operator("aten::mm", 5_000 + 10 * place, 5) for place in range(100)]
    rank.finish(window(operators, {}, full=True))
    found = [*rank.collect(), *rank.results.collect([], last=True)]
    (cost_ns,) = rank.full_costs_ns
    assert_costs(cost_ns, rank.results.full_reduced_ns, events=100)
    assert rank.results.full_recording_ns == 100 * RECORDED_EVENT_NS
    assert rank.results.full_ns_an_event == TRAINING_COST_NS / 100
    assert rank.results.light_recording_ns == 0
    assert [one.first_step for result in found for one in result.breakdowns] == [5, 6]


def test_a_window_that_is_too_large_shortens_the_next() -> None:
    rank = Rank()
    rank.finish(light(EVENTS_MAX + 1))
    assert rank.collect()[0].collectives == []
    assert rank.too_large == [False]
    assert rank.results.skipped == {"events_max": 1}
    assert rank.results.light_recording_ns == (EVENTS_MAX + 1) * RECORDED_EVENT_NS


def test_an_unreadable_window_is_counted_and_costs_only_itself() -> None:
    failures = [RuntimeError("torch has changed")]

    def find_groups() -> dict[str, GroupInfo]:
        if failures:
            raise failures.pop()
        return {"0": WORLD}

    rank = Rank(find_groups)
    rank.finish(light(), light())
    assert [len(one.collectives) for one in rank.collect()] == [0, 2]
    assert rank.guard.errors == {PART: 1}


def test_windows_beyond_those_that_may_wait_are_refused() -> None:
    rank = Rank()
    kept = [rank.windows.keep(light()) for _ in range(RAW_WINDOWS_MAX + 1)]
    assert kept == [True] * RAW_WINDOWS_MAX + [False]
    assert len(rank.collect()) == RAW_WINDOWS_MAX


def test_windows_wait_while_a_user_profiler_records_all_threads() -> None:
    rank = Rank()
    no_profiler: Any = None
    rank.windows.scheduler = scheduler = WindowScheduler(
        no_profiler,
        rank.windows.plan,
        rank.guard,
        rank.windows,
        devices=DeviceGate(no_profiler, rank.windows.plan, None, rank.windows),
        operators=OperatorGate(no_profiler, rank.windows.plan, None, rank.windows, device_effect=None, own_effect=None),
        light=False,
        full=False,
    )
    rank.finish(light())
    scheduler.on_user_profiler(begins=True)
    assert rank.collect() == rank.collect() == []
    assert rank.light_costs == []
    scheduler.on_user_profiler(begins=False)
    assert [len(one.collectives) for one in rank.collect()] == [2]

    rank.finish(light())
    scheduler.on_user_profiler(begins=True)
    assert [len(one.collectives) for one in rank.results.collect([], last=True)] == [2]


@pytest.mark.parametrize("full", [False, True])
def test_windows_without_a_profiler_never_begin(full: bool) -> None:
    rank = Rank()
    assert rank.windows.scheduler is None
    rank.windows.on_user_profiler(begins=full)
    rank.windows.on_boundary(1_000)
    rank.windows.close()
    assert (rank.windows.spent_ns, dict(rank.windows.skipped)) == (0, {})


class Failing(NoRecorder):
    """A source that is asked, and fails."""

    def request(self, since_wall_ns: int) -> bool:
        raise RuntimeError(since_wall_ns)


STEP = StepRecord(step=5, start_host_ns=5_000, duration_ns=1_000, phases_ns={})
ON_DEVICE = {"0": GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1), backend="nccl")}


def test_unreadable_timed_collectives_cost_no_windows(capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank(lambda: ON_DEVICE, Failing())
    rank.finish(light())
    assert len(rank.collect(STEP)) == 1
    assert rank.guard.errors == {COLLECTIVE_TIMES: 1}, "not of the windows"
    rank.collect(STEP)
    said = [line for line in capsys.readouterr().err.splitlines() if "collectives are timed" in line]
    assert len(said) == 1, "once"


def test_timed_collectives_are_not_read_if_switched_off() -> None:
    rank = Rank(lambda: ON_DEVICE, Failing(), RANKSCOPE_NCCL_TIMING="off")
    assert (rank.collect(STEP), rank.guard.errors) == ([], {})


def test_readings_without_a_result_are_told_with_the_windows() -> None:
    source = Failing()
    source.skipped = {"timed_lost": 3}
    rank = Rank(lambda: ON_DEVICE, source)
    rank.collect(STEP)
    assert rank.results.skipped == {"timed_lost": 3}


def test_error_in_finding_timed_collectives_costs_no_report() -> None:
    def find_groups() -> dict[str, GroupInfo]:
        raise RuntimeError("torch has changed")

    rank = Rank(find_groups, Failing())
    assert [rank.collect(STEP) for _ in range(21)] == [[]] * 21
    assert rank.guard.errors == {COLLECTIVE_TIMES: 20}, "the budget: then the part is off, and no window"


class Counting(NoRecorder):
    """A recorder without a collective."""

    requests = 0

    def request(self, since_wall_ns: int) -> bool:
        self.requests += 1
        return since_wall_ns > 0

    def collect(self) -> None:
        return None


class Answering(NoRecorder):
    """A recorder with one collective in each of the steps 4 to 6, which is read at once."""

    def __init__(self, offset_ns: int) -> None:
        self._created_ns = [offset_ns + 1_000 * step + 500 for step in (4, 5, 6)]

    def request(self, since_wall_ns: int) -> bool:
        return since_wall_ns > 0

    def collect(self) -> RecorderReading:  # type: ignore[override]
        entries = [TimedEntry("0", 1, "all_reduce", at, 7, is_over=True, bytes=4) for at in self._created_ns]
        return RecorderReading(taken_wall_ns=self._created_ns[-1] + 1_000, entries=entries)


def test_steps_of_a_finished_window_are_not_told_by_the_recorder() -> None:
    clock = FixedClock()
    rank = Rank(lambda: ON_DEVICE, Answering(clock.wall_ns() - clock.monotonic_ns()), clock=clock)
    rank.finish(light())  # of steps 5 and 6
    steps = [StepRecord(step=step, start_host_ns=1_000 * step, duration_ns=1_000, phases_ns={}) for step in (4, 5, 6)]
    _, timed = rank.collect(*steps)
    assert (timed.timed_steps, [record.step for record in timed.collectives]) == ((4, 4), [4])


def test_untimed_collectives_are_read_a_minute_after_a_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", object, raising=False)
    clock, source = FixedClock(), Counting()
    rank = Rank(lambda: ON_DEVICE, source, clock=clock, timing="0")

    def count_requests(at_ns: int) -> int:
        clock.now_ns, before = at_ns, source.requests
        rank.collect(STEP)
        return source.requests - before

    assert count_requests(NS_PER_S) == 1, "without any window"
    rank.finish(full())
    assert count_requests(30 * NS_PER_S) == 0
    rank.finish(light())
    assert count_requests(90 * NS_PER_S) == 0, "a minute after the full one"
    assert count_requests(90 * NS_PER_S + 1) == 1
    timed = Rank(lambda: ON_DEVICE, source, clock=clock)
    timed.finish(full())
    before = source.requests
    timed.collect(STEP)
    assert source.requests == before + 1, "durations are read beside windows"


def test_captures_without_a_device_are_not_broken_down() -> None:
    rank = Rank(RANKSCOPE_DEVICE_WINDOWS="on_demand")
    rank.results.add_captured([CapturedTrace(CaptureSteps(4, 5, 5), b"no trace", 0)])
    assert rank.collect(StepRecord(step=5, start_host_ns=5, duration_ns=1, phases_ns={}, captured=True)) == []
    assert (rank.results.skipped, rank.guard.errors) == ({}, {})
