"""The end of a collector that rank 0 has started, with a clock and a parent of the test."""

import os

import msgspec

from rankscope.collector.embedded import FLUSH_S, Lifetime
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import HostNs, WallNs

PARENT, INIT = 4_000, 1
LINGER_S = 5.0
MS = 1_000_000
FLUSH_MS = round(FLUSH_S * 1_000)
LINGER_MS = round(LINGER_S * 1_000)


class World:
    """A driven clock, a parent that may go, and the lifetime in between."""

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self.now_ms = 70_000
        self.parent = PARENT
        self._lifetime = Lifetime(PARENT, linger_s, self, lambda: self.parent)

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ms * MS)

    def wall_ns(self) -> WallNs:
        return WallNs(0)

    def after(self, milliseconds: int, *runs: RunSnapshot) -> bool:
        """Whether it is over at the tick that comes so much later."""
        self.now_ms += milliseconds
        return self._lifetime.is_over(Snapshot(wall_s=0.0, version="0", runs=runs))


def run_of(*ends: str | None, world_size: int | None = None) -> RunSnapshot:
    """A run whose ranks have ended so; None: up."""
    size = world_size or len(ends)
    ranks = tuple(
        RankSnapshot(
            identity=RankIdentity(
                run="a", rank=rank, local_rank=rank, world_size=size, node="n0", restart_count=0, boot_id="boot-of-it",
                pid=7,
            ),
            up=ended is None,
            ended=ended,
        )
        for rank, ended in enumerate(ends)
    )  # fmt: skip
    return RunSnapshot(run="a", world_size=size, restart_count=0, ranks=ranks)


RUNNING, OVER = run_of("finished", None), run_of("finished", "killed")


def test_runs_while_run_and_parent_exist() -> None:
    world = World()
    assert not any(world.after(3_600_000, *runs) for runs in [(), (RUNNING,), (RUNNING,)])


def test_ends_a_flush_time_after_the_last_rank() -> None:
    world = World()
    assert not world.after(0, OVER)
    assert not world.after(FLUSH_MS - 1, OVER)
    assert world.after(1, OVER)


def test_flush_time_counts_from_the_end() -> None:
    world = World()
    ticks = [world.after(100, OVER) for _ in range(5)]
    assert ticks == [False, False, False, True, True]


def test_rank_that_has_not_joined_yet_is_waited_for() -> None:
    assert not any(World().after(3_600_000, run_of("finished", world_size=2)) for _ in range(2))


def test_silent_rank_may_come_back() -> None:
    world = World()
    silent = run_of("finished", "silent")
    assert not any(world.after(3_600_000, silent) for _ in range(2))


def test_every_run_must_be_over() -> None:
    world = World()
    assert not any(world.after(3_600_000, OVER, RUNNING) for _ in range(2))


def test_it_lingers_for_the_last_ranks_when_the_parent_is_gone() -> None:
    world = World()
    assert not world.after(1_000, RUNNING)
    world.parent = INIT
    assert not world.after(1_000, RUNNING)
    assert not world.after(LINGER_MS - 1, RUNNING)
    assert world.after(1, RUNNING)


def test_it_does_not_linger_for_a_run_that_is_over() -> None:
    world = World()
    world.parent = INIT
    assert not world.after(0, RUNNING)
    assert not world.after(1_000, OVER)
    assert world.after(FLUSH_MS, OVER)


def test_collector_without_ranks_ends_after_its_parent() -> None:
    world = World()
    world.parent = INIT
    assert not world.after(0)
    assert world.after(LINGER_MS)


def test_without_lingering_it_ends_with_its_parent() -> None:
    world = World(linger_s=0.0)
    world.parent = INIT
    assert world.after(0, RUNNING)


def test_parent_defaults_to_that_of_this_process() -> None:
    clock, nothing = SystemClock(), Snapshot(wall_s=0.0, version="0")
    assert not Lifetime(os.getppid(), 0.0, clock).is_over(nothing)
    assert Lifetime(os.getpid(), 0.0, clock).is_over(nothing)


def test_runs_from_the_store_do_not_count() -> None:
    world = World()
    restored = [
        msgspec.structs.replace(run, ranks=tuple(msgspec.structs.replace(rank, awaited=True) for rank in run.ranks))
        for run in (OVER, RUNNING)
    ]
    assert not any(world.after(FLUSH_MS, *restored) for _ in range(3))
    world.after(0, OVER, *restored)
    assert world.after(FLUSH_MS, OVER, *restored)


def test_a_run_without_ranks_is_not_awaited() -> None:
    assert not run_of().is_awaited
