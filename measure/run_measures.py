"""Metrics of what detection found and of how a run's time was spent."""

from typing import Final

from rankscope.measure.exported import CAUSE, FINDING, NOT_NEGATIVE, ONE, RANK, RATIO, RUN, Measure

_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"
_GOODPUT: Final = "collector: goodput (GoodputSnapshot)"
_LIVES: Final = "collector: arrival of reports; sidecar: RankEnded"


RUNS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_ranks", "gauge", "", ("run", "state"),
        "Ranks of the run by state: reporting, silent, failed, ended, awaited (after a restart of the collector), or "
        "never_reported; the states sum to the world size.",
        "count by state", _LIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_rank_missing", "gauge", "", ("run", "rank", "node", "reason"),
        "1 while the rank is silent, failed or never_reported and others of its run report; at most 64 ranks a run, "
        "rankscope_ranks counts all.",
        "1 per missing rank", _LIVES, ONE,
    ),
    Measure(
        "rankscope_node_missing", "gauge", "", ("run", "node"),
        "1 while every rank of a node of several ranks is silent or failed and others of its run report.",
        "1 per missing node", _LIVES, ONE,
    ),
    Measure(
        "rankscope_agents", "gauge", "", ("run", "version"),
        "Reporting ranks by the version of their agent.", "count by version", "agent: Hello", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_finding_open", "gauge", "", FINDING,
        "1 while the finding is open. scope is its subject: a rank, node, group or the run; rank and node are those of "
        "the first rank concerned.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_finding_slowdown_ratio", "gauge", "ratio", FINDING,
        "Time of the subject of the open finding over that of its peers or its past; 1 is equal, above is slower.",
        "self / self of the peers; for other kinds docs/detection.md", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_straggler", "gauge", "", CAUSE,
        "1 while an open finding names the rank as a straggler with this cause; absent otherwise.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_rank_slowdown_ratio", "gauge", "ratio", RANK,
        "Compute time of the rank excluding waits over that of its peer ranks; 1 is equal, above is slower.",
        "median(self) / median over the peers of median(self)", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_run_slowdown_ratio", "gauge", "ratio", RUN,
        "Step duration of the run over the duration without its straggler; 1 is no loss.",
        "step / ideal step", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_lost_gpu_seconds_total", "counter", "seconds", CAUSE,
        "GPU time the run lost because this rank was slow; a rank without a GPU counts as one GPU.",
        "sum of (step - ideal step) * world_size", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_rank_caused_wait_seconds", "gauge", "seconds", RANK,
        "Waiting of all ranks that originated at this rank, per step, in the last steps.",
        "median over steps of the waiting attributed to the rank", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_goodput_ratio", "gauge", "ratio", RUN,
        "Share of the run's time so far spent in steps, less the time lost to slow ranks.",
        "productive / wall", _GOODPUT, RATIO,
    ),
    Measure(
        "rankscope_run_seconds_total", "counter", "seconds", ("run", "kind"),
        "Time of the run by kind: steps, startup, between_steps, stalled, restart.",
        "time between the ends of reported steps, by what the run did", _GOODPUT, NOT_NEGATIVE,
    ),
)  # fmt: skip
