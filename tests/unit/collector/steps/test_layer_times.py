"""Repeated blocks compared with the same block of peers, by numbers that can be added up in one's head."""

import numpy as np
import pytest

from rankscope.collector.steps.layer_times import (
    GROUPS_MAX,
    SAMPLES_MIN,
    SLOW_MAX,
    RunLayers,
    describe_layers,
    describe_slow,
    find_layers,
    unpack_layers,
)
from rankscope.collector.steps.peer_groups import PeerComparison, PeerGroups, find_peer_groups
from rankscope.measure.records import LayerTimes

MS = 1_000_000
STEP_NS = 100.0 * MS
BLOCKS = 6
FORWARD, BACKWARD = 2, 4


def times(*slow: tuple[int, float], spread: float = 0.0, **changed: object) -> LayerTimes:
    """What a rank reports of BLOCKS blocks of 2 + 4 ms, some of which take so many times as long; deciles are
    `spread` of that below and above.
    """
    factors = [dict(slow).get(number, 1.0) for number in range(BLOCKS)]
    both = [(FORWARD + BACKWARD) * MS * factor for factor in factors]
    columns = (
        tuple(int(FORWARD * MS * factor) for factor in factors),
        tuple(int(BACKWARD * MS * factor) for factor in factors),
        tuple(int(one * (1 - spread)) for one in both),
        tuple(int(one * (1 + spread)) for one in both),
        (None,) * BLOCKS,
    )
    fields = {"kind": "Block", "samples": 16, "last_step": 90, "calls": 1, "columns": columns, **changed}
    return LayerTimes(**fields)  # type: ignore[arg-type]


def found_in(*ranks: LayerTimes, peers: PeerGroups | None = None, step_ns: float | None = STEP_NS) -> RunLayers:
    groups = peers or find_peer_groups(tuple(range(len(ranks))), {})
    steps_ns = np.full((20, len(ranks)), np.nan if step_ns is None else step_ns)
    found = find_layers({rank: unpack_layers(one) for rank, one in enumerate(ranks)}, groups, steps_ns)
    assert found is not None
    return found


def slow_of(found: RunLayers) -> list[tuple[int, int]]:
    return [(one.rank, one.number) for one in found.slow]


def test_equal_ranks_have_medians_and_none_stands_out() -> None:
    found = found_in(times(), times(), times())
    (group,) = found.groups
    assert (group.kind, group.ranks, group.calls, group.samples, group.last_step) == ("Block", (0, 1, 2), 1, 16, 90)
    first = group.layers[0]
    assert (first.forward_ns, first.backward_ns, first.slowest_ns, first.held_bytes) == (2 * MS, 4 * MS, 6 * MS, None)
    assert found.slow == ()


def test_block_of_one_rank_stands_out_with_what_it_costs_a_step() -> None:
    found = found_in(times(), times((4, 2.5), calls=3), times(), times())
    (slow,) = found.slow
    # 2.5 x 6 ms = 15 ms a call, three times in a step; its peers need 6.
    assert (slow.rank, slow.number, slow.count, slow.peers) == (1, 4, BLOCKS, 3)
    assert (slow.ns, slow.peers_ns, slow.excess_ns, slow.ratio) == (45 * MS, 18 * MS, 27 * MS, 2.5)
    assert (slow.forward_ns, slow.peers_forward_ns) == (15 * MS, 6 * MS)
    assert found.groups[0].layers[4].slowest_rank == 1
    assert describe_slow(slow) == "layer 4 of 6 (Block): 2.5x slower than its peers', 45.0 ms per step, peers 18.0 ms"


def test_two_ranks_are_enough_and_the_faster_one_is_not_named() -> None:
    assert slow_of(found_in(times((3, 2.0)), times())) == [(0, 3)]


def test_rank_slow_in_all_blocks_has_none_that_stands_out() -> None:
    everywhere = [(number, 2.0) for number in range(BLOCKS)]
    assert found_in(times(), times(*everywhere), times()).slow == ()
    everywhere[2] = (2, 4.0)
    assert slow_of(found_in(times(), times(*everywhere), times())) == [(1, 2)]


def test_blocks_that_differ_by_design_do_not_stand_out() -> None:
    assert found_in(times((0, 5.0)), times((0, 5.0)), times((0, 5.0))).slow == ()


@pytest.mark.parametrize(
    ("one", "named"),
    [
        (times((4, 1.3)), [(1, 4)]),  # 7.8 against 6 ms: 1.8 % of a step of 90 ms is not enough, of 80 it is
        (times((4, 1.15)), []),
        (times((4, 1.5), spread=0.4), []),  # its lowest decile 5.4 ms, below its peers' highest one of 6
        (times((4, 2.0), samples=SAMPLES_MIN - 1), []),
    ],
)
def test_what_is_small_noisy_or_seldom_measured_is_not_named(one: LayerTimes, named: list[tuple[int, int]]) -> None:
    assert slow_of(found_in(times(), one, times(), step_ns=80.0 * MS)) == named
    assert slow_of(found_in(times(), one, times(), step_ns=1_000.0 * MS)) == [], "below 2 % of the step"
    assert slow_of(found_in(times(), one, times(), step_ns=None)) == []


