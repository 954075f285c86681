"""What the steps of ranks communicate: who shares a signature, and what tells pipeline stages apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from rankscope.collector.steps import workload_signature as module
from rankscope.collector.steps.collectives import stack
from rankscope.collector.steps.workload_signature import (
    FIRST_RECEIVES,
    FIRST_SENDS,
    VARIES,
    GroupFacts,
    Signature,
    find_changed_sizes,
    find_signatures,
)
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of

SIZES = {"world": 4, "tp": 2, "pp": 2}
PLACES = {(0, "pp"): 0, (2, "pp"): 1}


class Call(NamedTuple):
    """One collective of a rank."""

    op: str
    group: str
    size_bytes: int = 64
    start_ns: int = 0


def columns(calls: Sequence[Call]) -> RankCollectives:
    groups, ops = sorted({call.group for call in calls}), sorted({call.op for call in calls})
    zeros = np.zeros(len(calls), dtype=np.int64)
    return RankCollectives(
        groups=groups,
        ops=ops,
        group=np.array([groups.index(call.group) for call in calls], dtype=np.int64),
        op=np.array([ops.index(call.op) for call in calls], dtype=np.int64),
        sequence=np.arange(len(calls)),
        start_ns=np.array([call.start_ns for call in calls], dtype=np.int64),
        duration_ns=zeros,
        size_bytes=np.array([call.size_bytes for call in calls], dtype=np.int64),
        exposed_ns=zeros,
    )


def signatures_of(
    *ranks: Sequence[Call], former: Mapping[int, Signature] | None = None, places: bool = True
) -> Mapping[int, Signature]:
    known = PLACES if places else {}
    groups = GroupFacts(SIZES, 4, lambda rank, group: known.get((rank, group), -1))
    rows, kinds = stack(step_of({rank: columns(calls) for rank, calls in enumerate(ranks)}))
    return find_signatures(rows, kinds, groups, former or {})


REDUCE, GATHER = Call("all_reduce", "world"), Call("all_gather", "tp", 8)


def test_signature_has_op_group_size_and_bytes_in_order() -> None:
    assert signatures_of([REDUCE, GATHER])[0] == Signature((("all_gather", 2, 8), ("all_reduce", 4, 64)))


def test_equal_calls_in_any_order_share_a_signature() -> None:
    found = signatures_of([REDUCE, GATHER], [GATHER, REDUCE], [REDUCE], [REDUCE, REDUCE])
    assert found[0] is found[1]
    assert len({found[0], found[2], found[3]}) == 3


def test_group_whose_size_nobody_has_told_counts_as_none() -> None:
    assert signatures_of([Call("all_reduce", "new")])[0].calls == (("all_reduce", 0, 64),)


def test_rank_without_a_collective_has_no_signature() -> None:
    assert signatures_of([REDUCE], []).keys() == {0}


@pytest.mark.parametrize("calls", [[], [REDUCE._replace(size_bytes=MISSING)]])
def test_step_without_collectives_or_sizes_leaves_what_was_known(calls: list[Call]) -> None:
    former = {0: Signature((("all_reduce", 4, 64),))}
    assert signatures_of(calls, former=former) is former


def test_same_step_returns_the_same_mapping() -> None:
    former = signatures_of([REDUCE], [REDUCE])
    assert signatures_of([REDUCE], [REDUCE], former=former) is former
    assert signatures_of([REDUCE], [GATHER], former=former) == {0: former[0], 1: Signature((("all_gather", 2, 8),))}


def test_many_kinds_of_steps_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS_OF_STEPS_MAX", 1)
    found = signatures_of([REDUCE], [GATHER], [GATHER], [REDUCE])
    assert found[0] is found[3]
    assert (found[1], found[2]) == (Signature((("all_gather", 2, 8),)),) * 2


# -- pipeline stages --------------------------------------------------------------------------------------------------


def test_stages_with_equal_calls_differ_by_their_place() -> None:
    found = signatures_of([Call("send", "pp")], [REDUCE], [Call("send", "pp")])
    assert (found[0].places, found[1].places, found[2].places) == ((0,), (), (1,))


def test_place_that_nobody_has_told_is_minus_one() -> None:
    assert signatures_of([Call("send", "pp")], places=False)[0].places == (-1,)


def test_in_a_group_of_all_it_counts_whether_a_rank_sends_first() -> None:
    first, second = Call("send", "world", start_ns=1), Call("recv", "world", start_ns=2)
    found = signatures_of([first, second], [second._replace(start_ns=0), first])
    assert (found[0].places, found[1].places) == ((FIRST_SENDS,), (FIRST_RECEIVES,))


def test_places_are_in_the_order_of_the_ranks_group_names() -> None:
    calls = [Call("send", "world", start_ns=0), Call("recv", "pp", start_ns=1)]
    assert signatures_of(calls)[0].places == (0, FIRST_SENDS)


# -- what varies, and what is small -----------------------------------------------------------------------------------

LARGE = ("all_reduce", 4, 64_000)


def test_small_collective_does_not_tell_the_work() -> None:
    # 64 bytes are a thousandth of 64,000: small. 65 are not.
    assert Signature((LARGE,), (FIRST_SENDS,)).coarsen() is None
    assert Signature((("all_gather", 2, 64), LARGE), (1,)).coarsen() == Signature((LARGE,), (1,))
    assert Signature((("all_gather", 2, 65), LARGE)).coarsen() == Signature((("all_gather", 2, 65), LARGE))


def test_point_to_point_and_varying_collectives_are_never_small() -> None:
    calls = (("all_to_all", 2, VARIES), LARGE, ("send", 2, 1))
    assert Signature(calls).coarsen() == Signature(calls)


def test_sizes_that_changed_on_a_rank_are_named() -> None:
    former = {0: Signature((("all_to_all", 2, 8), LARGE)), 1: Signature((LARGE,))}
    later = {0: Signature((("all_to_all", 2, 9), LARGE)), 1: former[1], 2: Signature((("all_gather", 2, 5),))}
    assert find_changed_sizes(former, later) == {("all_to_all", 2)}
    assert find_changed_sizes(former, former) == frozenset()


def test_other_collectives_are_no_change_of_size() -> None:
    former = {0: Signature((("all_to_all", 2, 8), LARGE))}
    assert find_changed_sizes(former, {0: Signature((("all_to_all", 2, 9),))}) == frozenset()


def test_varying_sizes_are_left_out() -> None:
    rows, kinds = stack(step_of({0: columns([REDUCE, GATHER]), 1: columns([REDUCE._replace(size_bytes=9), GATHER])}))
    groups = GroupFacts(SIZES, 4, lambda _rank, _group: -1, frozenset({("all_reduce", 4)}))
    found = find_signatures(rows, kinds, groups, {})
    assert found[0] == found[1] == Signature((("all_gather", 2, 8), ("all_reduce", 4, VARIES)))
