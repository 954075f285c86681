"""The measures of runs, of what was found in them and of the collector itself, read from a snapshot.

Each measure of measure/catalog.py has one reader: here, in node_metrics.py (nodes, the run's ranks together, the
worst ranks) or, where every rank has series of it, in rank_metrics.py; pages.py makes pages of them.

What is unknown has no sample, and a measure that nobody knows no family. A rank that has ended, or is silent, keeps its
`rank_info`, its `rank_end_info`, a `rank_up` of 0 and the account of its step records (docs/delivery.md) as long as it
is in the snapshot; everything else of it stops.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import HANG, STRAGGLER, Finding
from rankscope.collector.publish.metrics.rank_metrics import Labels, Number, is_live
from rankscope.collector.runs.liveness import ENDED_WELL
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.units import ns_to_s

Value = tuple[Labels, Number]
"""The values of a measure's labels, in their order, and its own value, None when it is not known."""

Reader = Callable[[Snapshot], Iterable[Value]]


MISSING_SHOWN_MAX: Final = 64
"""Missing ranks of a run that are shown by name: eight nodes of eight GPUs. Of more nobody reads each."""
SUBJECT_CHARS_MAX: Final = 120
"""Of a finding's subject: every second one of 16,384 ranks would be a label of 50 KB. 120 is the width of a line."""

REPORTING: Final = "reporting"
SILENT: Final = "silent"
FAILED: Final = "failed"
ENDED: Final = "ended"
AWAITED: Final = "awaited"
NEVER_REPORTED: Final = "never_reported"
STATES: Final = (REPORTING, SILENT, FAILED, ENDED, AWAITED, NEVER_REPORTED)
"""The states of a rank; never_reported are those of the run's world of whom nobody has heard yet."""
GONE: Final = frozenset({SILENT, FAILED})


# -- who has a value --------------------------------------------------------------------------------------------------


def _live_runs(snapshot: Snapshot) -> list[RunSnapshot]:
    return [run for run in snapshot.runs if any(map(is_live, run.ranks))]


def _per_cause(read: Callable[[RunSnapshot], Iterable[tuple[int | None, str, float]]]) -> Reader:
    """For what detection says of (rank, cause); only of ranks that live. No rank is an empty label, which is none."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in snapshot.runs:
            said = list(read(run))
            live = {rank.identity.rank for rank in run.ranks if is_live(rank)} if said else set()
            for rank, cause, value in said:
                if rank in live or (rank is None and live):
                    yield (run.run, "" if rank is None else str(rank), cause), value

    return read_all


def _of_collector(read: Callable[[Snapshot], Number]) -> Reader:
    return lambda snapshot: [((), read(snapshot))]


def _of_collector_and(read: Callable[[Snapshot], Mapping[str, int]]) -> Reader:
    return lambda snapshot: (((key,), value) for key, value in read(snapshot).items())


# -- what the value is ------------------------------------------------------------------------------------------------


def _run_info(snapshot: Snapshot) -> Iterator[Value]:
    for run in snapshot.runs:
        yield (run.run, str(run.world_size), str(run.restart_count), run.run_id), 1


def _run_slowdown(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.run_slowdown_ratio) for run in _live_runs(snapshot))


def _goodput(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.goodput.goodput_ratio) for run in _live_runs(snapshot))


def _run_seconds(snapshot: Snapshot) -> Iterator[Value]:
    """Of a run that has made no step yet nothing is told, so that the counters of a run begin together."""
    for run in _live_runs(snapshot):
        spent = run.goodput
        kinds = {
            "steps": spent.steps_ns,
            "startup": spent.startup_ns,
            "between_steps": spent.between_steps_ns,
            "stalled": spent.stalled_ns,
            "restart": spent.restart_ns,
        }
        if any(kinds.values()) or any(rank.totals.steps for rank in run.ranks):
            yield from (((run.run, kind), ns_to_s(spent_ns)) for kind, spent_ns in kinds.items())


def _stragglers(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    slow = (finding for finding in run.open_findings if finding.kind == STRAGGLER)
    return ((rank, finding.cause, 1) for finding in slow for rank in finding.ranks)


def _lost(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    return ((lost.rank, lost.cause, lost.lost_rank_seconds) for lost in run.lost)


# -- which ranks are missing, and which findings are open ------------------------------------------------------------


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
        counts[NEVER_REPORTED] = max(run.world_size - len(run.ranks), 0)
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
        gone = Counter(one.node for one in _missing(run) if one.reason != NEVER_REPORTED)
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
        yield from (Missing(number, "", NEVER_REPORTED) for number in range(run.world_size) if number not in states)


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


READERS: Final[Mapping[str, Reader]] = {
    "rankscope_run_info": _run_info,
    "rankscope_ranks": count_states,
    "rankscope_rank_missing": find_missing_ranks,
    "rankscope_node_missing": find_missing_nodes,
    "rankscope_agents": count_agents,
    "rankscope_finding_open": find_open,
    "rankscope_finding_slowdown_ratio": find_slowdowns,
    "rankscope_straggler": _per_cause(_stragglers),
    "rankscope_run_slowdown_ratio": _run_slowdown,
    "rankscope_lost_gpu_seconds_total": _per_cause(_lost),
    "rankscope_goodput_ratio": _goodput,
    "rankscope_run_seconds_total": _run_seconds,
    "rankscope_collector_info": lambda snapshot: [((snapshot.version,), 1)],
    "rankscope_frames_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.frames_refused),
    "rankscope_frames_received_total": _of_collector(lambda snapshot: snapshot.counts.frames_received),
    "rankscope_connections": _of_collector(lambda snapshot: snapshot.counts.connections),
    "rankscope_ingest_stall_max_seconds": _of_collector(lambda snapshot: snapshot.counts.read_pause_s),
    "rankscope_peers_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.peers_refused),
    "rankscope_replies_failed_total": _of_collector_and(lambda snapshot: snapshot.counts.answers_unsent),
    "rankscope_relays": _of_collector(lambda snapshot: snapshot.counts.relays),
    "rankscope_relay_batches_total": _of_collector(lambda snapshot: snapshot.counts.relay_batches),
    "rankscope_relay_frames_dropped_total": _of_collector_and(lambda snapshot: snapshot.counts.relay_dropped),
    "rankscope_relay_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.relay_refused),
    "rankscope_http_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.http_refused),
    "rankscope_runs_evicted_total": _of_collector(lambda snapshot: snapshot.counts.runs_evicted),
    "rankscope_collector_errors_total": _of_collector_and(lambda snapshot: snapshot.counts.contained_errors),
    "rankscope_store_writable": _of_collector(lambda snapshot: snapshot.counts.store_writable),
    "rankscope_store_lost_total": _of_collector_and(lambda snapshot: snapshot.counts.stores_lost),
    "rankscope_store_used_bytes": _of_collector(lambda snapshot: snapshot.counts.store_bytes),
    "rankscope_history_rows_dropped_total": _of_collector(lambda snapshot: snapshot.counts.history_dropped),
}
"""How each of these measures is read."""
