"""Memory of processes that grows: who, how fast, until when; and what is no leak. A level a minute, a step a second."""

import dataclasses
import math
from collections.abc import Sequence

import pytest

from rankscope.collector.detect.finding import Abstain, Finding, close_finding
from rankscope.collector.detect.machine_growth import NodeCounts
from rankscope.collector.detect.memory.growth import Growth, MemoryGrowth, find_growth
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import MemoryLevel, RunView, Samples
from rankscope.measure.records import NodeSample
from tests.unit.collector.steps.step_series import series_of, view_of

MIB, GIB = 2**20, 2**30
MINUTE_NS = 60 * 10**9
DETECTOR = MemoryGrowth()
FLAT = [4096.0] * 24
LEAK = [4096.0 + 64 * n for n in range(24)]
"""In MiB. From the 9th level on, 15 minutes later, it is 960 MiB more: 3840 MiB an hour, 64/60 a step."""


def levels_of(mib: Sequence[float]) -> tuple[MemoryLevel, ...]:
    return tuple(MemoryLevel(60 * n, n * MINUTE_NS, round(held * MIB)) for n, held in enumerate(mib))


class Levels:
    """What a ring of levels shows."""

    def __init__(self, mib: Sequence[float]) -> None:
        self._levels = levels_of(mib)

    @property
    def rise_bytes(self) -> int:
        return self._levels[-1].held_bytes - self._levels[len(self._levels) // 3].held_bytes

    def read(self) -> tuple[MemoryLevel, ...]:
        return self._levels


def view(*ranks: Sequence[float], available: Sequence[int | None] = (2 * GIB,), of_node: int = 2) -> RunView:
    """Build a run with that memory by rank; `available` is by node, of each of which one rank has read it."""
    nodes = {rank: f"n{rank // of_node}" for rank in range(len(ranks))}
    machines = {
        of_node * number: [NodeCounts(9, NodeSample(host_ns=0, memory_available_bytes=left))]
        for number, left in enumerate(available)
    }
    levels = {rank: Levels(mib) for rank, mib in enumerate(ranks)}
    samples = Samples({}, {}, {}, machines=machines, memory_levels=levels)
    return view_of(series_of([[1.0] * len(ranks)]), nodes=nodes, samples=samples)


def found_in(seen: RunView) -> list[Finding]:
    found = DETECTOR.find(seen, ())
    assert not isinstance(found, Abstain), found.reason
    assert all(candidate.lost_ns is None for candidate in found)
    return [candidate.finding for candidate in found]


def test_leak_is_found_with_its_rate_and_the_time_left() -> None:
    (found,) = found_in(view(FLAT, LEAK))
    assert (found.kind, found.cause, found.ranks, found.since_step) == ("memory_growth", "host_memory", (1,), 0)
    # 2 GiB are left, at 3840 MiB an hour: 1920 s, of a step a second.
    assert found.headline == ("Rank 1: host memory growing by 1.1 MiB per step, 3.8 GiB per hour, since about step 0")
    assert found.why == "full in about 32.0 min or 1,900 steps: 2.0 GiB left on n0, 3.8 GiB more needed per hour"
    assert found.evidence == pytest.approx(
        {
            "growth_bytes_per_step": 64 * MIB / 60, "growth_bytes_per_hour": 3840 * MIB,
            "machine_growth_bytes_per_hour": 3840 * MIB, "available_bytes": 2 * GIB, "left_s": 1920.0,
            "left_steps": 1920.0, "seen_s": 900.0, "fastest_rank": 1.0,
        }
    )  # fmt: skip
    assert (found.severity, found.suggestion, found.details) == (
        "critical",
        suggest("memory_growth", "host_memory"),
        {"node": "n0"},
    )
    (dated,) = found_in(dataclasses.replace(view(FLAT, LEAK), now_wall_s=0.0))
    assert dated.why.startswith("full in about 32.0 min (1970-01-01 00:32 UTC) or 1,900 steps: ")
    closed = close_finding(found, until_step=1380, lasted_s=1380.0)
    assert closed.headline == (
        "Rank 1: host memory growing by 1.1 MiB per step, 3.8 GiB per hour, steps 0-1380 (23.0 min)"
    )


def test_time_left_is_that_of_the_machine() -> None:
    (found,) = found_in(view(LEAK, LEAK, FLAT, LEAK, available=(2 * GIB, GIB)))
    # n0 has two that leak and 2 GiB, n1 one and 1 GiB: 960 s each; n0 is named first.
    assert (found.ranks, found.details, found.evidence["left_s"]) == ((0, 1, 3), {"node": "n0"}, 960.0)
    assert found.evidence["machine_growth_bytes_per_hour"] == pytest.approx(2 * 3840 * MIB)
    assert found.headline.startswith("Ranks 0-1, 3: host memory growing, fastest on rank 0 by 1.1 MiB per step")
    assert found.why.endswith(" left on n0, 7.5 GiB more needed per hour")


def test_machine_that_is_full_has_no_time_left() -> None:
    (found,) = found_in(view(LEAK, available=(0,)))
    assert (found.evidence["left_s"], found.severity) == (0.0, "critical")
    assert found.why.endswith(" left on n0, 3.8 GiB more needed per hour")


def test_machine_with_room_for_thrice_the_time_is_silent() -> None:
    # 15 minutes were seen, so 45 are looked ahead: 2880 MiB.
    assert found_in(view(LEAK, available=(2880 * MIB,)))
    assert found_in(view(LEAK, available=(2881 * MIB,))) == []


def test_severity_is_by_the_time_left() -> None:
    slow = [4096 + 8 * held for held in range(600)]  # ten hours at 480 MiB an hour, of which the last 400 min count
    (soon,) = found_in(view(slow, available=(500 * MIB,)))
    (later,) = found_in(view(slow, available=(8 * GIB,)))
    assert (soon.severity, later.severity) == ("warning", "warning")
    slower = [4096 + held for held in range(6_000)]
    (in_days,) = found_in(view(slower, available=(3 * GIB,)))
    assert (in_days.severity, round(in_days.evidence["left_s"])) == ("info", 3 * 1024 * 60)


def test_rank_that_hardly_grows_beside_the_fastest_is_not_named() -> None:
    slow = [4096.0 + 15.9 * n for n in range(40)]  # 430 MiB, a quarter of 64 would be 16
    fast = [4096.0 + 64 * n for n in range(40)]
    (found,) = found_in(view(fast, slow))
    assert found.ranks == (0,)
    assert found.evidence["machine_growth_bytes_per_hour"] == pytest.approx((64 + 15.9) * 60 * MIB, rel=1e-3)


def test_machine_whose_memory_is_not_known_is_not_judged() -> None:
    found = DETECTOR.find(view(LEAK, available=(None,)), ())
    assert isinstance(found, Abstain)
    assert found.reason == "how much memory the machines have left is not known"
    assert isinstance(DETECTOR.find(view(LEAK, available=()), ()), Abstain)
    (known,) = found_in(view(LEAK, FLAT, LEAK, available=(None, 2 * GIB)))
    assert known.ranks == (2,)


# -- what is no leak --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mib",
    [
        FLAT,
        [100.0, *[9000.0] * 23],  # loads a model
        [100.0 + 1000 * n for n in range(8)] + [8000.0] * 16,  # fills caches in the first third
        [4096 + 4096 * (1 - math.exp(-n / 6)) for n in range(24)],  # a cache that levels off
        [4096.0 + 100 * min(n, 15) for n in range(24)],  # one that is full by now
        [4096.0 + 128 * (n % 12) for n in range(24)],  # one that is emptied
        [4096.0] * 20 + [8192.0] * 4,  # a jump: an evaluation
        [4096.0] * 12 + [8192.0] * 12,
        [4096.0 + 10 * n for n in range(24)],  # 150 MiB in all
        [8000.0 - 64 * n for n in range(24)],
        LEAK[:11],  # too little is known
    ],
)  # fmt: skip
def test_memory_of_a_healthy_program_is_no_growth(mib: list[float]) -> None:
    assert find_growth(levels_of(mib)) is None
    assert found_in(view(mib, available=(GIB,))) == []


