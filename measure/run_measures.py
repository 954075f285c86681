"""The measures of what detection found and of what a run's time went to."""

from typing import Final

from rankscope.measure.exported import CAUSE, FINDING, NOT_NEGATIVE, ONE, RANK, RATIO, RUN, Measure

_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"
_GOODPUT: Final = "collector: the run's account of time (GoodputSnapshot)"
_LIVES: Final = "collector: arrival of reports; sidecar: RankEnded"


RUNS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_ranks", "gauge", "", ("run", "state"),
        "Ranks of the run by state: reporting, silent, failed, ended, awaited (after a restart of the collector), or "
        "never_reported; they add up to its world size.",
        "count by state", _LIVES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_rank_missing", "gauge", "", ("run", "rank", "node", "reason"),
        "1 while the rank is silent, failed or never_reported and others of its run report; of each run the first 64 "
        "such ranks, rankscope_ranks counts all of them.",
        "1 per missing rank", _LIVES, ONE,
    ),
    Measure(
        "rankscope_node_missing", "gauge", "", ("run", "node"),
        "1 while every rank of a node of several ranks is silent or failed and others of its run report.",
        "1 per missing node", _LIVES, ONE,
    ),
    Measure(
        "rankscope_agents", "gauge", "", ("run", "version"),
        "Ranks that report, by the version of their agent.", "count by version", "agent: Hello", NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_finding_open", "gauge", "", FINDING,
        "1 while detection holds the finding for true. The scope says what it is about: a rank, node, group or the "
        "run; rank and node are those of the rank that leads.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_finding_slowdown_ratio", "gauge", "ratio", FINDING,
        "Time of what the open finding is about over what it is compared with; 1 is equal, above is slower.",
        "self / self of the peers; for other kinds docs/detection.md", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_straggler", "gauge", "", CAUSE,
        "1 while detection holds the rank for a straggler of this cause; absent otherwise.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_rank_slowdown_ratio", "gauge", "ratio", RANK,
        "Own time of the rank over that of the ranks that do the same work; 1 is equal, above is slower.",
        "median(self) / median over the peers of median(self)", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_run_slowdown_ratio", "gauge", "ratio", RUN,
        "Step of the run over what it would be without its straggler; 1 is no loss.",
        "step / ideal step", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_lost_gpu_seconds_total", "counter", "seconds", CAUSE,
        "GPU time the whole run lost because this rank was slow; a rank without a GPU counts as one GPU.",
        "sum of (step - ideal step) * world_size", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_rank_caused_wait_seconds", "gauge", "seconds", RANK,
        "Waiting of all ranks in a step that this rank caused and did not merely pass on, in the last steps.",
        "median over steps of the charges to the rank", _DETECTION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_goodput_ratio", "gauge", "ratio", RUN,
        "Part of the run's time so far that went into steps, without what slow ranks cost.",
        "productive / wall", _GOODPUT, RATIO,
    ),
    Measure(
        "rankscope_run_seconds_total", "counter", "seconds", ("run", "kind"),
        "The run's time by what it went into: steps, startup, between_steps, stalled, restart.",
        "time between the ends of the steps reported, by what the run did", _GOODPUT, NOT_NEGATIVE,
    ),
)  # fmt: skip
