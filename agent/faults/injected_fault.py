"""Do a fault at the phases of the steps of this rank, on the training thread.

The boundaries of steps are the agent's own: the fault begins and ends with the steps that the rank reports. A phase is
found by a further hook around a function that the agent hooks anyway, outside of it where the time belongs to the phase
before, inside of it where it belongs to the phase itself:

    data        inside of the loader's __next__        forward     outside of autograd's engine
    backward    inside of it                            optimizer   after the agent's hook before an optimizer's step
"""

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Final

from rankscope.agent.config import AgentConfig
from rankscope.agent.fault_spec import FaultSpec, parse_fault
from rankscope.agent.faults.actions import Actions
from rankscope.agent.guard import Guard, log_line
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.steps.autograd_callbacks import accumulates_gradients, keeps_graph
from rankscope.agent.steps.patches import EnginePatch, Patch

PART: Final = "fault"
NEVER: Final = 1 << 62
OUTSIDE: Final = ("forward", "optimizer")
"""Phases whose hook is outside of the agent's own."""
NOT_ALLOWED: Final = (
    "the setting fault (RANKSCOPE_FAULT) orders a fault, which is not injected, since faults_allowed is not set. Set "
    "RANKSCOPE_FAULTS_ALLOWED=1 where training may be disturbed, else unset RANKSCOPE_FAULT."
)


class InjectedFault:
    """A fault of this rank: a FaultPart of its training thread."""

    def __init__(self, spec: FaultSpec, guard: Guard, actions: Actions | None = None) -> None:
        self.spec = spec
        self._guard = guard
        self._actions = actions or Actions(spec)
        self._is_on = False
        self._is_over = False
        self._undo: Callable[[], None] | None = None
        self._find_thread: Callable[[], int | None] = lambda: None

    # -- step boundaries: an InlinePart -------------------------------------------------------------------------------

    def find_next(self, step: int) -> int:
        """Return the first step after this one at whose begin the fault begins or ends."""
        if self._is_over:
            return NEVER
        edge = self.spec.last_step + 1 if self._is_on else self.spec.first_step
        return max(edge, step + 1)

    def on_boundary(self, step: int) -> None:
        """Begin or end the fault at the begin of this step."""
        if step > self.spec.last_step:
            self.end()
        elif step >= self.spec.first_step and not self._is_over:
            self._is_on = True

    def end(self) -> None:
        """End the fault, and what it has started."""
        self._is_on, self._is_over = False, True
        try:
            self._actions.end()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._guard.record(PART, error)

    # -- phases -------------------------------------------------------------------------------------------------------

    def install_inside(self, find_thread: Callable[[], int | None]) -> None:
        """Install the hook that must be inside of the agent's own: call it before those are installed."""
        import torch.utils.data.dataloader as loader  # noqa: PLC0415 - the user's torch, imported by now

        self._find_thread = find_thread
        if self.spec.phase == "data":
            self._apply(Patch(loader._BaseDataLoaderIter, "__next__", self._wrap))  # noqa: SLF001 - as torch_hooks.py
        elif self.spec.phase == "backward":
            self._apply(EnginePatch(self._wrap_engine))

    def install_outside(self) -> None:
        """Install the hook that must be outside of the agent's own: call it after those are installed."""
        if self.spec.phase == "forward":
            self._apply(EnginePatch(self._wrap_engine))
        elif self.spec.phase == "optimizer":
            from torch.optim import optimizer as optimizers  # noqa: PLC0415

            self._undo = optimizers.register_optimizer_step_pre_hook(lambda *_: self._act()).remove

    def remove_outside(self) -> None:
        """Remove the hook that is outside of the agent's own: call it before those are removed. It ends the fault."""
        if self.spec.phase in OUTSIDE:
            self._remove()
        self.end()

    def remove_inside(self) -> None:
        """Remove the hook that is inside of the agent's own: call it after those are removed."""
        self._remove()

    def _remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _apply(self, patch: Patch | EnginePatch) -> None:
        patch.apply()
        self._undo = patch.revert

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import functools  # noqa: PLC0415

        @functools.wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._act()
            return original(*arguments, **named)

        return wrapped

    def _wrap_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Act where a backward passes, not where a penalty on gradients is made, which a backward follows."""
        acting = self._wrap(original)

        def run_backward(*arguments: Any, **named: Any) -> Any:
            is_last = accumulates_gradients(arguments, named) or not keeps_graph(arguments, named)
            return (acting if is_last else original)(*arguments, **named)

        return run_backward

    def _act(self) -> None:
        if not self._is_on or get_ident() != self._find_thread() or self._guard.is_off(PART):
            return
        if self.spec.is_once:
            self._is_on, self._is_over = False, True
        try:
            self._actions.act()
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)


def make_fault(config: AgentConfig, rank: int, guard: Guard, environment: Mapping[str, str]) -> InjectedFault | None:
    """Return the fault that the setting `fault` orders of this rank, and log it; None for any other rank.

    Where faults are not allowed, that is logged once on each node, and there is none.
    """
    spec = parse_fault(config.fault)
    if not config.faults_allowed:
        log_once_per_node(NOT_ALLOWED, environment)
        return None
    if spec.rank != rank:
        return None
    log_line(f"a fault is injected on rank {rank} on purpose (RANKSCOPE_FAULT): {spec.describe()}")
    return InjectedFault(spec, guard)