def test_growth_without_steps_is_none() -> None:
    still = tuple(level._replace(steps=7) for level in levels_of(LEAK))
    assert find_growth(still) is None


def test_ring_that_shows_no_rise_is_not_read() -> None:
    class Unread(Levels):
        def read(self) -> tuple[MemoryLevel, ...]:
            raise AssertionError("it was read")

    seen = view(FLAT)
    samples = seen.samples._replace(memory_levels={0: Unread(FLAT)})
    assert found_in(dataclasses.replace(seen, samples=samples)) == []


# -- begin and end ----------------------------------------------------------------------------------------------------


def test_leak_that_began_later_has_its_begin() -> None:
    growth = find_growth(levels_of([4096.0] * 12 + [4096.0 + 100 * n for n in range(1, 25)]))
    # 36 levels, judged from the 13th on: 23 of 100 MiB. At a quarter of the rise, 575 MiB, 5 levels before are near.
    assert growth == Growth(2300 * MIB, 23 * MINUTE_NS, 23 * 60, 60 * 6)


def test_finding_passes_when_growth_ends_or_there_is_room() -> None:
    (found,) = found_in(view(FLAT, LEAK))
    assert DETECTOR.has_passed(view(FLAT, LEAK), found, ()) is False
    assert DETECTOR.has_passed(view(FLAT, LEAK, available=(5 * GIB,)), found, ()) is False  # up to 90 minutes
    assert DETECTOR.has_passed(view(FLAT, LEAK, available=(6 * GIB,)), found, ()) is True
    assert DETECTOR.has_passed(view(FLAT, LEAK[:16] + LEAK[16:17] * 8), found, ()) is True
    assert DETECTOR.has_passed(view(LEAK, FLAT), found, ()) is True
