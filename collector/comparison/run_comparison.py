"""Compare two runs, or parts of one: how long a step took, what the difference consists of, and what else is different.
Pure: two sides -> RunComparison.

Whether B was slower is judged by the ratio of two mean steps and its interval:

    slower, faster  the ratio is beyond the margin (above 1 + margin, below 1 / (1 + margin)), and the whole interval
                    lies on the same side of 1
    no difference   the ratio is within the margin, and the interval excludes a change EXCLUDED_RATIO times as large
    not known       neither: the runs are too short to tell

So a ratio that is off by chance accuses nobody as long as it is within the margin, and nothing is called equal that
might hide a change which matters. Where the standard error of the ratio is 0.39 of the margin (1.2 % by default), equal
runs are within the margin in 99 of 100, and a change of EXCLUDED_RATIO times the margin (5 %) is beyond it in 95.

The means are those of the usual steps (`find_usual`). Where these show no difference, but all steps together do, it is
in the long ones, and the means are those of all steps.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from rankscope.collector.comparison.block_bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    SEED,
    count_blocks,
    find_ratio_interval,
    resample_quantiles,
)
from rankscope.collector.comparison.communication_group import find_group
from rankscope.collector.comparison.run_side import RunSide
from rankscope.collector.comparison.step_parts import (
    INTERVALS_MIN,
    Bools,
    PartDifference,
    ResampledSide,
    compare_phases,
    compare_uses,
    count_windowed,
    find_usual,
    resample_side,
)
from rankscope.collector.steps.equal_work import Work, find_unequal
from rankscope.collector.storage.rank_intervals import SUMS
from rankscope.measure.units import NS_PER_S

SCHEMA: Final = 1
MARGIN: Final = 0.03
"""Default margin: equal runs on different nodes of one kind differ by a percent or two, and by less nobody acts."""
EXCLUDED_RATIO: Final = 5 / 3
"""Normal quantiles: 1 + z(0.95) / z(0.995) = 1 + 1.645 / 2.576 = 1.64."""
QUANTILES: Final = (0.5, 0.9, 0.99)

USUAL_STEPS: Final = "usual steps"
ALL_STEPS: Final = "all steps"

Outcome = Literal["slower", "faster", "no difference", "not known"]


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """One side. Steps are of one attempt where a range was asked for. Samples and tokens are those of one rank, and per
    second of its steps. None: not known, or not kept for a range of steps (`goodput_ratio`). `incidents` are sentences
    of those that were opened while these steps ran, `long_time_ratio` the share of the time in steps that are no usual
    ones, `intervals` the rows of the history that samples, tokens and uses are from. `script` is the file name of the
    script, `number_type` the type of the numbers (`bf16`), empty where not known. `mfu_ratio` is the model FLOPs of a
    step of the lowest rank, as it reported them last, over what its device could do in the mean step.
    """

    run: str
    run_id: str
    world_size: int
    attempts: int
    first_step: int
    last_step: int
    steps: int
    intervals: int
    steps_per_s: float
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    goodput_ratio: float | None = None
    incidents: tuple[str, ...] = ()
    nodes: int = 0
    versions: Mapping[str, tuple[str, ...]] = {}
    left_out: str = ""
    long_steps: int = 0
    long_time_ratio: float = 0.0
    script: str = ""
    number_type: str = ""
    model_flops_per_step: float | None = None
    mfu_ratio: float | None = None


class StepTimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of the usual steps or of all, or a quantile (`p50`, `p90`, `p99`) of all, in ns; B's over A's, and the
    interval of that ratio.
    """

    name: str
    a_ns: float
    b_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float


class PartRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the mean step in ns. `share` is its part of the whole difference (the shares sum to 1; below 0: it
    moved the other way), None unless the step is slower or faster.
    """

    name: str
    a_ns: float
    b_ns: float
    difference_ns: float
    difference_low_ns: float
    difference_high_ns: float
    share: float | None = None


class ComparedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of collective that both sides have, over the whole last attempt: the mean data movement and the mean
    wait for other ranks, in ns a call, of the calls that were matched across ranks. Both parts may be hidden behind
    compute.
    """

    group: str
    op: str
    a_transfer_ns: float
    b_transfer_ns: float
    a_wait_ns: float
    b_wait_ns: float


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of run B with run A. `ratio` is B's mean step over A's, with its interval, over the steps of `basis`:
    `usual steps` or `all steps`, as are the parts. `phases` and `uses` each
    sum to `difference_ns`; `uses` is empty with the reason in `uses_unknown`.
    `communication_group` describes the process groups that have nearly all of the change of the collectives' time, in
    the direction of the difference, "" where none has or that is not known. `unequal` says why the work is not the
    same, `notes` what limits the comparison. `start_runs` earlier runs of this work differed by `start_deviation`
    from start to start (standard deviation of the logarithms of their first steps, 0.01 or more); None with fewer than
    five.
    """

    schema: int = SCHEMA
    verdict: str = ""
    outcome: Outcome
    basis: str = USUAL_STEPS
    a: ComparedSide
    b: ComparedSide
    ratio: float
    ratio_low: float
    ratio_high: float
    difference_ns: float
    margin: float
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = SEED
    step_times: tuple[StepTimeRow, ...] = ()
    phases: tuple[PartRow, ...] = ()
    uses: tuple[PartRow, ...] = ()
    uses_unknown: str = ""
    collectives: tuple[ComparedCollective, ...] = ()
    communication_group: str = ""
    nodes_new: tuple[str, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    versions_changed: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    start_runs: int | None = None
    start_deviation: float | None = None


def compare_sides(a: RunSide, b: RunSide, margin: float = MARGIN) -> RunComparison:
    """Return the comparison of B with A, without its verdict."""
    pairs = {
        USUAL_STEPS: (resample_side(a, find_usual(a), 0), resample_side(b, find_usual(b), 1)),
        ALL_STEPS: (resample_side(a, _all_of(a), 0), resample_side(b, _all_of(b), 1)),
    }
    means = {name: _compare_means(name, *pair) for name, pair in pairs.items()}
    outcomes = {name: judge(mean, margin) for name, mean in means.items()}
    is_by_long = outcomes[USUAL_STEPS] == "no difference" and outcomes[ALL_STEPS] in {"slower", "faster"}
    basis = ALL_STEPS if is_by_long else USUAL_STEPS
    mean, outcome, (resampled_a, resampled_b) = means[basis], outcomes[basis], pairs[basis]
    difference_ns = mean.b_ns - mean.a_ns
    whole_ns = difference_ns if outcome in {"slower", "faster"} else None
    side_a, side_b = describe_side(a), describe_side(b)
    return RunComparison(
        outcome=outcome,
        basis=basis,
        a=side_a,
        b=side_b,
        ratio=mean.ratio,
        ratio_low=mean.ratio_low,
        ratio_high=mean.ratio_high,
        difference_ns=difference_ns,
        margin=margin,
        step_times=(*means.values(), *_compare_quantiles(a, b)),
        phases=_build_rows(compare_phases(resampled_a, resampled_b), whole_ns),
        uses=_build_rows(compare_uses(resampled_a, resampled_b), whole_ns),
        uses_unknown=_explain_unknown_uses(a, b),
        collectives=tuple(_compare_collectives(a, b)),
        communication_group=find_group(a.collective_times, b.collective_times, is_longer=difference_ns > 0),
        nodes_new=tuple(sorted(b.nodes - a.nodes)),
        nodes_gone=tuple(sorted(a.nodes - b.nodes)),
        versions_changed=tuple(_find_changed_versions(a, b)),
        unequal=tuple(find_unequal_work(side_a, side_b)),
        notes=tuple(_find_notes(side_a, side_b)),
        start_runs=None if b.start_spread is None else b.start_spread.runs,
        start_deviation=None if b.start_spread is None else b.start_spread.deviation,
    )


def judge(row: StepTimeRow, margin: float) -> Outcome:
    """Return what a ratio and its interval say.

    >>> def judge_ratio(ratio, low, high):
    ...     row = StepTimeRow(name="", a_ns=1.0, b_ns=ratio, ratio=ratio, ratio_low=low, ratio_high=high)
    ...     return judge(row, margin=0.03)
    >>> judge_ratio(1.01, 0.98, 1.04), judge_ratio(1.02, 1.01, 1.03), judge_ratio(1.01, 0.96, 1.06)
    ('no difference', 'no difference', 'not known')
    >>> judge_ratio(1.05, 1.01, 1.09), judge_ratio(0.95, 0.93, 0.97), judge_ratio(1.05, 0.99, 1.11)
    ('slower', 'faster', 'not known')
    """
    if is_within(row.ratio, row.ratio, margin):
        is_equal = is_within(row.ratio_low, row.ratio_high, EXCLUDED_RATIO * margin)
        return "no difference" if is_equal else "not known"
    if row.ratio_low > 1:
        return "slower"
    return "faster" if row.ratio_high < 1 else "not known"


def is_within(low: float, high: float, margin: float) -> bool:
    """Return whether an interval of a ratio lies within a margin around 1, which is as wide for its inverse."""
    return 1 / (1 + margin) <= low and high <= 1 + margin


def find_unequal_work(a: ComparedSide, b: ComparedSide) -> list[str]:
    """Return why a step of the two sides is not the same work, as far as that is known; empty where it is."""
    return find_unequal(*(
        Work(
            side.world_size, side.samples_per_step, side.tokens_per_step, side.model_flops_per_step, side.script,
            side.number_type,
        )
        for side in (a, b)
    ))  # fmt: skip


def describe_side(side: RunSide) -> ComparedSide:
    """Return a side without its series."""
    mean_ns = float(side.step_ns.mean())
    known = {name: float(value) for name, value in zip(SUMS, side.sums.sum(axis=0), strict=True)}
    is_long = ~find_usual(side)
    speeds = {what: _find_speed(known, what) for what in ("samples", "tokens")}
    return ComparedSide(
        run=side.selection.run,
        run_id=side.run_id,
        world_size=side.world_size,
        attempts=side.attempts,
        first_step=side.first_step,
        last_step=side.last_step,
        steps=len(side.step_ns),
        intervals=len(side.sums),
        steps_per_s=NS_PER_S / mean_ns,
        goodput_ratio=side.goodput_ratio,
        incidents=tuple(f"{one.severity}: {one.sentence}" for one in side.incidents),
        nodes=len(side.nodes),
        versions=side.versions,
        left_out=side.left_out,
        long_steps=int(is_long.sum()),
        long_time_ratio=float(side.step_ns[is_long].sum() / side.step_ns.sum()),
        script=side.work.script,
        number_type=side.work.peak_type,
        model_flops_per_step=side.work.model_flops_per_step,
        mfu_ratio=_find_mfu(side, mean_ns),
        **{f"{what}_per_s": speed for what, speed in speeds.items()},
        **{f"{what}_per_step": _find_per_step(known, speed) for what, speed in speeds.items()},
    )


def _find_mfu(side: RunSide, step_ns: float) -> float | None:
    flops, peak = side.work.model_flops_per_step, side.peak_flops_per_s
    return flops * NS_PER_S / step_ns / peak if flops and peak else None


def _find_speed(known: Mapping[str, float], what: str) -> float | None:
    """Return samples or tokens per second of the steps where they are known."""
    known_ns = known[f"{what}_step_ns"]
    return known[what] * NS_PER_S / known_ns if known_ns else None


def _find_per_step(known: Mapping[str, float], speed: float | None) -> float | None:
    return speed * known["step_ns"] / known["steps"] / NS_PER_S if speed is not None and known["steps"] else None


def _all_of(side: RunSide) -> Bools:
    return np.ones(len(side.step_ns), dtype=np.bool_)


def _compare_means(name: str, a: ResampledSide, b: ResampledSide) -> StepTimeRow:
    a_ns, b_ns = float(a.step_ns[0]), float(b.step_ns[0])
    low, high = find_ratio_interval(b.step_ns[1:] / a.step_ns[1:], b_ns / a_ns, min(a.blocks, b.blocks))
    return StepTimeRow(name=f"mean, {name}", a_ns=a_ns, b_ns=b_ns, ratio=b_ns / a_ns, ratio_low=low, ratio_high=high)


def _compare_quantiles(a: RunSide, b: RunSide) -> list[StepTimeRow]:
    of_a, of_b = np.quantile(a.step_ns, QUANTILES), np.quantile(b.step_ns, QUANTILES)
    ratios = resample_quantiles(b.step_ns, QUANTILES, 1) / resample_quantiles(a.step_ns, QUANTILES, 0)
    blocks = min(count_blocks(len(side.step_ns)) for side in (a, b))
    rows = []
    for place, quantile in enumerate(QUANTILES):
        a_ns, b_ns = float(of_a[place]), float(of_b[place])
        low, high = find_ratio_interval(ratios[:, place], b_ns / a_ns, blocks)
        name = f"p{quantile * 100:.0f}"
        rows.append(StepTimeRow(name=name, a_ns=a_ns, b_ns=b_ns, ratio=b_ns / a_ns, ratio_low=low, ratio_high=high))
    return rows


def _build_rows(parts: Sequence[PartDifference], whole_ns: float | None) -> tuple[PartRow, ...]:
    return tuple(
        PartRow(
            name=part.name,
            a_ns=part.a_ns,
            b_ns=part.b_ns,
            difference_ns=part.difference_ns,
            difference_low_ns=part.low_ns,
            difference_high_ns=part.high_ns,
            share=part.difference_ns / whole_ns if whole_ns else None,
        )
        for part in parts
    )


def _compare_collectives(a: RunSide, b: RunSide) -> list[ComparedCollective]:
    """Return the kinds that both sides have, those that changed most first."""
    rows = [
        ComparedCollective(
            group=kind[0], op=kind[1], a_transfer_ns=one.transfer_ns, b_transfer_ns=b.collectives[kind].transfer_ns,
            a_wait_ns=one.wait_ns, b_wait_ns=b.collectives[kind].wait_ns,
        )
        for kind, one in a.collectives.items()
        if kind in b.collectives
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row.b_transfer_ns + row.b_wait_ns - row.a_transfer_ns - row.a_wait_ns))


def _explain_unknown_uses(a: RunSide, b: RunSide) -> str:
    counts = {name: count_windowed(side) for name, side in (("A", a), ("B", b))}
    few = [f"{name} has {count}" for name, count in counts.items() if count < INTERVALS_MIN]
    if not few:
        return ""
    none = "; 0: windows were off or rare, or an earlier version stored the run" if 0 in counts.values() else ""
    return (
        f"exposed communication is not known: {INTERVALS_MIN} intervals of the history with profiler windows are "
        f"needed, and {' and '.join(few)}; for the next run, more steps or a shorter "
        f"history_interval_s of the collector give more{none}"
    )


def _find_changed_versions(a: RunSide, b: RunSide) -> list[str]:
    found = []
    for name in dict.fromkeys([*a.versions, *b.versions]):
        of_a, of_b = a.versions.get(name, ()), b.versions.get(name, ())
        if of_a and of_b and of_a != of_b:
            found.append(f"{name} was {', '.join(of_a)} in A and {', '.join(of_b)} in B")
    return found


def _find_notes(a: ComparedSide, b: ComparedSide) -> list[str]:
    sides = (("A", a), ("B", b))
    found = [f"of {name} {side.left_out} are left out" for name, side in sides if side.left_out]
    for what in ("samples", "tokens"):
        missing = " and ".join(name for name, side in sides if getattr(side, f"{what}_per_step") is None)
        if missing:
            found.append(f"whether steps had equally many {what} is not known: {missing} did not report them")
    if a.run_id != b.run_id:
        found.append(
            "the interval covers how much steps vary within the two runs, not what differs from one start to the next"
        )
    return found
