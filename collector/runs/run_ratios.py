"""Add up the ratios of a run over its ranks, with what they stand on (docs/definitions.md section 1). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, Protocol, TypeVar

import msgspec

from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.ratios import add_breakdowns, read_ratios
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.bounds import to_count
from rankscope.measure.units import format_length

HOST_COPY: Final = "exposed_host_copy"
COPYING_SHOWN_MIN: Final = 0.01
"""Share of the time from which on it is shown: most runs copy less."""


class RunRatios(msgspec.Struct, frozen=True, kw_only=True):
    """The ratios of the last full windows of all ranks that are up, together, by name; of all ranks once none is up.
    `ranks` of these `of_ranks` ranks have ratios; `steps`, `of_steps` and `share` are as in RatioBasis, summed over
    them; `age_steps` and `age_s` are those of the rank whose newest window was the oldest at its last report. `absent`
    says why ranks have no ratios, None where all have. With `on_demand` the steps of some of them were captured on
    demand.
    """

    ratios: Mapping[str, float] = {}
    ranks: int = 0
    of_ranks: int = 0
    steps: int = 0
    of_steps: int | None = None
    share: float | None = None
    age_steps: int | None = None
    age_s: float | None = None
    absent: str | None = NO_WINDOW.absent
    on_demand: bool = False


class Windowed(Protocol):
    """A rank, as far as its windows are concerned."""

    @property
    def up(self) -> bool:
        """Whether it is up."""
        ...


AnyRank = TypeVar("AnyRank", bound=Windowed)


def choose_counted(ranks: Sequence[AnyRank]) -> Sequence[AnyRank]:
    """Return the ranks that count for the windows of a run: those that are up, all once none is up."""
    return [rank for rank in ranks if rank.up] or ranks


def find_run_ratios(ranks: Sequence[RankSnapshot]) -> RunRatios:
    """Return the ratios of a run."""
    counted = choose_counted(ranks)
    known = [rank for rank in counted if rank.breakdown is not None]
    bases = [rank.ratio_basis for rank in known]
    whole = add_breakdowns(tuple(rank.breakdown for rank in known if rank.breakdown is not None))
    steps, of_steps = sum(one.steps for one in bases), sum(one.of_steps or 0 for one in bases)
    absent = describe_absence([(rank.identity.rank, rank.ratio_basis) for rank in counted])
    return RunRatios(
        ratios={} if whole is None else read_ratios(whole),
        ranks=len(known),
        of_ranks=len(counted),
        steps=to_count(steps),
        of_steps=to_count(of_steps) or None,
        share=steps / of_steps if of_steps else None,
        age_steps=max((one.age_steps for one in bases if one.age_steps is not None), default=None),
        age_s=max((one.age_s for one in bases if one.age_s is not None), default=None),
        absent=absent if counted else NO_WINDOW.absent,
        on_demand=any(one.on_demand for one in bases),
    )


def describe_absence(bases: Iterable[tuple[int, RatioBasis]]) -> str | None:
    """Return on how many ranks there are no ratios, and why on the first of those, by rank number; None where all have
    ratios. Where no rank has had a window only that is said.
    """
    reasons = [(rank, one.absent) for rank, one in bases]
    absent = [(rank, why) for rank, why in reasons if why is not None]
    if not absent:
        return None
    said = [(rank, why) for rank, why in absent if why != NO_WINDOW.absent] or absent
    rank, why = min(said, key=itemgetter(0))
    if len(absent) == len(reasons) and len({reason for _, reason in absent}) == 1:
        return why
    if len(absent) == len(reasons):
        return f"all {len(absent):,} ranks have none, for different reasons; rank {rank}: {why}"
    have = "has" if len(absent) == 1 else "have"
    return f"{len(absent):,} of {len(reasons):,} ranks {have} no ratios; rank {rank}: {why}"


def describe_basis(basis: RunRatios | RatioBasis) -> str:
    """Return what ratios stand on, as text; empty where there was no window. Ages are those at a rank's last report.

    >>> describe_basis(RatioBasis(steps=64, of_steps=8_192, age_steps=12, age_s=3.4))
    'from 64 of 8,192 steps; at the last report the newest window was 12 steps (3 s) old'
    >>> describe_basis(RunRatios(ranks=2, steps=128, of_steps=16_384, age_steps=12, age_s=3.4))
    "from 128 of 16,384 steps; at each rank's last report its newest window was at most 12 steps (3 s) old"
    >>> describe_basis(RatioBasis(steps=2, of_steps=14, age_steps=12, age_s=3.4, on_demand=True))
    'from 2 of 14 steps; at the last report they had been captured on demand 12 steps (3 s) before'
    """
    if basis.of_steps is None or basis.age_steps is None or basis.age_s is None:
        return ""
    is_of_many = isinstance(basis, RunRatios) and basis.ranks > 1
    at = "at each rank's last report" if is_of_many else "at the last report"
    most = " at most" if is_of_many else ""
    age = f"{basis.age_steps:,} steps ({format_length(basis.age_s)})"
    if basis.on_demand:
        said = f"{at} they had been captured on demand{most} {age} before"
    else:
        said = f"{at} {'its' if is_of_many else 'the'} newest window was{most} {age} old"
    return f"from {basis.steps:,} of {basis.of_steps:,} steps; {said}"


def describe_run_ratios(found: RunRatios) -> str:
    """Return the ratios of a run, what they stand on, and why ranks have none; empty while no rank has had a window.

    >>> half = {"compute": 0.5, "communication": 0.25, "exposed_communication": 0.25, "idle": 0.25}
    >>> told = RunRatios(ratios=half, ranks=1, steps=2, of_steps=64, age_steps=9, age_s=1.0, absent=None)
    >>> describe_run_ratios(told)  # doctest: +NORMALIZE_WHITESPACE
    'compute 50 %, exposed communication 25 %, idle 25 %, from 2 of 64 steps; at the last report the newest window was 9
    steps (1 s) old'
    >>> describe_run_ratios(RunRatios())
    ''
    """
    if found.absent == NO_WINDOW.absent:
        return ""
    names = ("compute", "exposed_communication", "idle")
    shares = [f"{name.replace('_', ' ')} {100 * found.ratios[name]:.0f} %" for name in names if name in found.ratios]
    copying = found.ratios.get(HOST_COPY, 0.0)
    shares += [f"exposed copies from the host {100 * copying:.0f} %"] if copying >= COPYING_SHOWN_MIN else []
    if not shares:
        return "" if found.absent is None else f"no ratios: {found.absent}"
    known = ", ".join([*shares, describe_basis(found)])
    return known if found.absent is None else f"{known}; {found.absent}"
