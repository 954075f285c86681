"""Find a run that is slower than earlier runs of the same work from its first steps on.

A run that was slow from its begin has no better past of its own, and where all ranks are slow alike no peer shows it.
Its first steps (`steps/run_start.py`) are compared with those of the last RUNS_MAX earlier runs of equal work
(`steps/equal_work.py`) that the store has:

    excess      log(mean usual step of this run / median of that of the earlier runs), at least log(RATIO_MIN)
    certain     at least DEVIATIONS_MIN standard deviations of one run beside so many others

The deviation is the largest of that by the median distance from the median, that by the distance that three quarters
of the runs are within, and DEVIATION_FLOOR: up to a quarter of the earlier runs may be slow without changing any of
them. Runs that had a finding by then do not count, as they were not usual. What a finding about ranks or links explains
is not repeated.

With fewer than RUNS_MIN earlier runs nothing is said, so never of a first run. Of 3,000 healthy runs each, with 5 to 20
earlier runs that differ by 0.5, 1, 2 and 5 % (standard deviations, normal), at most 0, 0, 3 and 18 were found; with 1 %
91 to 99 % of those that were 1.1 times as slow were, with 2 % about 40 %.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.run_rules.explained import find_explained_ns
from rankscope.collector.detect.statistics.noise import MAD_TO_SIGMA
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.collector.steps.run_start import EarlierRun, RunStart
from rankscope.collector.steps.step_series import Floats

SLOWER_THAN_EARLIER: Final = "slower_than_earlier_runs"
"""Kind and cause of the finding."""
RUNS_MIN: Final = 5
RUNS_MAX: Final = 20
RATIO_MIN: Final = 1.05
CLOSE_RATIO: Final = 1.02
"""A run whose last steps are within this of the usual step is not slower any more."""
DEVIATIONS_MIN: Final = 5.0
PHASE: Final = "the phase "
DEVIATION_FLOOR: Final = 0.01
"""Runs on other nodes of the same kind differ by a percent."""
QUARTER_DEVIATIONS: Final = 1.1503
"""Standard deviations that three quarters of normal values are within."""
NEWS_VARIANCE: Final = math.pi / 2
"""Variance of the median of n normal values, times n: the uncertainty of what a run is compared with."""
LAST_STEPS: Final = 32
NAMED_SHARE_MIN: Final = 0.1
"""A part is named where it is this share of the difference or more."""
NODES_NAMED_MAX: Final = 4


class _Excess(NamedTuple):
    """How much slower the start is: over the median of `runs` earlier ones, in ns; in deviations of a run."""

    start_ns: float
    usual_ns: float
    deviations: float
    deviation: float
    runs: int

    @property
    def ratio(self) -> float:
        return self.start_ns / self.usual_ns


class EarlierRuns:
    """The detector of runs that are slower than earlier ones from the start."""

    kinds = frozenset({SLOWER_THAN_EARLIER})

    def find(self, view: RunView, explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return the run, if its first steps took longer than those of earlier runs, and its last ones still do."""
        if view.start is None:
            return Abstain("the first 138 steps of the run are not over yet, or too few of them were reported")
        if view.earlier_runs is None:
            return Abstain(
                "the earlier runs are not known: the collector has no store (set store to compare runs), or has not "
                "read it yet"
            )
        usable = choose_earlier(view.earlier_runs)
        if len(usable) < RUNS_MIN:
            return Abstain(_describe_few(view.earlier_runs, usable))
        excess = measure_excess(view.start, usable)
        is_slower = excess.ratio >= RATIO_MIN and excess.deviations >= DEVIATIONS_MIN
        if not is_slower or not _is_still_slower(view, excess, explained):
            return []
        memory = FindingMemory(before_ns=excess.usual_ns)
        return [Candidate(remember(_describe(view.start, usable, excess), memory))]

    def has_passed(self, view: RunView, finding: Finding, explained: Sequence[Finding]) -> bool:
        """Return whether the last steps, without what other findings explain, are as short as usual."""
        present_ns = _find_present_ns(view, explained)
        before_ns = recall(finding).before_ns
        return present_ns is not None and (before_ns is None or present_ns < CLOSE_RATIO * before_ns)


def choose_earlier(runs: Sequence[EarlierRun]) -> list[EarlierRun]:
    """Return the runs that say what is usual, the latest first: the last RUNS_MAX that had no finding by then."""
    return [one for one in runs if not one.start.was_disturbed][:RUNS_MAX]


def measure_excess(start: RunStart, earlier: Sequence[EarlierRun]) -> _Excess:
    """Return how much slower a start is than those of at least one earlier run."""
    logs = np.log([one.start.step_ns for one in earlier])
    usual = float(np.median(logs))
    deviation = _find_deviation(np.abs(logs - usual))
    of_news = deviation * math.sqrt(1 + NEWS_VARIANCE / len(logs))
    return _Excess(start.step_ns, math.exp(usual), (math.log(start.step_ns) - usual) / of_news, deviation, len(logs))


def _find_deviation(distances: Floats) -> float:
    quarter = np.sort(distances)[math.ceil(0.75 * len(distances)) - 1]
    return max(DEVIATION_FLOOR, MAD_TO_SIGMA * float(np.median(distances)), float(quarter) / QUARTER_DEVIATIONS)


