"""Write what a finding says: its headline, figures and cost, and the sentence of all of them. Pure.

This is the only place where the numbers of a finding become text. Terminal, page, alerts, log and JSON show these
fields, or the sentence that is made of them. Nothing here has a verb in a tense, so a finding that is over reads as it
did while it was open, with its period in place of its begin.

    Rank 2 (node-7): 3.4x slower than its 3 peers since step 60 (2026-03-14 14:02 UTC).   headline
    Own time 195 ms per step, peers 58 ms.                                          figures
    Cause data_loading: 137 ms more per step waiting for its data loader.           why
    Cost: run 3.2x slower, 2.8 of 4 ranks wasted.                                   cost
"""

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Protocol

from rankscope.measure.units import format_duration, format_length

if TYPE_CHECKING:
    from rankscope.collector.detect.finding import Finding

SURE_STEPS: Final = 5
"""A begin is stated without a range where that reaches no further: nobody acts on so few steps."""
OR_BEFORE: Final = " or before"
COST_RATIO_STATED_MIN: Final = 1.01
"""A run that is slower by less is said to cost nothing."""
TENTHS_MIN: Final = 1.95
"""Ratio from which one decimal is enough."""
WHOLE_MIN: Final = 10
"""Ranks from which their number is whole."""
OVER: Final = {
    "finished": ", then the run finished",
    "went on": ", then the run went on",
    "ended": ", until the run ended",
}
"""What followed a hang, by `Finding.outcome`."""
COST_THAN: Final = {
    "imbalance": " than with an even split",
    "more_work": " than with an even split",
    "slow_gpu_model": " than with the faster model only",
}
"""What the cost of a kind compares with, where that is not the run without what is found."""
WITHOUT_RATIO: Final = frozenset({"periodic_work", "imbalance", "more_work"})
"""Kinds whose ratio says less than what they are."""
AT_ONCE: Final = frozenset({"out_of_memory", "run_failure", "nothing_heard"})
"""Kinds that happen at a time, which `what` says."""
OF_RUN: Final = frozenset({"run_failure", "nothing_heard"})
"""Kinds that are about a run, whichever ranks they name."""
WITH_CAUSE: Final = frozenset({"straggler", "run_slowdown", "stage_slowdown", "uneven_work"})
"""Kinds whose sentence names the cause, which the other views and the runbooks go by."""
STEP: Final = "Step"
OF_PEERS: Final = {
    "straggler": ("Own time", "own_ns", "peers_own_ns", "peers"),
    "imbalance": ("Own time", "own_ns", "mean_own_ns", "mean of all ranks"),
    "more_work": ("Own time", "own_ns", "mean_own_ns", "mean of all ranks"),
    "slow_gpu_model": ("Own time", "own_ns", "fastest_own_ns", "on the faster model"),
    "run_slowdown": (STEP, "after_ns", "before_ns", "before"),
    "stage_slowdown": ("Own time", "after_ns", "before_ns", "before"),
    "slow_link": ("Transfer", "transfer_ns", "peers_transfer_ns", "compared with"),
    "slower_than_earlier_runs": (STEP, "start_ns", "usual_ns", "earlier runs"),
}
"""By kind what its figures are of, the evidence of it and of what it is compared with, and the name of that."""
OF_IT: Final = " of it in "
"""What stands between the share of a cause and the call or phase that has it."""
COMES_AND_GOES: Final = "Comes and goes"
NOT_NOW: Final = "Not slow at present; closed after 5 minutes without slowness"


class Told(Protocol):
    """What has a kind, a cause and a reason: a finding, or its incident."""

    @property
    def kind(self) -> str:
        """Return the kind."""

    @property
    def cause(self) -> str:
        """Return the cause."""

    @property
    def why(self) -> str:
        """Return the reason."""


def format_ratio(ratio: float) -> str:
    """Return how many times as slow, the same in all views.

    >>> format_ratio(1.07), format_ratio(3.39), format_ratio(12.04)
    ('1.07x', '3.4x', '12.0x')
    """
    return f"{ratio:.1f}x" if ratio >= TENTHS_MIN else f"{ratio:.2f}x"


def format_ranks_wasted(run_slowdown_ratio: float, world_size: int) -> str:
    """Return how many ranks the run could do without if it were as fast as without the finding, in the same time.

    >>> format_ranks_wasted(3.25, 4), format_ranks_wasted(2.0, 1024)
    ('2.8', '512')
    """
    wasted = count_ranks_wasted(run_slowdown_ratio, world_size)
    return f"{wasted:,.{0 if wasted >= WHOLE_MIN else 1}f}"


