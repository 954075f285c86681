"""What detection says: a Finding, or an Abstain with its reason."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

STRAGGLER: Final = "straggler"
"""The kind of finding about ranks whose own work takes longer than that of those they are compared with."""
HANG: Final = "hang"
"""The kind of finding about a job that does not move."""
SLOW_LINK: Final = "slow_link"
"""The kind and the cause of a finding about links."""
PATTERNS: Final = ("steady", "intermittent", "drifting")
"""How a slowness shows: in one step as in the next; only in some steps; ever more."""
SEVERITIES: Final = ("info", "warning", "critical")
"""To be known; to be looked at in the working day; to be looked at now."""

GROUP_SEPARATOR: Final = "; "
"""Between the names of groups in `details["groups"]`; names of groups have commas in them."""
TRANSFER_EXCESS: Final = "transfer_excess_ns"
"""Of each slow group by how much its transfer is longer: evidence, with the group's name behind a slash."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict: about some ranks (the first one leads), about a process group, or about the whole run (neither).

    `kind` is what a detector finds (`straggler`, `hang`, ...), `number` counts the findings of a run from 1 and stays
    with one that changes, `cause` is why, for a straggler one of docs/definitions.md section 5. `since_step` is the
    first step it is about; `slowdown_ratio` the time over what it is compared with (1 = equal); `nodes` the
    machines it is about: of a straggler those nearly all of whose ranks are slow, of a link those it joins.
    `evidence` holds the numbers behind the sentence, with their unit; `details` what is no number (a stack, the
    names of links). `run_slowdown_ratio` is the step over the ideal step, `lost_rank_seconds` what it has cost so
    far, all ranks together. None: not known, or it makes no sense.

    Of a finding that is over `until_step` is the last step in which it held, and `lasted_s` for how long it did;
    `sentence` is then in the past tense. `past` is that form before it is over, with `{when}` where from when until
    when is put in (`past.py`).
    """

    kind: str
    number: int = 0
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    group: str | None = None
    since_step: int | None = None
    cause: str
    sentence: str
    suggestion: str = ""
    severity: str = "warning"
    pattern: str = "steady"
    slowdown_ratio: float | None = None
    run_slowdown_ratio: float | None = None
    lost_rank_seconds: float | None = None
    evidence: Mapping[str, float] = {}
    details: Mapping[str, str] = {}
    past: str = ""
    until_step: int | None = None
    lasted_s: float | None = None

    @property
    def rank(self) -> int | None:
        """The rank it is about, of several the first; None for one about a group or the run."""
        return self.ranks[0] if self.ranks else None

    @property
    def subject(self) -> str:
        """Whom it is about, for people.

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
    def groups(self) -> tuple[str | None, ...]:
        """The process groups it is about: those of `details["groups"]` where it is about several, else `group`."""
        return tuple(self.details["groups"].split(GROUP_SEPARATOR)) if "groups" in self.details else (self.group,)

    def is_about_the_same(self, other: "Finding") -> bool:
        """Whether two findings are one that has grown, shrunk or gone on: of one kind, of one group or with a group in
        common, and with a rank in common where they are about ranks.
        """
        if self.kind != other.kind or set(self.groups).isdisjoint(other.groups):
            return False
        if not self.ranks and not other.ranks:
            return self.group is not None or self.cause == other.cause
        return not set(self.ranks).isdisjoint(other.ranks)


class Abstain(msgspec.Struct, frozen=True):
    """Detection gives no verdict, and says why."""

    reason: str


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks in ascending order, neighbours together.

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
