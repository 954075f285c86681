"""Render the status of a run for a terminal: the verdict, the run in a line or two, its worst ranks."""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.detect.finding import Finding, order_findings
from rankscope.collector.detect.sampled_lines import SampledLines, describe_line
from rankscope.collector.reports.blocked_lines_table import build_blocked_lines
from rankscope.collector.reports.finding_text import render_facts
from rankscope.collector.reports.rank_table import color_of, render_head, render_rank, render_ranks
from rankscope.collector.reports.saves_table import build_saves
from rankscope.collector.reports.summary import (
    describe_checkpoints,
    describe_ended_run,
    describe_unheard,
    find_costliest,
    verdict,
)
from rankscope.collector.reports.terminal_colors import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Colors
from rankscope.collector.reports.trace_cells import Section, printable
from rankscope.collector.reports.trace_text import WIDTH, render_section
from rankscope.collector.runs.blocked_lines import list_blocking_calls
from rankscope.collector.runs.compilations import describe_compilations
from rankscope.collector.runs.host_copies import describe_host_copies
from rankscope.collector.runs.live_settings import describe_changed
from rankscope.collector.runs.memory_words import describe_memory
from rankscope.collector.runs.ratio_basis import NO_WINDOW
from rankscope.collector.runs.run_end_words import find_failure
from rankscope.collector.runs.run_energy import describe_run_energy
from rankscope.collector.runs.run_flops import describe_rank_flops, describe_run_flops
from rankscope.collector.runs.run_origin import describe_origin
from rankscope.collector.runs.run_ratios import describe_basis, describe_run_ratios
from rankscope.collector.runs.run_status import (
    RunStatus,
    describe_ranks_without_peers,
    describe_state,
)
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.expert_loads import describe_experts
from rankscope.collector.steps.layer_times import describe_layers
from rankscope.collector.steps.pipeline_stages import describe_pipeline
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.stalls import UNRECORDED_SEQUENCE, PendingCollective, Stall, describe_frame, find_script_frame
from rankscope.measure.units import format_duration, format_share

FINDINGS_SHOWN_MAX: Final = 5
LINES_SHOWN_MAX: Final = 5
NAMES_SHOWN_MAX: Final = 4
"""Runs named in the overview: each is below."""
ANYTHING: Final = "other"
"""The activity of a rank that is in nothing which has a name."""
INDENT: Final = "  "


def render_status(status: RunStatus, colors: Colors = PLAIN, *, with_ranks: bool = True) -> str:
    """Return the lines about a run, with its worst ranks or without them."""
    failure = _find_failure(status.run)
    lines = [_render_verdict(status, colors), *_render_answer(_find_answer(status)), INDENT + _describe_run(status)]
    origin = describe_origin(status.origin)
    lines += [INDENT + printable(origin)] if origin else []
    lines += [INDENT + printable(text) for text in _describe_window_ratios(status)]
    if failure is not None:
        lines += [INDENT + text for text in describe_unheard(status.run)]
        lines.append(INDENT + printable(_describe_before_failure(status.run)))
    else:
        lines += [INDENT + printable(text) for text in describe_ended_run(status.run)]
    lines += [f"{INDENT}checkpoints: {text}" for text in describe_checkpoints(status.run.checkpoints)]
    compiled = describe_compilations(status.run.compilations)
    lines += [f"{INDENT}compilation: {printable(text)}" for text in compiled]
    lines += [f"{INDENT}pipeline: {printable(text)}" for text in describe_pipeline(status.run.pipeline)]
    lines += [f"{INDENT}layers: {printable(text)}" for text in describe_layers(status.run.layers)]
    lines += [f"{INDENT}experts: {printable(text)}" for text in describe_experts(status.run.experts)]
    without_peers = describe_ranks_without_peers(status.run)
    lines += [] if without_peers is None else [INDENT + without_peers]
    lines += [INDENT + printable(text) for text in describe_changed(status.run.settings, status.run.settings_taken)]
    lines += [INDENT + printable(status.run.injected_faults)] if status.run.injected_faults else []
    lines += _list_others(status.run.open_findings, colors)
    lines += [INDENT + printable(text) for rank in status.worst if (text := describe_stall(rank)) is not None]
    if with_ranks and status.worst:
        lines += _list_worst(status, colors)
    return "\n".join(lines)


