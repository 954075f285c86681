"""Write what the dumps of NCCL's Inspector say in a hang: which collectives each rank had completed, by NCCL itself.

They make no verdict, and know less than torch's flight recorder: of a rank that has not completed what others have they
do not say whether it had entered it. In most hangs nobody completes the collective, so that all are equal. Compared is
the last collective that each rank completed in a communicator, where it is the same operation: NCCL numbers the calls
of each operation apart. All sentences are in the past tense: they are about the time when the dumps were read.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import name_ranks
from rankscope.collector.detect.hangs.ras_witness import COMPLETE, NAMING
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.node_messages import InspectorRead

LINES_MAX: Final = 32
"""Communicators listed in the details of a finding."""
WHO: Final = "NCCL Inspector's dumps"

Dumps = Mapping[int, InspectorRead]
"""The readings that are about the present stall, by rank."""


class Behind(NamedTuple):
    """Ranks that had last completed call `sequence` of `op` in a communicator in which `ahead` ranks had completed call
    `furthest`.
    """

    ranks: tuple[int, ...]
    op: str
    sequence: int
    furthest: int
    ahead: int
    size: int | None

    @property
    def what(self) -> str:
        """Return what these ranks had completed, after a word for them."""
        size = "" if self.size is None else f" of {self.size} ranks"
        others = f"{self.ahead} rank{'' if self.ahead == 1 else 's'}"
        return (
            f"had last completed {self.op} {self.sequence} in a communicator{size}, where {others} had completed "
            f"{self.op} {self.furthest}"
        )


class ComparedCommunicators(NamedTuple):
    """The communicators in which the dumps of two ranks or more can be compared, by their ranks, and who is behind."""

    ranks: tuple[tuple[int, ...], ...]
    behind: tuple[Behind, ...]


def compare_dumps(dumps: Dumps) -> ComparedCommunicators:
    """Compare the last collective of each rank in each communicator, those first that are furthest behind."""
    alike: defaultdict[tuple[str, str], dict[int, InspectorCommunicator]] = defaultdict(dict)
    for rank, read in dumps.items():
        for one in read.communicators:
            if one.last_op and one.last_sequence is not None:
                alike[one.id, one.last_op][rank] = one
    compared = {key: members for key, members in sorted(alike.items()) if len(members) > 1}
    behind = [one for (_, op), members in compared.items() for one in _find_behind(op, members)]
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for (name, _), members in compared.items():
        ranks[name].update(members)
    order = sorted(behind, key=lambda one: (one.sequence - one.furthest, one.ranks))
    return ComparedCommunicators(tuple(tuple(sorted(one)) for one in ranks.values()), tuple(order))


def _find_behind(op: str, members: Mapping[int, InspectorCommunicator]) -> Iterator[Behind]:
    by_sequence: defaultdict[int, list[int]] = defaultdict(list)
    for rank, one in members.items():
        by_sequence[one.last_sequence or 0].append(rank)
    furthest = max(by_sequence)
    size = next(iter(members.values())).size
    for sequence, ranks in by_sequence.items():
        if sequence < furthest:
            yield Behind(tuple(sorted(ranks)), op, sequence, furthest, len(by_sequence[furthest]), size)


def write_dump_witness(cause: str, ranks: Collection[int], dumps: Dumps) -> str:
    """Return a sentence that says whether the dumps show the hang as its cause and `ranks` describe it; empty if they
    have nothing to say about that.
    """
    compared = compare_dumps(dumps)
    if cause in NAMING and ranks:
        return _compare(ranks, compared)
    if cause == COMPLETE:
        return _write_behind("showed a difference: ", compared.behind) or _write_equal(compared)
    return _write_behind("showed a difference: ", compared.behind)


def _compare(ranks: Collection[int], compared: ComparedCommunicators) -> str:
    """Compare the ranks that a verdict names with those that are behind in the dumps."""
    same = next((one for one in compared.behind if not set(ranks).isdisjoint(one.ranks)), None)
    if same is not None:
        unsaid = f"whether {'it' if len(same.ranks) == 1 else 'they'} had entered the next the dumps do not say"
        return f"{WHO} agreed: {name_ranks(same.ranks)} {same.what}; {unsaid}"
    if compared.behind:
        return _write_behind(f"did not show {name_ranks(ranks)} behind, but ", compared.behind)
    is_known = any(not set(ranks).isdisjoint(members) for members in compared.ranks)
    return f"{_write_equal(compared)}; which one they had entered the dumps do not say" if is_known else ""


def _write_behind(what: str, behind: tuple[Behind, ...]) -> str:
    return f"{WHO} {what}{name_ranks(behind[0].ranks)} {behind[0].what}" if behind else ""


def _write_equal(compared: ComparedCommunicators) -> str:
    if not compared.ranks:
        return ""
    count = len(compared.ranks)
    where = "the only communicator" if count == 1 else f"each of {count} communicators"
    return f"{WHO} showed nobody behind: in {where} that could be compared the ranks had last completed the same"


def describe_dumps(dumps: Dumps) -> str:
    """Return what the dumps have of each communicator, a line each: which ranks had last completed what."""
    members: defaultdict[str, dict[int, InspectorCommunicator]] = defaultdict(dict)
    for rank, read in dumps.items():
        for one in read.communicators:
            members[one.id][rank] = one
    lines = [_describe_communicator(name, ranks) for name, ranks in sorted(members.items())]
    more = [f"communicators not listed here: {len(lines) - LINES_MAX}"] if len(lines) > LINES_MAX else []
    skipped = sum(read.lines_skipped for read in dumps.values())
    damaged = [f"lines that were not used since the sidecars began: {skipped}"] if skipped else []
    return "\n".join([*lines[:LINES_MAX], *more, *damaged])


def _describe_communicator(name: str, members: Mapping[int, InspectorCommunicator]) -> str:
    by_last: defaultdict[str, list[int]] = defaultdict(list)
    for rank, one in members.items():
        size = "" if one.last_bytes is None else f" ({one.last_bytes} bytes)"
        by_last[f"{one.last_op} {one.last_sequence}{size}" if one.last_op else "not known"].append(rank)
    first = next(iter(members.values()))
    called = f" ({first.name})" if first.name else ""
    said = "; ".join(f"{name_ranks(ranks)}: {last}" for last, ranks in sorted(by_last.items()))
    return f"{name}{called}, last completed: {said}"


def count_dumps(dumps: Dumps) -> dict[str, int]:
    """Return the numbers behind it: communicators that could be compared, and the ranks behind in any of them."""
    if not dumps:
        return {}
    compared = compare_dumps(dumps)
    behind = {rank for one in compared.behind for rank in one.ranks}
    return {"inspector_communicators": len(compared.ranks), "inspector_behind_ranks": len(behind)}