def count_ranks_wasted(run_slowdown_ratio: float, world_size: int) -> float:
    """Return the ranks whose time is lost, so many rank-hours per hour: from 0 to below `world_size`."""
    return world_size * (1.0 - 1.0 / max(1.0, run_slowdown_ratio))


def describe_begin(since_step: int, since_range: tuple[int, int] | None, *, is_gradual: bool) -> str:
    """Return the begin of a slowness as text, to follow "since" or "from"; with its range where it is not sure.

    >>> describe_begin(100, (98, 103), is_gradual=False), describe_begin(112, (96, 121), is_gradual=True)
    ('step 100', 'about step 112 (96-121)')
    """
    if since_range is None:
        return f"{'about ' if is_gradual else ''}step {since_step}"
    if not is_gradual and not _is_wide(since_step, since_range):
        return f"step {since_step}"
    return f"about step {since_step} ({since_range[0]}-{since_range[1]})"


def _is_wide(since_step: int, since_range: tuple[int, int]) -> bool:
    earliest, latest = since_range
    return max(since_step - earliest, latest - since_step) > SURE_STEPS


def write_headline(finding: "Finding") -> str:
    """Return who or what it is, how much, and since when or in which steps."""
    if finding.kind == "hang":
        return _write_hang(finding)
    is_about = (finding.ranks or finding.nodes or finding.group) and finding.kind not in OF_RUN
    who = finding.who or (finding.subject if is_about else "")
    if finding.node and len(finding.ranks) == 1 and not finding.nodes:
        who = f"{who} ({finding.node})"
    ratio = finding.slowdown_ratio
    slower = "" if ratio is None or finding.kind in WITHOUT_RATIO else f"{format_ratio(ratio)} slower "
    if slower and finding.kind == "straggler" and len(finding.ranks) > 1:
        slower = f"up to {slower}"  # the ratio is that of the slowest
    when = "" if finding.kind in AT_ONCE else write_when(finding)
    what = finding.what if when.startswith(" since") else finding.what.rstrip(",")
    text = f"{f'{who}: ' if who else ''}{slower}{what}{when}"
    return f"{text[0].upper()}{text[1:]}"


def write_when(finding: "Finding") -> str:
    """Return since when it is, or in which steps it was, to follow what it is; empty where no step is known."""
    since, until = finding.since_step, finding.until_step
    if not finding.is_closed:
        if since is None:
            return ""
        begin = describe_begin(since, finding.since_range, is_gradual=finding.pattern == "drifting")
        begin = f"{begin}{_write_older(finding)}"
        if finding.since_wall_s is None:
            return f" since {begin}"
        at = f"{format_clock(finding.since_wall_s)} UTC"
        return f" since {begin[:-1]}; {at})" if begin.endswith(")") else f" since {begin} ({at})"
    steps = "" if since is None else f"from step {since} on"
    if until is not None and (since is None or until >= since):
        steps = (
            f"until step {until}" if since is None else f"steps {since}-{until}" if until > since else f"step {since}"
        )
    began = ""
    if since is not None and finding.since_range is not None and _is_wide(since, finding.since_range):
        began = f"began at {finding.since_range[0]}-{finding.since_range[1]}"
    elif _write_older(finding):
        began = f"began then{OR_BEFORE}"
    length = "" if finding.lasted_s is None else format_length(finding.lasted_s)
    beside = "; ".join(part for part in (length, _write_clocks(finding), began) if part)
    return f"{f', {steps}' if steps else ''}{f' ({beside})' if beside else ''}"


def _write_older(finding: "Finding") -> str:
    """Return that it may have begun before the first step that could be judged; empty where few steps were before."""
    since = finding.since_step
    return OR_BEFORE if finding.is_older and since is not None and since > SURE_STEPS else ""


def _write_clocks(finding: "Finding") -> str:
    since, until = finding.since_wall_s, finding.until_wall_s
    if since is None or until is None:
        return ""
    begin, end = format_clock(since), format_clock(until)
    if begin == end:
        return f"{begin} UTC"
    (day, _), (last_day, last) = begin.split(), end.split()
    return f"{begin}-{last} UTC" if day == last_day else f"{begin} to {end} UTC"


