"""Laws of the step timer: its records add up for any events in any order."""

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.agent.steps.batch_size import BatchSize
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import PHASES, StepRecord

PHASES_MAX = 2
BOUNDARY_TICKS = 3
"""Time by which starting or stopping a profiler window advances the virtual clock."""


class Script:
    """A script of any actions at any time, on a monotonic clock."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.records: list[StepRecord] = []
        self.boundaries: list[tuple[int, int]] = []
        self.timer = StepTimer(
            self.records.append,
            self._on_boundary,
            self._on_pause,
            phases_max=PHASES_MAX,
            read_clock_ns=lambda: self.now_ns,
            read_cpu_ns=lambda: self.now_ns // 2,
        )

    def _on_boundary(self, step: int) -> None:
        self.boundaries.append((step, self.now_ns))
        self.now_ns += BOUNDARY_TICKS

    def _on_pause(self) -> None:
        """Discard the step that had begun last; its number will be used again."""
        self.boundaries = [(step, at_ns) for step, at_ns in self.boundaries if step < len(self.records)]

    def play(self, events: list[tuple[int, str]]) -> "Script":
        """Play events, each the given number of ticks after the one before."""
        for ticks, name in events:
            self.now_ns += ticks
            EVENTS[name](self.timer, self.now_ns)
        return self


EVENTS: dict[str, Callable[[StepTimer, int], None]] = {
    "data_begin": lambda timer, now_ns: timer.data_begin(now_ns),
    "data_begin of an evaluation": lambda timer, now_ns: timer.data_begin(now_ns, training=False),
    "data_end": lambda timer, now_ns: timer.data_end(now_ns),
    "data_end without a batch": lambda timer, now_ns: timer.data_end(now_ns, got_batch=False),
    "backward_begin": lambda timer, now_ns: timer.backward_begin(now_ns),
    "backward_end": lambda timer, now_ns: timer.backward_end(now_ns),
    "optimizer_begin 1": lambda timer, now_ns: timer.optimizer_begin(now_ns, 1),
    "optimizer_begin 2": lambda timer, now_ns: timer.optimizer_begin(now_ns, 2),
    "optimizer_end": lambda timer, now_ns: timer.optimizer_end(now_ns),
    "phase_begin": lambda timer, now_ns: timer.user.begin_phase(now_ns, "checkpoint"),
    "phase_begin of one more name": lambda timer, now_ns: timer.user.begin_phase(now_ns, f"phase {now_ns}"),
    "phase_end": lambda timer, now_ns: timer.user.end_phase(now_ns),
    "end_step": lambda timer, now_ns: timer.user.end_step(now_ns),
    "set_batch_size": lambda timer, now_ns: timer.user.set_batch_size(now_ns, BatchSize(samples=now_ns)),
    "evaluation_begin": lambda timer, now_ns: timer.user.begin_evaluation(now_ns),
    "evaluation_end": lambda timer, now_ns: timer.user.end_evaluation(now_ns),
    "begin_explicit_steps": lambda timer, now_ns: timer.user.begin_explicit_steps(now_ns),
    "end_explicit_steps": lambda timer, now_ns: timer.user.end_explicit_steps(now_ns),
}

FETCH = ["data_begin", "data_end"]
BACKWARD = ["backward_begin", "backward_end"]
STEP_1 = ["optimizer_begin 1", "optimizer_end"]
STEP_2 = ["optimizer_begin 2", "optimizer_end"]
EVALUATE = ["data_begin of an evaluation", "data_end"]
EPOCHS = [[*FETCH, *BACKWARD, *STEP_1], [*FETCH, *BACKWARD, *STEP_2], [*BACKWARD, *STEP_1], EVALUATE]
PLAUSIBLE = [
    *EPOCHS,
    FETCH,
    BACKWARD,
    STEP_1,
    STEP_2,
    ["data_begin", "data_end without a batch"],
    ["optimizer_begin 1", *BACKWARD, "optimizer_end"],
    ["phase_begin", "phase_end"],
    ["set_batch_size"],
    ["evaluation_begin", "evaluation_end"],
    ["end_step"],
    ["begin_explicit_steps"],
    ["end_explicit_steps"],
]


def scripts_of(parts: list[list[str]], parts_max: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(parts), max_size=parts_max).map(lambda found: list(itertools.chain(*found)))


# The events are drawn apart from the times, a short list of which is cycled: few choices, so that many differ.
names = st.one_of(scripts_of([[name] for name in sorted(EVENTS)], 60), scripts_of(PLAUSIBLE, 25), scripts_of(EPOCHS, 8))
times = st.lists(st.integers(0, 50), min_size=1, max_size=5)
scripts = st.builds(lambda names, ticks: list(zip(itertools.cycle(ticks), names, strict=False)), names, times)


def records_of(events: list[tuple[int, str]]) -> list[StepRecord]:
    script = Script().play(events)
    script.timer.finish()
    return script.records


@given(scripts)
@settings(max_examples=400)
def test_phases_of_every_step_sum_to_its_duration(events: list[tuple[int, str]]) -> None:
    for record in records_of(events):
        assert sum(record.phases_ns.values()) == record.duration_ns


@given(scripts)
def test_no_time_is_negative(events: list[tuple[int, str]]) -> None:
    for record in records_of(events):
        assert min(record.duration_ns, record.cpu_ns or 0, *record.phases_ns.values()) >= 0


@given(scripts)
@settings(max_examples=200)
def test_steps_are_numbered_without_a_hole_and_do_not_overlap(events: list[tuple[int, str]]) -> None:
    records = records_of(events)
    assert [record.step for record in records] == list(range(len(records)))
    for earlier, later in itertools.pairwise(records):
        assert later.start_host_ns >= earlier.end_host_ns


@given(scripts)
def test_steps_have_five_phases_and_bounded_user_phases(
    events: list[tuple[int, str]],
) -> None:
    records = records_of(events)
    assert all(set(PHASES) <= set(record.phases_ns) for record in records)
    assert len({name for record in records for name in record.phases_ns} - set(PHASES)) <= PHASES_MAX


@given(scripts)
@settings(max_examples=200)
def test_boundary_without_pause_is_announced_once(events: list[tuple[int, str]]) -> None:
    script = Script().play(events)
    script.timer.finish()
    starts_ns = {record.step: record.start_host_ns for record in script.records}
    announced = [step for step, _ in script.boundaries]
    assert announced == sorted(set(announced))
    for step, at_ns in script.boundaries:
        assert starts_ns.get(step, at_ns) == at_ns
