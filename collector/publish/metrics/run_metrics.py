"""Metrics of runs and of what detection found in them, read from a snapshot.

An unknown value has no sample. Of a rank that has ended or is silent, only `rank_info`, `rank_end_info`, `rank_up` and
its counts of step records (docs/delivery.md) stay on the page.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import HANG, LEFT_S, STRAGGLER, Finding
from rankscope.collector.detect.finding_words import count_ranks_wasted
from rankscope.collector.publish.metrics.measures import (
    CAUSE,
    FINDING,
    NOT_NEGATIVE,
    ONE,
    RANK,
    RATIO,
    RUN,
    Buckets,
    Measure,
    OfHistogram,
    OfSnapshot,
    Value,
)
from rankscope.collector.publish.metrics.rank_columns import is_live, per_rank, to_seconds
from rankscope.collector.runs.liveness import ENDED_WELL
from rankscope.collector.runs.run_end import NOT_HEARD as RUN_NOT_HEARD
from rankscope.collector.runs.run_status import find_energy
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.expert_loads import ExpertGroup
from rankscope.collector.steps.layer_times import Layer
from rankscope.collector.steps.pipeline_stages import PipelineStage, PipelineTimes
from rankscope.collector.steps.step_histogram import BOUNDS_S
from rankscope.measure.units import ns_to_s

_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"
_PHASES: Final = "agent: steps (StepRecord.phases_ns)"
_EXPERTS: Final = "collector: detection (ExpertLoads)"
_PIPELINE: Final = "collector: detection (PipelineTimes); agent: Report.pipeline"
_GOODPUT: Final = "collector: goodput (GoodputSnapshot)"
_LIVES: Final = "collector: arrival of reports; sidecar: RankEnded"

_LAYERS: Final = "agent: Report.layers; collector: detection (RunLayers)"

EXPERT_GROUPS_SHOWN_MAX: Final = 10
"""Groups of all-to-alls that are exported."""
STAGES_SHOWN_MAX: Final = 128
"""Ranks of a pipeline, the replicas of each as one, that are exported."""
MISSING_SHOWN_MAX: Final = 64
"""Missing ranks of a run that are exported by number: eight nodes of eight GPUs."""
SUBJECT_CHARS_MAX: Final = 120
"""Longest subject of a finding in a label. A list of 8,192 ranks would be 50 KB."""

REPORTING: Final = "reporting"
SILENT: Final = "silent"
FAILED: Final = "failed"
ENDED: Final = "ended"
AWAITED: Final = "awaited"
NEVER_REPORTED: Final = "never_reported"
NOT_HEARD: Final = "not_heard"
STATES: Final = (REPORTING, SILENT, FAILED, ENDED, AWAITED, NEVER_REPORTED, NOT_HEARD)
"""States of a rank; never_reported: in the run's world, but without any report; not_heard: silent with all others
of its run, while nobody else was heard either."""
GONE: Final = frozenset({SILENT, FAILED})


# -- readers -----------------------------------------------------------------------------------------------------------


def _live_runs(snapshot: Snapshot) -> list[RunSnapshot]:
    return [run for run in snapshot.runs if any(map(is_live, run.ranks))]


def _per_cause(read: Callable[[RunSnapshot], Iterable[tuple[int | None, str, float]]]) -> OfSnapshot:
    """Return the reader of a metric by rank and cause, for live ranks. No rank is an empty label."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in snapshot.runs:
            found = list(read(run))
            live = {rank.identity.rank for rank in run.ranks if is_live(rank)} if found else set()
            for rank, cause, value in found:
                if rank in live or (rank is None and live):
                    yield (run.run, "" if rank is None else str(rank), cause), value

    return OfSnapshot(read_all)


def _energy(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), find_energy(run).joules) for run in _live_runs(snapshot))


def _run_slowdown(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.run_slowdown_ratio) for run in _live_runs(snapshot))