def format_clock(wall_s: float) -> str:
    """Return date and time of day in UTC. The date stands always: a text is read on other days than it was written.

    >>> format_clock(50_520.0), format_clock(-60.0)
    ('1970-01-01 14:02', '1969-12-31 23:59')
    """
    return datetime.fromtimestamp(wall_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")


def _write_hang(finding: "Finding") -> str:
    name = "Pause" if finding.is_pause else "Stall" if finding.outcome == "finished" else "Hang"
    step = "" if finding.since_step is None else f" in step {finding.since_step}"
    if finding.outcome == "finished":
        step = "" if finding.since_step is None else " in or after the last step"
    stalled_ns = finding.evidence.get("stalled_ns")
    length = "" if stalled_ns is None or finding.is_closed else f" for {format_duration(stalled_ns)}"
    if finding.lasted_s is not None:
        length = f" for {format_length(finding.lasted_s)}"
    clocks = _write_clocks(finding)
    if not clocks and finding.since_wall_s is not None:
        clocks = f"since {format_clock(finding.since_wall_s)} UTC"
    return f"{name}{step}{length}{f' ({clocks})' if clocks else ''}{OVER.get(finding.outcome, '')}: {finding.what}"


def write_figures(finding: "Finding") -> str:
    """Return the two times that a slowness is the ratio of; empty where there are none."""
    name, own, other, than = OF_PEERS.get(finding.kind, ("", "", "", ""))
    own_ns, other_ns = finding.evidence.get(own), finding.evidence.get(other)
    if own_ns is None or other_ns is None:
        return ""
    of = finding.details.get(OWN_TIME, "")
    per = "" if name == STEP else " per step"
    text = f"{name}{f' {of}' if of else ''} {format_duration(own_ns)}{per}, {than} {format_duration(other_ns)}"
    more = finding.evidence.get("more_tokens_ratio")
    return text if more is None else f"{text} (scaled up for {more:.2f} times as many tokens)"


OWN_TIME: Final = "own time"
"""Key in `details`: what own times are, where that is not the step minus waits for other ranks."""


def write_cost(finding: "Finding") -> str:
    """Return by how much it slows the run, and how many ranks that wastes; empty below COST_RATIO_STATED_MIN."""
    ratio = finding.run_slowdown_ratio
    if ratio is None or ratio < COST_RATIO_STATED_MIN:
        return ""
    slower = f"run {format_ratio(ratio)} slower{COST_THAN.get(finding.kind, '')}"
    if not finding.world_size:
        return slower
    return f"{slower}, {format_ranks_wasted(ratio, finding.world_size)} of {finding.world_size:,} ranks wasted"


def write_lost(lost_rank_seconds: float | None) -> str:
    """Return what has been lost so far; empty for nothing.

    >>> write_lost(90.0), write_lost(9_360.0), write_lost(None)
    ('90 rank-seconds', '2.6 rank-hours', '')
    """
    if not lost_rank_seconds:
        return ""
    hours = lost_rank_seconds / 3600.0
    return f"{hours:,.1f} rank-hours" if hours >= 1.0 else f"{lost_rank_seconds:.0f} rank-seconds"


def write_sentence(finding: "Finding") -> str:
    """Return the headline, figures, cause and cost of a finding as a text."""
    also = f" (with {finding.cost_of})" if finding.cost_of else ""
    cost = f"Cost{also}: {finding.cost}" if finding.cost else ""
    paused = [NOT_NOW] if finding.is_paused else []
    recurs = [COMES_AND_GOES] if finding.recurs else []
    reason = write_reason(finding)
    why = f"Cause {reason}" if _names_cause(finding) else reason
    return join_sentences((finding.headline, finding.figures, why, cost, *finding.also, *recurs, *paused))


def write_reason(finding: "Told") -> str:
    """Return why it is, after the name of the cause where that says more than the kind."""
    if not _names_cause(finding):
        return finding.why
    return f"{finding.cause}: {finding.why}" if finding.why else finding.cause


def _names_cause(finding: "Told") -> bool:
    return finding.kind in WITH_CAUSE and not (finding.cause == "unattributed" and finding.why)


def join_sentences(texts: Iterable[str]) -> str:
    """Return texts as sentences.

    >>> join_sentences(("rank 2 slow", "", "cause not known."))
    'Rank 2 slow. Cause not known.'
    """
    return " ".join(_end(text) for text in texts if text)


def _end(text: str) -> str:
    begun = f"{text[0].upper()}{text[1:]}"
    return begun if begun.endswith(".") else f"{begun}."
