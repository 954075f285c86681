"""Note where the memory of the model is during a capture: parameters, gradients and optimizer state.

The trace has allocations, and no word on what they are for. At the begin of each step of the optimizer the tensors that
it knows are all there, so their addresses say which allocations are gradients, and how much memory is older than the
trace. What is noted goes into the head of the trace; `rankscope analyze` reads it (`docs/memory.md`).
"""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from rankscope.agent.captures.marked_ranges import find_modules_obstacle
from rankscope.agent.guard import Guard
from rankscope.measure.capture_limits import CAPTURE_STEPS_MAX, MEMORY_KEY

PART: Final = "noting the model's memory in captures"
STORAGES_MAX: Final = 50_000
"""Storages that are noted in a capture, of all its steps together: 2 MB of JSON. Further steps are left out whole."""
VERSION: Final = 1
Storage = tuple[int, int, int]
"""Address, bytes and number of the device, -1 for the CPU."""


class ModelMemory:
    """Notes of the captures of this process, on the training thread. `register` puts a function before each step of any
    optimizer and returns what removes it; without one that of torch does.
    """

    def __init__(
        self,
        guard: Guard,
        register: Callable[[Callable[..., None]], Callable[[], None]] | None = None,
        time_ns: Callable[[], int] = time.time_ns,
        find_obstacle: Callable[[], str | None] = find_modules_obstacle,
    ) -> None:
        self._guard = guard
        self._register = register or register_pre_hook
        self._time_ns = time_ns
        self._find_obstacle = find_obstacle
        self.session: Any = None
        """The session of torch's profiler that the notes are of; forgotten when they end."""
        self._remove: Callable[[], None] | None = None
        self._marks: list[dict[str, Any]] = []
        self._last: dict[str, list[Storage]] = {}
        self._noted = 0
        self._left_out = 0

    def begin(self) -> None:
        """Note from now on; nothing where torch.compile has compiled code: it would compile a step of the optimizer
        anew for the hook. Raises the error of a torch without such hooks.
        """
        self._marks, self._last, self._noted, self._left_out = [], {}, 0, 0
        if self._find_obstacle() is None and not self._guard.is_off(PART):
            self._remove = self._register(self._on_step)

    def end(self) -> None:
        """Note no more, and put the notes into the head of the trace that the session is recording. Never raises."""
        remove, self._remove = self._remove, None
        session, self.session = self.session, None
        if remove is None:
            return
        try:
            remove()
            if self._marks and session is not None:
                notes = {"version": VERSION, "marks": self._marks, "left_out": self._left_out}
                session.add_metadata_json(MEMORY_KEY, json.dumps(notes, separators=(",", ":")))
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            self._guard.record(PART, error)

    def _on_step(self, optimizer: Any, *_arguments: Any) -> None:
        if self._remove is None:
            return
        try:
            self._note(optimizer)
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            self._guard.record(PART, error)

    def _note(self, optimizer: Any) -> None:
        mark: dict[str, Any] = {"time_ns": self._time_ns()}
        tensors = [one for group in optimizer.param_groups for one in group["params"]]
        found = {
            "parameters": find_storages(tensors),
            "gradients": find_storages(one.grad for one in tensors),
            "optimizer_state": find_storages(
                value for one in tensors for value in optimizer.state.get(one, {}).values()
            ),
        }
        fresh = {name: rows for name, rows in found.items() if self._last.get(name) != rows}
        count = sum(map(len, fresh.values()))
        if self._noted + count > STORAGES_MAX or len(self._marks) >= CAPTURE_STEPS_MAX:
            self._left_out += 1
            return
        self._noted += count
        self._last.update(fresh)
        self._marks.append({**mark, **fresh})


def find_storages(values: Iterable[Any]) -> list[Storage]:
    """Return each storage of the tensors among these values once. Tensors without memory have none, as have those that
    do not say where it is.
    """
    found: dict[int, Storage] = {}
    for value in values:
        one = getattr(value, "_local_tensor", value)  # of a DTensor: its own storage has no memory
        if not hasattr(one, "untyped_storage"):
            continue
        try:
            storage = one.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError, ValueError):
            continue  # a subclass of tensors without a storage of its own; a parameter of a lazy module, not made yet
        if address and size:
            index = one.device.index
            found[address] = (address, size, -1 if one.device.type == "cpu" else index or 0)
    return list(found.values())


def register_pre_hook(before: Callable[..., None]) -> Callable[[], None]:
    """Call a function before each step of any optimizer of torch; return what removes it."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415 - the user's torch

    handle = register_optimizer_step_pre_hook(before)
    remove: Callable[[], None] = handle.remove
    return remove
