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

Where the script takes gradients
--------------------------------
torch.autograd.grad returns gradients and leaves those of the parameters. In a loop that has backwards it is a part of
the loss (a gradient penalty), of an attack on the inputs, or of an evaluation, and ends no step. Where optimizers step
with no backward since the step before, gradients are this loop's backward: zero-bubble pipelines take those of inputs
and of weights apart, scripts assign them to the parameters. The time is that of a backward, except where torch keeps
the graph of it in a loop that has backwards: then a backward comes, and the time is part of its forward.

A batch fetched while gradients are off belongs to an evaluation: it ends the step, and the time until training resumes
belongs to no step. Evaluations that switch gradients off around the model only (Transformers' Trainer) are detected
when the next batch is requested: one loader was read to its end without a backward. Without an optimizer step there is
no step.

Exceptions
----------
What an exception leaves (a signal handler of the script raises one anywhere, a closure in an optimizer step) may have
no end. Then `leave_open` comes before the next begin. An attempt that is left has made no step: its time is that of the
step that the next optimizer step makes.

The CPU time of a step
----------------------
Reading the thread's CPU clock takes 20 to 40 us during training, so it is read at most once a step: where a batch is
requested, if steps end there in this loop, else at the end of the optimizer step. A step that ends at another kind of
event than the step before has no CPU time; nor has one that began or ended at an event written without the clock
(`event_buffer.py`).
"""

from collections.abc import Callable
from time import monotonic_ns, thread_time_ns

from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize, add_sizes
from rankscope.agent.steps.step_recorder import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, OpenStep, StepRecorder
from rankscope.agent.steps.user_steps import UserSteps
from rankscope.measure.records import StepRecord


class StepTimer:
    """Turn hook events into StepRecords. One thread calls it; its methods take the time of the event in host ns.

    `on_record` gets every finished step in order, numbered from 0. `on_boundary` is called with the number of a step
    when it begins: profiler windows are started and stopped there. `on_pause` is called when an evaluation begins: what
    was started at a boundary must not last through it. `on_charge` is called with the time up to which time was charged
    to a step, and the phase.

    `recorder` keeps the steps; `user` applies the calls of the user to them.
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
        self.recorder = StepRecorder(
            on_record,
            on_boundary,
            on_pause,
            on_charge,
            phases_max=phases_max,
            read_clock_ns=read_clock_ns,
            read_cpu_ns=read_cpu_ns,
        )
        self.user = UserSteps(self.recorder)
        self._ends_at_batch = False
        self._data_depth = 0
        self._backward_depth = 0
        self._backward_begin_cpu_ns: int | None = None
        self._optimizer_depth = 0
        self._optimizer = 0
        self._fetches_training = True
        self._backwards = 0
        self._is_charged = False
        self.trains_by_gradients = False
        """Whether the last optimizer step came without a backward, after gradients were taken."""

    @property
    def backwards_without_end(self) -> int:
        """The number of backwards in a loop that has not ended a step; 0 once it has."""
        return 0 if self.recorder.has_ends else self._backwards

    @property
    def step(self) -> int:
        """The number of the first step that has no record yet."""
        return self.recorder.next_step

    def find_place(self) -> tuple[int | None, str]:
        """Return the number of the open step, and the phase that the time since the last event will be charged to, by
        the events so far; None and an empty text outside of steps.
        """
        steps = self.recorder
        if steps.open is None:
            return None, ""
        return steps.next_step + (steps.held is not None), self._find_phase(steps.open)

    def _find_phase(self, step: OpenStep) -> str:
        if self._data_depth or self._backward_depth or self._optimizer_depth:
            return DATA if self._data_depth else BACKWARD if self._backward_depth else OPTIMIZER
        if self.recorder.user_phases:
            return self.recorder.user_phases[-1]
        return OTHER if step.backwards or step.has_stepped else FORWARD

    @property
    def ends_at_batch(self) -> bool:
        """Whether the steps of this loop end where a batch is requested, not at the end of an optimizer step."""
        return self._ends_at_batch

    @property
    def has_simple_cycle(self) -> bool:
        """Whether each step, as far as is known, has one optimizer step and ends where the next batch is requested."""
        steps = self.recorder
        return self._ends_at_batch and len(steps.cycle) == 1 and not (steps.held or steps.is_explicit)

    @property
    def is_between_steps(self) -> bool:
        """Whether nothing has been done yet for a step that is not over."""
        step = self.recorder.open
        if self._data_depth or self._backward_depth or self._optimizer_depth:
            return False
        return step is None or step.has_stepped or not step.has_work

    def count_optimizer_steps_until(self, step: int) -> int:
        """Return how many more optimizer steps must end, or calls of `end_step` come, before that step can begin; 0
        when it may begin at the next event.
        """
        steps = self.recorder
        if steps.open is None or steps.held is not None:
            return 0
        return max(0, step - steps.next_step - steps.open.has_stepped)

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
        steps = self.recorder
        self._fetches_training = training
        if self._has_evaluated():
            steps.leave_training(now_ns)
        if not training and self._enter_evaluation(now_ns):
            return
        resumes = steps.evaluating and steps.open is None
        steps.evaluating = False
        steps.charge(now_ns, OTHER)
        if training and steps.may_end:
            self._cross_boundary(steps.read_cpu_ns() if cpu_ns is None else cpu_ns, at_batch=True)
        steps.ensure_open(now_ns)
        if resumes and steps.open is not None:
            steps.run_boundary()

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
        self.recorder.charge(now_ns, DATA, inside=True)
        step = self.recorder.open
        if step is None or (self.recorder.is_explicit and not self._fetches_training):
            return
        if got_batch:
            step.batches += 1
            step.loaders.add(loader)
            step.read = add_sizes(step.read, size)
        elif step.loaders == {loader}:
            step.loader_exhausted = True

    def backward_begin(self, now_ns: int, cpu_ns: int | None = None) -> None:
        """Handle the begin of loss.backward(); `cpu_ns` is the CPU time of the thread (ns), if it was read."""
        self._backward_depth += 1
        if self._backward_depth > 1:
            return
        self._backward_begin_cpu_ns = cpu_ns
        steps = self.recorder
        # After an evaluation training may resume without a loader: its forward began at the last event.
        steps.ensure_open(steps.mark_ns if steps.evaluating else now_ns)
        steps.evaluating = False
        if steps.may_end and steps.open is not None:
            self._cross_boundary(steps.open.stepped_cpu_ns, at_batch=False)
        steps.charge(now_ns, FORWARD)

    def backward_end(self, now_ns: int, cpu_ns: int | None = None) -> None:
        """Handle the end of loss.backward(), by a return or an error; `cpu_ns` as at its begin."""
        self._backward_depth = max(0, self._backward_depth - 1)
        step = self.recorder.open
        if self._backward_depth or step is None:
            return
        step.has_accumulated = True
        self._end_backward(step, now_ns, cpu_ns)

    def _end_backward(self, step: OpenStep, now_ns: int, cpu_ns: int | None) -> None:
        self.recorder.charge(now_ns, BACKWARD, inside=True)
        step.backwards += 1
        begin_cpu_ns = self._backward_begin_cpu_ns
        step.add_backward_cpu(None if cpu_ns is None or begin_cpu_ns is None else cpu_ns - begin_cpu_ns)
        self._backwards += 1

    def counts_gradients(self, keeps_graph: bool) -> bool:  # noqa: FBT001 - as data_begin
        """Return whether the time in which gradients are taken is that of a backward."""
        return self.trains_by_gradients or not keeps_graph

    def gradients_begin(self, now_ns: int, is_backward: bool, cpu_ns: int | None = None) -> None:  # noqa: FBT001 - as data_begin
        """Handle the begin of torch.autograd.grad; `is_backward` says whether its time is that of a backward, `cpu_ns`
        is as at the begin of one.
        """
        if self.trains_by_gradients and not self._backward_depth:
            self._is_charged = is_backward
            self.backward_begin(now_ns, cpu_ns)
            return
        self._backward_depth += 1
        steps = self.recorder
        if self._backward_depth > 1:
            return
        self._is_charged = is_backward and not steps.evaluating
        self._backward_begin_cpu_ns = cpu_ns
        if not (steps.evaluating or steps.is_explicit):
            steps.ensure_open(now_ns)
        if self._is_charged:
            steps.charge(now_ns, OTHER if steps.may_end else FORWARD)

    def gradients_end(self, now_ns: int, cpu_ns: int | None = None) -> None:
        """Handle its end, by a return or an error; `cpu_ns` as at its begin."""
        self._backward_depth = max(0, self._backward_depth - 1)
        step = self.recorder.open
        if self._backward_depth or step is None:
            return
        step.takes_gradients = True
        if self._is_charged:
            self._end_backward(step, now_ns, cpu_ns)

    def optimizer_begin(self, now_ns: int, optimizer: int) -> None:
        """Handle the begin of optimizer.step(); `optimizer` identifies the optimizer."""
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:
            return
        self._optimizer = optimizer
        self.recorder.evaluating = False
        self.recorder.ensure_open(now_ns)
        self.recorder.charge(now_ns, OTHER)
        self._resolve_held()

    def optimizer_end(self, now_ns: int) -> None:
        """Handle the end of optimizer.step(), by a return or an error."""
        self._optimizer_depth = max(0, self._optimizer_depth - 1)
        steps = self.recorder
        step = steps.open
        if self._optimizer_depth or step is None:
            return
        steps.charge(now_ns, OPTIMIZER, inside=True)
        if not step.has_work:
            return  # a later optimizer of the burst that ended the step before
        step.optimizers.add(self._optimizer)
        step.has_stepped = steps.has_ends = True
        self.trains_by_gradients = step.takes_gradients and not step.has_accumulated
        ends_here = step.batches == 0 and steps.cycle_is_complete and not steps.is_explicit
        step.stepped_cpu_ns = steps.read_cpu_ns() if ends_here or not self._ends_at_batch else None
        if ends_here:
            steps.close_step(step.stepped_cpu_ns)

    def leave_open(self, _now_ns: int) -> None:
        """Handle that an exception has left the batch, the backward or the optimizer step that was open, and that its
        end was not seen. What follows is outside of it; the time so far is charged to what comes.
        """
        self._data_depth = self._backward_depth = self._optimizer_depth = 0

    def finish(self) -> None:
        """End the last step at its last event; one without an optimizer step is dropped."""
        self.recorder.finish()

    # -- where a step ends --------------------------------------------------------------------------------------------

    def _enter_evaluation(self, now_ns: int) -> bool:
        """Return whether this batch belongs to an evaluation between steps; then begin it."""
        step = self.recorder.open
        is_within_step = step is not None and not step.has_stepped and step.has_work
        if self.recorder.is_explicit or is_within_step:
            return False
        self.recorder.leave_training(now_ns)
        return True

    def _has_evaluated(self) -> bool:
        """Return whether since the last step one loader was read to its end without a backward, and nothing else
        happened.

        False while that loader's batches may still be trained on: one that is prefetched, or an epoch that was fetched
        as a whole.
        """
        step = self.recorder.open
        return (
            step is not None
            and step.loader_exhausted
            and not (step.has_accumulated or step.has_stepped or self.recorder.is_explicit)
            and not (step.takes_gradients and self.trains_by_gradients)
            and not (self._backward_depth or self._optimizer_depth)
        )

    def _cross_boundary(self, end_cpu_ns: int | None, *, at_batch: bool) -> None:
        """End the step at the last event charged, or hold it back while the cycle of optimizers may continue.

        A backward never ends it at once: it may belong to the second optimizer of a cycle that grows.
        """
        self._ends_at_batch = at_batch
        if at_batch and self.recorder.cycle_is_complete:
            self.recorder.close_step(end_cpu_ns)
            return
        self.recorder.hold_step(end_cpu_ns)
        if self._optimizer_depth:
            self._resolve_held()

    def _resolve_held(self) -> None:
        """Decide by the optimizer that steps now whether the held step had ended."""
        held = self.recorder.held
        if held is not None and self._optimizer in held.step.optimizers:
            self.recorder.publish_held()
        else:
            self.recorder.rejoin_held()
