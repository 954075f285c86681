"""Write what NCCL's RAS service said in a hang: a second witness, which knows nothing of torch's flight recorder.

It makes no verdict. It counts the collectives that each member of a communicator has launched, without transfers from
rank to rank and those in CUDA graphs, and knows processes that do not answer; so it may see nothing of a hang that is
real. All sentences are in the past tense: they are about the time of its answer.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import PAUSES, name_ranks
from rankscope.measure.nccl_ras import BEHIND, DEAD, FAILED, MISSING, NOT_MEMBER, RasCommunicator, RasRank
from rankscope.measure.node_messages import RasAnswered
from rankscope.measure.units import format_duration

NAMING: Final = frozenset({"dead_rank", "missing_rank", "silent_rank"}) | PAUSES
"""Causes that name the rank which the others wait for: another witness may find it missing or behind."""
COMPLETE: Final = "all_in_collective"
"""Cause that says that nobody is missing or behind."""
LINES_MAX: Final = 32
"""Ranks listed in the details of a finding."""


class Listed(NamedTuple):
    """A rank that RAS lists, and the communicator it is in."""

    communicator: RasCommunicator
    rank: RasRank

    @property
    def subject(self) -> str:
        """Return which rank it is: of the run where that is sure, else of the communicator."""
        one = self.rank
        if one.rank is not None:
            return f"rank {one.rank}"
        process = "" if one.pid is None else f" (process {one.pid} on {one.host})"
        return f"communicator rank {one.communicator_rank}{process}"

    @property
    def what(self) -> str:
        """Return what RAS said about it, in the past tense."""
        one = self.rank
        if one.state == BEHIND:
            op = f"{f'{one.op} ' if one.op else ''}operation{'' if one.launched == 1 else 's'}"
            did = f"had launched {one.launched} {op}, where another rank had launched {one.furthest},"
        else:
            did = {
                DEAD: "was considered dead",
                MISSING: "gave no answer",
                NOT_MEMBER: "answered, but not as a member",
                FAILED: f"reported an error ({one.error})",
            }.get(one.state, one.state)
        size = self.communicator.size
        return f"{did} in a communicator{'' if size is None else f' of {size} ranks'}"


def list_ranks(answered: RasAnswered) -> list[Listed]:
    """Return the ranks that RAS lists, in its order."""
    return [Listed(one, rank) for one in answered.communicators for rank in one.ranks]


def write_witness(cause: str, ranks: Collection[int], answered: RasAnswered | None) -> str:
    """Return a sentence that says whether RAS saw the hang as its cause and `ranks` describe it; empty if it has
    nothing to say about that.
    """
    if answered is None or answered.is_own is False:
        return ""
    listed = list_ranks(answered)
    if cause in NAMING and ranks:
        return _compare(ranks, listed) or _write_nothing_seen(answered, "did not show this", listed)
    if cause == COMPLETE:
        return _write_listed("saw it differently", listed) or _write_nothing_seen(answered, "agreed", listed)
    return _write_listed("was asked too", listed)


def _compare(ranks: Collection[int], listed: list[Listed]) -> str:
    """Compare the ranks that a verdict names with those that RAS lists."""
    same = [one for one in listed if one.rank.rank in ranks]
    if same:
        about = "" if len({one.rank.rank for one in same}) == len(ranks) else f" about {_name(same)}"
        return f"NCCL RAS agreed{about}: {same[0].subject} {same[0].what}{_count_others(listed, same[0])}"
    if any(one.rank.rank is None for one in listed):
        return _write_listed("listed one whose rank in the run was not known", listed)
    return _write_listed(f"did not list {name_ranks(ranks)}, but", listed, separator=" ")


def _write_listed(what: str, listed: list[Listed], separator: str = ": ") -> str:
    if not listed:
        return ""
    return f"NCCL RAS {what}{separator}{listed[0].subject} {listed[0].what}{_count_others(listed, listed[0])}"


def _count_others(listed: list[Listed], first: Listed) -> str:
    others = {one.subject for one in listed} - {first.subject}
    return f"; it listed {len(others)} more rank{'' if len(others) == 1 else 's'}" if others else ""


def _write_nothing_seen(answered: RasAnswered, what: str, listed: list[Listed]) -> str:
    """Say that all was well, if the answer was whole and about all ranks."""
    total = answered.communicators_total
    is_whole = not (answered.absent or answered.communicators or answered.communicators_left_out or answered.timeouts)
    if listed or not total or not is_whole:
        return ""
    where = "the only communicator" if total == 1 else f"each of {total} communicators"
    doubt = "" if answered.is_own else ", if these were of this run, which its answer did not tell"
    return f"NCCL RAS {what}: in {where} all ranks had answered and launched equally many collectives{doubt}"


def _name(listed: list[Listed]) -> str:
    return name_ranks({one.rank.rank for one in listed if one.rank.rank is not None})


def describe_witness(answered: RasAnswered) -> str:
    """Return all that RAS said, or why it said nothing, a line each."""
    after = format_duration(max(0, answered.host_ns - answered.stalled_since_host_ns))
    version = f"NCCL {answered.nccl_version}" if answered.nccl_version else "NCCL RAS"
    head = f"{version} at {answered.address}, {after} after the first stall on its machine began:"
    return "\n".join([head, *_describe_answer(answered)])


def _describe_answer(answered: RasAnswered) -> Iterator[str]:
    yield from answered.absent.values()
    if answered.communicators_total is not None:
        yield f"communicators: {answered.communicators_total}; with ranks that differed: {len(answered.communicators)}"
    listed = list_ranks(answered)
    for one in listed[:LINES_MAX]:
        yield f"{one.communicator.name}: {one.subject} {one.what}"
    more = max(0, len(listed) - LINES_MAX) + sum(one.ranks_left_out for one in answered.communicators)
    if more:
        yield f"ranks not listed here: {more}"
    if answered.communicators_left_out:
        yield f"communicators not listed here: {answered.communicators_left_out}"
    if answered.timeouts:
        yield f"timeouts while RAS collected this: {answered.timeouts}"
    if answered.is_own is None and answered.communicators_total:
        yield "it is not known whether this was the present run: the answer names no process of it on this machine"


def count_witness(answered: RasAnswered) -> dict[str, int]:
    """Return the numbers behind it: communicators, and by state the processes (or else communicator ranks) listed."""
    if answered.communicators_total is None:
        return {}
    counts = {"ras_communicators": answered.communicators_total}
    listed = list_ranks(answered)
    for name, states in (("ras_missing_ranks", {DEAD, MISSING}), ("ras_behind_ranks", {BEHIND})):
        counts[name] = len({_find_key(one) for one in listed if one.rank.state in states})
    return counts


def _find_key(one: Listed) -> tuple[object, ...]:
    if one.rank.pid is not None:
        return one.rank.host, one.rank.pid
    return one.communicator.name, one.rank.communicator_rank
