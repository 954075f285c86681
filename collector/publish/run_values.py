"""What alerts ask of a run, few series each however many ranks it has: who is there, who is missing, what was found."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import HANG, Finding
from rankscope.collector.runs.liveness import ENDED_WELL
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot

MISSING_SHOWN_MAX: Final = 64
"""Missing ranks of a run that are shown by name: eight nodes of eight GPUs. Of more nobody reads each."""
SUBJECT_CHARS_MAX: Final = 120
"""Of a finding's subject: every second one of 16,384 ranks would be a label of 50 KB. 120 is the width of a line."""

REPORTING: Final = "reporting"
SILENT: Final = "silent"
FAILED: Final = "failed"
ENDED: Final = "ended"
AWAITED: Final = "awaited"
UNHEARD: Final = "unheard"
STATES: Final = (REPORTING, SILENT, FAILED, ENDED, AWAITED, UNHEARD)
"""The states of a rank; unheard are those of the run's world of whom nobody has heard yet."""
GONE: Final = frozenset({SILENT, FAILED})

Value = tuple[tuple[str, ...], float | None]
"""The values of a measure's labels, in their order, and its own."""


class Missing(NamedTuple):
    """A rank that its run goes on without. `node` is empty where nobody has heard of the rank."""

    rank: int
    node: str
    reason: str


def find_state(rank: RankSnapshot) -> str:
    """One of STATES: silent is whose end nobody knows, ended who ended well.

    A rank that is awaited has not been heard of since the collector was started again.
    """
    if rank.ended is None:
        return AWAITED if rank.awaited else REPORTING
    if rank.ended == SILENT:
        return SILENT
    return ENDED if rank.ended in ENDED_WELL else FAILED


def count_states(snapshot: Snapshot) -> Iterator[Value]:
    """Every state of every run, so that each count is known to be 0 before it is not."""
    for run in snapshot.runs:
        counts = Counter(map(find_state, run.ranks))
        counts[UNHEARD] = max(run.world_size - len(run.ranks), 0)
        yield from (((run.run, state), counts[state]) for state in STATES)


def find_missing_ranks(snapshot: Snapshot) -> Iterator[Value]:
    """The first MISSING_SHOWN_MAX of each run."""
    for run in snapshot.runs:
        missing = sorted(_missing(run))[:MISSING_SHOWN_MAX]
        yield from (((run.run, str(one.rank), one.node, one.reason), 1) for one in missing)


def find_missing_nodes(snapshot: Snapshot) -> Iterator[Value]:
    """The nodes that are gone as a whole. One of which one rank was heard of is not told from that rank."""
    for run in snapshot.runs:
        sizes = Counter(rank.identity.node for rank in run.ranks)
        gone = Counter(one.node for one in _missing(run) if one.reason != UNHEARD)
        yield from (((run.run, node), 1) for node, count in gone.items() if count == sizes[node] > 1)


def count_agents(snapshot: Snapshot) -> Iterator[Value]:
    """Only of ranks that report: what has ended need not be brought to one version."""
    for run in snapshot.runs:
        versions = Counter(rank.agent_version for rank in run.ranks if find_state(rank) == REPORTING)
        yield from (((run.run, version), count) for version, count in versions.items())


def find_open(snapshot: Snapshot) -> Iterator[Value]:
    """The open findings of runs that go on."""
    return ((labels, 1) for labels, _ in _open_findings(snapshot))


def find_slowdowns(snapshot: Snapshot) -> Iterator[Value]:
    """Of those, the slowdown where it makes sense."""
    return ((labels, finding.slowdown_ratio) for labels, finding in _open_findings(snapshot))


def _missing(run: RunSnapshot) -> Iterator[Missing]:
    """Nobody is missed in a run in which nobody reports: it is over, or it is the collector that hears nothing."""
    states = {rank.identity.rank: find_state(rank) for rank in run.ranks}
    if REPORTING not in states.values():
        return
    for rank in run.ranks:
        if states[rank.identity.rank] in GONE:
            yield Missing(rank.identity.rank, rank.identity.node, rank.ended or "")
    if len(states) < run.world_size:
        yield from (Missing(number, "", UNHEARD) for number in range(run.world_size) if number not in states)


def _open_findings(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Finding]]:
    for run in snapshot.runs:
        if not run.open_findings:
            continue
        reporting = {rank.identity.rank for rank in run.ranks if find_state(rank) == REPORTING}
        nodes = {rank.identity.rank: rank.identity.node for rank in run.ranks}
        for finding in run.open_findings:
            # A hang may be because of ranks that are gone; slow nobody is any more who has ended.
            if not reporting or (finding.ranks and finding.kind != HANG and reporting.isdisjoint(finding.ranks)):
                continue
            rank, node = "", ""
            if finding.rank is not None:
                rank, node = str(finding.rank), nodes.get(finding.rank, "")
            if finding.nodes:
                node = _shorten(", ".join(finding.nodes))
            scope = _find_scope(finding)
            yield (run.run, finding.kind, scope, _shorten(finding.subject), rank, node, finding.cause), finding


def _find_scope(finding: Finding) -> str:
    if finding.nodes:
        return "node"
    if finding.ranks:
        return "rank"
    return "group" if finding.group else "run"


def _shorten(text: str) -> str:
    return text if len(text) <= SUBJECT_CHARS_MAX else f"{text[: SUBJECT_CHARS_MAX - 3]}..."
