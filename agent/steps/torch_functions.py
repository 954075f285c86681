"""Reads of tensors of the script that its own code does not meet.

A TorchFunctionMode that is on, or a subclass of tensors with a `__torch_function__`, is called for each use of a tensor
on its thread: also for the `shape` and `grad_fn` that a hook of ours reads. One that counts what the script does would
count that, too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def find_unheard(torch: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return the context in which this torch calls no `__torch_function__`; one without effect where it has none."""
    found: Callable[[], AbstractContextManager[Any]] = getattr(torch._C, "DisableTorchFunction", nullcontext)
    return found
