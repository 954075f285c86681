"""The laws of waiting, against a model that is slow and obvious: the set of the nanoseconds a rank waited."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.measure.communication import POINT_TO_POINT_OPS
from rankscope.measure.records import ROOTED_OPS, SYNCHRONIZING_OPS
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, ReadWaits, split_ranks

RANKS = 4
GROUPS = {"world": (0, 1, 2, 3), "tp/0-1": (0, 1), "tp/2-3": (2, 3), "me/0": (0,)}
SIZES = {label: len(members) for label, members in GROUPS.items()}
OPS = ("all_reduce", "barrier", "broadcast", "send")
HOLD_UP = SYNCHRONIZING_OPS | ROOTED_OPS


class Call(NamedTuple):
    """One operation on one rank."""

    group: str
    op: str
    sequence: int
    start_ns: int
    duration_ns: int
    exposed_ns: int | None = None

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


Calls = Mapping[int, Sequence[Call]]

FEW = 50
"""Number of examples for laws of irrelevance."""

# Few distinct times, so that calls often touch, coincide and enclose each other.
moments = st.integers(0, 12)


@st.composite
def operations(draw: st.DrawFn, *, complete: bool = False) -> dict[int, list[Call]]:
    """Draw what each rank reports of up to six operations; some members may report nothing, unless `complete`."""
    calls: dict[int, list[Call]] = {rank: [] for rank in range(RANKS)}
    for sequence in range(draw(st.integers(0, 6))):
        group, op = draw(st.sampled_from(sorted(GROUPS))), draw(st.sampled_from(OPS))
        absent = set() if complete else draw(st.sets(st.sampled_from(GROUPS[group]), max_size=1))
        for rank in GROUPS[group]:
            if rank not in absent:
                duration_ns = draw(moments)
                exposed_ns = draw(st.none() | st.integers(0, duration_ns))
                calls[rank].append(Call(group, op, sequence, draw(moments), duration_ns, exposed_ns))
    return calls


def split(calls: Calls, *, numbered: bool = True) -> ReadWaits:
    by_rank = {rank: to_columns(found, numbered=numbered) for rank, found in calls.items()}
    return split_ranks(by_rank, SIZES)


def to_columns(calls: Sequence[Call], *, numbered: bool) -> RankCollectives:
    return RankCollectives(
        groups=sorted(GROUPS),
        ops=OPS,
        group=np.array([sorted(GROUPS).index(call.group) for call in calls], dtype=np.int64),
        op=np.array([OPS.index(call.op) for call in calls], dtype=np.int64),
        sequence=np.array([call.sequence if numbered else MISSING for call in calls], dtype=np.int64),
        start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
        duration_ns=np.array([call.duration_ns for call in calls], dtype=np.int64),
        size_bytes=np.full(len(calls), 64, dtype=np.int64),
        exposed_ns=np.array(
            [MISSING if call.exposed_ns is None else call.exposed_ns for call in calls], dtype=np.int64
        ),
    )


# -- the model --------------------------------------------------------------------------------------------------------


def is_whole(calls: Calls, call: Call) -> bool:
    return len(members_of(calls, call)) == SIZES[call.group]


def members_of(calls: Calls, call: Call) -> list[Call]:
    """Return the same operation on all ranks that reported it."""
    return [other for found in calls.values() for other in found if other[:3] == call[:3]]


def transfer_of(calls: Calls, call: Call) -> int:
    if call.op in POINT_TO_POINT_OPS:  # all are of one size here
        return min(other.duration_ns for found in calls.values() for other in found if other.op == call.op)
    return min(other.duration_ns for other in members_of(calls, call))


def holds_up(calls: Calls, call: Call) -> bool:
    return call.op in POINT_TO_POINT_OPS or (call.op in HOLD_UP and is_whole(calls, call))


def waited(calls: Calls, rank: int) -> set[int]:
    """Return the nanoseconds of all its waiting, exposed or not."""
    return {
        moment
        for call in calls[rank]
        if holds_up(calls, call)
        for moment in range(call.start_ns, call.end_ns - transfer_of(calls, call))
    }


def last_of(call: Call, count: int | None) -> range:
    return range(call.end_ns - (count or 0), call.end_ns)


def exposed(calls: Calls, rank: int) -> int | None:
    """Return how many ns are taken off: of an operation with known exposure its last ones, with the transfer; of
    another those of its waiting after the last begin of any operation before its end. Of a send with known exposure
    those are no more its own that other operations have within its time.
    """
    if any(call.op in HOLD_UP and not is_whole(calls, call) for call in calls[rank]):
        return None
    known = [call for call in calls[rank] if call.exposed_ns is not None]
    received = {moment for call in known if call.op != "send" for moment in last_of(call, call.exposed_ns)}
    found: set[int] = set()
    for call in calls[rank]:
        if call.exposed_ns is not None and call.op == "send":
            meanwhile = received & set(range(call.start_ns, call.end_ns))
            found |= set(last_of(call, max(0, call.exposed_ns - len(meanwhile))))
        elif call.exposed_ns is not None:
            found |= set(last_of(call, call.exposed_ns))
        elif holds_up(calls, call):
            begun = [other.start_ns for other in calls[rank] if other.start_ns < call.end_ns]
            found |= set(range(max([call.start_ns, *begun]), call.end_ns - transfer_of(calls, call)))
    return len(found)


# -- the laws ---------------------------------------------------------------------------------------------------------


@given(operations())
def test_exposed_waiting_is_that_of_the_model(calls: dict[int, list[Call]]) -> None:
    assert split(calls).exposed_ns == {rank: exposed(calls, rank) for rank in range(RANKS)}


@given(operations(complete=True))
def test_exposed_waiting_is_between_nothing_and_all_waiting(calls: dict[int, list[Call]]) -> None:
    for rank, wait_ns in split(calls).exposed_ns.items():
        assert wait_ns is not None
        told = {
            moment
            for call in calls[rank]
            if call.exposed_ns is not None
            for moment in range(call.start_ns, call.end_ns)
        }
        assert 0 <= wait_ns <= len(waited(calls, rank) | told)


@settings(max_examples=FEW)
@given(operations(), st.lists(st.integers(-(10**17), 10**17), min_size=RANKS, max_size=RANKS))
def test_clocks_of_the_ranks_do_not_matter(calls: dict[int, list[Call]], shifts_ns: list[int]) -> None:
    shifted = {
        rank: [call._replace(start_ns=call.start_ns + shifts_ns[rank]) for call in found]
        for rank, found in calls.items()
    }
    assert split(shifted) == split(calls)


@settings(max_examples=FEW)
@given(operations(), st.permutations(range(RANKS)))
def test_order_of_the_ranks_does_not_matter(calls: dict[int, list[Call]], order: list[int]) -> None:
    moved, found = split({rank: calls[rank] for rank in order}), split(calls)
    assert moved.exposed_ns == found.exposed_ns
    assert sorted(moved.kinds) == sorted(found.kinds)


@settings(max_examples=FEW)
@given(operations(), st.data())
def test_row_order_does_not_matter_with_known_sequences(calls: dict[int, list[Call]], data: st.DataObject) -> None:
    shuffled = {rank: data.draw(st.permutations(found)) for rank, found in calls.items()}
    moved, found = split(shuffled), split(calls)
    assert moved.exposed_ns == found.exposed_ns
    assert sorted(moved.kinds) == sorted(found.kinds)


@given(operations(), st.integers(0, RANKS - 1))
def test_rank_that_comes_last_everywhere_has_waited_for_nobody(calls: dict[int, list[Call]], last: int) -> None:
    calls[last] = [call._replace(duration_ns=transfer_of(calls, call), exposed_ns=None) for call in calls[last]]
    assert split(calls).exposed_ns[last] in (0, None)


@settings(max_examples=FEW)
@given(operations(complete=True))
def test_without_sequences_the_common_order_matches_operations(
    calls: dict[int, list[Call]],
) -> None:
    # Each begins at its index: the k-th of its kind is then the same on all ranks.
    in_turn = {rank: [call._replace(start_ns=call.sequence) for call in found] for rank, found in calls.items()}
    assert split(in_turn, numbered=False) == split(in_turn)


@given(operations())
def test_kinds_count_every_call_and_split_every_matched_one(calls: dict[int, list[Call]]) -> None:
    kinds = split(calls).kinds
    for rank, found in calls.items():
        mine = [kind for kind in kinds if kind.rank == rank]
        matched = [call for call in found if call.op in SYNCHRONIZING_OPS and is_whole(calls, call)]
        assert sum(kind.calls for kind in mine) == len(found)
        assert sum(kind.duration_ns for kind in mine) == sum(call.duration_ns for call in found)
        assert sum(kind.matched for kind in mine) == len(matched)
        assert sum(kind.wait_ns + kind.transfer_ns for kind in mine) == sum(call.duration_ns for call in matched)
