"""Keep the open step and one that may have ended, charge time to their phases, and make records of them. Pure.

Every event charges the time since the previous one to exactly one phase, so the phases of a step sum to the step.
Between an evaluation's begin and the next training step no step is open, and time is charged to none.

Where a step ends is decided by `step_timer.py` from torch's events, and by `user_steps.py` from the user's calls.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, thread_time_ns

from rankscope.agent.steps.batch_size import NONE_DECLARED, UNKNOWN, BatchSize, DeclaredFields, add_sizes
from rankscope.measure.records import CHECKPOINT, CHECKPOINT_WAIT, PHASES, StepRecord
from rankscope.measure.text import to_unicode

DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = PHASES
SAVING = frozenset({CHECKPOINT, CHECKPOINT_WAIT})
"""Phases that the agent finds by itself; they do not count among the user's."""

PHASE_LENGTH_MAX = 128
"""Largest number of characters kept of a phase's name, which becomes a label value. A report accepts four times as
many (NAME_LENGTH_MAX)."""


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step in progress. `stepped_cpu_ns` is the CPU clock at its last optimizer step, None where it was not read.

    `has_accumulated` says whether a backward has added to the gradients of parameters, `takes_gradients` whether
    gradients were returned to the script (torch.autograd.grad).
    """

    start_ns: int
    start_cpu_ns: int | None
    phases_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    batches: int = 0
    backwards: int = 0
    has_accumulated: bool = False
    takes_gradients: bool = False
    optimizers: set[int] = field(default_factory=set)
    has_stepped: bool = False
    stepped_cpu_ns: int | None = None
    backward_cpu_ns: int | None = 0
    loaders: set[int] = field(default_factory=set)
    loader_exhausted: bool = False
    read: BatchSize | None = None
    declared: BatchSize | None = None
    declared_fields: DeclaredFields = NONE_DECLARED

    @property
    def has_work(self) -> bool:
        """Whether it has a batch, a backward or gradients."""
        return bool(self.batches or self.backwards or self.takes_gradients)

    def find_cpu_ns(self, end_cpu_ns: int | None) -> int | None:
        """Return its CPU time (ns), given the CPU clock at its end; None: not known."""
        if self.start_cpu_ns is None or end_cpu_ns is None:
            return None
        return max(0, end_cpu_ns - self.start_cpu_ns)

    def add_backward_cpu(self, cpu_ns: int | None) -> None:
        """Add the CPU time of a backward; None: not known, and then that of the step is not."""
        if self.backward_cpu_ns is not None:
            self.backward_cpu_ns = None if cpu_ns is None else self.backward_cpu_ns + cpu_ns

    def join(self, later: "OpenStep") -> None:
        """Add what was assumed to be the next step."""
        for name, duration_ns in later.phases_ns.items():
            self.phases_ns[name] = self.phases_ns.get(name, 0) + duration_ns
        self.batches += later.batches
        self.backwards += later.backwards
        self.has_accumulated |= later.has_accumulated
        self.takes_gradients |= later.takes_gradients
        self.optimizers |= later.optimizers
        self.has_stepped, self.stepped_cpu_ns = later.has_stepped, later.stepped_cpu_ns
        self.add_backward_cpu(later.backward_cpu_ns)
        self.loaders |= later.loaders
        self.read = add_sizes(self.read, later.read)
        self.declared = add_sizes(self.declared, later.declared)


@dataclass(slots=True, repr=False, eq=False)
class HeldStep:
    """A step that may have ended: the next optimizer step decides. Also one that has, until its record is made."""

    step: OpenStep
    end_ns: int
    end_cpu_ns: int | None


class StepRecorder:
    """The steps of one training thread. Times are of the host clock, in ns.

    The callbacks and their arguments are those of `StepTimer`.
    """

    def __init__(
        self,
        on_record: Callable[[StepRecord], None],
        on_boundary: Callable[[int], None],
        on_pause: Callable[[], None],
        on_charge: Callable[[int, str], None] | None,
        *,
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
        #: Whether events happen now: deferred ones read no clock, and call no `on_boundary`.
        self.is_inline = True
        #: Number of the first step that has no record yet. Only grows.
        self.next_step = 0
        #: The step in progress; None before the first, during an evaluation, and between a framework's steps.
        self.open: OpenStep | None = None
        #: The step before, while it is not certain that it has ended; only with an open one.
        self.held: HeldStep | None = None
        #: Time of the last event that charged time.
        self.mark_ns = 0
        #: The optimizers of the last finished step.
        self.cycle: frozenset[int] = frozenset()
        #: Whether an evaluation between steps has begun, and no training event has come since.
        self.evaluating = False
        #: Whether the user has marked that evaluation: then only its end opens a step.
        self.is_outside_steps = False
        #: Whether only calls of the user or a framework end steps.
        self.is_explicit = False
        #: Whether a step has ended, or it is known how steps will.
        self.has_ends = False
        self._phase_names: set[str] = {*PHASES, *SAVING}
        #: Phases of the user's that are open, the innermost last.
        self.user_phases: list[str] = []
        self._declared_fields = NONE_DECLARED
        self._declared_ahead: BatchSize | None = None

    @property
    def may_end(self) -> bool:
        """Whether the next training event may end the open step."""
        return self.open is not None and self.open.has_stepped and not self.is_explicit

    @property
    def cycle_is_complete(self) -> bool:
        """Whether every optimizer of the last step has stepped in the open one."""
        return self.open is not None and bool(self.cycle) and self.open.optimizers >= self.cycle

    def read_cpu_ns(self) -> int | None:
        """Return the CPU clock of the thread; None for a deferred event."""
        return self._read_cpu_clock_ns() if self.is_inline else None

    # -- the open step ------------------------------------------------------------------------------------------------

    def charge(self, now_ns: int, name: str, *, inside: bool = False) -> None:
        """Charge the time since the last event to a phase. A gap inside a phase of the user's belongs to that one."""
        if self.open is not None:
            if self.user_phases and not inside:
                name = self.user_phases[-1]
            phases_ns = self.open.phases_ns
            phases_ns[name] = phases_ns.get(name, 0) + now_ns - self.mark_ns
            if self._on_charge is not None:
                self._on_charge(now_ns, name)
        self.mark_ns = now_ns

    def ensure_open(self, now_ns: int) -> None:
        """Begin a step now, unless there is one or a marked evaluation lasts."""
        if self.open is None and not self.is_outside_steps:
            begun = self._make(now_ns, self.read_cpu_ns())
            self.open, self.mark_ns, self._declared_ahead = begun, now_ns, None

    def declare(self, size: BatchSize) -> None:
        """Add the declared size of a batch to the open step, or to the next one if the open one may have ended."""
        self._declared_fields = self._declared_fields.including(size)
        if self.open is None or (self.may_end and not self.open.batches):
            self._declared_ahead = add_sizes(self._declared_ahead, size)
        else:
            self.open.declared = add_sizes(self.open.declared, size)

    def declare_whole(self, size: BatchSize) -> None:
        """Set the declared size of the open step."""
        if self.open is not None and size != UNKNOWN:
            self._declared_fields = self._declared_fields.including(size)
            self.open.declared = size.or_else(self.open.declared or UNKNOWN)

    def begin_phase(self, now_ns: int, name: str, *, opens: bool = True) -> None:
        """Begin a phase of the user's. Beyond `phases_max` names, time is charged to `other`. `opens`: a step begins
        where there is none.
        """
        if opens:
            self.ensure_open(now_ns)
        self.charge(now_ns, OTHER)
        name = to_unicode(name[:PHASE_LENGTH_MAX])
        if name not in self._phase_names and len(self._phase_names) >= len(PHASES) + len(SAVING) + self._phases_max:
            name = OTHER
        self._phase_names.add(name)
        self.user_phases.append(name)

    def end_phases(self, now_ns: int, left: int) -> None:
        """End the user's phases but the first `left` ones."""
        if len(self.user_phases) > left >= 0:
            self.charge(now_ns, OTHER)
            del self.user_phases[left:]

    # -- where a step ends --------------------------------------------------------------------------------------------

    def close_step(self, end_cpu_ns: int | None) -> None:
        """End the open step at the last event, begin the next, and call `on_boundary`."""
        if self.open is None:
            return
        self.hold_step(end_cpu_ns)
        self.publish_held()
        self.run_boundary()

    def hold_step(self, end_cpu_ns: int | None) -> None:
        """Hold the open step, which may have ended at the last event, and begin the next."""
        self.publish_held()
        if self.open is not None:
            held, begun = HeldStep(self.open, self.mark_ns, end_cpu_ns), self._make(self.mark_ns, end_cpu_ns)
            # At once: were a signal handler to raise in between, the step would be counted twice, or never.
            self.held, self.open, self._declared_ahead = held, begun, None

    def publish_held(self) -> None:
        """Publish the held step, if there is one: it had ended."""
        if self.held is not None:
            record = self._build_record(self.held)
            self.held, self.next_step = None, self.next_step + 1
            self._on_record(record)

    def rejoin_held(self) -> None:
        """Join the held step, which had not ended, with what has come since."""
        held, self.held = self.held, None
        if held is not None and self.open is not None:
            held.step.join(self.open)
            self.open = held.step

    def leave_training(self, now_ns: int) -> None:
        """Charge the time to no step from now on, until training resumes. An open step that may end has ended."""
        self.charge(now_ns, OTHER)
        self.publish_held()
        if self.may_end:
            self.hold_step(self.read_cpu_ns())
            self.publish_held()
        self.open = None
        if not self.evaluating:
            self.evaluating = True
            self._on_pause()

    def pause(self) -> None:
        """End what was started at a boundary, within a step."""
        self._on_pause()

    def run_boundary(self) -> None:
        """Call `on_boundary` for the step that begins, if it begins now; the time that takes is charged to it."""
        if self.is_inline:
            self._on_boundary(self.next_step)
            self.charge(self._read_clock_ns(), OTHER)

    def finish(self) -> None:
        """End the last step at its last event; one without an optimizer step is dropped."""
        self.publish_held()
        if self.may_end and self.open is not None:
            self.hold_step(self.open.stepped_cpu_ns)
            self.publish_held()
        self.open = None

    def _make(self, start_ns: int, start_cpu_ns: int | None) -> OpenStep:
        return OpenStep(start_ns, start_cpu_ns, declared=self._declared_ahead, declared_fields=self._declared_fields)

    def _build_record(self, held: HeldStep) -> StepRecord:
        step = held.step
        if step.optimizers:
            self.cycle = frozenset(step.optimizers)
        size = step.declared_fields.choose(step.read, step.declared)
        return StepRecord(
            step=self.next_step,
            start_host_ns=step.start_ns,
            duration_ns=held.end_ns - step.start_ns,
            phases_ns=step.phases_ns,
            cpu_ns=step.find_cpu_ns(held.end_cpu_ns),
            batches=step.batches,
            backwards=step.backwards,
            samples=size.samples,
            tokens=size.tokens,
            backward_cpu_ns=step.backward_cpu_ns if step.backwards else None,
        )
