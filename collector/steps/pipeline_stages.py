"""Find what the stages of an announced pipeline do in a step: their bubbles, who sets the pace, an even split. Pure.

    bubble ratio = waiting for sends and receives / time of the pipeline, of a step
    time of the pipeline = the step without data, optimizer and checkpoint

Waiting is what `wait_times.py` calls it: a receive that found its message there takes as long as moving the bytes, so
that on a host the transfer is no part of the bubble; on a device its exposed part is. Ranks that hold the same stages
(data parallel) count at their median.

The schedule itself has a bubble, where all `p` ranks need the same time for each microbatch (`ideal_ratio`):

    GPipe, 1F1B (also Megatron's)   (p-1) / (m + p-1)        Huang 2019 (arXiv 1811.06965), Narayanan 2021 (2104.04473)
    interleaved 1F1B, looped BFS    (p-1) / (v m + p-1)      Narayanan 2021, Lamy-Poirier 2022 (2211.05953)
    interleaved zero-bubble         (p-1) / (3 v m + p-1)    Qi 2023 (2401.10241), its ZB-H1 where v = 1
    DualPipeV                       (p-1) / (3 m + p-1)      as simulated, below

for `m` microbatches and `v` stages a rank. The last two hold where a forward, a backward of the inputs and one of the
weights last equally long; the others whatever these last. All of them are what torch's own orders of work take when
they are played with these times (`tests/unit/collector/steps/test_pipeline_orders.py`); for ZBVZeroBubble's there is
no formula.

The rank with the longest own time sets the pace. It is named when it nearly always does, by the test of
`least_waiting.py`. Were its work split evenly, the step would last

    time outside of the pipeline + mean own time within it / (1 - ideal_ratio)

at best: transfers and the order's own delays are not in it. For the last two, and without a formula, a bubble of 0
stands in, which no split can beat.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.steps.least_waiting import STEPS_MAX, STEPS_MIN, find_foremost
from rankscope.collector.steps.step_series import Floats, Ints, StepSeries
from rankscope.measure.records import CHECKPOINT, CHECKPOINT_WAIT, PipelineSchedule
from rankscope.measure.units import format_duration, format_share

OUTSIDE: Final = ("data", "optimizer", CHECKPOINT, CHECKPOINT_WAIT)
"""Phases of a step that no work of a schedule falls into."""

EVEN_SPLIT: Final = "even split"
PARTS: Final[Mapping[str, tuple[int, bool]]] = {
    "ScheduleGPipe": (1, False),
    "Schedule1F1B": (1, False),
    "ScheduleLoopedBFS": (1, True),
    "ScheduleInterleaved1F1B": (1, True),
    "ScheduleInterleavedZeroBubble": (3, True),
    "ScheduleDualPipeV": (3, False),
    "forward_backward_pipelining_without_interleaving": (1, False),
    "forward_backward_pipelining_with_interleaving": (1, True),
}
"""By schedule: pieces of equal length of the work on a microbatch, one of which a rank waits for each rank before it,
and whether they are as many again for each stage that it holds.
"""


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ranks that hold these stages: medians of a step in ns, and the share of the pipeline's time that they wait
    for sends and receives, in [0, 1].
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    own_ns: float
    bubble_ns: float
    bubble_ratio: float


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An announced pipeline in the last `steps` steps of which the waiting of all ranks is known, to `last_step`.

    `stages` in the order of their numbers; empty where nothing is measured: `absent` says why. `ideal_ratio` is the
    bubble of the schedule itself, None where `ideal_absent` says why. `pace` has the stages of the ranks that nearly
    always work longest, and `margin_ns` by how much longer than the next, in the median; None where none stands out.
    `even_step_ns` is the step at best were the work split evenly; None without `pace`.
    """

    schedule: str
    stage_count: int
    ranks: int
    microbatches: int
    steps: int = 0
    last_step: int = 0
    step_ns: float | None = None
    pipeline_ns: float | None = None
    stages: tuple[PipelineStage, ...] = ()
    absent: str = ""
    ideal_ratio: float | None = None
    ideal_absent: str = ""
    pace: tuple[int, ...] | None = None
    margin_ns: float | None = None
    even_step_ns: float | None = None


def find_ideal_ratio(schedule: PipelineSchedule) -> float | None:
    """Return the bubble of a schedule, as a share of the pipeline's time in [0, 1); None for one without a formula.

    >>> find_ideal_ratio(PipelineSchedule(name="Schedule1F1B", stages=(0,), stage_count=4, ranks=4, microbatches=9))
    0.25
    """
    if schedule.name not in PARTS or not (schedule.ranks and schedule.microbatches):
        return None
    pieces, is_by_stage = PARTS[schedule.name]
    own = pieces * schedule.microbatches * (len(schedule.stages) if is_by_stage else 1)
    return (schedule.ranks - 1) / (own + schedule.ranks - 1)


