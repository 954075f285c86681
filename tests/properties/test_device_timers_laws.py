"""Laws of device times: they hold for any script, at any time, with a device that is never, or always, busy."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord
from tests.cuda_stand_in import StandInCuda
from tests.cuda_stand_in.suite import FixedPlan
from tests.properties.test_steps_laws import EVENTS, scripts


@dataclass
class Played:
    """The records of a script: of a process with a device, and of one without."""

    with_device: list[StepRecord] = field(default_factory=list)
    without: list[StepRecord] = field(default_factory=list)
    skipped: int = 0
    announced: set[int] = field(default_factory=set)

    @property
    def timed(self) -> list[tuple[StepRecord, dict[str, int]]]:
        return [(r, dict(r.device_phases_ns)) for r in self.with_device if r.device_phases_ns is not None]


def play(events: list[tuple[int, str]], *, work_ns: int, interval_steps: int, waiting_max: int = 8) -> Played:
    """Play a script with `work_ns` for the device before each event. No two events come at the same time."""
    played, cuda = Played(), StandInCuda()
    plan = FixedPlan(interval_steps, warmup_steps=0)
    guard = Guard(1)
    timers = DeviceTimers(
        cuda, plan, guard, played.with_device.append, read_clock_ns=lambda: cuda.now_ns, records_waiting_max=waiting_max
    )

    def on_boundary(step: int) -> None:
        played.announced.add(step)
        timers.on_boundary(step)

    def on_record(record: StepRecord) -> None:
        played.without.append(record)
        timers.on_record(record)

    def on_pause() -> None:
        played.announced = {step for step in played.announced if step < len(played.without)}
        timers.on_pause()

    timer = StepTimer(
        on_record, on_boundary, on_pause,
        on_charge=timers.on_charge, phases_max=2, read_clock_ns=timers.read_event_ns, read_cpu_ns=lambda: 0,
    )  # fmt: skip
    for ticks, name in events:
        cuda.work(work_ns)
        cuda.now_ns += 1 + ticks
        EVENTS[name](timer, timers.read_event_ns())
    timer.finish()
    timers.close()
    assert guard.errors == {}
    played.skipped = sum(timers.skipped.values())
    return played


works = st.sampled_from([0, 1, 7, 30, 500])
intervals = st.sampled_from([1, 2, 4])


@given(scripts, works, intervals)
@settings(max_examples=200)
def test_host_times_and_order_are_those_without_a_device(
    events: list[tuple[int, str]], work_ns: int, interval_steps: int
) -> None:
    played = play(events, work_ns=work_ns, interval_steps=interval_steps)
    assert [msgspec.structs.replace(r, device_phases_ns=None) for r in played.with_device] == played.without


@given(scripts, intervals)
@settings(max_examples=200)
def test_device_times_of_an_idle_device_are_the_host_times(events: list[tuple[int, str]], interval_steps: int) -> None:
    # An idle device reaches each mark when it is made.
    for record, phases_ns in play(events, work_ns=0, interval_steps=interval_steps).timed:
        assert phases_ns == record.phases_ns


@given(scripts, works, intervals)
@settings(max_examples=200)
def test_device_phases_are_those_of_the_host_and_not_negative(
    events: list[tuple[int, str]], work_ns: int, interval_steps: int
) -> None:
    for record, phases_ns in play(events, work_ns=work_ns, interval_steps=interval_steps).timed:
        assert phases_ns.keys() == record.phases_ns.keys()
        assert min(phases_ns.values()) >= 0


@given(scripts, st.integers(1, 50))
@settings(max_examples=200)
def test_consecutive_device_steps_leave_no_gap(events: list[tuple[int, str]], work_ns: int) -> None:
    # A device that is busy from the first event on does its work in one go: what it did between two boundaries, both
    # of which it came to late, is the work that was enqueued between them.
    slow_ns = 1_000 + work_ns
    for _, phases_ns in play(events, work_ns=slow_ns, interval_steps=1, waiting_max=10_000).timed:
        assert sum(phases_ns.values()) % slow_ns == 0


@given(scripts, works)
@settings(max_examples=200)
def test_announced_steps_are_timed_or_counted_as_skipped(events: list[tuple[int, str]], work_ns: int) -> None:
    played = play(events, work_ns=work_ns, interval_steps=1, waiting_max=1)
    announced = played.announced & {record.step for record in played.with_device}
    assert {record.step for record, _ in played.timed} <= announced
    assert len(played.timed) + played.skipped == len(announced)
