"""Define the results of detection: a Finding, or an Abstain with its reason."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from rankscope.collector.detect.finding_words import (
    write_cost,
    write_figures,
    write_headline,
    write_lost,
    write_reason,
    write_sentence,
)
from rankscope.collector.detect.sampled_lines import SampledLines

LEFT_S: Final = "left_s"
"""Key in the evidence of findings that predict an end: the time until then, in seconds."""
STRAGGLER: Final = "straggler"
"""Kind of a finding about ranks whose own time is longer than that of their peers."""
PERIODIC_WORK: Final = "periodic_work"
RUN_STALLS: Final = "run_stalls"
"""Kind and cause of a finding about work that one rank does by itself every so many steps."""
HANG: Final = "hang"
"""Kind of a finding about a run that makes no progress."""
BUSY_RANK: Final = "busy_rank"
"""Cause of a hang finding: ranks work on something that is no training, or wait for those that do."""
DATA_WAIT: Final = "data_wait"
"""Cause of a hang finding: ranks wait for a batch, or for those that do."""
PAUSES: Final = frozenset({BUSY_RANK, DATA_WAIT})
"""Causes of a hang finding that a healthy run may have: the run is said to pause, and it is a warning."""
SLOW_LINK: Final = "slow_link"
"""Kind and cause of a finding about links."""
SLOW_MODEL: Final = "slow_gpu_model"
"""Kind and cause of a finding about ranks on a slower model of GPU."""
UNMATCHED: Final = "unmatched_collectives"
"""Kind and cause of a finding about a group whose members have called different numbers of collectives."""
RUN_SLOWDOWN: Final = "run_slowdown"
"""Kind of a finding about a run whose steps have become longer: a run has one at a time, whatever its cause."""
DRIFTING: Final = "drifting"
"""Pattern of a slowness, else `steady` or `intermittent`, that has grown gradually: its begin is an estimate, and is
stated with "about"."""
NAMED_SHARE_MIN: Final = 0.25
"""Share of the cost of another finding from which one that names ranks or a group comes before it."""
SEVERITIES: Final = ("info", "warning", "critical")
"""For information; act within the working day; act now."""

BLAME: Final = "blame"
"""Key in `details` of a slower run or stage: whether a single rank is to blame, NOBODY, NOBODY_ELSE or NOT_KNOWN."""
NOBODY: Final = "nobody"
"""No single rank is to blame."""
NOBODY_ELSE: Final = "nobody else"
"""For what remains without that of other open findings, no single rank is to blame."""
NOT_KNOWN: Final = "not known"
"""It is not known whether one is."""

GROUP_SEPARATOR: Final = "; "
"""Separator of group names in `details["groups"]`: group names contain commas."""
TIMES: Final = frozenset(
    {
        "after_ns", "before_ns", "core_wait_ns_per_step", "fastest_own_ns", "gap_ns", "mean_own_ns",
        "peers_core_wait_ns_per_step", "peers_own_ns", "peers_timed_wait_ns", "peers_transfer_ns",
        "own_ns", "stalled_ns", "timed_wait_ns", "transfer_ns", "wait_caused_ns",
    }
)  # fmt: skip
"""Numbers of the evidence that are times, so never below 0; differences of times may be."""
SHARES: Final = frozenset(
    {
        "busy_ratio", "churning_intervals_ratio", "core_wait_ratio", "data_ratio", "exposed_transfer_ratio",
        "gap_step_ratio", "hideable_ratio", "host_idle_ratio", "idle_ratio", "most_often_slowest_ratio",
        "overlap_ratio", "persistence_ratio", "retrying_intervals_ratio", "synchronizing_ratio",
    }
)  # fmt: skip
"""Numbers of the evidence that are shares of a whole, 0 to 1."""
SHARE_MAX: Final = 1.01
"""The whole, and what is read of it by two clocks."""

SinceRange: TypeAlias = tuple[int, int]
"""The earliest and the latest step with which a slowness may have begun."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict about some ranks (`rank` is the first), about a process group, or about the whole run (neither).

    `kind` is what a detector finds (`straggler`, `hang`, ...), `number` counts the findings of a run from 1 and stays
    when the finding changes, `cause` is the reason, for a straggler one of docs/definitions.md section 5. `since_step`
    is the first step it is about, an estimate: noise allows for any from `since_step_min` to `since_step_max`, where
    those are known (no `since_step_min`: for that one or any before, as it held in all steps that could be judged);
    `slowdown_ratio` the time over what it is compared with (1 = equal); `nodes` the machines it is
    about: for a straggler those nearly all of whose ranks are slow, for a link those it joins. `evidence` holds the
    numbers behind it, with their unit; `details` the texts (a stack, the names of links).
    `run_slowdown_ratio` is the step over the ideal step (of the slowest of several stragglers: without all of them),
    `lost_rank_seconds` what it has cost so far, all ranks together. None: not known, or not applicable.

    What users read is `headline` (who, how much, since when), `figures` (the times behind it), `why` (the cause, in a
    dozen words), `cost` and `suggestion` (what to do); `sentence` is the headline, figures, why, cost and `also` as a
    text. A detector gives `what` is the case, and beside it `who` (where `subject` does not say it), `node` (of its
    only rank), `why`, `also` (more that is known, a sentence each) and `cost_of` (who else the cost is of), all without
    a verb in a tense; the others are written from the fields by `finding_words.py` whenever a finding is made or
    changed, so that they agree with them. Without `what`, as in findings of an earlier version, they are as given, and
    the sentence is the headline.

    `lines` are the source lines that samples of its ranks have shown; None: there are no samples yet, or will be none.
    `world_size` is that of its run, 0: not known. `since_wall_s` is when it began, in seconds since 1970.

    It `recurs` where it had passed and was found again soon, and `is_paused` while such a one does not hold. When it
    has closed, `until_step` is the last step in which it held, `until_wall_s` when that was, `lasted_s` its duration,
    and `outcome` what followed a hang: WENT_ON, FINISHED or ENDED, empty when not known.
    """

    kind: str
    number: int = 0
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    group: str | None = None
    since_step: int | None = None
    since_step_min: int | None = None
    since_step_max: int | None = None
    cause: str
    what: str = ""
    who: str = ""
    node: str = ""
    why: str = ""
    also: tuple[str, ...] = ()
    cost_of: str = ""
    headline: str = ""
    figures: str = ""
    cost: str = ""
    sentence: str = ""
    suggestion: str = ""
    severity: str = "warning"
    pattern: str = "steady"
    slowdown_ratio: float | None = None
    run_slowdown_ratio: float | None = None
    lost_rank_seconds: float | None = None
    evidence: Mapping[str, float] = {}
    details: Mapping[str, str] = {}
    world_size: int = 0
    since_wall_s: float | None = None
    until_step: int | None = None
    until_wall_s: float | None = None
    lasted_s: float | None = None
    outcome: str = ""
    recurs: bool = False
    is_paused: bool = False
    lines: SampledLines | None = None

    def __post_init__(self) -> None:
        if self.what:
            for name, write in WORDS.items():  # in this order: the sentence is made of the others
                msgspec.structs.force_setattr(self, name, write(self))
        else:
            msgspec.structs.force_setattr(self, "headline", self.sentence)

    def find_impossible(self) -> str:
        """Return the name of a number of it that cannot be: a time of TIMES below 0, a share of SHARES outside of 0 to
        1, anything that is no finite number; empty where there is none.

        >>> Finding(kind="cpu_pressure", cause="", sentence="", evidence={"core_wait_ratio": 8.25}).find_impossible()
        'core_wait_ratio'
        """
        ratios = {"slowdown_ratio": self.slowdown_ratio, "run_slowdown_ratio": self.run_slowdown_ratio}
        numbers = {**{name: ratio for name, ratio in ratios.items() if ratio is not None}, **self.evidence}
        for name, value in numbers.items():
            least = 0.0 if name in TIMES or name in SHARES or name in ratios else -math.inf
            most = SHARE_MAX if name in SHARES else math.inf
            if not math.isfinite(value) or not least <= value <= most:
                return name
        return ""

    @property
    def rank(self) -> int | None:
        """Return the rank it is about, the first of several; None for one about a group or the run."""
        return self.ranks[0] if self.ranks else None

    @property
    def subject(self) -> str:
        """Return what it is about, as text.

        >>> finding = Finding(kind="straggler", ranks=(8, 9, 10, 12), cause="host_cpu", sentence="")
        >>> finding.subject, Finding(kind="run_slowdown", cause="unattributed", sentence="").subject
        ('ranks 8-10, 12', 'the run')
        """
        if self.nodes:
            return f"node{'s' if len(self.nodes) > 1 else ''} {', '.join(self.nodes)}"
        if self.ranks:
            return f"rank{'s' if len(self.ranks) > 1 else ''} {format_ranks(self.ranks)}"
        return f"group {self.group}" if self.group else "the run"

    @property
    def reason(self) -> str:
        """Return the cause with its name, where that says more than the kind."""
        return write_reason(self)

    @property
    def is_pause(self) -> bool:
        """Return whether it is a stall that a healthy run may have."""
        return self.kind == HANG and self.cause in PAUSES

    @property
    def is_closed(self) -> bool:
        """Return whether it holds no more."""
        return self.until_step is not None or self.lasted_s is not None

    @property
    def since_range(self) -> SinceRange | None:
        """Return the steps between which its begin lies; None where they are not known."""
        if self.since_step_min is None or self.since_step_max is None:
            return None
        return self.since_step_min, self.since_step_max

    @property
    def is_older(self) -> bool:
        """Return whether it may have begun in any step before the first that could be judged."""
        return self.since_step_min is None and self.since_step_max is not None

    @property
    def groups(self) -> tuple[str | None, ...]:
        """Return the process groups it is about: those of `details["groups"]`, else `group`."""
        return tuple(self.details["groups"].split(GROUP_SEPARATOR)) if "groups" in self.details else (self.group,)

    def is_about_the_same(self, other: "Finding") -> bool:
        """Return whether two findings are the same one, possibly grown or shrunk: of one kind, with a group in common,
        and with a rank in common where they are about ranks. The cause of a slower run may change as more is known.
        """
        if self.kind != other.kind or set(self.groups).isdisjoint(other.groups):
            return False
        if not self.ranks and not other.ranks:
            return self.group is not None or self.kind == RUN_SLOWDOWN or self.cause == other.cause
        return not set(self.ranks).isdisjoint(other.ranks)


class Priced(Protocol):
    """Anything with a cost: a finding, or the incident of several."""

    @property
    def cost(self) -> str:
        """Return what it costs the run, as text."""

    @property
    def lost_rank_seconds(self) -> float | None:
        """Return what it has cost so far."""

    @property
    def is_closed(self) -> bool:
        """Return whether it costs no more."""


def write_whole_cost(found: Priced) -> str:
    """Return what it costs the run, with what it has lost so far; empty where neither is known."""
    lost = write_lost(found.lost_rank_seconds)
    so_far = f"{lost} {'in all' if found.is_closed else 'so far'}" if lost else ""
    return "; ".join(part for part in (found.cost, so_far) if part)


def order_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of all views: by severity; then those that name ranks or a group, unless they cost
    little beside another; then by cost, and equals by rank and number.

    >>> one = Finding(kind="straggler", number=1, cause="host_cpu", severity="warning")
    >>> two = Finding(kind="hang", number=2, cause="unknown", severity="critical")
    >>> [finding.number for finding in order_findings([one, two])]
    [2, 1]
    """
    known = list(findings)
    named_min = NAMED_SHARE_MIN * max((one.lost_rank_seconds or 0.0 for one in known), default=0.0)

    def place(one: Finding) -> tuple[int, bool, float, tuple[int, ...], int]:
        lost_s = one.lost_rank_seconds or 0.0
        is_named = bool(one.ranks or one.group) and lost_s >= named_min
        severity = SEVERITIES.index(one.severity) if one.severity in SEVERITIES else 0
        return -severity, not is_named, -lost_s, one.ranks, one.number

    return sorted(known, key=place)


