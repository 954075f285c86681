"""Which answer of NCCL's RAS service is about the present stall, and which ranks of the run it names."""

from collections.abc import Mapping

import msgspec
import pytest

from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.hang_witnesses import find_ras_answer
from rankscope.collector.runs.rank import RankState
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import RankEnded, RasAnswered

STALLED_HOST_NS = 1_000
PIDS = {0: 10, 1: 11, 2: 12, 3: 10}
"""Ranks 0 and 1 are on node a, 2 and 3 on node b; both nodes have a process 10."""


def identity_of(rank: int) -> RankIdentity:
    return RankIdentity(
        run="r", rank=rank, local_rank=rank % 2, world_size=4, node="ab"[rank // 2], restart_count=0,
        boot_id=f"boot-of-{rank}", pid=PIDS[rank], machine_id="ab"[rank // 2],
    )  # fmt: skip


def rank_of(rank: int, stalled_since_host_ns: int | None = STALLED_HOST_NS) -> RankState:
    hello = Hello(identity=identity_of(rank), first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=1)
    state = RankState.begin(hello, 0)
    liveness = msgspec.structs.replace(state.liveness, reported_stall_host_ns=stalled_since_host_ns)
    return msgspec.structs.replace(state, liveness=liveness)


def answered_by(ranks: dict[int, RankState], *listed: RasRank, at_host_ns: int = 2_000) -> dict[int, RankState]:
    """The ranks, after rank 0 has got that answer."""
    answered = RasAnswered(
        sequence=1, identity=identity_of(0), host_ns=at_host_ns, stalled_since_host_ns=STALLED_HOST_NS,
        communicators=(RasCommunicator(name="ab", ranks=listed),) if listed else (), is_own=True,
    )  # fmt: skip
    liveness = msgspec.structs.replace(ranks[0].liveness, ras=answered)
    return ranks | {0: msgspec.structs.replace(ranks[0], liveness=liveness)}


def all_ranks() -> dict[int, RankState]:
    return {rank: rank_of(rank) for rank in PIDS}


def names(ranks: Mapping[int, RankState], world_size: int = 4) -> list[int | None]:
    answered = find_ras_answer(ranks, world_size)
    assert answered is not None
    return [one.rank for each in answered.communicators for one in each.ranks]


def process(pid: int | None, rank: int | None = None) -> RasRank:
    return RasRank(communicator_rank=9, state="missing", host="h", pid=pid, rank=rank)


def test_process_id_that_one_rank_has_names_it() -> None:
    assert names(answered_by(all_ranks(), process(11), process(12))) == [1, 2]


def test_process_id_of_two_ranks_or_none_names_nobody() -> None:
    assert names(answered_by(all_ranks(), process(10), process(99), process(None))) == [None, None, None]


def test_rank_that_the_sidecar_named_is_kept() -> None:
    assert names(answered_by(all_ranks(), process(10, rank=0), process(12, rank=1))) == [0, 1]


def test_nobody_is_named_while_a_rank_is_unknown() -> None:
    ranks = all_ranks()
    del ranks[3]
    assert names(answered_by(ranks, process(11))) == [None]


@pytest.mark.parametrize(("at_host_ns", "is_there"), [(STALLED_HOST_NS - 1, False), (STALLED_HOST_NS, True)])
def test_answer_from_before_the_stall_is_not_used(at_host_ns: int, is_there: bool) -> None:
    found = find_ras_answer(answered_by(all_ranks(), at_host_ns=at_host_ns), 4)
    assert (found is not None) is is_there


def test_stall_of_another_machine_is_by_another_clock() -> None:
    ranks = {rank: rank_of(rank, None if rank < 2 else STALLED_HOST_NS) for rank in PIDS}
    assert find_ras_answer(answered_by(ranks), 4) is None


def test_stall_of_an_ended_rank_does_not_count() -> None:
    ranks = {0: rank_of(0, None), 1: rank_of(1)}
    seen = RankEnded(sequence=1, identity=identity_of(1), host_ns=1_500, wall_ns=0, reason="killed")
    ended = msgspec.structs.replace(ranks[1], liveness=ranks[1].liveness.record_end(seen, ClockAlignment(), 9))
    assert find_ras_answer(answered_by(ranks), 4) is not None
    assert find_ras_answer(answered_by(ranks | {1: ended}), 4) is None


def test_run_without_rank_0_or_its_answer_has_none() -> None:
    assert find_ras_answer({1: rank_of(1)}, 4) is None
    assert find_ras_answer(all_ranks(), 4) is None
