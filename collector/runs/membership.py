"""Decide which rank processes belong to a run, and what the Hello of another one begins. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from rankscope.collector.invariants import require
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.former_attempts import NO_ATTEMPTS
from rankscope.collector.runs.rank import RankState
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.units import NS_PER_S

REPLACED_AFTER_NS: Final = 10 * NS_PER_S
"""Time after the begin of an attempt in which processes of earlier ones may still report: they are being ended."""


class RankProcesses:
    """Boot ids of a run: of its present attempt and of the one before; of earlier ones only where their ranks ran.
    Written by RunState only.
    """

    def __init__(self) -> None:
        #: `{boot id: rank}` of the present attempt.
        self._present: dict[str, int] = {}
        #: Boot ids of the attempt before. Disjoint from `_present`.
        self.former: frozenset[str] = frozenset()
        #: Where the ranks of all attempts before the present one ran.
        self.former_attempts = NO_ATTEMPTS
        #: Other boot ids whose processes were told so by the present attempt.
        self._told: set[str] = set()
        self._begun_collector_ns: int | None = None

    def __contains__(self, boot_id: str) -> bool:
        return boot_id in self._present or boot_id in self.former

    def __iter__(self) -> Iterator[str]:
        yield from self.former
        yield from self._present

    def add(self, identity: RankIdentity) -> None:
        """Add a process of the present attempt."""
        self._present[identity.boot_id] = identity.rank

    def begin_attempt(self, ended: Attempt | None = None, now_collector_ns: int | None = None) -> None:
        """Begin another attempt after the one that has ended, if any: its processes are not known yet."""
        self.former, self._present = frozenset(self._present), {}
        self._told, self._begun_collector_ns = set(), now_collector_ns
        if ended is not None:
            self.former_attempts = self.former_attempts.add(rank.hello for rank in ended.ranks.values())

    def find_rank(self, boot_id: str) -> int | None:
        """Return the rank of a process of the present attempt; None for any other."""
        return self._present.get(boot_id)

    def note_replaced(self, boot_id: str, now_collector_ns: int) -> bool:
        """Return, once for each, whether a process still reports although the present attempt, of which it is not, has
        begun long ago.
        """
        begun_ns = self._begun_collector_ns
        if boot_id in self._present or boot_id in self._told or begun_ns is None:
            return False
        if now_collector_ns - begun_ns < REPLACED_AFTER_NS:
            return False
        self._told.add(boot_id)
        return True

    def validate(self, ranks: Mapping[int, RankState]) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        require(not self.former & self._present.keys(), "a rank process is of two attempts")
        boots = {rank.identity.boot_id: number for number, rank in ranks.items()}
        require(boots == self._present, "boot ids and ranks differ")


def is_to_be_added(hello: Hello, attempt: Attempt | None, processes: RankProcesses) -> bool:
    """Return whether a process is to be added. A process of an earlier attempt is not: it may be slow to exit. One that
    has ended, and whose reports are delivered afterwards, is added only where it replaces no rank and begins no
    attempt.
    """
    identity = hello.identity
    if identity.boot_id in processes.former:
        return False
    if attempt is None:
        return True
    # A node without a process in this attempt has no count to compare with.
    known = attempt.counts_by_node.get(identity.node)
    is_older = known is not None and identity.restart_count < known and attempt.has_live_ranks
    count = attempt.restart_count if known is None else known
    is_other_attempt = (identity.restart_count, identity.world_size) != (count, attempt.world_size)
    if is_older or (hello.left_behind and is_other_attempt):
        return False
    present = attempt.ranks.get(identity.rank)
    return present is None or (not hello.left_behind and present.identity.boot_id != identity.boot_id)


def begins_attempt(identity: RankIdentity, attempt: Attempt | None) -> bool:
    """Return whether a process that is to be added begins another attempt.

    It does where its rank already has a process, or where it reports another world size. Otherwise only counts of one
    node can be compared: torchrun counts a restart only on the node where a rank failed, the ranks of other nodes
    restart uncounted, and a launcher that was itself restarted counts from 0 again. A node that was in the attempt
    before joins this one, whatever it has counted; a node that is new to the run begins another attempt if it has
    counted more restarts than this one.
    """
    if attempt is None or identity.rank in attempt.ranks or identity.world_size != attempt.world_size:
        return True
    known = attempt.counts_by_node.get(identity.node)
    if known is not None:
        return identity.restart_count != known
    return identity.node not in attempt.former_nodes and identity.restart_count > attempt.restart_count