def render_overview(statuses: Sequence[RunStatus], colors: Colors = PLAIN) -> str:
    """Return in one line which of several runs need somebody: those with findings, that failed, or are not judged."""
    live = [one.run for one in statuses if one.run.end is None]
    found = [run.run for run in live if run.open_findings]
    failed = [one.run.run for one in statuses if one.run.end is not None and not one.run.end.is_good]
    unjudged = [run.run for run in live if not run.open_findings and run.abstained is not None]
    named = (("with findings", found), ("ended badly", failed), ("without a verdict yet", unjudged))
    parts = [f"{len(names):,} {what} ({_name_some(names)})" for what, names in named if names]
    text = f"{len(statuses):,} runs: {', '.join(parts) if parts else 'no finding'}"
    color = RED if failed else YELLOW if found else DIM if unjudged else GREEN
    return colors.paint(printable(text), BOLD, color)


def _name_some(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN_MAX:,} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _render_verdict(status: RunStatus, colors: Colors) -> str:
    """Return the first line: the run and its verdict."""
    text, color = _judge(status)
    return f"{colors.paint(f'run {printable(status.run.run)}:', BOLD)} {colors.paint(printable(text), BOLD, color)}"


def _render_answer(finding: Finding | None) -> list[str]:
    """Return what is said of a finding below its headline, a line each; none of what is not known."""
    return [] if finding is None else render_facts(finding, INDENT)


def _find_answer(status: RunStatus) -> Finding | None:
    """Return the finding of the verdict, else how the run was ended on purpose; None for neither."""
    return _find_said(status.run) or find_failure(status.run.end)


def _find_said(run: RunSnapshot) -> Finding | None:
    """Return the finding that the verdict is: how the run failed, or the most important one; None for none."""
    return _find_failure(run) or find_costliest(run.open_findings if run.end is None else run.findings)


def _find_failure(run: RunSnapshot) -> Finding | None:
    """Return how a run failed, as a finding; None unless it did. A run that was ended on purpose has not failed."""
    failure = find_failure(run.end)
    return None if failure is None or failure.severity == "info" else failure


def _describe_before_failure(run: RunSnapshot) -> str:
    """Return what was found of a run that has failed, the costliest finding, or that there was none, or why not."""
    costliest = find_costliest(run.findings)
    if costliest is not None:
        return f"before that: {costliest.sentence}"
    if run.abstained is not None:
        return f"before that: whether a rank was slower than the others is not known: {run.abstained}"
    return "before that: no rank was found to be slower than the others"


def _judge(status: RunStatus) -> tuple[str, str]:
    said = _find_said(status.run)
    if status.run.end is not None:
        has_failed = not status.run.end.is_good or _find_failure(status.run) is not None
        return verdict(status.run) if said is None else said.headline, RED if has_failed else GREEN
    if said is not None:
        return said.headline, RED if said.severity == "critical" else YELLOW
    if status.run.abstained is not None:
        return f"no verdict yet: {status.run.abstained}", DIM
    return "no rank is slower than the others", GREEN


def _describe_run(status: RunStatus) -> str:
    """Return ranks and speed: `4 of 4 ranks: 3 up, 1 silent; 1,234 steps, 6.40 steps/s`."""
    counts = ", ".join(f"{count:,} {state}" for state, count in status.states.items())
    text = f"{status.ranks_known:,} of {status.run.world_size:,} ranks"
    parts = [f"{text}: {counts}" if counts else text]
    if status.steps is not None:
        speed = (
            "" if status.steps_per_s is None or status.run.end is not None else f", {status.steps_per_s:.2f} steps/s"
        )
        step = "" if status.step_ns_median is None else f", median step {format_duration(status.step_ns_median)}"
        parts.append(f"{status.steps:,} steps{speed}{step}")
    goodput = status.run.goodput.goodput_ratio
    if goodput is not None:
        parts.append(f"goodput {format_share(goodput)}")
    flops = describe_run_flops(status.flops)
    if flops:
        parts.append(flops)
    energy = describe_run_energy(status.energy)
    if energy:
        parts.append(f"energy {energy}")
    return "; ".join(parts)