def _not_attributed(snapshot: Snapshot) -> Iterator[Value]:
    yield from (((run.run,), to_seconds(run.wait_untraced_ns)) for run in _live_runs(snapshot))


def _goodput(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.goodput.goodput_ratio) for run in _live_runs(snapshot))


def _run_seconds(snapshot: Snapshot) -> Iterator[Value]:
    """Yield nothing for a run without steps, so that the counters of a run begin together."""
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


def _count_checkpoints(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.checkpoints.count) for run in _live_runs(snapshot) if run.checkpoints.count)


def _checkpoint_seconds(snapshot: Snapshot) -> Iterator[Value]:
    marked = (run for run in _live_runs(snapshot) if run.checkpoints.count)
    return (((run.run,), ns_to_s(run.checkpoints.duration_ns)) for run in marked)


def _step_durations(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Buckets]]:
    for run in _live_runs(snapshot):
        seen = run.step_durations
        if seen is not None and seen.steps:
            yield (run.run,), Buckets(BOUNDS_S, seen.at_most, seen.steps, seen.sum_s)


def _last_checkpoint(snapshot: Snapshot) -> Iterator[Value]:
    marked = (run for run in _live_runs(snapshot) if run.checkpoints.latest)
    return (((run.run,), run.checkpoints.latest[-1].wall_s) for run in marked)


