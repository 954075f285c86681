"""The measures of what detection found and of what a run's time went to."""

from typing import Final

from rankscope.measure.exported import CAUSE, NOT_NEGATIVE, ONE, RANK, RATIO, RUN, Measure

_DETECTION: Final = "collector: detection (docs/definitions.md section 4)"
_GOODPUT: Final = "collector: the run's account of time (GoodputSnapshot)"


RUNS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_straggler", "gauge", "", CAUSE,
        "1 while detection holds the rank for a straggler of this cause; absent otherwise.",
        "1 per open finding", _DETECTION, ONE,
    ),
    Measure(
        "rankscope_rank_slowdown_ratio", "gauge", "ratio", RANK,
        "Own time of the rank over that of the ranks that do the same work; 1 is equal, above is slower.",
        "median(self) / median over the twins of median(self)", _DETECTION, NOT_NEGATIVE,
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
        "rankscope_rank_wait_caused_seconds", "gauge", "seconds", RANK,
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