def _describe_window_ratios(status: RunStatus) -> list[str]:
    """Return lines about the run's full windows: the ratios or why there are none, what windows cost, and what torch's
    timing of collectives does.
    """
    ratios = describe_run_ratios(status.window_ratios)
    effects = [effect for effect in (status.window_effect, status.timing_effect) if effect is not None]
    return [*([f"full windows: {ratios}"] if ratios else []), *effects]


def _list_others(findings: Sequence[Finding], colors: Colors) -> list[str]:
    """Return a line for each open finding except the verdict, and one for what to do about it."""
    costliest = find_costliest(findings)
    others = [one for one in order_findings(findings) if one is not costliest]
    lines: list[str] = []
    for one in others[:FINDINGS_SHOWN_MAX]:
        lines.append(INDENT + colors.paint(f"! {printable(one.headline)}", YELLOW))
        lines += render_facts(one, INDENT + INDENT)
    left = len(others) - FINDINGS_SHOWN_MAX
    return [*lines, f"{INDENT}! and {left} more: rankscope incidents --open"] if left > 0 else lines


def _list_worst(status: RunStatus, colors: Colors) -> list[str]:
    shown, known = len(status.worst), status.ranks_known
    if shown == known:
        return render_ranks(status.worst, status.run.medians_of, colors)
    head = f"the worst {shown:,} of {known:,} ranks (--all lists every rank, --rank N shows one):"
    return [INDENT + head, *render_ranks(status.worst, status.run.medians_of, colors)]


def render_all_ranks(status: RunStatus, run: RunSnapshot, colors: Colors = PLAIN) -> str:
    """Return the status, and below it every rank by number."""
    ranks = render_ranks(run.ranks, run.medians_of, colors)
    return "\n".join([render_status(status, colors, with_ranks=False), *ranks])


def _describe_end(rank: RankSnapshot) -> str:
    """Return how a rank ended: `failed: exit code 3`, `crashed: SIGSEGV`, `failed: ValueError: x, exit code 1`. Where
    what is known of its end has the exit code or the signal, the code is not said again.
    """
    detail = f": {rank.ended_detail}" if rank.ended_detail else ""
    is_said = rank.exit_code is None or "exit code" in detail or (detail and rank.exit_code < 0)
    return f"{rank.ended}{detail}{'' if is_said else f', exit code {rank.exit_code}'}"


def render_one_rank(run: RunSnapshot, rank: RankSnapshot, peers: tuple[int, str] | None, colors: Colors = PLAIN) -> str:
    """Return the status of one rank: its state and findings, its line, and the medians of its peers.

    `peers` is the number of ranks it is compared with and their times from `render_times`; None before there are any.
    """
    identity, state = rank.identity, describe_state(rank)
    where = f"node {printable(identity.node)}, local rank {identity.local_rank}, pid {identity.pid}"
    where += f", pod {printable(identity.k8s_pod)}" if identity.k8s_pod else ""
    title = colors.paint(f"run {printable(run.run)}, rank {identity.rank}:", BOLD)
    lines = [f"{title} {colors.paint(state, BOLD, *color_of(state))} ({where})"]
    if rank.ended is not None:
        lines.append(INDENT + printable(_describe_end(rank)))
    if run.injected_faults:
        lines.append(INDENT + printable(run.injected_faults))
    if rank.last_step is not None:
        lines.append(f"{INDENT}the last step it reported {'is' if rank.ended is None else 'was'} {rank.last_step:,}")
    lines += _list_findings_about(identity.rank, run.open_findings)
    stall = describe_stall(rank)
    if stall is not None:
        lines.append(INDENT + printable(stall))
    basis = rank.ratio_basis
    if basis.of_steps is not None or basis.absent != NO_WINDOW.absent:
        lines.append(f"{INDENT}ratios: {basis.absent or describe_basis(basis)}")
    told = {
        "memory": describe_memory(rank, run.ranks),
        "copies from the host": describe_host_copies(rank.breakdown),
        "last minute of its steps": describe_rank_flops(rank.flops),
    }
    lines += [f"{INDENT}{name}: {text}" for name, text in told.items() if text]
    lines += [*render_head(run.medians_of, colors), render_rank(rank, colors)]
    if peers is not None:
        count, times = peers
        whose = "the one rank it is compared with" if count == 1 else f"the median of the {count:,} it is compared with"
        lines.append(f"{'peers':>5} {'':>6} {times} {'':>8} {whose}")
    for table in _list_tables(rank):
        lines += ["", *render_section(table, WIDTH)]
    return "\n".join(lines)


