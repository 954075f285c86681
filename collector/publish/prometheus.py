"""The measures of runs, of what was found in them and of the collector itself, read from a snapshot.

Each measure of measure/catalog.py has one reader: here (some that alerts ask for are read in run_values.py), in
overview.py (nodes, the run's ranks together, the worst ranks) or, where every rank has series of it, in
rank_columns.py; metric_pages.py makes pages of them.

What is unknown has no sample, and a measure that nobody knows no family. A rank that has ended, or is silent, keeps its
`rank_info`, its `rank_end_info`, a `rank_up` of 0 and the account of its step records (docs/delivery.md) as long as it
is in the snapshot; everything else of it stops.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.publish import run_values
from rankscope.collector.publish.rank_columns import Labels, Number, is_live
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.units import ns_to_s

Value = tuple[Labels, Number]
"""The values of a measure's labels, in their order, and its own value, None when it is not known."""

Reader = Callable[[Snapshot], Iterable[Value]]


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


READERS: Final[Mapping[str, Reader]] = {
    "rankscope_run_info": _run_info,
    "rankscope_ranks": run_values.count_states,
    "rankscope_rank_missing": run_values.find_missing_ranks,
    "rankscope_node_missing": run_values.find_missing_nodes,
    "rankscope_agents": run_values.count_agents,
    "rankscope_finding_open": run_values.find_open,
    "rankscope_finding_slowdown_ratio": run_values.find_slowdowns,
    "rankscope_straggler": _per_cause(_stragglers),
    "rankscope_run_slowdown_ratio": _run_slowdown,
    "rankscope_lost_gpu_seconds_total": _per_cause(_lost),
    "rankscope_goodput_ratio": _goodput,
    "rankscope_run_seconds_total": _run_seconds,
    "rankscope_collector_info": lambda snapshot: [((snapshot.version,), 1)],
    "rankscope_frames_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.frames_refused),
    "rankscope_frames_received_total": _of_collector(lambda snapshot: snapshot.counts.frames_received),
    "rankscope_connections": _of_collector(lambda snapshot: snapshot.counts.connections),
    "rankscope_read_pause_max_seconds": _of_collector(lambda snapshot: snapshot.counts.read_pause_s),
    "rankscope_peers_refused_total": _of_collector_and(lambda snapshot: snapshot.counts.peers_refused),
    "rankscope_answers_unsent_total": _of_collector_and(lambda snapshot: snapshot.counts.answers_unsent),
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
    "rankscope_history_dropped_total": _of_collector(lambda snapshot: snapshot.counts.history_dropped),
}
"""How each of these measures is read."""
