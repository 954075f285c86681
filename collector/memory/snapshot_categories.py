"""Say what the allocations of a memory snapshot were for, as far as their stacks show it.

A snapshot records no categories, and no model. But torch's own functions are in the stacks of what they allocate and
free, and autograd's thread of a device has no Python frames: checked with a snapshot of an H200 (torch 2.11). Pure.
"""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rankscope.measure.memory_timeline import Ints, MemoryCategory, PairedEvents

_OPTIMIZERS: Final = re.compile(r"(?:^|/)torch/optim/\w+\.py$")
_MODULES: Final = re.compile(r"(?:^|/)torch/nn/modules/\w+\.py$")
_FUNCTION: Final = re.compile(r"(?:^|/)torch/autograd/function\.py$")
_CHECKPOINT: Final = re.compile(r"(?:^|/)torch/utils/checkpoint\.py$")
_TORCH: Final = re.compile(r"(?:^|/)torch/")
_FORWARDS: Final = frozenset({"forward", "decorate_fwd"})
_BACKWARDS: Final = frozenset({"backward", "vjp", "decorate_bwd"})


class StackOrigin(IntEnum):
    """What allocated or freed something, by the stack. BACKWARD: autograd; OPTIMIZER: torch.optim itself; ZERO_GRAD:
    `zero_grad()`; MODULE: the construction, or a move, of a module of torch.nn; CLOSURE: other Python that an optimizer
    has called; PYTHON: all other Python. UNKNOWN: no stack was recorded, or it does not say.
    """

    UNKNOWN = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ZERO_GRAD = 3
    MODULE = 4
    CLOSURE = 5
    PYTHON = 6


class NamedFrame(Protocol):
    """A frame of a stack."""

    @property
    def file(self) -> str:
        """The path of its file, of any kind for native code."""
        ...

    @property
    def function(self) -> str:
        """The name of its function."""
        ...


def find_origin(stack: Sequence[NamedFrame]) -> StackOrigin:
    """Return what the whole stack of an event shows, its innermost frame first. Native frames are ignored."""
    frames = [one for one in stack if one.file.endswith(".py") or one.file.startswith("<")]
    if not frames:
        return StackOrigin.BACKWARD
    in_backward = _is_in_backward(frames)
    if in_backward or in_backward is None:
        return StackOrigin.UNKNOWN if in_backward is None else StackOrigin.BACKWARD
    return _find_own(frames)


def _find_own(frames: Sequence[NamedFrame]) -> StackOrigin:
    """Return what part of torch, or other Python, this is: that of the frames inside of the innermost one that is not
    torch's own.
    """
    outside = next((at for at, one in enumerate(frames) if not _TORCH.search(one.file)), len(frames))
    own = frames[:outside]
    if any(one.function == "zero_grad" for one in own):
        return StackOrigin.ZERO_GRAD
    if any(_OPTIMIZERS.search(one.file) for one in own):
        return StackOrigin.OPTIMIZER
    if any(one.function in {"_apply", "__init__"} and _MODULES.search(one.file) for one in own):
        return StackOrigin.MODULE
    return StackOrigin.CLOSURE if any(_OPTIMIZERS.search(one.file) for one in frames) else StackOrigin.PYTHON


def _is_in_backward(frames: Sequence[NamedFrame]) -> bool | None:
    """Return whether autograd's thread has run this Python: the backward of a function, or a forward that is repeated
    for a checkpoint. None: it is that of a function whose direction is not seen.
    """
    for at, one in enumerate(frames):
        if one.function == "unpack_hook" and _CHECKPOINT.search(one.file):
            return True
        if one.function == "apply" and _FUNCTION.search(one.file):
            inside = (frame.function for frame in reversed(frames[:at]))
            direction = next((name for name in inside if name in _FORWARDS | _BACKWARDS), None)
            if direction is None:
                return None
            if direction in _BACKWARDS:
                return True
    return False


def categorize_by_origin(paired: PairedEvents, size: Ints, stack: Ints, origins: Sequence[StackOrigin]) -> Ints:
    """Return the `MemoryCategory` of each lifetime. `size` and `stack` are columns of the events, `origins` those of
    stacks.

    - gradients: freed by `zero_grad()`
    - optimizer state: allocated by torch.optim, not freed by it, and there when other Python ran again
    - parameters: allocated when a module was made or moved, and not freed by that. Buffers are among them
    - activations: allocated by other Python, there when autograd next allocated something, and freed
    - temporary: freed otherwise, by torch.optim what it has allocated, and in a backward what began in it
    - unknown: all else, as gradients that are still there at the end of the history
    """
    lives = paired.lifetimes
    origin = np.array(origins, dtype=np.int64)[stack]
    is_freed = lives.freed < paired.event_count
    by = origin[lives.allocated]
    freed_by = np.where(is_freed, np.append(origin, StackOrigin.UNKNOWN)[lives.freed], StackOrigin.UNKNOWN)
    stack_of_free = np.append(stack, 0)[lives.freed]
    has_own = bool((is_freed & (stack_of_free != stack[lives.allocated])).any())
    if not has_own:  # torch recorded stacks of allocations alone, and gives them to the frees
        freed_by = np.full(len(by), StackOrigin.UNKNOWN)
    is_python = origin > StackOrigin.BACKWARD
    of_backward = _count_between(lives.allocated, lives.freed, (origin == StackOrigin.BACKWARD) & (size > 0))
    of_python = _count_between(lives.allocated, lives.freed, is_python)
    is_beside = is_python & (origin != StackOrigin.OPTIMIZER) & (origin != StackOrigin.CLOSURE)
    of_others = _count_between(lives.allocated, lives.freed, is_beside)
    is_same_line = has_own & is_freed & (stack_of_free == stack[lives.allocated])
    is_script = (by == StackOrigin.PYTHON) | (by == StackOrigin.CLOSURE)
    is_known_free = is_freed & (freed_by != StackOrigin.UNKNOWN)
    rules = [
        (freed_by == StackOrigin.ZERO_GRAD, MemoryCategory.GRADIENTS),
        ((by == StackOrigin.OPTIMIZER) & (freed_by == StackOrigin.OPTIMIZER), MemoryCategory.TEMPORARY),
        ((by == StackOrigin.OPTIMIZER) & (of_others > 0) & (~is_freed | is_known_free), MemoryCategory.OPTIMIZER_STATE),
        ((by == StackOrigin.MODULE) & is_same_line, MemoryCategory.TEMPORARY),
        (
            (by == StackOrigin.MODULE) & (~is_freed | (is_known_free & (freed_by != StackOrigin.MODULE))),
            MemoryCategory.PARAMETERS,
        ),
        (is_script & is_freed & (of_backward > 0), MemoryCategory.ACTIVATIONS),
        (is_script & is_freed, MemoryCategory.TEMPORARY),
        (
            (by == StackOrigin.BACKWARD) & is_freed & (of_python == 0) & (freed_by == StackOrigin.BACKWARD),
            MemoryCategory.TEMPORARY,
        ),
    ]
    return np.select([rule for rule, _ in rules], [category for _, category in rules], MemoryCategory.UNKNOWN).astype(
        np.int64
    )


def _count_between(first: Ints, last: Ints, marked: npt.NDArray[np.bool_]) -> Ints:
    """Return how many marked events each lifetime has between its first and its last one, both left out."""
    before = np.concatenate([[0], np.cumsum(marked)])  # of the events before each
    found: Ints = before[last] - before[first + 1]
    return found