def _is_still_slower(view: RunView, excess: _Excess, explained: Sequence[Finding]) -> bool:
    """Return whether the last steps are as slow too, without what other findings explain; an open finding stays until
    they are nearly as short as usual.
    """
    present_ns = _find_present_ns(view, explained)
    is_open = any(one.kind == SLOWER_THAN_EARLIER for one in explained)
    return present_ns is not None and present_ns >= (CLOSE_RATIO if is_open else RATIO_MIN) * excess.usual_ns


def _find_present_ns(view: RunView, explained: Sequence[Finding]) -> float | None:
    """Return the median of the last steps without what other findings explain, in ns; None where no step is known."""
    others = [one for one in explained if one.kind != SLOWER_THAN_EARLIER]
    rows = np.flatnonzero(~np.isnan(view.series.step_ns).any(axis=1))[-LAST_STEPS:]
    if not len(rows):
        return None
    return float(np.median(np.median(view.series.step_ns[rows], axis=1) - find_explained_ns(view, others)[rows]))


def _describe_few(runs: Sequence[EarlierRun], usable: Sequence[EarlierRun]) -> str:
    disturbed = len(runs) - len(usable)
    beside = f", beside {disturbed} that had a finding in their first steps" if disturbed else ""
    known = f"{len(usable)} earlier run{'' if len(usable) == 1 else 's'} of the same work"
    return f"the first steps of {known} are in the store{beside}; {RUNS_MIN} are needed"


def _describe(start: RunStart, earlier: Sequence[EarlierRun], excess: _Excess) -> Finding:
    parts = _find_parts(start, earlier, excess)
    changes = _find_changes(start, earlier)
    return Finding(
        kind=SLOWER_THAN_EARLIER,
        cause=SLOWER_THAN_EARLIER,
        since_step=start.first_step,
        slowdown_ratio=excess.ratio,
        who="whole run",
        what=f"than the last {excess.runs} runs of the same work",
        why=_describe_parts(parts) if parts else "",
        also=(_describe_deviation(excess), *changes),
        suggestion=suggest(SLOWER_THAN_EARLIER, SLOWER_THAN_EARLIER),
        evidence={"start_ns": excess.start_ns, "usual_ns": excess.usual_ns, "robust_z": excess.deviations,
                  "earlier_runs": float(excess.runs)},
        details={"latest_earlier_run": earlier[0].run_id, **dict(_name_changes(start, earlier))},
    )  # fmt: skip


def _describe_deviation(excess: _Excess) -> str:
    return (
        f"runs of this work differ by a standard deviation of {100 * excess.deviation:.1f} %, counted as "
        f"{100 * DEVIATION_FLOOR:.0f} % at least"
    )


def _describe_parts(parts: Sequence[tuple[str, float]]) -> str:
    """Return the parts with their share of the difference, of the first one in a sentence.

    >>> _describe_parts([("exposed communication", 0.75), ("compute", 0.2)])
    '75 % of the difference in exposed communication, 20 % in compute'
    """
    (name, share), *others = parts
    return ", ".join(
        [
            f"{100 * share:.0f} % of the difference in {name}",
            *(f"{100 * part:.0f} % in {one}" for one, part in others),
        ]
    )


def _find_parts(start: RunStart, earlier: Sequence[EarlierRun], excess: _Excess) -> list[tuple[str, float]]:
    """Return the parts of the step that are a tenth of the difference or more, with their share, the largest first;
    by use of the device where that is known of this run and of RUNS_MIN earlier ones, else by phase.
    """
    by_use = [one.start.uses_ns for one in earlier if one.start.uses_ns]
    is_by_use = bool(start.uses_ns) and len(by_use) >= RUNS_MIN
    mine = start.uses_ns if is_by_use else start.phases_ns
    others: Sequence[Mapping[str, float]] = by_use if is_by_use else [one.start.phases_ns for one in earlier]
    difference_ns = excess.start_ns - excess.usual_ns
    shares = [
        (name, (ns - float(np.median([one.get(name, 0.0) for one in others]))) / difference_ns)
        for name, ns in mine.items()
    ]
    named = [(name if is_by_use else f"{PHASE}{name}", share) for name, share in shares]
    return sorted(((name, share) for name, share in named if share >= NAMED_SHARE_MIN), key=lambda one: -one[1])


def _find_changes(start: RunStart, earlier: Sequence[EarlierRun]) -> list[str]:
    """Return what is different of this run than of all earlier ones."""
    changes = dict(_name_changes(start, earlier))
    new = changes.pop("nodes_new", "")
    return ([f"new nodes: {new}"] if new else []) + list(changes.values())


def _name_changes(start: RunStart, earlier: Sequence[EarlierRun]) -> list[tuple[str, str]]:
    found = []
    new = sorted(set(start.nodes) - {node for one in earlier for node in one.start.nodes})
    if new:
        more = f" and {len(new) - NODES_NAMED_MAX} more" if len(new) > NODES_NAMED_MAX else ""
        found.append(("nodes_new", f"{', '.join(new[:NODES_NAMED_MAX])}{more}"))
    for name, versions in start.versions.items():
        before = {one.start.versions.get(name, ()) for one in earlier}
        if versions and versions not in before and any(before):
            latest = next(one.start.versions[name] for one in earlier if one.start.versions.get(name))
            found.append((f"{name}_changed", f"{name} {', '.join(versions)} instead of {', '.join(latest)}"))
    return found