def _explain_absence(schedule: PipelineSchedule) -> str:
    is_known = schedule.name in PARTS
    return "the number of microbatches is not announced" if is_known else f"no formula for {schedule.name}"


def needs_equal_parts(schedule: str) -> bool:
    """Return whether the formula of a schedule holds only where forward and both backwards last equally long."""
    return schedule in PARTS and PARTS[schedule][0] > 1


def find_pipeline(series: StepSeries, announced: Mapping[int, PipelineSchedule]) -> PipelineTimes | None:
    """Return the pipeline of these ranks; None where none is announced. `announced` is by rank."""
    if not announced:
        return None
    first = announced[min(announced)]
    ideal = find_ideal_ratio(first)
    found = PipelineTimes(
        schedule=first.name,
        stage_count=first.stage_count,
        ranks=first.ranks,
        microbatches=first.microbatches,
        ideal_ratio=ideal,
        ideal_absent="" if ideal is not None else _explain_absence(first),
    )
    if missing := sum(rank not in announced for rank in series.ranks):
        return _without(found, f"{missing} of {len(series.ranks)} ranks announce no pipeline")
    if any(_key(one) != _key(first) for one in announced.values()):
        return _without(found, "the ranks announce different pipelines")
    if not series.own_is_measured or series.handover_ns is None:
        return _without(found, "no sends and receives have been measured yet")
    rows = np.flatnonzero(~np.isnan(series.handover_ns).any(axis=1))[-STEPS_MAX:]
    rows = rows[~(np.isnan(series.own_ns[rows]) | np.isnan(series.step_ns[rows])).any(axis=1)]
    if len(rows) < STEPS_MIN:
        return _without(found, f"the waiting of all ranks is known in {len(rows)} of the {STEPS_MIN} steps needed")
    return _measure(found, series, rows, series.handover_ns[rows], announced)


def _without(found: PipelineTimes, absent: str) -> PipelineTimes:
    return msgspec.structs.replace(found, absent=absent)


def _key(schedule: PipelineSchedule) -> tuple[str, int, int, int]:
    return schedule.name, schedule.stage_count, schedule.ranks, schedule.microbatches


def _measure(
    found: PipelineTimes,
    series: StepSeries,
    rows: Ints,
    handover_ns: Floats,
    announced: Mapping[int, PipelineSchedule],
) -> PipelineTimes:
    by_stages: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in series.ranks:
        by_stages[announced[rank].stages].append(rank)
    order = sorted(by_stages)
    columns = [series.columns_of(by_stages[stages]) for stages in order]
    pipeline_ns = _sum_pipeline(series, rows)
    step_ns, own_ns = series.step_ns[rows], series.own_ns[rows]
    ratios = np.clip(
        np.divide(handover_ns, pipeline_ns, out=np.zeros_like(handover_ns), where=pipeline_ns > 0), 0.0, 1.0
    )
    own_by_stage = _by_stage(own_ns, columns, of_two=np.min)  # one slow rank is no slow stage
    bubbles_ns, ratio_by_stage = _by_stage(handover_ns, columns), _by_stage(ratios, columns)
    stages = tuple(
        PipelineStage(
            stages=numbers,
            ranks=tuple(by_stages[numbers]),
            own_ns=float(np.median(own_by_stage[:, place])),
            bubble_ns=float(np.median(bubbles_ns[:, place])),
            bubble_ratio=float(np.median(ratio_by_stage[:, place])),
        )
        for place, numbers in enumerate(order)
    )
    median_step_ns, median_pipeline_ns = float(np.median(step_ns)), float(np.median(pipeline_ns))
    pace = find_foremost(-own_by_stage, median_step_ns) if len(stages) > 1 else None  # one alone is no pipeline
    return msgspec.structs.replace(
        found,
        steps=len(rows),
        last_step=int(series.steps[rows[-1]]),
        step_ns=median_step_ns,
        pipeline_ns=median_pipeline_ns,
        stages=stages,
        pace=None if pace is None else order[pace.column],
        margin_ns=None if pace is None else pace.margin,
        even_step_ns=None if pace is None else _split_evenly(found, stages, median_step_ns - median_pipeline_ns),
    )


