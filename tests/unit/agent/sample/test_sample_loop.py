"""Tests of intervals, isolation and switching off of samplers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rankscope.agent.sample.loop import SampleLoop
from rankscope.measure.units import NS_PER_MS, NS_PER_S, HostNs, WallNs

INTERVAL_NS = NS_PER_S
SLOW_NS = 10 * NS_PER_MS


@dataclass
class World:
    """A simulated clock, and the notices of the loop."""

    now_ns: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns)

    def loop(self, **samplers: Callable[[], int]) -> SampleLoop[int]:
        return SampleLoop(
            samplers,
            self,
            INTERVAL_NS,
            lambda part, error: self.errors.append((part, str(error))),
            on_notice=self.notices.append,
            slow_ns=SLOW_NS,
            interval_ns_max=3 * INTERVAL_NS,
            failures_max=3,
        )

    def taking(self, *durations_ns: int) -> Callable[[], int]:
        """A sampler whose n-th run takes the n-th duration and returns n, from 1."""
        runs: list[int] = []

        def sample() -> int:
            self.now_ns += durations_ns[len(runs)]
            runs.append(1)
            return len(runs)

        return sample


def _run_every_time_it_is_due(loop: SampleLoop[int], world: World, runs: int) -> list[int]:
    """Run `runs` times, each when it is due, in steps of 0.1 s; returns the part's interval after each run."""
    intervals_ns = []
    for _ in range(runs):
        while not loop.due(world.now_ns):
            world.now_ns += NS_PER_S // 10
        loop.run(world.now_ns)
        intervals_ns.append(loop.counts["part"].interval_ns)
    return intervals_ns


def _fail() -> int:
    message = "sensor is gone"
    raise RuntimeError(message)


def test_every_sampler_is_due_at_once_and_then_once_per_interval() -> None:
    world = World(now_ns=5 * NS_PER_S)
    loop = world.loop(part=lambda: 1)
    assert loop.due(5 * NS_PER_S)
    loop.run(5 * NS_PER_S)
    assert not loop.due(6 * NS_PER_S - 1)
    assert loop.due(6 * NS_PER_S)


def test_run_before_it_is_due_runs_nothing() -> None:
    loop = World().loop(part=lambda: 1)
    loop.run(0)
    loop.run(INTERVAL_NS - 1)
    assert loop.counts["part"].successes == 1


def test_run_all_runs_every_enabled_sampler() -> None:
    world = World()
    runs: list[int] = []

    def fail() -> int:
        runs.append(1)
        raise OSError("gone")

    loop = world.loop(one=world.taking(1, 1, 1, 1), broken=fail)
    for _ in range(3):  # failures_max: then it is off
        loop.run(world.now_ns)
        world.now_ns += INTERVAL_NS
    world.now_ns -= INTERVAL_NS // 2
    assert not loop.due(world.now_ns)
    loop.run_all(world.now_ns)
    assert (loop.latest, len(runs)) == ({"one": 4}, 3)


def test_late_run_is_not_made_up_for() -> None:
    loop = World().loop(part=lambda: 1)
    loop.run(0)
    loop.run(100 * INTERVAL_NS)  # the machine was suspended
    assert not loop.due(101 * INTERVAL_NS - 1)
    assert loop.counts["part"].successes == 2


def test_latest_result_is_absent_before_the_first_run() -> None:
    world = World()
    loop = world.loop(part=world.taking(0, 0))
    assert loop.latest == {}
    loop.run(0)
    loop.run(INTERVAL_NS)
    assert loop.latest == {"part": 2}


def test_durations_are_measured_one_by_one_and_added_up() -> None:
    world = World()
    loop = world.loop(part=world.taking(3, 4))
    assert loop.counts["part"].last_duration_ns is None
    loop.run(0)
    loop.run(INTERVAL_NS)
    counts = loop.counts["part"]
    assert (counts.last_duration_ns, counts.total_ns, counts.successes, counts.failures) == (4, 3 + 4, 2, 0)


def test_failing_sampler_does_not_keep_the_next_from_running() -> None:
    world = World()
    loop = world.loop(broken=_fail, sound=lambda: 7)
    loop.run(0)
    assert loop.latest == {"sound": 7}
    assert world.errors == [("broken", "sensor is gone")]
    assert loop.counts["broken"].failures == 1


def test_failure_takes_away_the_result_of_before() -> None:
    results = iter([1])
    loop = World().loop(part=lambda: next(results))
    loop.run(0)
    assert loop.latest == {"part": 1}
    loop.run(INTERVAL_NS)
    assert loop.latest == {}


def test_three_failures_in_a_row_switch_a_sampler_off() -> None:
    world = World()
    loop = world.loop(part=_fail)
    for run in range(5):
        loop.run(run * INTERVAL_NS)
    assert loop.counts["part"].is_off
    assert loop.counts["part"].failures == 3
    assert not loop.due(100 * INTERVAL_NS)
    assert world.notices == [
        (
            "sampler part is switched off after 3 failures in a row, the last RuntimeError: sensor is gone; "
            "training is not affected, its values are absent from now on"
        )
    ]


def test_success_between_failures_keeps_a_sampler_on() -> None:
    runs_that_fail = iter([True, True, False, True, True])
    loop = World().loop(part=lambda: _fail() if next(runs_that_fail) else 1)
    for run in range(5):
        loop.run(run * INTERVAL_NS)
    counts = loop.counts["part"]
    assert (counts.failures, counts.successes, counts.is_off) == (4, 1, False)


def test_slow_sampler_doubles_its_interval_up_to_the_bound() -> None:
    world = World()
    loop = world.loop(part=world.taking(0, *[SLOW_NS + 1] * 3))
    intervals_ns = _run_every_time_it_is_due(loop, world, runs=4)
    assert intervals_ns == [1 * NS_PER_S, 2 * NS_PER_S, 3 * NS_PER_S, 3 * NS_PER_S]  # 2 * 2 s is over the 3 s allowed


def test_each_longer_interval_is_logged_once() -> None:
    world = World()
    loop = world.loop(part=world.taking(0, *[25 * NS_PER_MS] * 5))
    _run_every_time_it_is_due(loop, world, runs=6)
    assert world.notices == [
        "sampler part took 25.0 ms, the limit is 10.0 ms; it now runs every 2.0 s",
        "sampler part took 25.0 ms, the limit is 10.0 ms; it now runs every 3.0 s",
    ]


def test_sampler_that_is_quick_again_returns_to_its_interval() -> None:
    world = World()
    loop = world.loop(part=world.taking(0, SLOW_NS + 1, SLOW_NS, SLOW_NS))
    assert _run_every_time_it_is_due(loop, world, runs=4) == [NS_PER_S, 2 * NS_PER_S, NS_PER_S, NS_PER_S]


def test_slow_first_run_is_not_held_against_a_sampler() -> None:
    world = World()
    loop = world.loop(part=world.taking(NS_PER_S))
    loop.run(0)
    assert loop.counts["part"].interval_ns == INTERVAL_NS
    assert world.notices == []


def test_slow_sampler_does_not_slow_the_others_down() -> None:
    world = World()
    loop = world.loop(part=world.taking(0, SLOW_NS + 1), quick=lambda: 1)
    loop.run(0)
    loop.run(INTERVAL_NS)
    loop.run(2 * INTERVAL_NS)
    assert loop.counts["part"].successes == 2
    assert loop.counts["quick"].successes == 3


def test_empty_result_is_a_result() -> None:
    loop = World().loop(part=lambda: 0)
    loop.run(0)
    assert loop.latest == {"part": 0}
