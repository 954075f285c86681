"""Keep how fast a run has been: the levels of its steps so far, its first steps, and those of earlier runs. Pure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.view import RunView
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.events import EarlierRunsRead
from rankscope.collector.runs.rank import RankState, SavedRank
from rankscope.collector.runs.run_view import SKIP_STEPS, keep_levels
from rankscope.collector.runs.sign_history import SignHistory
from rankscope.collector.steps.equal_work import Work
from rankscope.collector.steps.long_steps import LongSteps
from rankscope.collector.steps.run_start import EarlierRun, RunStart, find_start_rows, measure_start
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.collector.steps.step_histogram import StepHistogram
from rankscope.collector.steps.step_levels import StepLevels
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.messages import Hello
from rankscope.measure.units import ns_to_s


class SpeedHistory:
    """How fast the present attempt of a run has been, and earlier runs of the same work. Written by RunState only."""

    def __init__(self) -> None:
        #: Medians of all steps of the present attempt, in blocks.
        self.levels = StepLevels()
        #: The same of the own times of its two ranks; empty in a run of more: there the others are what is usual.
        self.own_levels: tuple[StepLevels, ...] = ()
        #: How many of its steps lasted how long.
        self.histogram = StepHistogram()
        #: Its rare long steps.
        self.long_steps = LongSteps()
        #: By which step its GPUs have shown each sign of a fault.
        self.signs = SignHistory()
        #: How long its first steps took; None while that is not known.
        self.start: RunStart | None = None
        #: Earlier runs of the same work in the store, the latest first; None while they have not been read.
        self.earlier_runs: tuple[EarlierRun, ...] | None = None

    def add_to(self, view: RunView, attempt: Attempt) -> RunView:
        """Return a view that has all of this, with the long steps up to now."""
        unseen = attempt.read_unseen(view.series, self.long_steps.last_step, skip_steps=SKIP_STEPS)
        self.long_steps.add(unseen, attempt.quiet, is_last=view.is_last)
        attempt.quiet.drop_through(self.long_steps.last_step)
        if len(view.series.steps):
            self.signs.look(view.series.ranks, view.samples.devices, int(view.series.steps[-1]))
        return replace(
            view,
            levels=self.levels.read(),
            own_levels=tuple(one.read() for one in self.own_levels),
            samples=view.samples._replace(signs_by_step=self.signs.by_step),
            long_steps=self.long_steps.read(),
            start=self.start,
            earlier_runs=self.earlier_runs,
        )

    def keep_earlier(self, read: EarlierRunsRead) -> None:
        """Keep earlier runs, unless they were read for another attempt: its work may have been another."""
        if self.start is not None and self.start.begun_wall_s == read.begun_wall_s:
            self.earlier_runs = read.runs

    def keep(self, attempt: Attempt, view: RunView, held: Sequence[Finding]) -> None:
        """Keep what the steps of a detection pass say. `held`: the findings that are open."""
        view = replace(view, series=attempt.read_unseen(view.series, self.histogram.last_step, skip_steps=SKIP_STEPS))
        keep_levels(self.levels, view)
        ended = view.series.steps <= view.series.steps.max(initial=-1) - (0 if view.is_last else PATIENCE_STEPS)
        self.histogram.add(view.series.steps[ended], view.longest_ns[ended])
        if view.world_size == len(view.series.ranks) == 2:  # noqa: PLR2004 - a pair
            self._keep_own(view.series)
        if self.start is None:
            self.start = find_start(attempt, view, held)

    def _keep_own(self, series: StepSeries) -> None:
        self.own_levels = self.own_levels or (StepLevels(), StepLevels())
        known = ~np.isnan(series.own_ns).any(axis=1)
        no_tokens = np.full(np.count_nonzero(known), np.nan)
        for levels, own_ns in zip(self.own_levels, series.own_ns[known].T, strict=True):
            levels.add(series.steps[known], own_ns, no_tokens)


def find_start(attempt: Attempt, view: RunView, held: Sequence[Finding]) -> RunStart | None:
    """Return how long the first steps of an attempt took, once they have been made; None before, and where too few of
    them are kept. The work in a step is that of the lowest rank.
    """
    rows = find_start_rows(view.series)
    if not len(rows):
        return None
    breakdowns = [one for rank in view.series.ranks for one in view.samples.breakdowns.get(rank, ())]
    hellos = [rank.hello for rank in attempt.ranks.values()]
    return RunStart(
        begun_wall_s=ns_to_s(min(hello.wall_ns for hello in hellos)),
        work=find_work(attempt.world_size, attempt.ranks[min(attempt.ranks)]),
        **measure_start(view.series, rows, breakdowns)._asdict(),
        nodes=tuple(sorted({hello.identity.node for hello in hellos})),
        versions=_find_versions(hellos),
        was_disturbed=any(one.severity != "info" for one in held),
    )


def _find_versions(hellos: Sequence[Hello]) -> dict[str, tuple[str, ...]]:
    found = {
        "torch": {hello.torch_version for hello in hellos},
        "python": {hello.python_version for hello in hellos},
        "agent": {hello.agent_version for hello in hellos},
    }
    return {name: tuple(sorted(values - {""})) for name, values in found.items()}


def find_work(world_size: int, rank: RankState | SavedRank) -> Work:
    """Return the work of a step, by the totals and the FLOPs of one rank."""
    totals = rank.totals if isinstance(rank, SavedRank) else rank.last_report.totals
    flops = rank.flops if isinstance(rank, SavedRank) else rank.last_report.flops
    return Work(
        world_size,
        samples_per_step=totals.samples / totals.steps if totals.samples and totals.steps else None,
        tokens_per_step=totals.tokens / totals.steps if totals.tokens and totals.steps else None,
        model_flops_per_step=None if flops.model is None else flops.model.per_step,
        script=rank.hello.script,
        peak_type=flops.peak_type,
    )
