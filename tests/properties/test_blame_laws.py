"""The laws of blame: every nanosecond of waiting is charged once, and units do not matter."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.steps.rooted_waits import NOBODY
from rankscope.collector.steps.wait_attribution import BEHIND_NS, WaitAttribution, attribute_waits
from rankscope.collector.steps.wait_times import match_operations
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of

RANKS = 4
GROUPS = {"world": (0, 1, 2, 3), "tp/0-1": (0, 1), "tp/2-3": (2, 3), "dp/0,2": (0, 2), "dp/1,3": (1, 3)}
SIZES = {label: len(members) for label, members in GROUPS.items()}
OPS = ("all_reduce", "broadcast", "recv")
UNIT_NS = 4 * BEHIND_NS
"""Unit above the largest start offset between operations: larger units do not change which waits for which."""


class Call(NamedTuple):
    """One operation on one rank, in units."""

    group: str
    op: str
    sequence: int
    start: int
    duration: int
    exposed: int | None


@st.composite
def programs(draw: st.DrawFn) -> dict[int, list[Call]]:
    """Draw up to eight operations of groups, some missing on some members; starts and lengths are arbitrary."""
    calls: dict[int, list[Call]] = {rank: [] for rank in range(RANKS)}
    for sequence in range(draw(st.integers(0, 8))):
        group, op = draw(st.sampled_from(sorted(GROUPS))), draw(st.sampled_from(OPS))
        absent = draw(st.sets(st.sampled_from(GROUPS[group]), max_size=1))
        for rank in GROUPS[group]:
            duration = draw(st.integers(0, 50))
            exposed = draw(st.none() | st.integers(0, duration))
            if rank not in absent:
                calls[rank].append(Call(group, op, sequence, draw(st.integers(0, 200)), duration, exposed))
    return calls


ROUNDS = (("world",), ("tp/0-1", "tp/2-3"), ("dp/0,2", "dp/1,3"))
WORK = 10


@st.composite
def trainings(draw: st.DrawFn, late: st.SearchStrategy[Sequence[int]]) -> dict[int, list[Call]]:
    """Draw ranks that really wait for each other. In each round every rank works, longer by a draw of `late`, and
    participates in one operation.
    """
    now, calls = [0] * RANKS, {rank: list[Call]() for rank in range(RANKS)}
    for sequence in range(draw(st.integers(1, 6))):
        now = [moment + WORK + more for moment, more in zip(now, draw(late), strict=True)]
        for group in draw(st.sampled_from(ROUNDS)):
            end = max(now[rank] for rank in GROUPS[group]) + 2
            for rank in GROUPS[group]:
                duration = end - now[rank]
                calls[rank].append(Call(group, "all_reduce", sequence, now[rank], duration, duration))
                now[rank] = end
    return calls


def columns(calls: Sequence[Call], scale: int, offset: int = 0) -> RankCollectives:
    def column(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    return RankCollectives(
        groups=sorted(GROUPS),
        ops=OPS,
        group=column([sorted(GROUPS).index(call.group) for call in calls]),
        op=column([OPS.index(call.op) for call in calls]),
        sequence=column([call.sequence for call in calls]),
        start_ns=column([call.start * scale + offset for call in calls]),
        duration_ns=column([call.duration * scale for call in calls]),
        size_bytes=column([64] * len(calls)),
        exposed_ns=column([MISSING if call.exposed is None else call.exposed * scale for call in calls]),
    )


def blame_of(calls: Mapping[int, Sequence[Call]], scale: int = UNIT_NS, offset: int = 0) -> WaitAttribution:
    found = attribute_waits(step_of({rank: columns(mine, scale, rank * offset) for rank, mine in calls.items()}), SIZES)
    assert found is not None
    return found


@given(programs())
def test_charges_sum_to_the_waiting_of_every_rank_exactly(calls: dict[int, list[Call]]) -> None:
    found = blame_of(calls)
    rows = match_operations(step_of({rank: columns(mine, UNIT_NS) for rank, mine in calls.items()}), SIZES)
    is_traced = (rows.key >= 0) & ~(rows.is_rooted & (rows.releaser == NOBODY))
    for waited_ns, is_of in ((found.waited_ns, is_traced), (found.not_traced_ns, ~is_traced)):
        of_ranks = [int(rows.wait_ns[(rows.rank == rank) & is_of].sum()) for rank in found.ranks]
        assert waited_ns.tolist() == of_ranks


@given(programs())
def test_nobody_is_charged_less_than_nothing(calls: dict[int, list[Call]]) -> None:
    found = blame_of(calls)
    assert (found.charged_ns >= 0).all()
    assert (found.untraced_ns >= 0).all()
    assert ((found.passed_on_ns >= 0) & (found.passed_on_ns <= found.waited_ns.sum())).all()


@given(programs(), st.integers(2, 10))
def test_unit_of_time_does_not_matter(calls: dict[int, list[Call]], times: int) -> None:
    one, other = blame_of(calls), blame_of(calls, UNIT_NS * times)
    # Each of at most 32 shares of a rank is rounded to a whole ns.
    assert (abs(other.charged_ns - times * one.charged_ns) <= 32 * (times + 1)).all()


@given(programs(), st.integers(0, 10**15))
def test_clocks_of_the_ranks_do_not_matter(calls: dict[int, list[Call]], offset: int) -> None:
    assert (blame_of(calls).charged_ns == blame_of(calls, offset=offset).charged_ns).all()


@given(trainings(st.integers(0, 50).map(lambda late: (0, 0, late, 0))))
def test_only_slow_rank_causes_all_the_wait_along_any_chain(calls: dict[int, list[Call]]) -> None:
    found = blame_of(calls)
    assert found.caused_ns.tolist() == [0, 0, int(found.waited_ns.sum()), 0]


@given(trainings(st.tuples(st.integers(0, 50), st.integers(0, 50), st.just(0), st.just(0))))
def test_ranks_that_are_never_late_are_charged_nothing(calls: dict[int, list[Call]]) -> None:
    assert blame_of(calls).caused_ns[2:].tolist() == [0, 0]
