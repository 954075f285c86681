"""Experts on four ranks over gloo with all-to-alls of unequal splits: the loads of the ranks against the tokens that
the script's own plan sent to each.
"""

from collections.abc import Iterator
from statistics import mean, median

import pytest

from rankscope.collector.steps.expert_loads import ExpertGroup, ExpertLoads, describe_experts
from tests.integration.served_training import train_to_end
from tests.integration.serving import Served, serving

Routed = list[tuple[int, ...]]
"""By step how many tokens came to each rank."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


def train(served: Served, run: str, *options: str) -> tuple[list[list[int]], ExpertLoads, Routed]:
    """Train with four ranks: their own times by the script's clock, by rank and step in ns; what is known at the end,
    and what the script has routed.
    """
    lines, found = train_to_end(served, run, 4, "experts.py", *options)
    told = [line.split()[2:] for line in lines if line.startswith("routed 0 ")]
    assert found.experts is not None
    assert found.experts.absent == ""
    told_ns = sorted(line.split()[1:] for line in lines if line.startswith("own "))
    own_ns = [list(map(int, of_rank)) for _, *of_rank in told_ns]
    assert len(own_ns) == 4
    return own_ns, found.experts, [tuple(map(int, one)) for one in told]


def group_of(found: ExpertLoads) -> ExpertGroup:
    (group,) = found.groups
    assert (group.group, group.ranks) == ("default_pg", 4)
    return group


def test_hot_and_dead_ranks_are_those_of_the_plan(served: Served) -> None:
    """400 tokens a step: 40, 80, 280 and 0 come to the ranks. Rank 2 has 2.8 times the mean of 100."""
    options = ("--shares", "0.1", "0.2", "0.7", "0", "--token-us", "100", "--steps", "60")
    own_ns, found, routed = train(served, "hot", *options)
    assert set(routed) == {(40, 80, 280, 0)}
    group = group_of(found)
    assert (found.all_even, found.all_uneven) == (False, False)
    assert {one.rank: one.share for one in group.loads} == pytest.approx({2: 0.7, 1: 0.2, 0: 0.1, 3: 0.0}, rel=1e-3)
    assert [group.ratio, group.step_ratio] == pytest.approx([2.8, 2.8], rel=1e-3)
    assert (group.dead, group.dead_count) == ((3,), 1)
    # Of a token 100 us: rank 2 works 28 ms in a step, the mean is 10 ms; on a busy machine all of it takes longer.
    by_script_ns = median(of_step[2] - mean(of_step) for of_step in zip(*own_ns, strict=True))
    assert by_script_ns > 16e6
    assert group.own_excess_ns == pytest.approx(by_script_ns, rel=0.3)
    lines = describe_experts(found)
    basis = f"({found.steps} steps to step {found.last_step})"
    assert lines[0] == f"default_pg: rank 2 has 70.0 % of the load of 4 ranks, 2.80x the mean {basis}"
    assert lines[1].startswith("default_pg: the hottest rank of each step works ")
    assert lines[2] == "default_pg: no token came to rank 3 (dead experts)"
    # A combine, and the backward of the dispatch: 16 numbers of 4 bytes a token in each.
    assert group.step_bytes == pytest.approx(400 * 16 * 4 * 2)


def test_rank_that_is_hot_in_turn_is_seen_in_the_step_ratio(served: Served) -> None:
    _, found, routed = train(served, "turning", "--shares", "0.7", "0.1", "0.1", "0.1", "--turning", "--steps", "80")
    assert {max(one) for one in routed} == {280}
    group = group_of(found)
    assert group.step_ratio == pytest.approx(2.8, rel=1e-3)
    assert group.ratio is not None
    assert group.ratio < 1.5
    changing = "default_pg: the hottest rank changes from step to step: 2.80x the mean of its step"
    assert describe_experts(found)[1] == changing


def test_padded_tokens_have_no_ratio(served: Served) -> None:
    _, found, _ = train(served, "padded", "--shares", "0.7", "0.1", "0.1", "0.1", "--even")
    group = group_of(found)
    assert found.all_even
    assert (group.ratio, group.dead_count) == (None, 0)
    assert describe_experts(found) == [], "no name says that they are experts"


def test_batches_of_different_sizes_are_said(served: Served) -> None:
    """Batches of 100 and 300 tokens: 800 tokens, of which 80, 160, 560 and 0 come to the ranks; they send 100, 300, 100
    and 300. Both are of the load: 180, 460, 660 and 300 of 1,600.
    """
    _, found, routed = train(served, "batches", "--shares", "0.1", "0.2", "0.7", "0", "--tokens", "100", "300")
    assert set(routed) == {(80, 160, 560, 0)}
    group = group_of(found)
    assert found.all_uneven
    shares = {one.rank: one.share for one in group.loads}
    assert shares == pytest.approx({0: 180 / 1600, 1: 460 / 1600, 2: 660 / 1600, 3: 300 / 1600}, rel=1e-3)
    assert describe_experts(found)[-1].startswith("the batches of the ranks differ too")


def test_each_group_has_its_own_loads(served: Served) -> None:
    """Two groups of two: of 200 tokens 110 and 90 come to ranks 0 and 1, 180 and 20 to ranks 2 and 3."""
    _, found, _ = train(served, "groups", "--shares", "0.55", "0.45", "0.9", "0.1", "--groups", "2")
    worst, other = found.groups
    assert [worst.group, other.group] == ["mesh_ep/2-3", "mesh_ep/0-1"]
    assert [worst.ratio, other.ratio] == pytest.approx([1.8, 1.1], rel=1e-3)
    assert worst.loads[0].rank == 2
    assert worst.loads[0].share == pytest.approx(0.9, rel=1e-3)
