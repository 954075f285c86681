"""Summarize a run in a few lines: its totals, how its ranks ended, and the verdict in one sentence."""

from collections.abc import Iterable

from rankscope.collector.detect.finding import HANG, Finding, order_findings
from rankscope.collector.reports.incident_table import format_utc
from rankscope.collector.runs.checkpoints import Checkpoints
from rankscope.collector.runs.compilations import describe_compilations
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.run_end_words import (
    describe_end,
    describe_first_to_fail,
    describe_lost,
    describe_no_first,
    name_first,
)
from rankscope.collector.runs.run_energy import describe_run_energy
from rankscope.collector.runs.run_flops import describe_run_flops, find_run_flops
from rankscope.collector.runs.run_status import find_energy, find_throughput
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.expert_loads import describe_experts
from rankscope.collector.steps.layer_times import describe_layers
from rankscope.collector.steps.pipeline_stages import describe_pipeline
from rankscope.measure.units import format_duration, format_share

SHARE_MIN = 0.0005
"""Smallest share shown: the smallest that rounds to a tenth of a percent."""
HEALTHY = "No rank was slower than the others."


def verdict(run: RunSnapshot) -> str:
    """Return one sentence: the costliest finding of the run, else that there was none, else why there is no verdict.
    HEALTHY needs ranks that were compared and an end that is not bad.
    """
    costliest = find_costliest(run.findings)
    if costliest is not None:
        return costliest.sentence
    if run.end is not None and not run.end.is_good:
        found = "until then no rank was found to be slower than the others"
        if run.abstained is not None:
            found = f"whether a rank was slower than the others is not known: {run.abstained}"
        return f"The run {describe_end(run.end)}; {found}."
    return HEALTHY if run.abstained is None else f"No verdict: {run.abstained}."


def describe_ended_run(run: RunSnapshot) -> list[str]:
    """Return a line each for how and when the run ended, who failed first, and which ranks were lost or never reported;
    none while it goes on.
    """
    end = run.end
    if end is None:
        return []
    counts = ", ".join(f"{count} {reason}" for reason, count in end.ranks.items())
    lines = [f"ended: {describe_end(end)}{f' (ranks: {counts})' if counts else ''}"]
    if end.first is not None:
        lines.append(f"{name_first(end)}: {describe_first_to_fail(end.first)}")
    elif end.unknown:
        lines.append(f"{name_first(end)}: {describe_no_first(end)}")
    lost = describe_lost(end)
    if lost:
        lines.append(f"lost: {lost}")
    return lines + describe_unheard(run)


def describe_unheard(run: RunSnapshot) -> list[str]:
    """Return in one line how many ranks of a run that is over never reported; none where all did, or it goes on."""
    unheard = 0 if run.end is None else run.end.unheard
    return [f"never reported: {unheard} of {run.world_size} ranks"] if unheard else []


def describe_checkpoints(seen: Checkpoints) -> list[str]:
    """Return the last checkpoint and their number in one line; none where none is marked.

    >>> from rankscope.collector.runs.checkpoints import Checkpoint
    >>> last = Checkpoint(attempt=0, step=1200, wall_s=1_800_000_000.0, duration_ns=2_300_000_000, rank=0)
    >>> describe_checkpoints(Checkpoints(count=3, duration_ns=6_000_000_000, latest=(last,)))
    ['the last of 3 in step 1,200 at 2027-01-15 08:00:00 UTC, for 2.3 s; all together 6.0 s']
    """
    if not seen.latest:
        return []
    last = seen.latest[-1]
    text = f"in step {last.step:,} at {format_utc(last.wall_s)} UTC, for {format_duration(last.duration_ns)}"
    if seen.count == 1:
        return [f"one, {text}"]
    return [f"the last of {seen.count:,} {text}; all together {format_duration(seen.duration_ns)}"]


