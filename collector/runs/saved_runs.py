"""Save a run, and restore it in the next collector: counters, findings, ends, costs. Pure.

Two rows of JSON a run, one a rank process, and the sums of all ranks' collectives in columns. Measurements are not
saved (steps, collectives, clocks: they come anew), nor what every report carries anyway; but the last totals are, and
the medians of a run that has ended, since no step of it comes any more. Times are seconds since 1970: the next
collector has another monotonic clock, perhaps on another machine.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import drop_former
from rankscope.collector.runs.attempt import Attempt, build_step_table
from rankscope.collector.runs.checkpoints import NO_CHECKPOINTS, Checkpoints
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.compilations import NOTHING_COMPILED, RunCompilations
from rankscope.collector.runs.former_attempts import NO_ATTEMPTS, FormerAttempts
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.live_settings import NOTHING_CHANGED, RunSettings
from rankscope.collector.runs.rank import RankState, SavedRank
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.saved_memories import NO_MEMORIES, SavedMemories
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.steps.collective_totals import CollectiveSums, SavedCounts
from rankscope.collector.steps.expert_loads import ExpertLoads
from rankscope.collector.steps.layer_times import RunLayers
from rankscope.collector.steps.pipeline_stages import PipelineTimes
from rankscope.collector.steps.rank_medians import NO_MEDIANS, RankMedians
from rankscope.collector.steps.run_start import RunStart
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS, StepAggregate, aggregate_steps


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its findings and ranks. `attempt` counts its attempts from 0, also those that torchrun does not
    count; `goodput` is settled up to `settled_wall_s`; `step_ns` is the time in steps counted of this attempt;
    `recorded_step` the last step of it in the history; `end` is how the run ended, None while it goes on, and
    `is_concluded` whether the last detection pass has been made then.
    """

    run: str
    world_size: int
    restart_count: int
    attempt: int
    begun_wall_s: float
    changed_wall_s: float
    settled_wall_s: float
    is_over: bool
    step_ns: int
    recorded_step: int
    goodput: GoodputSnapshot
    lost: tuple[LostSeconds, ...] = ()
    findings_opened: int = 0
    end: RunEnd | None = None
    is_concluded: bool = False