def _stragglers(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    slow = (finding for finding in run.open_findings if finding.kind == STRAGGLER)
    return ((rank, finding.cause, 1) for finding in slow for rank in finding.ranks)


def _lost(run: RunSnapshot) -> Iterator[tuple[int | None, str, float]]:
    return ((lost.rank, lost.cause, lost.lost_rank_seconds) for lost in run.lost)


# -- which ranks are missing, and which findings are open ------------------------------------------------------------


class Missing(NamedTuple):
    """A rank that does not report while others of its run do. `node` is empty if it never reported."""

    rank: int
    node: str
    reason: str


def find_state(rank: RankSnapshot) -> str:
    """Return one of STATES. silent: its end is unknown; ended: it ended well; awaited: no report since the collector
    restarted.
    """
    if rank.ended is None:
        return AWAITED if rank.awaited else REPORTING
    if rank.ended == SILENT:
        return SILENT
    return ENDED if rank.ended in ENDED_WELL else FAILED


def count_states(snapshot: Snapshot) -> Iterator[Value]:
    """Yield every state of every run, zeros included."""
    for run in snapshot.runs:
        counts = Counter(map(find_state, run.ranks))
        if run.end is not None and run.end.reason == RUN_NOT_HEARD:
            counts[NOT_HEARD] = counts.pop(SILENT, 0)
        counts[NEVER_REPORTED] = max(run.world_size - len(run.ranks), 0)
        yield from (((run.run, state), counts[state]) for state in STATES)


def find_missing_ranks(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the first MISSING_SHOWN_MAX missing ranks of each run."""
    for run in snapshot.runs:
        missing = sorted(_missing(run))[:MISSING_SHOWN_MAX]
        yield from (((run.run, str(one.rank), one.node, one.reason), 1) for one in missing)


def find_missing_nodes(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the nodes whose ranks are all missing. A node with one rank is not distinguished from that rank."""
    for run in snapshot.runs:
        sizes = Counter(rank.identity.node for rank in run.ranks)
        gone = Counter(one.node for one in _missing(run) if one.reason != NEVER_REPORTED)
        yield from (((run.run, node), 1) for node, count in gone.items() if count == sizes[node] > 1)


def count_agents(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the reporting ranks by the version of their agent."""
    for run in snapshot.runs:
        versions = Counter(rank.agent_version for rank in run.ranks if find_state(rank) == REPORTING)
        yield from (((run.run, version), count) for version, count in versions.items())


def find_open(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the open findings of runs that have not ended."""
    return ((labels, 1) for labels, _ in _open_findings(snapshot))


def _stages(read: Callable[[PipelineStage], float]) -> OfSnapshot:
    """Return the reader of a metric by the stages that a rank of a pipeline holds."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in _live_runs(snapshot):
            stages = () if run.pipeline is None else run.pipeline.stages[:STAGES_SHOWN_MAX]
            yield from (((run.run, ",".join(map(str, one.stages))), read(one)) for one in stages)

    return OfSnapshot(read_all)


def _expert_groups(read: Callable[[ExpertGroup], float | None]) -> OfSnapshot:
    """Return the reader of a metric by the groups of all-to-alls that are least even."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in _live_runs(snapshot):
            groups = () if run.experts is None else run.experts.groups[:EXPERT_GROUPS_SHOWN_MAX]
            yield from (((run.run, one.group), read(one)) for one in groups)

    return OfSnapshot(read_all)


def _count_dead(snapshot: Snapshot) -> Iterator[Value]:
    for run in _live_runs(snapshot):
        if run.experts is not None and run.experts.groups and not run.experts.all_even:
            yield (run.run,), run.experts.dead_count


def _pipelines(read: Callable[[PipelineTimes], float | None]) -> OfSnapshot:
    """Return the reader of a metric of a pipeline, by its schedule."""

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in _live_runs(snapshot):
            if run.pipeline is not None:
                yield (run.run, run.pipeline.schedule), read(run.pipeline)

    return OfSnapshot(read_all)


def _layers(read: Callable[[Layer], Iterable[Value]]) -> OfSnapshot:
    """Return the reader of a metric by block of the model: its number, behind the first of its ranks where blocks of
    ranks that do other work have the same number.
    """

    def read_all(snapshot: Snapshot) -> Iterator[Value]:
        for run in _live_runs(snapshot):
            groups = () if run.layers is None else run.layers.groups
            seen = Counter(layer.number for group in groups for layer in group.layers)
            for group in groups:
                for layer in group.layers:
                    name = str(layer.number) if seen[layer.number] == 1 else f"{group.ranks[0]}/{layer.number}"
                    yield from (((run.run, name, *labels), value) for labels, value in read(layer))

    return OfSnapshot(read_all)


def _read_layer_times(layer: Layer) -> list[Value]:
    return [(("forward",), to_seconds(layer.forward_ns)), (("backward",), to_seconds(layer.backward_ns))]


def _find_slow_layers(snapshot: Snapshot) -> Iterator[Value]:
    for run in _live_runs(snapshot):
        for one in () if run.layers is None else run.layers.slow:
            yield (run.run, str(one.rank), str(one.number)), one.ratio


def _count_without_peers(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run,), run.ranks_without_peers) for run in _live_runs(snapshot))


def _find_not_judged(snapshot: Snapshot) -> Iterator[Value]:
    return (((run.run, kind), 1) for run in _live_runs(snapshot) for kind in sorted(run.not_judged))


def find_slowdowns(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the slowdown of open findings that have one."""
    return ((labels, finding.slowdown_ratio) for labels, finding in _open_findings(snapshot))


def find_wasted(snapshot: Snapshot) -> Iterator[Value]:
    """Yield how many ranks each open finding wastes, where its cost is known: as its text says it."""
    worlds = {run.run: run.world_size for run in snapshot.runs}
    for labels, finding in _open_findings(snapshot):
        if finding.run_slowdown_ratio is not None:
            yield labels, count_ranks_wasted(finding.run_slowdown_ratio, worlds[labels[0]])


def _find_left(snapshot: Snapshot) -> Iterator[Value]:
    """Yield the time that is left until what each open finding predicts, where it predicts a time."""
    return ((labels, finding.evidence.get(LEFT_S)) for labels, finding in _open_findings(snapshot))


def _missing(run: RunSnapshot) -> Iterator[Missing]:
    """Yield the missing ranks; none of a run without a reporting rank, which is over or cut off from the collector."""
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
            # A hang may be caused by ranks that are gone; a rank that has ended is no longer slow.
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


RUNS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_ranks", "gauge", "", ("run", "state"),
        "Ranks of the run by state: reporting, silent, failed, ended, awaited (after a restart of the collector), "
        "never_reported, or not_heard (silent, and nobody else was heard either); the states sum to the world size.",
        "count by state", _LIVES, NOT_NEGATIVE,
        OfSnapshot(count_states),
    ),
    Measure(
        "rankscope_rank_missing", "gauge", "", ("run", "rank", "node", "reason"),
        "1 while the rank is silent, failed or never_reported and others of its run report; at most 64 ranks a run, "
        "rankscope_ranks counts all.",
        "1 per missing rank", _LIVES, ONE,
        OfSnapshot(find_missing_ranks),
    ),
    Measure(
        "rankscope_node_missing", "gauge", "", ("run", "node"),
        "1 while every rank of a node of several ranks is silent or failed and others of its run report.",
        "1 per missing node", _LIVES, ONE,
        OfSnapshot(find_missing_nodes),
    ),
    Measure(
        "rankscope_agents", "gauge", "", ("run", "version"),
        "Reporting ranks by the version of their agent.", "count by version", "agent: Hello", NOT_NEGATIVE,
        OfSnapshot(count_agents),
    ),
    Measure(
        "rankscope_finding_open", "gauge", "", FINDING,
        "1 while the finding is open. scope is its subject: a rank, node, group or the run; rank and node are those of "
        "the first rank concerned.",
        "1 per open finding", _DETECTION, ONE,
        OfSnapshot(find_open),
    ),
    Measure(
        "rankscope_finding_slowdown_ratio", "gauge", "ratio", FINDING,
        "Time of the subject of the open finding over that of its peers or its past; 1 is equal, above is slower.",
        "self / self of the peers; for other kinds docs/detection.md", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(find_slowdowns),
    ),
    Measure(
        "rankscope_finding_wasted_ranks", "gauge", "", FINDING,
        "Ranks whose time the open finding wastes, as its text says: so many GPU-hours per hour. Absent while its cost "
        "is not known.",
        "world size * (1 - ideal step / step)", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(find_wasted),
    ),
    Measure(
        "rankscope_finding_left_seconds", "gauge", "seconds", FINDING,
        "Time until the machine of the open finding is out of memory, as its text says. Absent for findings that "
        "predict nothing.",
        "memory available / growth of the ranks", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(_find_left),
    ),
    Measure(
        "rankscope_straggler", "gauge", "", CAUSE,
        "1 while an open finding names the rank as a straggler with this cause; absent otherwise.",
        "1 per open finding", _DETECTION, ONE,
        _per_cause(_stragglers),
    ),
    Measure(
        "rankscope_rank_slowdown_ratio", "gauge", "ratio", RANK,
        "Own time of the rank, its step without waits for others, over that of its peers; 1 is equal, above is slower.",
        "median(self) / median over the peers of median(self)", _DETECTION, NOT_NEGATIVE,
        per_rank(lambda rank: rank.slowdown_ratio),
    ),
    Measure(
        "rankscope_run_slowdown_ratio", "gauge", "ratio", RUN,
        "Step duration of the run over the duration without its stragglers; 1 is no loss.",
        "step / ideal step", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(_run_slowdown),
    ),
    Measure(
        "rankscope_lost_gpu_seconds_total", "counter", "seconds", CAUSE,
        "GPU time the run lost because this rank was slow; a rank without a GPU counts as one GPU.",
        "sum of (step - ideal step) * world_size", _DETECTION, NOT_NEGATIVE,
        _per_cause(_lost),
    ),
    Measure(
        "rankscope_rank_caused_wait_seconds", "gauge", "seconds", RANK,
        "Time per step that other ranks waited because of this rank; what is not traced is in "
        "rankscope_wait_not_attributed_seconds; absent while unknown.",
        "median over the last 12 attributed steps, 3 at least, of the waiting attributed to the rank",
        _DETECTION, NOT_NEGATIVE,
        per_rank(lambda rank: to_seconds(rank.wait_caused_ns_median)),
    ),
    Measure(
        "rankscope_wait_not_attributed_seconds", "gauge", "seconds", RUN,
        "Time per step that ranks waited for others in operations with a root or point to point, where the rank that "
        "they waited for is not traced.",
        "median over the last 12 attributed steps, 3 at least", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(_not_attributed),
    ),
    Measure(
        "rankscope_goodput_ratio", "gauge", "ratio", RUN,
        "Share of the run's time so far spent in steps, less the time lost to slow ranks.",
        "productive / wall", _GOODPUT, RATIO,
        OfSnapshot(_goodput),
    ),
    Measure(
        "rankscope_run_energy_joules_total", "counter", "joules", RUN,
        "Energy that the boards of the run's GPUs have used since their ranks began; absent unless known of all.",
        "sum of rankscope_gpu_energy_joules_total over boards", "agent: NVML, amdsmi (DeviceSample)", NOT_NEGATIVE,
        OfSnapshot(_energy),
    ),
    Measure(
        "rankscope_run_seconds_total", "counter", "seconds", ("run", "kind"),
        "Time of the run by kind: steps, startup, between_steps, stalled, restart.",
        "time between the ends of reported steps, by what the run did", _GOODPUT, NOT_NEGATIVE,
        OfSnapshot(_run_seconds),
    ),
    Measure(
        "rankscope_run_step_duration_seconds", "histogram", "seconds", RUN,
        "Durations of the steps of the run, each that of its slowest rank; without the first three of an attempt.",
        "count of steps by class, 10 classes a decade", "collector: step table", NOT_NEGATIVE,
        OfHistogram(_step_durations),
    ),
    Measure(
        "rankscope_checkpoints_total", "counter", "", RUN,
        "Checkpoints of the run, by the phase checkpoint of its ranks; absent before the first.",
        "steps with at least 1 ms of the phase on any rank", _PHASES, NOT_NEGATIVE,
        OfSnapshot(_count_checkpoints),
    ),
    Measure(
        "rankscope_checkpoint_seconds_total", "counter", "seconds", RUN,
        "Time that training waited for these checkpoints; each counts as long as its slowest rank took.",
        "sum of the longest phase checkpoint of any rank in the step", _PHASES, NOT_NEGATIVE,
        OfSnapshot(_checkpoint_seconds),
    ),
    Measure(
        "rankscope_last_checkpoint_timestamp_seconds", "gauge", "seconds", RUN,
        "When the step of the last checkpoint ended, in seconds since 1970.", "end of its step", _PHASES,
        NOT_NEGATIVE,
        OfSnapshot(_last_checkpoint),
    ),
    Measure(
        "rankscope_ranks_without_peers", "gauge", "", RUN,
        "Ranks with work that no other rank of the run is known to do. They are judged by their own past only: "
        "slowness that has been there since their first step is not found.",
        "ranks without a peer (docs/definitions.md section 4)", _DETECTION, NOT_NEGATIVE,
        OfSnapshot(_count_without_peers),
    ),
    Measure(
        "rankscope_pipeline_bubble_ratio", "gauge", "ratio", ("run", "stage"),
        "Share of the pipeline's time in a step in which the ranks that hold these stages wait for sends and receives. "
        "Absent until the waiting of all ranks is known of 16 steps.",
        "median of waiting / (step - data - optimizer - checkpoint)", _PIPELINE, RATIO,
        _stages(lambda one: one.bubble_ratio),
    ),
    Measure(
        "rankscope_pipeline_stage_own_seconds", "gauge", "seconds", ("run", "stage"),
        "Own time per step of the ranks that hold these stages: the longest sets the pace of the pipeline.",
        "median of step - waiting for other ranks", _PIPELINE, NOT_NEGATIVE,
        _stages(lambda one: ns_to_s(one.own_ns)),
    ),
    Measure(
        "rankscope_pipeline_ideal_bubble_ratio", "gauge", "ratio", ("run", "schedule"),
        "Bubble of the announced schedule itself, where all stages take equally long. Absent for a schedule without a "
        "formula.",
        "by schedule (docs/pipelines.md)", _PIPELINE, RATIO,
        _pipelines(lambda one: one.ideal_ratio),
    ),
    Measure(
        "rankscope_pipeline_even_step_seconds", "gauge", "seconds", ("run", "schedule"),
        "Length of a step at best, if the work of the stages were split evenly. Absent where no stage sets the pace.",
        "outside of the pipeline + mean own time in it / (1 - ideal bubble)", _PIPELINE, NOT_NEGATIVE,
        _pipelines(lambda one: to_seconds(one.even_step_ns)),
    ),
    Measure(
        "rankscope_layer_seconds", "gauge", "seconds", ("run", "layer", "phase"),
        "Time of a repeated block of the model per call, by phase: the median of the ranks that do the same work.",
        "median over ranks of medians of timed steps (docs/layers.md)", _LAYERS, NOT_NEGATIVE,
        _layers(_read_layer_times),
    ),
    Measure(
        "rankscope_layer_slowest_seconds", "gauge", "seconds", ("run", "layer"),
        "Forward and backward of a repeated block of the model together, per call, on the rank that takes longest.",
        "largest of the ranks", _LAYERS, NOT_NEGATIVE,
        _layers(lambda one: [((), to_seconds(one.slowest_ns))]),
    ),
    Measure(
        "rankscope_layer_activation_bytes", "gauge", "bytes", ("run", "layer"),
        "GPU memory that a forward of a repeated block keeps for its backward, output included; the rank with most.",
        "allocated after the forward - before", _LAYERS, NOT_NEGATIVE,
        _layers(lambda one: [((), one.held_bytes)]),
    ),
    Measure(
        "rankscope_slow_layer_ratio", "gauge", "ratio", ("run", "rank", "layer"),
        "Time of a block that is slow on this rank over that of its peers; absent for all others, at most 8 per run.",
        "forward + backward / the same of its peers", _LAYERS, NOT_NEGATIVE,
        OfSnapshot(_find_slow_layers),
    ),
    Measure(
        "rankscope_expert_load_ratio", "gauge", "ratio", ("run", "group"),
        "Largest load of a rank over the mean in a group of all-to-alls, summed over the last 64 known steps. Load: "
        "bytes put into all-to-alls into which the ranks put different amounts. The 10 least even groups of a run.",
        "largest sum over the steps / mean sum (docs/experts.md)", _EXPERTS, NOT_NEGATIVE,
        _expert_groups(lambda one: one.ratio),
    ),
    Measure(
        "rankscope_expert_load_step_ratio", "gauge", "ratio", ("run", "group"),
        "rankscope_expert_load_ratio with the largest load of each step: also high where the hottest rank changes.",
        "sum of the largest load of each step / sum of the means (docs/experts.md)", _EXPERTS, NOT_NEGATIVE,
        _expert_groups(lambda one: one.step_ratio),
    ),
    Measure(
        "rankscope_expert_dead_ranks", "gauge", "", RUN,
        "Ranks without any load (no token came to them) in their group of all-to-alls in the last 64 known steps.",
        "count", _EXPERTS, NOT_NEGATIVE,
        OfSnapshot(_count_dead),
    ),
    Measure(
        "rankscope_finding_not_judged", "gauge", "", ("run", "kind"),
        "1 while detection gives no verdict about this kind of finding; the run in the API says why (not_judged).",
        "1 per kind without a verdict", _DETECTION, ONE,
        OfSnapshot(_find_not_judged),
    ),
)  # fmt: skip
