"""Choose what NCCL said that is about the present stall: the answer of its RAS service, and the dumps of its Inspector.

A sidecar reads the dumps of its ranks every 15 s, and sends each reading while they are stalled.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.runs.rank import RankState
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import InspectorRead, RasAnswered
from rankscope.measure.units import NS_PER_S

DRAIN_NS: Final = 10 * NS_PER_S
"""Time after the begin of a stall in which operations that were enqueued before may still complete."""


def find_ras_answer(ranks: Mapping[int, RankState], world_size: int) -> RasAnswered | None:
    """Return what NCCL's RAS service said last, if that was in the present stall of a rank on the machine that asked.

    RAS knows processes: the address of a machine, and a process id there. The sidecar names the ranks on its own
    machine. The address of another one means nothing here, so a rank there is named only by a process id that no other
    rank of the run has. Where containers give all machines the same process ids, the rank in the run stays unknown.
    """
    first = ranks.get(0)
    answered = None if first is None else first.liveness.ras
    if first is None or answered is None:
        return None
    place = (first.identity.node, first.identity.machine_id)
    since_host_ns = [
        one.liveness.stalled_since_host_ns
        for one in ranks.values()
        if one.is_live and (one.identity.node, one.identity.machine_id) == place
    ]
    if not any(since_ns is not None and since_ns <= answered.host_ns for since_ns in since_host_ns):
        return None
    is_sure = answered.is_own and len(ranks) == world_size
    return _name_ras_ranks(answered, ranks) if is_sure and answered.communicators else answered


def _name_ras_ranks(answered: RasAnswered, ranks: Mapping[int, RankState]) -> RasAnswered:
    """Return the answer with the rank of each process id that only one rank of the run has."""
    counts = Counter(one.identity.pid for one in ranks.values())
    rank_of = {one.identity.pid: number for number, one in ranks.items() if counts[one.identity.pid] == 1}

    def name(one: RasRank) -> RasRank:
        number = rank_of.get(one.pid) if one.rank is None and one.pid is not None else None
        return one if number is None else msgspec.structs.replace(one, rank=number)

    def name_all(one: RasCommunicator) -> RasCommunicator:
        return msgspec.structs.replace(one, ranks=tuple(map(name, one.ranks)))

    return msgspec.structs.replace(answered, communicators=tuple(map(name_all, answered.communicators)))


def find_dumps(
    ranks: Mapping[int, RankState], hang_states: Mapping[int, RankHangState], now_collector_ns: int
) -> dict[int, InspectorRead]:
    """Return the readings by rank that say what ranks had completed in the present stall.

    They were made when the last rank had been stalled for DRAIN_NS and the plugin had written since. Ranks are left out
    that have ended or are stopped, whose dump need not have what they completed, and those whose clock is not known.
    """
    begins = [one.since_collector_ns for one in hang_states.values() if one.is_stalled_now]
    known = [begin_ns for begin_ns in begins if begin_ns is not None]
    if not known:
        return {}
    found = {}
    for number, rank in ranks.items():
        read, state = rank.liveness.inspector, hang_states[number]
        if read is None or not read.communicators or state.ended is not None or state.is_stopped:
            continue
        at_ns = rank.clock.to_collector_time(read.host_ns, now_collector_ns)
        if at_ns is not None and at_ns >= max(known) + DRAIN_NS + read.dump_interval_ns:
            found[number] = read
    return found