@pytest.mark.parametrize(
    ("others", "named"), [((1.0, 1.05, 0.95, 1.1, 0.9), [(1, 5)]), ((1.0, 1.3, 0.7, 1.4, 0.8), [])]
)
def test_block_does_not_stand_out_where_all_scatter(others: tuple[float, ...], named: list[tuple[int, int]]) -> None:
    """It takes 1.8 times as long, in ln 0.56 and 0.46 above the median of all. These are 0.07 and 0.28 from it in the
    median, so that five deviations are 0.54 and 2.1.
    """
    noisy = times(*enumerate(others), (5, 1.8))
    assert slow_of(found_in(times(), noisy, times())) == named


def test_ranks_of_different_work_are_not_compared() -> None:
    stages = PeerGroups(
        (PeerComparison((0, 2), (0, 2), do_same_work=True), PeerComparison((1, 3), (1, 3), do_same_work=True)),
        {0: 0, 2: 0, 1: 1, 3: 1},
    )
    heavy = [(number, 3.0 if number == 2 else 2.0) for number in range(BLOCKS)]
    found = found_in(times(), times(*heavy, first=6), times(), times(*heavy, first=6), peers=stages)
    assert [one.ranks for one in found.groups] == [(0, 2), (1, 3)]
    assert [one.number for one in found.groups[1].layers] == list(range(6, 12))
    assert found.slow == ()


def test_ranks_without_peers_stand_alone() -> None:
    alone = PeerGroups((PeerComparison((0, 1), (0, 1), do_same_work=False),), {0: 0, 1: 0})
    found = found_in(times(), times((4, 9.0)), peers=alone)
    assert [one.ranks for one in found.groups] == [(0,), (1,)]
    assert found.slow == ()


def test_backward_unknown_to_one_rank_is_compared_by_nobody() -> None:
    half = times((4, 2.0))
    columns = (half.columns[0], (None,) * BLOCKS, half.columns[0], half.columns[0], half.columns[4])
    found = found_in(times(), times((4, 2.0), columns=columns, calls=2), times(), step_ns=80.0 * MS)
    assert found.groups[0].layers[4].slowest_ns == 4 * MS, "its forward alone"
    # Its deciles are of the forward alone: below the peers' deciles of both, nothing is claimed.
    assert found.slow == ()


def test_many_ranks_are_bounded_and_the_costliest_are_kept() -> None:
    ranks = [times((4, 2.0 + rank / 10)) if rank < 12 else times() for rank in range(100)]
    found = found_in(*ranks)
    assert slow_of(found) == [(rank, 4) for rank in range(11, 11 - SLOW_MAX, -1)]
    kinds = [times(kind=f"Block{rank}") for rank in range(GROUPS_MAX + 3)]
    assert (len(found_in(*kinds).groups), found_in(*kinds).groups_left_out) == (GROUPS_MAX, 3)


def test_reason_is_told_where_no_rank_has_times() -> None:
    found = found_in(LayerTimes(kind="Block", absent="compiled"))
    assert describe_layers(found) == ["not known: compiled"]
    assert find_layers({}, find_peer_groups((0,), {}), np.full((20, 1), STEP_NS)) is None
    assert describe_layers(None) == []


def test_columns_that_do_not_fit_are_not_known() -> None:
    found = unpack_layers(LayerTimes(kind="Block", samples=4, columns=((5, 6), (1,), (None, 3))))
    assert found.values.shape == (5, 2)
    assert np.array_equal(found.values[2], [np.nan, 3.0], equal_nan=True)
    assert np.isnan(found.values[[1, 3, 4]]).all()
    assert unpack_layers(LayerTimes(kind="Block", samples=4)).values.shape == (5, 0)


def test_memory_is_that_of_the_rank_with_most() -> None:
    held = tuple(range(1_000, 1_000 + BLOCKS))
    found = found_in(times(), times(columns=(*times().columns[:4], held)))
    assert [one.held_bytes for one in found.groups[0].layers] == list(held)
    assert ", keeps up to 1005 bytes (2 ranks" in describe_layers(found)[0]


def test_stages_are_told_apart_and_further_ones_counted() -> None:
    kinds = [times(kind=f"Block{rank}", calls=2) for rank in range(6)]
    told = describe_layers(found_in(*kinds))
    assert told[0] == (
        "0-5 of Block0 (rank 0): forward 2.0 ms, backward 4.0 ms per call, 2 calls per step (1 rank, 16 timed steps to "
        "step 90)"
    )
    assert told[-1] == "and 2 more groups of ranks"
