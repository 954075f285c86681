"""Turn hook events into step records: begin and end of a batch, of a backward and of an optimizer step.

Every event charges the time since the previous one to exactly one phase, so the phases of a step sum to the step:

    event             the time before it was           event            the time before it was
    data begins       other                            data ends        data
    backward begins   forward                          backward ends    backward
    optimizer begins  other                            optimizer ends   optimizer

Inside an optimizer step that calls a closure (LBFGS, Lightning) the same holds, so the optimizer phase is the time
after the last backward. Inside the user's own `phase()` gaps belong to that phase.

Where a step ends
-----------------
A step ends at the first data or backward event after an optimizer step. If it is a backward (a loop without a data
loader), the forward before it already belongs to the next step, so the step ends at the event before: the end of the
optimizer step, or the begin of the next one when its closure calls the backward.
With several optimizers (GAN) a cycle is over when all optimizers of the last cycle have stepped. While these are not
known the end is held back until the next optimizer step: one already seen in this cycle confirms the end, a new one
joins the two halves. Optimizer steps without a batch or a backward between them (sharded and chained ones) are one
burst. Optimizers that hooks step inside a backward are written as one optimizer step of no duration right after it:
their time is part of that backward.

A batch fetched while gradients are off belongs to an evaluation: it ends the step, and the time until training resumes
belongs to no step. Evaluations that switch gradients off around the model only (Transformers' Trainer) are detected
when the next batch is requested: one loader was read to its end without a backward. Without an optimizer step there is
no step.

The CPU time of a step
----------------------
Reading the thread's CPU clock takes 5 us during training, so it is read at most once a step: where a batch is
requested, if steps end there in this loop, else at the end of the optimizer step. A step that ends at another kind of
event than the step before has no CPU time; nor has one that began or ended at an event written without the clock
(`event_buffer.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, thread_time_ns

from rankscope.agent.steps.batch_size import NONE_DECLARED, UNKNOWN, BatchSize, DeclaredFields, add_sizes
from rankscope.measure.records import PHASES, StepRecord
from rankscope.measure.text import to_unicode


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step in progress."""

    start_ns: int
    start_cpu_ns: int | None
    phases_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    batches: int = 0
    backwards: int = 0
    optimizers: set[int] = field(default_factory=set)
    loaders: set[int] = field(default_factory=set)
    loader_exhausted: bool = False
    read: BatchSize | None = None
    declared: BatchSize | None = None
    declared_fields: DeclaredFields = NONE_DECLARED

    def find_cpu_ns(self, end_cpu_ns: int | None) -> int | None:
        """Return its CPU time (ns), given the CPU clock at its end; None: not known."""
        if self.start_cpu_ns is None or end_cpu_ns is None:
            return None
        return max(0, end_cpu_ns - self.start_cpu_ns)

    def join(self, later: "OpenStep") -> None:
        """Add what was assumed to be the next step."""
        for name, duration_ns in later.phases_ns.items():
            self.phases_ns[name] = self.phases_ns.get(name, 0) + duration_ns
        self.batches += later.batches
        self.backwards += later.backwards
        self.optimizers |= later.optimizers
        self.loaders |= later.loaders
        self.read = add_sizes(self.read, later.read)
        self.declared = add_sizes(self.declared, later.declared)


@dataclass(slots=True, repr=False, eq=False)
class HeldStep:
    """A step that may have ended: the next optimizer step decides."""

    step: OpenStep
    end_ns: int
    end_cpu_ns: int | None


DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = PHASES

PHASE_LENGTH_MAX = 128
"""Length to which names of phases are cut: they become labels of series. A report has room for four times as many."""
EVALUATION = "evaluation"
"""The phase of an evaluation that the user marks within a step."""


