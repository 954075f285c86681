"""Loads of the ranks that hold experts, by numbers computed by hand: two ranks or four, bytes of their all-to-alls."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.steps.expert_loads import (
    GROUPS_KEPT_MAX,
    STEPS_MAX,
    STEPS_MIN,
    ExpertLoads,
    describe_experts,
    find_expert_loads,
    sum_routed,
)
from rankscope.collector.steps.step_series import Floats, StepSeries
from rankscope.measure.units import NS_PER_MS

GROUP = "mesh_ep/0,1,2,3"
EXCHANGING = frozenset({GROUP})


def series_of(loads: Floats, *, even: int = 2, uneven: int = 2, own_ns: Floats | None = None) -> StepSeries:
    """Steps with these loads, shape (steps, ranks), of four all-to-alls unless told otherwise."""
    steps, ranks = loads.shape
    own = np.full(loads.shape, np.nan) if own_ns is None else own_ns
    calls = np.full((steps, 2), (float(even), float(uneven)))
    calls[np.isnan(loads).any(axis=1)] = np.nan
    return StepSeries(
        steps=np.arange(10, 10 + steps), ranks=tuple(range(ranks)), step_ns=own, own_ns=own, cpu_ns=own,
        phases_ns={}, own_is_measured=own_ns is not None, routed_bytes=loads, exchange_calls=calls,
    )  # fmt: skip


def find(loads: list[list[float]] | Floats, *, even: int = 2, uneven: int = 2) -> ExpertLoads:
    series = series_of(np.array(loads, dtype=float), even=even, uneven=uneven)
    found = find_expert_loads(series, {GROUP: (0, 1, 2, 3)}, EXCHANGING)
    assert found is not None
    return found


# -- one step ---------------------------------------------------------------------------------------------------------


def route(
    *operations: tuple[int, list[int]], before: tuple[bool, ...] = (False, False)
) -> tuple[list[float], int, int]:
    """Load by rank, and even and uneven all-to-alls: each is a group, and what the ranks from 0 on put in."""
    rows = [
        (rank, group, number, size)
        for number, (group, sizes) in enumerate(operations)
        for rank, size in enumerate(sizes)
    ]
    rank, group, operation, size_bytes = (np.array(column) for column in zip(*rows, strict=True))
    found = sum_routed(rank, group, operation, size_bytes, world_size=2, uneven_before=np.array(before))
    return found.load.tolist(), found.even, found.uneven


def test_load_is_what_is_put_into_uneven_operations() -> None:
    """Dispatch and its backward's combine are even; the combine and the dispatch's backward have 30 and 10 tokens."""
    layer = [(0, [20, 20]), (0, [30, 10]), (0, [20, 20]), (0, [30, 10])]
    assert route(*layer) == ([60.0, 20.0], 2, 2)


def test_even_operations_of_another_group_do_not_count() -> None:
    assert route((1, [500, 500]), (0, [20, 20]), (0, [30, 10])) == ([30.0, 10.0], 1, 1)


def test_even_step_of_a_group_of_experts_counts_half() -> None:
    assert route((0, [20, 20]), (0, [20, 20]), (1, [500, 500]), before=(True, False)) == ([20.0, 20.0], 2, 0)


def test_where_nothing_was_ever_uneven_all_groups_count() -> None:
    assert route((0, [20, 20]), (1, [60, 60])) == ([40.0, 40.0], 2, 0)


def test_rank_without_tokens_has_a_load_of_zero() -> None:
    assert route((0, [20, 20]), (0, [40, 0])) == ([40.0, 0.0], 1, 1)


# -- several steps ----------------------------------------------------------------------------------------------------


def test_hot_rank_has_its_share_and_its_ratio() -> None:
    """10, 20, 70 and 0 of 100: rank 2 has 2.8 times the mean of 25, and rank 3 is dead."""
    (group,) = find([[10.0, 20.0, 70.0, 0.0]] * STEPS_MIN).groups
    assert [(one.rank, one.share) for one in group.loads] == [(2, 0.7), (1, 0.2), (0, 0.1), (3, 0.0)]
    assert [group.ratio, group.step_ratio, group.step_bytes] == pytest.approx([2.8, 2.8, 100.0])
    assert (group.dead, group.dead_count) == ((3,), 1)


def test_changing_hot_rank_is_in_the_step_ratio_only() -> None:
    """70 of 100 in one rank of each step, in turns: 2.8 in each, and 1.0 over four steps."""
    (group,) = find(np.array([np.roll([70.0, 10.0, 10.0, 10.0], turn) for turn in range(4)])).groups
    assert [group.ratio, group.step_ratio] == pytest.approx([1.0, 2.8])
    assert group.dead_count == 0


def test_only_the_last_known_steps_count() -> None:
    """Before them rank 0 had it all; steps whose all-to-alls are not known are skipped."""
    loads = np.array([[100.0, 0.0, 0.0, 0.0]] * 10 + [[25.0, 25.0, 25.0, 25.0]] * STEPS_MAX)
    loads[[20, 30]] = np.nan
    found = find(loads)
    assert (found.steps, found.last_step) == (STEPS_MAX, 10 + len(loads) - 1)
    assert found.groups[0].ratio == pytest.approx((2 * 100 + 25 * 62) / ((2 * 100 + 25 * 62 * 4) / 4))


def test_excess_is_of_the_hottest_rank_of_each_step() -> None:
    """Own times of 40, 10, 10 and 20 ms, mean 20: rank 0 is hottest with 20 above it. In one step rank 3 is late for
    another reason, and rank 0 20 ms below the mean of 60; of another step one own time is not known.
    """
    loads = np.array([[70.0, 10.0, 10.0, 10.0]] * 5)
    own_ns = np.array([[40.0, 10.0, 10.0, 20.0]] * 5) * NS_PER_MS
    own_ns[1, 3] = 180 * NS_PER_MS
    own_ns[3, 1] = np.nan
    found = find_expert_loads(series_of(loads, own_ns=own_ns), {GROUP: (0, 1, 2, 3)}, EXCHANGING)
    assert found is not None
    assert found.groups[0].own_excess_ns == pytest.approx(20 * NS_PER_MS)


def test_too_few_steps_are_said() -> None:
    found = find([[1.0, 2.0, 3.0, 4.0]] * (STEPS_MIN - 1))
    assert found.groups == ()
    assert describe_experts(found) == ["not known: all-to-alls are known in 3 of the 4 steps needed"]


def test_without_all_to_alls_there_is_nothing() -> None:
    series = series_of(np.ones((9, 4)))
    assert find_expert_loads(replace(series, routed_bytes=None), {GROUP: (0, 1, 2, 3)}, EXCHANGING) is None
    assert find_expert_loads(series, {GROUP: (0, 1, 2, 3)}, frozenset()) is None


def test_even_all_to_alls_have_no_ratio() -> None:
    found = find([[25.0] * 4] * 5, even=4, uneven=0)
    (group,) = found.groups
    assert (found.all_even, group.ratio, group.loads, group.dead_count) == (True, None, (), 0)
    (line,) = describe_experts(found)
    assert line.startswith(f"every all-to-all is even (100 bytes per step in {GROUP})")
    assert line.endswith(": tokens are spread evenly, or padded to a capacity")


def test_even_all_to_alls_without_experts_are_not_told() -> None:
    series = series_of(np.full((5, 4), 25.0), even=4, uneven=0)
    found = find_expert_loads(series, {"mesh_cp/0-3": (0, 1, 2, 3)}, frozenset({"mesh_cp/0-3"}))
    assert found is not None
    assert (found.all_even, describe_experts(found)) == (True, [])


def test_groups_are_sorted_and_bounded() -> None:
    """Of 40 groups of two the last is the least even; that with a dead rank comes before it."""
    pairs = [[50.0 + place, 50.0 - place] for place in range(40)]
    pairs[0] = [100.0, 0.0]
    groups = {f"g{place}": (2 * place, 2 * place + 1) for place in range(40)}
    loads = np.array([sum(pairs, [])] * STEPS_MIN)  # noqa: RUF017 - 80 numbers
    found = find_expert_loads(series_of(loads), groups, frozenset(groups))
    assert found is not None
    assert [one.group for one in found.groups[:3]] == ["g0", "g39", "g38"]
    assert (len(found.groups), found.groups_left_out) == (GROUPS_KEPT_MAX, 40 - GROUPS_KEPT_MAX)
    assert describe_experts(found)[-1] == "37 more groups, less uneven"


def test_dead_ranks_are_named_up_to_eight() -> None:
    loads = np.zeros((STEPS_MIN, 12))
    loads[:, 0] = 8.0
    found = find_expert_loads(series_of(loads), {"ep": tuple(range(12))}, frozenset({"ep"}))
    assert found is not None
    assert describe_experts(found) == [
        "ep: rank 0 has 100.0 % of the load of 12 ranks, 12.00x the mean (4 steps to step 13)",
        "ep: no token came to ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more (dead experts)",
    ]
