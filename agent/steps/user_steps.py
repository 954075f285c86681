"""End steps and name their parts by calls of the user or a framework: steps, batches, phases, evaluations.

A loop that trains without torch.optim needs these calls. It gets one warning: gradient accumulation makes 64 to 512
backwards before its first optimizer step, so the warning comes after twice the largest of these numbers, after a
quarter of an hour, which no step takes, or at the end of the script.
"""

from typing import Final

from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize
from rankscope.agent.steps.step_recorder import OTHER, SAVING, StepRecorder
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import NS_PER_S

EVALUATION = "evaluation"
"""The phase of an evaluation that the user marks within a step."""
BACKWARDS_CERTAIN: Final = 1024
BACKWARDS_MIN: Final = 20
"""Fewer backwards are a test of the model, and give no warning."""
PATIENCE_NS: Final = 900 * NS_PER_S


class UserSteps:
    """The user's calls for the steps of `recorder`. One thread calls them, with the time of the call in host ns."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._evaluates_within_step = False

    def end_step(self, now_ns: int, size: BatchSize = UNKNOWN) -> None:
        """End the step, whose size may be declared. From now on only such calls end steps."""
        steps = self._recorder
        steps.is_explicit, steps.evaluating, steps.has_ends = True, False, True
        steps.rejoin_held()
        steps.ensure_open(now_ns)
        steps.charge(now_ns, OTHER)
        steps.declare_whole(size)
        steps.close_step(steps.read_cpu_ns())

    def set_batch_size(self, _now_ns: int, size: BatchSize) -> None:
        """Add the size of a batch as the user declares it. From now on only declared sizes count.

        In a loop without a data loader the call comes before the step it belongs to is known to have begun.
        """
        self._recorder.declare(size)

    def begin_evaluation(self, now_ns: int) -> None:
        """Begin an evaluation that the user marks. No events come until its end; within a step it is a phase of it."""
        steps = self._recorder
        step = steps.open
        self._evaluates_within_step = step is not None and step.has_work and (steps.is_explicit or not step.has_stepped)
        if self._evaluates_within_step:
            steps.begin_phase(now_ns, EVALUATION)
            steps.pause()
        else:
            steps.leave_training(now_ns)
            steps.is_outside_steps = True

    def end_evaluation(self, now_ns: int) -> None:
        """End the evaluation."""
        steps = self._recorder
        if self._evaluates_within_step:
            self._evaluates_within_step = False
            self.end_phase(now_ns)
        elif steps.is_outside_steps:
            steps.is_outside_steps = False
            self._resume(now_ns)

    def _resume(self, now_ns: int) -> None:
        """Resume training. Where steps are found by events, the next of them begins the step."""
        steps = self._recorder
        steps.mark_ns = now_ns
        if steps.is_explicit:
            steps.evaluating = False
            steps.ensure_open(now_ns)
            steps.run_boundary()

    def begin_explicit_steps(self, now_ns: int) -> None:
        """End steps only by calls of `end_step` from now on, by a framework. The open step ends, and none begins."""
        steps = self._recorder
        steps.leave_training(now_ns)
        steps.evaluating = False
        steps.is_explicit = steps.has_ends = True

    def end_explicit_steps(self, now_ns: int) -> None:
        """Find the ends of steps by events again. The time since the framework's last step belongs to no step."""
        self._recorder.leave_training(now_ns)
        self._recorder.is_explicit = False

    def begin_phase(self, now_ns: int, name: str) -> None:
        """Begin a phase of the user's. Beyond `phases_max` names, time is charged to `other`."""
        self._recorder.begin_phase(now_ns, name)

    def begin_save(self, now_ns: int, name: str) -> None:
        """Begin what the agent has found of a save: the phase `name`, unless the user has given this time another one.
        No step begins by it.
        """
        inside = self._recorder.user_phases
        is_named = bool(inside) and inside[-1] not in SAVING
        self._recorder.begin_phase(now_ns, inside[-1] if is_named else name, opens=False)

    @property
    def phases_open(self) -> int:
        """How many phases are open."""
        return len(self._recorder.user_phases)

    def end_phase(self, now_ns: int, left: int | None = None) -> None:
        """End the user's phases but the first `left` ones; None: the innermost one."""
        self._recorder.end_phases(now_ns, self.phases_open - 1 if left is None else left)


class SteplessNotice:
    """The warning to a user whose loop ends no step. Only the first rank of a node gives it."""

    def __init__(self, identity: RankIdentity) -> None:
        self._identity = identity
        self._is_done = identity.local_rank != 0
        self._since_ns: int | None = None

    def find(self, now_ns: int, backwards: int, *, last: bool = False) -> str:
        """Return the warning if it is due now, else an empty string. `backwards` is the
        number of backward passes while no step has ended; 0 once one has.

        `last`: the script has ended.
        """
        if self._is_done or backwards < BACKWARDS_MIN:
            return ""
        if self._since_ns is None:
            self._since_ns = now_ns
        if not last and backwards < BACKWARDS_CERTAIN and now_ns - self._since_ns < PATIENCE_NS:
            return ""
        self._is_done = True
        counted = "was counted" if last else "has been counted so far"
        return (
            f"rank {self._identity.rank} ran {backwards:,} backward passes and stepped no optimizer of torch.optim, so "
            f"no step {counted}. If the loop updates its parameters in another way, call rankscope.step() at the end "
            "of each step (docs/loops.md)."
        )