def _list_tables(rank: RankSnapshot) -> list[Section]:
    """Return the tables by line of the script: where the rank waits for its GPU, and what it saves."""
    blocked = None if rank.ratio_basis.absent else list_blocking_calls(rank.synchronizations)
    tables = [build_blocked_lines([(rank.identity.rank, blocked)], len(blocked))] if blocked else []
    return [*tables, build_saves(rank.saves)] if rank.saves else tables


def _list_findings_about(rank: int, findings: Sequence[Finding]) -> list[str]:
    """Return the lines of the findings that name a rank, each with what to do about it."""
    about = [one for one in findings if rank in one.ranks]
    return [
        line
        for one in about
        for line in (INDENT + printable(one.headline), *render_facts(one, INDENT), *_list_lines(one.lines))
    ]


def _list_lines(lines: SampledLines | None) -> list[str]:
    """Return a table of the source lines of a finding about ranks: what they cost the rank and its peer in a step."""
    if lines is None or lines.peer is None:
        return []
    heads = f"rank {lines.rank}", f"rank {lines.peer}"
    rows = [
        f"{INDENT}{format_duration(one.ns):>10} {format_duration(one.peer_ns or 0.0):>10}  {describe_line(one)}"
        for one in lines.lines[:LINES_SHOWN_MAX]
    ]
    of_steps = f"mean of a step, of {lines.steps:,} from {lines.first_step:,} to {lines.last_step:,}"
    return [f"{INDENT}{heads[0]:>10} {heads[1]:>10}  {of_steps}", *(printable(row) for row in rows)]


STATES = {"D": "waits for a device", "T": "is stopped", "t": "is being traced", "R": "runs", "S": "sleeps"}
"""Thread states by the kernel's letter."""


def describe_stall(rank: RankSnapshot) -> str | None:
    """Return the sentence, or None for a rank that is not stalled.

    The sidecar's report comes first: it is newer than the last report of a rank that does not answer.
    """
    if not rank.stalled:
        return None
    who = f"rank {rank.identity.rank} ({rank.identity.node})"
    if rank.unresponsive is not None:
        return f"{who} does not answer: {_describe_unresponsive(rank.unresponsive)}"
    if rank.stall is None:
        return f"{who} is stalled"
    if rank.stall.samples is not None and rank.stall.is_busy:
        frame = rank.stall.samples.frame
        return f"{who} is busy without training{'' if frame is None else f' at {describe_frame(frame)}'}"
    return f"{who} is stalled{_describe(rank.stall)}"


def _describe(stall: Stall) -> str:
    frames = stall.stacks[0].frames if stall.stacks else ()
    frame = find_script_frame(frames)
    place = "" if frame is None else f" at {describe_frame(frame)}"
    activity = "" if stall.activity == ANYTHING else f" in {stall.activity}"
    return f"{activity}{place}{_describe_pending(stall.pending)}"


def _describe_pending(pending: Sequence[PendingCollective]) -> str:
    if not pending:
        return ", no collective is pending"
    oldest = pending[0]
    size = "" if oldest.bytes is None else f", {oldest.bytes} bytes"
    more = "" if len(pending) == 1 else f" and {len(pending) - 1} more"
    number = "" if oldest.sequence == UNRECORDED_SEQUENCE else f" {oldest.sequence}"
    return f", pending for {format_duration(oldest.age_ns)}: {oldest.op}{number} of {oldest.group}{size}{more}"


def _describe_unresponsive(found: RankUnresponsive) -> str:
    state = STATES.get(found.state, f"is in state {found.state}" if found.state else "is gone")
    channel = found.threads[0].wait_channel if found.threads else None
    inside = f" in {channel}" if channel else ""
    return f"its main thread {state}{inside}, its interpreter does not run{_describe_pending(found.pending)}"
