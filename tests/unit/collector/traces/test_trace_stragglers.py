"""Which rank is named as slow, by what it did in the steps: how much longer, how steadily, and whom it made wait."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from rankscope.collector.traces.report import MatchedCollective, RankStanding
from rankscope.collector.traces.stragglers import describe_leader, describe_noise, find_standings

MS = 1_000_000


def collective(late_rank: int | None, wait_ms: Sequence[int]) -> MatchedCollective:
    return MatchedCollective(
        group="g", sequence=0, op="all_reduce", bytes=4, ranks=list(range(len(wait_ms))), transfer_ns=1,
        wait_ns={str(rank): wait * MS for rank, wait in enumerate(wait_ms)}, late_rank=late_rank, lateness_ns=1,
    )  # fmt: skip


def by_step(*ms: float) -> Mapping[int, int]:
    return {step: round(time * MS) for step, time in enumerate(ms)}


def standings(*steps_ms: Sequence[float], last: Sequence[int | None], wait_ms: int = 100) -> list[RankStanding]:
    """Return what is found of ranks with these own times; in each collective all others wait for the last one."""
    ranks = range(len(steps_ms))
    made = [collective(late, [0 if rank == late else wait_ms for rank in ranks]) for late in last]
    waited = {rank: sum((one.wait_ns or {})[str(rank)] for one in made) for rank in ranks}
    return find_standings({rank: by_step(*ms) for rank, ms in enumerate(steps_ms)}, waited, made)


def slow_of(found: Sequence[RankStanding]) -> list[int]:
    return [one.rank for one in found if one.is_slow]


def test_rank_that_is_much_slower_is_named() -> None:
    assert slow_of(standings([160, 160], [100, 100], last=[0, 0])) == [0]


def test_steadily_slower_rank_is_named_below_the_ratio_of_noise() -> None:
    # 110, 100 and 90 ms more than 700: 1.143 times; 100 give or take 6.96 * 10 / sqrt(3) = 40.2 ms.
    found = standings([810, 800, 790], [700, 700, 700], last=[0] * 18 + [1] * 3)
    assert slow_of(found) == [0]
    assert (found[0].excess_ns, round((found[0].noise_ns or 0) / MS, 1)) == (100 * MS, 40.2)
    assert (found[0].last_count, found[0].late_count, found[0].wait_caused_ratio) == (18, 21, 18 / 21)


def test_difference_within_its_noise_is_not_named() -> None:
    # 300, 0 and 0 ms more: 100 give or take 6.96 * 173.2 / sqrt(3) = 696 ms.
    assert slow_of(standings([1000, 701, 700], [700, 700, 700], last=[0] * 21)) == []


def test_much_slower_rank_within_its_noise_is_doubted_not_named() -> None:
    # 600, 1 and 1 ms more than 700, 700 and 699: 200.7 ms, 1.287 times.
    # The standard error is 345.8 / sqrt(3) = 199.7 ms: 6.96 times that is 1389.7 ms (98 %), 2.92 times 583 ms (90 %).
    found = standings([1300, 701, 700], [700, 700, 699], last=[0] * 21)
    assert (slow_of(found), [one.is_within_noise for one in found]) == ([], [True, False])
    said = "Without waits its steps took 1.29 times as long as its peers', but the steps differ by as much "
    said += "(+200.7 ms in a step, give or take 1.4 s): record more of them."
    assert describe_leader(found).endswith(said)
    assert describe_noise(found) == f"rank 0: w{said[1:]}"


def test_much_slower_rank_is_named_beyond_a_smaller_interval() -> None:
    # 100, 200 and 300 ms more: 200, of standard error 57.7 ms: within 6.96 x that (401.8 ms), not 2.92 x (168.6 ms).
    found = standings([800, 900, 1000], [700, 700, 700], last=[0] * 21)
    assert (slow_of(found), found[0].is_within_noise, found[0].noise_ns) == ([0], False, 401_835_787)


def test_much_slower_rank_beyond_its_noise_is_named() -> None:
    # 300, 310 and 320 ms more: 310 give or take 6.96 * 10 / sqrt(3) = 40.2 ms; it need not always come last.
    found = standings([1000, 1010, 1020], [700, 700, 700], last=[0] * 11 + [1] * 10)
    assert (slow_of(found), describe_noise(found)) == ([0], None)


def test_two_steps_show_no_noise_and_name_nobody_by_little() -> None:
    found = standings([800, 800], [700, 700], last=[0] * 14)
    assert (slow_of(found), found[0].noise_ns) == ([], None)


@pytest.mark.parametrize("last", [[0, 1] * 9, [1] * 18])
def test_longer_steps_alone_name_nobody(last: Sequence[int]) -> None:
    assert slow_of(standings([800, 801, 799], [700, 700, 700], last=last)) == []


def test_rank_that_waited_more_than_another_is_not_named() -> None:
    assert slow_of(standings([160, 160], [100, 100], last=[1, 1])) == []


def test_slower_in_few_steps_is_not_named() -> None:
    assert slow_of(standings([99, 300, 99, 99], [100, 100, 100, 100], last=[0] * 4)) == []


def test_ranks_without_a_step_in_common_have_no_standing() -> None:
    assert find_standings({0: {1: 5}, 1: {2: 5}}, {0: 0, 1: 0}, []) == []


def test_healthy_ranks_in_noise_are_not_named() -> None:
    # 200 runs of 3 steps, 2 to 8 ranks, each step up to 8 % longer on each rank by chance; the longest comes last.
    accused = 0
    for seed in range(200):
        chance = Random(seed)
        ranks = [[100 + 8 * chance.random() for _ in range(3)] for _ in range(chance.randint(2, 8))]
        last = [max(range(len(ranks)), key=lambda rank: ranks[rank][step]) for step in range(3) for _ in range(7)]
        accused += len(slow_of(standings(*ranks, last=last)))
    assert accused == 0


# -- what is said -----------------------------------------------------------------------------------------------------


def test_evidence_is_shown_though_no_rank_is_named() -> None:
    found = standings([800, 900, 700], [700, 700, 700], last=[0] * 18 + [1] * 3)
    assert describe_leader(found) == (
        "No rank is named as slow. Rank 0 caused the most waiting: it came last in 18 of 21 collectives and caused "
        "86 % of the waiting. Without waits its steps took 1.14 times as long as its peers' (+100.0 ms in a step, give "
        "or take 401.8 ms). A rank is named only from 1.15 times on, or from 1.05 times on if the evidence is steady."
    )


@pytest.mark.parametrize(("steps_ms", "said"), [([[800], [700]], "1 step is"), ([[800] * 2, [700] * 2], "2 steps are")])
def test_one_or_two_steps_are_called_too_few(steps_ms: list[list[int]], said: str) -> None:
    text = describe_leader(standings(*steps_ms, last=[1]))
    assert f"; {said} too few to distinguish that from noise. A rank is named only from 1.15 times on" in text


def test_nobody_waited() -> None:
    said = "No rank is named as slow: in these traces none made others wait."
    assert describe_leader(standings([1, 1], [1, 1], last=[None])) == said


# -- several slow ranks ------------------------------------------------------------------------------------------------

HEALTHY = [700, 701, 699]


def test_ranks_that_are_slow_together_are_all_named() -> None:
    found = standings([820, 818, 822], HEALTHY, [815, 821, 818], HEALTHY, HEALTHY, last=[0, 2, 0, 0, 2])
    assert slow_of(found) == [0, 2]


def test_rank_less_slow_by_half_is_not_named_beside_another() -> None:
    assert slow_of(standings([900, 900, 900], HEALTHY, [760, 760, 760], HEALTHY, HEALTHY, last=[0] * 5)) == [0]


def test_rank_differing_by_noise_is_not_named_beside_another() -> None:
    assert slow_of(standings([900, 900, 900], HEALTHY, [1100, 702, 720], HEALTHY, HEALTHY, last=[0] * 5)) == [0]


def test_most_ranks_are_not_named_beside_one() -> None:
    assert slow_of(standings([900, 901, 899], [899, 901, 900], HEALTHY, last=[0, 1, 0])) == [0]
