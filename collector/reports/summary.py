"""A run in a few lines when it is over: how it went, how each rank ended, and the verdict in one sentence."""

from rankscope.collector.detect.endings import date_failure
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.goodput import GoodputSnapshot
from rankscope.collector.detect.throughput import find_throughput
from rankscope.collector.state.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.state.vitals import BROUGHT_DOWN, ENDED_WELL
from rankscope.measure.stalls import describe_frame, find_script_frame
from rankscope.measure.units import format_duration

DETAIL_LENGTH_MAX = 160
SHARE_WORTH_SAYING = 0.0005
"""What rounds to at least a tenth of a percent."""
HEALTHY = "No rank was slower than the others."


def verdict(run: RunSnapshot) -> str:
    """One sentence: the costliest finding of the run's life, else that there was none, else why nobody can say."""
    costliest = _costliest(run)
    if costliest is not None:
        return costliest.sentence
    return HEALTHY if run.abstained is None else f"No verdict: {run.abstained}."


def summarise(run: RunSnapshot) -> str:
    """The summary of a run."""
    ends: dict[str, list[int]] = {}
    for rank in run.ranks:
        ends.setdefault(rank.ended or "still up", []).append(rank.identity.rank)
    medians = sorted(rank.step_ns_median for rank in run.ranks if rank.step_ns_median is not None)
    median = f", median step {format_duration(medians[len(medians) // 2])}" if medians else ""
    steps = max((rank.totals.steps for rank in run.ranks), default=0)
    reports = sum(rank.reports_admitted for rank in run.ranks)
    lost = sum(rank.report_gaps for rank in run.ranks)
    lines = [
        f"run {run.run}: {run.world_size} ranks, {steps} steps{median}; {reports} reports, {lost} lost",
        "ended: " + "; ".join(f"{reason}: {_ranks(ranks)}" for reason, ranks in sorted(ends.items())),
        *_describe_speed(run),
        *_describe_goodput(run.goodput),
    ]
    costliest = _costliest(run)
    failed = find_first_to_fail(run)
    if failed is not None:
        lines.append(f"first to fail: rank {failed.identity.rank} ({failed.identity.node}), {describe_end(failed)}")
    lines += [f"finding: {finding.sentence}" for finding in run.findings if finding is not costliest]
    lines.append(f"verdict: {verdict(run)}")
    return "\n".join(lines)


def _describe_speed(run: RunSnapshot) -> list[str]:
    """How fast it trained, in one line; none when nobody made a step."""
    found = find_throughput([rank.totals for rank in run.ranks], run.world_size)
    if found is None:
        return []
    known = [
        (speed, unit)
        for speed, unit in ((found.samples_per_s, "samples/s"), (found.tokens_per_s, "tokens/s"))
        if speed is not None
    ]
    parts = [f"{found.steps_per_s:,.2f} steps/s, {found.reader_ratio:.1%} of the time waiting for data"]
    if known:
        parts.append(", ".join(f"{speed.per_rank:,.1f} {unit}" for speed, unit in known) + " per rank")
    summed = ", ".join(f"{speed.summed:,.1f} {unit}" for speed, unit in known if speed.summed is not None)
    if summed and run.world_size > 1:
        parts.append(f"{summed} for the job if each rank reads batches of its own")
    return ["speed: " + "; ".join(parts)]


def _describe_goodput(goodput: GoodputSnapshot) -> list[str]:
    """What the time went into, in one line, the largest loss first; none before there is any time."""
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
    told = [f"{name} {share:.1%}" for share, name in sorted(shares, reverse=True) if share >= SHARE_WORTH_SAYING]
    text = f"goodput: {goodput.goodput_ratio:.1%} of {format_duration(goodput.wall_ns)} in productive steps"
    return [f"{text}; {', '.join(told)}" if told else text]


def describe_end(rank: RankSnapshot) -> str:
    """How a rank ended, with what is known about it: `crashed (SIGSEGV), the last step it reported was 412`."""
    detail = f" ({_shorten(rank.ended_detail)})" if rank.ended_detail else ""
    frame = find_script_frame(rank.end.stacks[0].frames) if rank.end is not None and rank.end.stacks else None
    if frame is not None:
        detail += f" at {describe_frame(frame)}"
    step = "no step reported" if rank.last_step is None else f"the last step it reported was {rank.last_step}"
    return f"{rank.ended}{detail}, {step}"


def find_first_to_fail(run: RunSnapshot) -> RankSnapshot | None:
    """The rank whose end brought the others down, as far as can be told: the first that ended badly by itself.

    Of ranks that died without a word the end is dated back (`date_failure`): their peers' exceptions may come before.
    """
    failed = [
        rank
        for rank in run.ranks
        if rank.ended is not None and rank.ended not in ENDED_WELL | BROUGHT_DOWN and rank.ended_job_ns is not None
    ]
    return min(failed, key=_when_it_failed_ns, default=None)


def _when_it_failed_ns(rank: RankSnapshot) -> int:
    # A rank that raised said so itself; what the sidecar saw then is another end than the one it said.
    is_only_seen = rank.end is not None and rank.ended_detail == rank.end.detail
    return date_failure(rank.ended or "", rank.ended_job_ns or 0, is_only_seen=is_only_seen)


def _costliest(run: RunSnapshot) -> Finding | None:
    """What has cost most; before all others what had to be looked at at once, such as a hang, which has no cost yet,
    and then what names somebody: of a run that became slower for no known reason there is less to be done.
    """

    def rank(one: Finding) -> tuple[bool, bool, float]:
        return one.severity == "critical", bool(one.ranks or one.group), one.lost_rank_seconds or 0.0

    return max(run.findings, key=rank, default=None)


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{', ...' if len(ranks) > 8 else ''}"  # noqa: PLR2004


def _shorten(text: str) -> str:
    return text if len(text) <= DETAIL_LENGTH_MAX else f"{text[: DETAIL_LENGTH_MAX - 3]}..."