def place_run(open_findings: Iterable[Finding], *, is_over: bool) -> tuple[bool, int, float]:
    """Return a key that sorts runs by how much they need somebody: running ones by the severity of their open findings,
    then by cost, those without any after them, and those that are over last.
    """
    known = list(open_findings)
    severity = max((SEVERITIES.index(one.severity) for one in known if one.severity in SEVERITIES), default=-1)
    return is_over, -severity, -sum(one.lost_rank_seconds or 0.0 for one in known)


WORDS: Final[Mapping[str, Callable[[Finding], str]]] = {
    "headline": write_headline,
    "figures": write_figures,
    "cost": write_cost,
    "sentence": write_sentence,
}
"""What writes each of the texts of a finding."""


class HoldsFinding(Protocol):
    """Anything that keeps an open finding and replaces it by its newer forms."""

    finding: Finding


Held = TypeVar("Held", bound=HoldsFinding)


def match_open(held: Sequence[Held], found: Finding) -> tuple[Held | None, list[Held]]:
    """Return the open finding that `found` continues, the first that is about the same (None where it is new), and the
    others that are about the same, which are merged into that one.
    """
    same = [one for one in held if one.finding.is_about_the_same(found)]
    return (same[0] if same else None), same[1:]


class Abstain(msgspec.Struct, frozen=True):
    """No verdict, with the reason: about findings of one `kind`, or (empty) of all kinds of the detector."""

    reason: str
    kind: str = ""


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks, given in ascending order, as text with ranges.

    >>> format_ranks([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text, in ascending order.

    >>> name_ranks({3}), name_ranks([2, 1, 5])
    ('rank 3', 'ranks 1-2, 5')
    """
    ordered = sorted(ranks)
    return f"rank{'' if len(ordered) == 1 else 's'} {format_ranks(ordered)}"


def describe_faults(faults: Mapping[int, str]) -> str:
    """Return what ranks do to themselves on purpose, by rank, as a sentence without a tense; empty without a fault.

    >>> describe_faults({2: "host_sleep of 50 ms in the forward, steps 200 to 400"})
    'Injected on purpose on rank 2: host_sleep of 50 ms in the forward, steps 200 to 400.'
    """
    each = "; ".join(f"on rank {rank}: {fault}" for rank, fault in sorted(faults.items()))
    return f"Injected on purpose {each}." if each else ""


def state_faults(finding: Finding, injected: str) -> Finding:
    """Return the finding that also says what is injected on purpose in its run."""
    return msgspec.structs.replace(finding, also=(*finding.also, injected))


def state_thresholds(finding: Finding, thresholds: Mapping[str, float], said: str) -> Finding:
    """Return the finding that also says by which thresholds it is judged, of those changed while its run goes on."""
    return msgspec.structs.replace(finding, evidence={**finding.evidence, **thresholds}, also=(*finding.also, said))


def reopen_finding(finding: Finding) -> Finding:
    """Return a closed finding in the form that it had while it was open."""
    return msgspec.structs.replace(finding, until_step=None, until_wall_s=None, lasted_s=None, outcome="")


WENT_ON: Final = "went on"
FINISHED: Final = "finished"
ENDED: Final = "ended"
"""Outcomes of a hang."""


def close_finding(
    finding: Finding,
    *,
    until_step: int | None = None,
    until_wall_s: float | None = None,
    lasted_s: float | None = None,
    outcome: str = "",
) -> Finding:
    """Return the finding in its closed form. A closed finding may be closed again when more is known."""
    closed = msgspec.structs.replace(
        finding, until_step=until_step, until_wall_s=until_wall_s, lasted_s=lasted_s, outcome=outcome, is_paused=False
    )
    if finding.kind == HANG and outcome == FINISHED:
        return msgspec.structs.replace(closed, severity="info", suggestion="")
    return closed