class SavedStory(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run that seldom change: its findings, open ones last, the boot ids of its former attempt, where
    the ranks of all earlier attempts ran, how long the first steps of this one took, what was compiled in it, and the
    checkpoints of the run. `not_judged` says why a run that has ended has no verdict, by kind of finding; `medians` are
    those of its ranks, empty while it goes on, `pipeline` the stages that they announced, `layers` their models'
    repeated blocks, `experts` their loads. `settings` were changed while it went on. `memories` are those of the open
    findings; None: a version without them has saved it, which had them in their evidence.
    """

    findings: tuple[Finding, ...] = ()
    memories: SavedMemories | None = None
    former_boots: tuple[str, ...] = ()
    former_attempts: FormerAttempts = NO_ATTEMPTS
    start: RunStart | None = None
    checkpoints: Checkpoints = NO_CHECKPOINTS
    compilations: RunCompilations = NOTHING_COMPILED
    not_judged: Mapping[str, str] = {}
    medians: RankMedians = NO_MEDIANS
    settings: RunSettings = NOTHING_CHANGED
    pipeline: PipelineTimes | None = None
    layers: RunLayers | None = None
    experts: ExpertLoads | None = None

    def __post_init__(self) -> None:
        if self.memories is None:
            findings = tuple(
                msgspec.structs.replace(one, evidence=evidence)
                if (evidence := drop_former(one.evidence)) is not one.evidence else one
                for one in self.findings
            )  # fmt: skip
            msgspec.structs.force_setattr(self, "findings", findings)


class RunToSave(NamedTuple):
    """Parts of a run that are saved. Of its ranks only those are that have changed."""

    run: SavedRun
    story: SavedStory
    ranks: Mapping[int, RankState]
    collectives: CollectiveSums

    def save_rank(self, number: int, clocks: Clocks) -> Callable[[], SavedRank]:
        """Return what builds the saved form of a rank. It is built when it is written: as objects the totals of a rank
        are 5 KB, and all ranks may wait.
        """
        return partial(self.ranks[number].save, clocks)


def collect_finished_steps(run: RunState, wall_s: float) -> list[StepAggregate]:
    """Return the steps that were finished since the last call, for the history."""
    run.flush_reports(steps_max=0)
    attempt = run.attempt
    if attempt is None:
        return []
    patience = 0 if run.is_over else PATIENCE_STEPS
    steps, durations_ns, phases_ns = attempt.window.read_finished(attempt.recorded_step, patience=patience)
    if not len(steps):
        return []
    attempt.recorded_step = int(steps[-1])
    return aggregate_steps(run.attempts, wall_s, steps, durations_ns, phases_ns)


def save_run(run: RunState, clocks: Clocks) -> RunToSave | None:
    """Return what is saved of a run; None before any rank has joined."""
    run.flush_reports(steps_max=0)
    attempt, findings = run.attempt, run.findings
    if attempt is None or run.begun_collector_ns is None:
        return None
    goodput = run.goodput.snapshot(clocks.collector_ns)
    # All time up to the end of a run that is over is settled, and there is no more.
    settled_ns = run.last_change_collector_ns if run.is_over else clocks.collector_ns - goodput.unreported_ns
    saved = SavedRun(
        run=run.run,
        world_size=attempt.world_size,
        restart_count=attempt.restart_count,
        attempt=run.attempts,
        begun_wall_s=clocks.to_wall_s(run.begun_collector_ns),
        changed_wall_s=clocks.to_wall_s(run.last_message_collector_ns),
        settled_wall_s=clocks.to_wall_s(settled_ns),
        is_over=run.is_over,
        step_ns=attempt.step_ns,
        recorded_step=attempt.recorded_step,
        goodput=goodput,
        lost=findings.lost,
        findings_opened=findings.opened,
        end=run.ending.end,
        is_concluded=run.ending.is_concluded,
    )
    story = SavedStory(
        findings=findings.findings_as_closed,
        memories=SavedMemories.of(findings.kept_memories),
        former_boots=tuple(sorted(run.processes.former)),
        former_attempts=run.processes.former_attempts,
        start=run.speed.start,
        checkpoints=attempt.checkpoints.seen,
        compilations=attempt.compilations,
        not_judged=dict(findings.abstained) if run.ending.end is not None else {},
        medians=attempt.medians if run.ending.end is not None else NO_MEDIANS,
        settings=run.settings.state,
        pipeline=attempt.pipeline if run.ending.end is not None else None,
        layers=attempt.layers if run.ending.end is not None else None,
        experts=attempt.experts if run.ending.end is not None else None,
    )
    return RunToSave(saved, story, attempt.ranks, attempt.collectives.read())


def restore_run(
    config: CollectorConfig,
    saved: SavedRun,
    story: SavedStory,
    ranks: Sequence[SavedRank],
    clocks: Clocks,
    *,
    collectives: SavedCounts | None = None,
) -> RunState:
    """Return the run as an earlier collector saved it; its ranks are awaited."""
    run = RunState(saved.run, config)
    window = build_step_table(config, saved.world_size)
    attempt = run.attempt = Attempt(saved.restart_count, saved.world_size, window)
    attempt.step_ns, attempt.recorded_step = saved.step_ns, saved.recorded_step
    attempt.checkpoints.restore(saved.attempt, story.checkpoints)
    attempt.compilations = story.compilations
    run.processes.former_attempts, run.speed.start = story.former_attempts, story.start
    run.attempts, run.processes.former = saved.attempt, frozenset(story.former_boots)
    for one in ranks:
        attempt.add(RankState.restore(one, clocks))
        run.processes.add(one.hello.identity)
    if collectives is not None:
        ranks_end = max([saved.world_size, *(number + 1 for number in attempt.ranks)])
        attempt.collectives.restore(collectives, ranks_end)
    run.findings.restore(
        saved.findings_opened,
        story.findings,
        saved.lost,
        attempts=saved.attempt,
        memories=(story.memories or NO_MEMORIES).read(),
    )
    if saved.end is not None:
        run.findings.restore_verdict(story.not_judged)
        attempt.medians, attempt.pipeline = story.medians, story.pipeline
        attempt.layers, attempt.experts = story.layers, story.experts
        run.is_judged_before = True
        if saved.is_concluded and not attempt.has_live_ranks:
            run.ending.restore(saved.end, attempt, clocks)
    run.settings.restore(story.settings)
    run.goodput.resume(saved.goodput, clocks.to_collector_ns(saved.settled_wall_s), is_over=saved.is_over)
    run.begun_collector_ns = clocks.to_collector_ns(saved.begun_wall_s)
    run.last_message_collector_ns = clocks.to_collector_ns(saved.changed_wall_s)
    run.last_change_collector_ns = run.last_message_collector_ns if saved.is_over else clocks.collector_ns
    reported_wall_s = (one.last_report_wall_s for one in ranks)
    run.last_report_wall_s = max((one for one in reported_wall_s if one is not None), default=None)
    return run
