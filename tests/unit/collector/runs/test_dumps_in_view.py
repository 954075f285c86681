"""Which readings of NCCL Inspector's dumps are about the present stall."""

from collections.abc import Mapping

import msgspec
import pytest

from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.events import InspectorSeen
from rankscope.collector.runs.hang_witnesses import DRAIN_NS, find_dumps
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run_view import build_hang_states
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.node_messages import InspectorRead, RankEnded, RankUnresponsive

S = 1_000_000_000
AHEAD_NS = 500 * S
"""The clocks of the hosts are ahead of the collector's by this."""
NOW_NS = 1_000 * S
STALLED_NS = 900 * S
"""When the ranks stalled, in collector time."""
INTERVAL_NS = 2 * S
ENOUGH_NS = STALLED_NS + DRAIN_NS + INTERVAL_NS


def identity_of(rank: int) -> RankIdentity:
    return RankIdentity(
        run="r",
        rank=rank,
        local_rank=rank,
        world_size=2,
        node="a",
        restart_count=0,
        boot_id=f"boot-of-{rank}",
        pid=rank,
    )


def read_at(rank: int, at_ns: int, **changed: object) -> InspectorRead:
    read = InspectorRead(
        sequence=1, identity=identity_of(rank), host_ns=at_ns + AHEAD_NS, dump_interval_ns=INTERVAL_NS,
        communicators=(InspectorCommunicator(id="0xab", last_op="AllReduce", last_sequence=41),),
    )  # fmt: skip
    return msgspec.structs.replace(read, **changed)


def rank_of(rank: int, read: InspectorRead | None, stalled_ns: int | None = STALLED_NS) -> RankState:
    hello = Hello(identity=identity_of(rank), first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=1)
    state = RankState.begin(hello, 0)
    since_host_ns = None if stalled_ns is None else stalled_ns + AHEAD_NS
    liveness = msgspec.structs.replace(
        state.liveness, reported_stall_host_ns=since_host_ns, is_stalled=stalled_ns is not None
    )
    clock = ClockAlignment().add(NOW_NS, NOW_NS + AHEAD_NS, NOW_NS)
    state = msgspec.structs.replace(state, liveness=liveness, clock=clock)
    return state if read is None else state.apply(InspectorSeen(f"boot-of-{rank}", read, NOW_NS))


def find(*ranks: RankState) -> Mapping[int, InspectorRead]:
    by_rank = {one.identity.rank: one for one in ranks}
    return find_dumps(by_rank, build_hang_states(by_rank, NOW_NS), NOW_NS)


def test_reading_counts_once_all_enqueued_may_have_been_written() -> None:
    late, early = read_at(0, ENOUGH_NS), read_at(1, ENOUGH_NS - 1)
    assert find(rank_of(0, late), rank_of(1, early)) == {0: late}


def test_last_rank_to_stall_decides() -> None:
    read = read_at(0, ENOUGH_NS)
    assert find(rank_of(0, read), rank_of(1, None, STALLED_NS + S)) == {}
    # One that goes on is no reason to wait.
    assert find(rank_of(0, read), rank_of(1, None, None)) == {0: read}


def test_rank_that_is_not_stalled_counts_too() -> None:
    reads = {rank: read_at(rank, ENOUGH_NS) for rank in (0, 1)}
    assert find(rank_of(0, reads[0]), rank_of(1, reads[1], None)) == reads


@pytest.mark.parametrize("stalled_ns", [None, STALLED_NS])
def test_without_a_stall_or_a_reading_there_is_nothing(stalled_ns: int | None) -> None:
    assert find(rank_of(0, read_at(0, ENOUGH_NS), None), rank_of(1, None, None)) == {}
    nothing = read_at(1, ENOUGH_NS, communicators=(), absent={"dump": "is not there"})
    assert find(rank_of(0, None, stalled_ns), rank_of(1, nothing, stalled_ns)) == {}


def test_clock_that_is_not_known() -> None:
    unknown = msgspec.structs.replace(rank_of(0, read_at(0, ENOUGH_NS)), clock=ClockAlignment())
    assert find(unknown, rank_of(1, None)) == {}


def test_dump_of_an_ended_or_stopped_rank_need_not_be_whole() -> None:
    rank = rank_of(0, read_at(0, ENOUGH_NS))
    ended = rank.liveness.record_end(
        RankEnded(sequence=1, identity=identity_of(0), host_ns=NOW_NS, wall_ns=0, reason="crashed"), rank.clock, NOW_NS
    )
    stopped = rank.liveness.record_unresponsive(
        RankUnresponsive(
            sequence=1, identity=identity_of(0), host_ns=NOW_NS + AHEAD_NS, since_host_ns=0, state="T", last_step=1,
            absent={"pending": "no answer"},
        )
    )  # fmt: skip
    for liveness in (ended, stopped):
        changed = msgspec.structs.replace(rank, liveness=liveness)
        assert find(changed, rank_of(1, None)) == {}