def _sum_pipeline(series: StepSeries, rows: Ints) -> Floats:
    """Return the time of the pipeline in these steps, shape (rows, ranks) in ns."""
    outside = [series.phases_ns[name] for name in OUTSIDE if name in series.phases_ns]
    total_ns: Floats = series.step_ns[rows].copy()
    for phase_ns in outside:
        total_ns -= np.nan_to_num(phase_ns[rows])
    return np.maximum(total_ns, 0.0)


def _by_stage(values: Floats, columns: Sequence[Ints], *, of_two: Callable[..., Floats] = np.median) -> Floats:
    """Return the median of the ranks of each stage, shape (rows, stages); of two ranks what `of_two` returns."""
    found = [(of_two if len(one) == 2 else np.median)(values[:, one], axis=1) for one in columns]  # noqa: PLR2004
    return np.stack(found, axis=1)


def _split_evenly(found: PipelineTimes, stages: Sequence[PipelineStage], outside_ns: float) -> float:
    ideal_ratio = 0.0 if found.ideal_ratio is None or needs_equal_parts(found.schedule) else found.ideal_ratio
    mean_ns = sum(one.own_ns for one in stages) / len(stages)
    return outside_ns + max(0.0, mean_ns - outside_ns) / (1.0 - ideal_ratio)


def describe_pipeline(found: PipelineTimes | None) -> list[str]:
    r"""Return what is known of a pipeline, a line each; empty where none is announced.

    >>> stage = PipelineStage(stages=(0,), ranks=(0,), own_ns=6e7, bubble_ns=4e7, bubble_ratio=0.4)
    >>> last = PipelineStage(stages=(1,), ranks=(1,), own_ns=9e7, bubble_ns=1e7, bubble_ratio=0.1)
    >>> found = PipelineTimes(schedule="GPipe", stage_count=2, ranks=2, microbatches=4, steps=20, last_step=99,
    ...     step_ns=1e8, pipeline_ns=1e8, stages=(stage, last), ideal_ratio=0.2, pace=(1,), margin_ns=3e7,
    ...     even_step_ns=9.375e7)
    >>> print("\n".join(describe_pipeline(found)))
    GPipe, 2 stages on 2 ranks, 4 microbatches: bubble 10.0-40.0 % of the pipeline's time, 20.0 % with equal stages
    stage 1 sets the pace: own time 90.0 ms per step, 30.0 ms above the next (slower, or more work)
    even split: at best 93.8 ms per step instead of 100.0 ms
    """
    facts = list_pipeline_facts(found)
    return [f"{name}: {text}" if name == EVEN_SPLIT else text for name, text in facts.items()]


def list_pipeline_facts(found: PipelineTimes | None) -> dict[str, str]:
    """Return what is known of a pipeline, by `pipeline`, `pace` and EVEN_SPLIT; empty where none is announced."""
    if found is None:
        return {}
    batches = f", {found.microbatches:,} microbatches" if found.microbatches else ""
    head = f"{found.schedule}, {found.stage_count:,} stages on {found.ranks:,} ranks{batches}"
    if not found.stages:
        return {"pipeline": f"{head}: bubble not known: {found.absent}"}
    ratios = sorted(one.bubble_ratio for one in found.stages)
    span = f"{100 * ratios[0]:.1f}-{format_share(ratios[-1], 1)}"
    facts = {"pipeline": f"{head}: bubble {span} of the pipeline's time, {_describe_ideal(found)}"}
    slowest = next((one for one in found.stages if one.stages == found.pace), None)
    if slowest is None or found.margin_ns is None:
        unknown = "no stage sets the pace: none has the longest own time in 90 % of the steps, by 5 % of a step"
        return {**facts, "pace": unknown}
    facts["pace"] = (
        f"{name_stages(slowest.stages)} {'sets' if len(slowest.stages) == 1 else 'set'} the pace: own time "
        f"{format_duration(slowest.own_ns)} per step, {format_duration(found.margin_ns)} above the next (slower, "
        "or more work)"
    )
    if found.even_step_ns is not None and found.step_ns is not None and found.even_step_ns < found.step_ns:
        instead = format_duration(found.step_ns)
        facts[EVEN_SPLIT] = f"at best {format_duration(found.even_step_ns)} per step instead of {instead}"
    return facts


def _describe_ideal(found: PipelineTimes) -> str:
    if found.ideal_ratio is None:
        return f"with equal stages not known: {found.ideal_absent}"
    parts = ", and forward and both backwards equally long" if needs_equal_parts(found.schedule) else ""
    return f"{format_share(found.ideal_ratio, 1)} with equal stages{parts}"


def name_stages(numbers: Sequence[int]) -> str:
    """Return stages as text.

    >>> name_stages((2,)), name_stages((0, 7))
    ('stage 2', 'stages 0, 7')
    """
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