class StepTimer:
    """Turn hook events into StepRecords. One thread calls it; its methods take the time of the event in host ns.

    `on_record` gets every finished step in order, numbered from 0. `on_boundary` is called with the number of a step
    when it begins: profiler windows are started and stopped there. `on_pause` is called when an evaluation begins: what
    was started at a boundary must not last through it. `on_charge` is called with the time up to which time was charged
    to a step, and the phase.

    While `is_inline` is False events are deferred ones: no clock is read, and `on_boundary` is not called.
    """

    def __init__(
        self,
        on_record: Callable[[StepRecord], None],
        on_boundary: Callable[[int], None] = lambda _step: None,
        on_pause: Callable[[], None] = lambda: None,
        *,
        on_charge: Callable[[int, str], None] | None = None,
        phases_max: int = 16,
        read_clock_ns: Callable[[], int] = monotonic_ns,
        read_cpu_ns: Callable[[], int] = thread_time_ns,
    ) -> None:
        self._on_record = on_record
        self._on_boundary = on_boundary
        self._on_pause = on_pause
        self._on_charge = on_charge
        self._phases_max = phases_max
        self._read_clock_ns = read_clock_ns
        self._read_cpu_clock_ns = read_cpu_ns
        self.is_inline = True
        self._next_step = 0
        self._open: OpenStep | None = None
        self._held: HeldStep | None = None
        self._mark_ns = 0
        self._stepped = False
        self._stepped_cpu_ns: int | None = None
        self._ends_at_batch = False
        self._cycle: frozenset[int] = frozenset()
        self._phase_names: set[str] = set(PHASES)
        self._user_phases: list[str] = []
        self._data_depth = 0
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._optimizer = 0
        self._evaluating = False
        self._evaluates_within_step = False
        self._is_outside_steps = False
        self._is_explicit = False
        self._fetches_training = True
        self._declared_fields = NONE_DECLARED
        self._declared_ahead: BatchSize | None = None
        self._has_ends = False
        self._backwards_without_end = 0

    @property
    def backwards_without_end(self) -> int:
        """The number of backwards in a loop that has not ended a step; 0 once it has."""
        return 0 if self._has_ends else self._backwards_without_end

    @property
    def step(self) -> int:
        """The number of the first step that has no record yet."""
        return self._next_step

    @property
    def ends_at_batch(self) -> bool:
        """Whether the steps of this loop end where a batch is requested, not at the end of an optimizer step."""
        return self._ends_at_batch

    def count_optimizer_steps_until(self, step: int) -> int:
        """Return how many more optimizer steps must end, or calls of `end_step` come, before that step can begin; 0
        when it may begin at the next event.
        """
        if self._open is None or self._held is not None:
            return 0
        return max(0, step - self._next_step - self._stepped)

    @property
    def has_simple_cycle(self) -> bool:
        """Whether each step, as far as is known, has one optimizer step and ends where the next batch is requested."""
        return self._ends_at_batch and len(self._cycle) == 1 and not (self._held or self._is_explicit)

    # -- events -------------------------------------------------------------------------------------------------------

    def data_begin(
        self,
        now_ns: int,
        training: bool = True,  # noqa: FBT001, FBT002 - events are kept with their arguments as a row
        cpu_ns: int | None = None,
    ) -> None:
        """Handle the request of a batch. `training` is False while gradients are off; `cpu_ns` is the CPU time of the
        thread (ns), if it was read.
        """
        self._data_depth += 1
        if self._data_depth > 1:
            return
        self._fetches_training = training
        if self._has_evaluated():
            self._leave_training(now_ns)
        if not training and self._enter_evaluation(now_ns):
            return
        resumes = self._evaluating and self._open is None
        self._evaluating = False
        self._charge(now_ns, OTHER)
        if training and self._may_end():
            self._cross_boundary(self._read_cpu_ns() if cpu_ns is None else cpu_ns, at_batch=True)
        self._ensure_open(now_ns)
        if resumes and self._open is not None:
            self._run_boundary()

    def data_end(
        self,
        now_ns: int,
        got_batch: bool = True,  # noqa: FBT001, FBT002 - as data_begin
        loader: int = 0,
        size: BatchSize = UNKNOWN,
    ) -> None:
        """Handle the arrival of a batch, or the end of the loader; `loader` identifies the loader."""
        self._data_depth = max(0, self._data_depth - 1)
        if self._data_depth:
            return
        self._charge(now_ns, DATA, inside=True)
        if self._open is None or (self._is_explicit and not self._fetches_training):
            return
        if got_batch:
            self._open.batches += 1
            self._open.loaders.add(loader)
            self._open.read = add_sizes(self._open.read, size)
        elif self._open.loaders == {loader}:
            self._open.loader_exhausted = True

    def backward_begin(self, now_ns: int) -> None:
        """Handle the begin of loss.backward()."""
        self._backward_depth += 1
        if self._backward_depth > 1:
            return
        # After an evaluation training may resume without a loader: its forward began at the last event.
        self._ensure_open(self._mark_ns if self._evaluating else now_ns)
        self._evaluating = False
        if self._may_end():
            self._cross_boundary(self._stepped_cpu_ns, at_batch=False)
        self._charge(now_ns, FORWARD)

    def backward_end(self, now_ns: int) -> None:
        """Handle the end of loss.backward(), by a return or an error."""
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth or self._open is None:
            return
        self._charge(now_ns, BACKWARD, inside=True)
        self._open.backwards += 1
        self._backwards_without_end += 1

    def optimizer_begin(self, now_ns: int, optimizer: int) -> None:
        """Handle the begin of optimizer.step(); `optimizer` identifies the optimizer."""
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:
            return
        self._optimizer = optimizer
        self._evaluating = False
        self._ensure_open(now_ns)
        self._charge(now_ns, OTHER)
        self._resolve_held()

    def optimizer_end(self, now_ns: int) -> None:
        """Handle the end of optimizer.step(), by a return or an error."""
        self._optimizer_depth = max(0, self._optimizer_depth - 1)
        step = self._open
        if self._optimizer_depth or step is None:
            return
        self._charge(now_ns, OPTIMIZER, inside=True)
        if step.batches == 0 and step.backwards == 0:
            return  # a later optimizer of the burst that ended the step before
        step.optimizers.add(self._optimizer)
        self._stepped = self._has_ends = True
        ends_here = step.batches == 0 and self._cycle_is_complete() and not self._is_explicit
        self._stepped_cpu_ns = self._read_cpu_ns() if ends_here or not self._ends_at_batch else None
        if ends_here:
            self._close_step(self._stepped_cpu_ns)

    def end_step(self, now_ns: int, size: BatchSize = UNKNOWN) -> None:
        """End the step by a call of the user, who may declare its size. From now on only such calls end steps."""
        self._is_explicit, self._evaluating, self._has_ends = True, False, True
        self._rejoin_held()
        self._ensure_open(now_ns)
        self._charge(now_ns, OTHER)
        if self._open is not None and size != UNKNOWN:
            self._declared_fields = self._declared_fields.including(size)
            self._open.declared = size.or_else(self._open.declared or UNKNOWN)
        self._close_step(self._read_cpu_ns())

    def set_batch_size(self, _now_ns: int, size: BatchSize) -> None:
        """Add the size of a batch as the user declares it. From now on only declared sizes count.

        In a loop without a data loader the call comes before the step it belongs to is known to have begun.
        """
        self._declared_fields = self._declared_fields.including(size)
        if self._open is None or (self._may_end() and not self._open.batches):
            self._declared_ahead = add_sizes(self._declared_ahead, size)
        else:
            self._open.declared = add_sizes(self._open.declared, size)

    def evaluation_begin(self, now_ns: int) -> None:
        """Begin an evaluation that the user marks. No events come until its end; within a step it is a phase of it."""
        step = self._open
        self._evaluates_within_step = (
            step is not None and bool(step.batches or step.backwards) and (self._is_explicit or not self._stepped)
        )
        if self._evaluates_within_step:
            self.phase_begin(now_ns, EVALUATION)
            self._on_pause()
        else:
            self._leave_training(now_ns)
            self._is_outside_steps = True

    def evaluation_end(self, now_ns: int) -> None:
        """End the evaluation."""
        if self._evaluates_within_step:
            self._evaluates_within_step = False
            self.phase_end(now_ns)
        elif self._is_outside_steps:
            self._is_outside_steps = False
            self._resume(now_ns)

    def begin_explicit_steps(self, now_ns: int) -> None:
        """End steps only by calls of `end_step` from now on, by a framework. The open step ends, and none begins."""
        self._leave_training(now_ns)
        self._evaluating = False
        self._is_explicit = self._has_ends = True

    def end_explicit_steps(self, now_ns: int) -> None:
        """Find the ends of steps by events again. The time since the framework's last step belongs to no step."""
        self._leave_training(now_ns)
        self._is_explicit = False

    def phase_begin(self, now_ns: int, name: str) -> None:
        """Begin a phase of the user's. Beyond `phases_max` names, time is charged to `other`."""
        self._ensure_open(now_ns)
        self._charge(now_ns, OTHER)
        name = to_unicode(name[:PHASE_LENGTH_MAX])
        if name not in self._phase_names and len(self._phase_names) >= len(PHASES) + self._phases_max:
            name = OTHER
        self._phase_names.add(name)
        self._user_phases.append(name)

    def phase_end(self, now_ns: int) -> None:
        """End the user's phase."""
        if self._user_phases:
            self._charge(now_ns, OTHER)
            self._user_phases.pop()

    def finish(self) -> None:
        """End the last step at its last event; one without an optimizer step is dropped."""
        self._publish_held()
        if self._open is not None and self._stepped and not self._is_explicit:
            self._publish(self._open, self._mark_ns, self._stepped_cpu_ns)
        self._open = None

    # -- where a step ends --------------------------------------------------------------------------------------------

    def _may_end(self) -> bool:
        return self._stepped and self._open is not None and not self._is_explicit

    def _cycle_is_complete(self) -> bool:
        return self._open is not None and bool(self._cycle) and self._open.optimizers >= self._cycle

    def _enter_evaluation(self, now_ns: int) -> bool:
        """Return whether this batch belongs to an evaluation between steps; then begin it."""
        is_within_step = self._open is not None and not self._stepped and (self._open.backwards or self._open.batches)
        if self._is_explicit or is_within_step:
            return False
        self._leave_training(now_ns)
        return True

    def _has_evaluated(self) -> bool:
        """Return whether since the last step one loader was read to its end without a backward, and nothing else
        happened.

        False while that loader's batches may still be trained on: one that is prefetched, or an epoch that was fetched
        as a whole.
        """
        step = self._open
        return (
            step is not None
            and step.loader_exhausted
            and not (step.backwards or self._stepped or self._is_explicit)
            and not (self._backward_depth or self._optimizer_depth)
        )

    def _leave_training(self, now_ns: int) -> None:
        """Charge the time to no step from now on, until training resumes."""
        self._charge(now_ns, OTHER)
        self._publish_held()
        if self._may_end() and self._open is not None:
            self._publish(self._open, now_ns, self._read_cpu_ns())
        self._open = None
        if not self._evaluating:
            self._evaluating = True
            self._on_pause()

    def _resume(self, now_ns: int) -> None:
        """Resume training. Where steps are found by events, the next of them begins the step."""
        self._mark_ns = now_ns
        if self._is_explicit:
            self._evaluating = False
            self._ensure_open(now_ns)
            self._run_boundary()

    def _cross_boundary(self, end_cpu_ns: int | None, *, at_batch: bool) -> None:
        """End the step at the last event charged, or hold it back while the cycle of optimizers may continue.

        A backward never ends it at once: it may belong to the second optimizer of a cycle that grows.
        """
        self._ends_at_batch = at_batch
        if at_batch and self._cycle_is_complete():
            self._close_step(end_cpu_ns)
        elif self._open is not None:
            self._held = HeldStep(self._open, self._mark_ns, end_cpu_ns)
            self._begin(self._mark_ns, end_cpu_ns)
            if self._optimizer_depth:
                self._resolve_held()

    def _resolve_held(self) -> None:
        """Decide by the optimizer that steps now whether the held step had ended."""
        if self._held is not None and self._optimizer in self._held.step.optimizers:
            self._publish_held()
        else:
            self._rejoin_held()

    def _rejoin_held(self) -> None:
        """Join the held step, which had not ended, with what has come since."""
        held, self._held = self._held, None
        if held is not None and self._open is not None:
            held.step.join(self._open)
            self._open = held.step

    def _close_step(self, end_cpu_ns: int | None) -> None:
        """End the step at the last event charged, and begin the next."""
        if self._open is None:
            return
        self._publish(self._open, self._mark_ns, end_cpu_ns)
        self._begin(self._mark_ns, end_cpu_ns)
        self._run_boundary()

    def _run_boundary(self) -> None:
        """Call `on_boundary` for the step that begins; the time that takes is charged to it."""
        if self.is_inline:
            self._on_boundary(self._next_step)
            self._charge(self._read_clock_ns(), OTHER)

    def _read_cpu_ns(self) -> int | None:
        return self._read_cpu_clock_ns() if self.is_inline else None

    def _begin(self, start_ns: int, start_cpu_ns: int | None) -> None:
        self._open = OpenStep(
            start_ns, start_cpu_ns, declared=self._declared_ahead, declared_fields=self._declared_fields
        )
        self._declared_ahead = None
        self._mark_ns = start_ns
        self._stepped = False

    def _ensure_open(self, now_ns: int) -> None:
        if self._open is None and not self._is_outside_steps:
            self._begin(now_ns, self._read_cpu_ns())

    def _publish_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._publish(held.step, held.end_ns, held.end_cpu_ns)

    def _publish(self, step: OpenStep, end_ns: int, end_cpu_ns: int | None) -> None:
        if step.optimizers:
            self._cycle = frozenset(step.optimizers)
        size = step.declared_fields.choose(step.read, step.declared)
        record = StepRecord(
            step=self._next_step,
            start_host_ns=step.start_ns,
            duration_ns=end_ns - step.start_ns,
            phases_ns=step.phases_ns,
            cpu_ns=step.find_cpu_ns(end_cpu_ns),
            batches=step.batches,
            backwards=step.backwards,
            samples=size.samples,
            tokens=size.tokens,
        )
        self._next_step += 1
        self._on_record(record)

    def _charge(self, now_ns: int, name: str, *, inside: bool = False) -> None:
        """Charge the time since the last event to a phase. A gap inside a phase of the user's belongs to that one."""
        if self._open is not None:
            if self._user_phases and not inside:
                name = self._user_phases[-1]
            phases_ns = self._open.phases_ns
            phases_ns[name] = phases_ns.get(name, 0) + now_ns - self._mark_ns
            if self._on_charge is not None:
                self._on_charge(now_ns, name)
        self._mark_ns = now_ns