def summarize(run: RunSnapshot) -> str:
    """Return the summary of a run, one fact a line, the verdict last."""
    ends: dict[str, list[int]] = {}
    for rank in run.ranks:
        ends.setdefault(rank.ended or "still up", []).append(rank.identity.rank)
    medians = sorted(rank.step_ns_median for rank in run.ranks if rank.step_ns_median is not None)
    median = f", median step {format_duration(medians[len(medians) // 2])}" if medians else ""
    steps = max((rank.totals.steps for rank in run.ranks), default=0)
    end = [] if run.end is None else [describe_end(run.end)]
    reports = sum(rank.reports_admitted for rank in run.ranks)
    lost = sum(rank.report_gaps for rank in run.ranks)
    lines = [
        f"run {run.run}: {run.world_size} ranks, {steps} steps{median}; {reports} reports, {lost} lost",
        "ended: " + "; ".join([*end, *(f"{reason}: {_ranks(ranks)}" for reason, ranks in sorted(ends.items()))]),
        *describe_ended_run(run)[1:],
        *([run.injected_faults] if run.injected_faults else []),
        *_describe_speed(run),
        *_describe_goodput(run.goodput),
        *(f"energy: {text}" for text in (describe_run_energy(find_energy(run)),) if text),
        *(f"checkpoints: {text}" for text in describe_checkpoints(run.checkpoints)),
        *(f"compilation: {text}" for text in describe_compilations(run.compilations)),
        *(f"pipeline: {text}" for text in describe_pipeline(run.pipeline)),
        *(f"layers: {text}" for text in describe_layers(run.layers)),
        *(f"experts: {text}" for text in describe_experts(run.experts)),
    ]
    costliest = find_costliest(run.findings)
    lines += [f"finding: {finding.sentence}" for finding in order_findings(run.findings) if finding is not costliest]
    lines.append(f"verdict: {verdict(run)}")
    if costliest is not None and costliest.lines is not None:
        lines.append(f"line: {costliest.lines.sentence}")
    return "\n".join(lines)


def _describe_speed(run: RunSnapshot) -> list[str]:
    """Return the speed in one line; none without a step."""
    found = find_throughput([rank.totals for rank in run.ranks], run.world_size)
    if found is None:
        return []
    known = [
        (speed, unit)
        for speed, unit in ((found.samples_per_s, "samples/s"), (found.tokens_per_s, "tokens/s"))
        if speed is not None
    ]
    parts = [f"{found.steps_per_s:,.2f} steps/s, {format_share(found.reader_ratio)} of the time waiting for data"]
    if known:
        parts.append(", ".join(f"{speed.per_rank:,.1f} {unit}" for speed, unit in known) + " per rank")
    summed = ", ".join(f"{speed.summed:,.1f} {unit}" for speed, unit in known if speed.summed is not None)
    if summed and run.world_size > 1:
        parts.append(f"{summed} for the run if each rank reads its own batches")
    flops = describe_run_flops(find_run_flops(run.ranks))
    if flops and not flops.startswith("no "):  # `rankscope status` says why there is none
        parts.append(f"{flops} in the last minute of steps")
    return ["speed: " + "; ".join(parts)]


def _describe_goodput(goodput: GoodputSnapshot) -> list[str]:
    """Return the goodput and its losses in one line, the largest first; none before there is any time."""
    if goodput.goodput_ratio is None:
        return []
    losses = {
        "slow ranks": goodput.slow_ns,
        "start-up": goodput.startup_ns,
        "between steps": goodput.between_steps_ns,
        "stalls": goodput.stalled_ns,
        "restarts": goodput.restart_ns,
        "not reported": goodput.unreported_ns,
    }
    shares = [(lost_ns / goodput.wall_ns, name) for name, lost_ns in losses.items()]
    shown = [f"{name} {format_share(share)}" for share, name in sorted(shares, reverse=True) if share >= SHARE_MIN]
    text = f"goodput: {format_share(goodput.goodput_ratio)} of {format_duration(goodput.wall_ns)} in productive steps"
    return [f"{text}; {', '.join(shown)}" if shown else text]


def find_costliest(findings: Iterable[Finding]) -> Finding | None:
    """Return the most important finding, the first in the order of all views."""
    # A hang after which the run finished without another step was work after the training.
    counted = [one for one in findings if one.kind != HANG or one.severity != "info"]
    return next(iter(order_findings(counted)), None)


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"  # noqa: PLR2004
