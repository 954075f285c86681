"""What is said where no rank is named as slow: the evidence about the one that made others wait the most."""

from collections.abc import Sequence

import pytest

from rankscope.collector.traces.report import MatchedCollective, RankStanding
from rankscope.collector.traces.standings import describe_last, describe_leader, find_standings
from tests.unit.collector.detect.stragglers.test_recording import view_of

MS = 1_000_000


def collective(late_rank: int | None, rank_count: int) -> MatchedCollective:
    return MatchedCollective(
        group="g", sequence=0, op="all_reduce", bytes=4, ranks=list(range(rank_count)), transfer_ns=1,
        wait_ns={str(rank): 0 if rank == late_rank else 100 * MS for rank in range(rank_count)},
        late_rank=late_rank, lateness_ns=1,
    )  # fmt: skip


def standings(*steps_ms: Sequence[float], last: Sequence[int | None]) -> list[RankStanding]:
    return find_standings(view_of(*steps_ms), [collective(late, len(steps_ms)) for late in last], {0})


def test_standing_has_what_the_verdict_is_about() -> None:
    # 100, 200 and 0 ms more: 100, of standard error 100 / sqrt(3) ms, 6.96 times which is 401.8 ms.
    found, other = standings([800, 900, 700], [700, 700, 700], last=[0] * 18 + [1] * 3 + [None])
    assert (found.excess_ns, found.noise_ns, found.step_count, found.slower_step_count) == (100 * MS, 401_835_787, 3, 2)
    assert (found.last_count, found.late_count, found.wait_caused_ns) == (18, 21, 1_800 * MS)
    assert (found.wait_caused_ratio, found.is_slow, other.is_slow) == (18 / 21, True, False)
    assert describe_last([found, other]) == "last in 21 of 21 collectives, with 100 % of the waiting caused"


def test_evidence_is_shown_though_no_rank_is_named() -> None:
    found = standings([800, 900, 700], [700, 700, 700], last=[0] * 18 + [1] * 3)
    assert describe_leader(found, None) == (
        "No rank is named as slow. Rank 0 caused the most waiting: it came last in 18 of 21 collectives, with 86 % of "
        "the waiting caused. Without waits its steps took 1.14 times as long as its peers' (+100.0 ms in a step, give "
        "or take 401.8 ms). A rank is named only from 1.15 times on, or from 1.05 times on if the evidence is steady."
    )


def test_why_nothing_is_decided_is_said_instead() -> None:
    found = standings([1300, 701, 700], [700, 700, 699], last=[0] * 21)
    assert describe_leader(found, "rank 0: too noisy.").endswith("100 % of the waiting caused. Rank 0: too noisy.")


@pytest.mark.parametrize(("steps_ms", "said"), [([[800], [700]], "1 step is"), ([[800] * 2, [700] * 2], "2 steps are")])
def test_one_or_two_steps_are_called_too_few(steps_ms: list[list[float]], said: str) -> None:
    text = describe_leader(standings(*steps_ms, last=[1]), None)
    assert f"; {said} too few to distinguish that from noise. A rank is named only from 1.15 times on" in text


def test_nobody_waited() -> None:
    said = "No rank is named as slow: in these traces none made others wait."
    assert describe_leader(standings([1, 1], [1, 1], last=[None]), None) == said
