"""Sum what the parameters, gradients and optimizer state of this process take of a device's memory.

Optimizers and parameters are found among the objects that Python's garbage collector knows, so that nothing has to be
hooked or kept during training. That takes about 0.2 s for a million objects, with the interpreter's lock held: it is
done once, when the device has run out of memory.
"""

import gc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from rankscope.agent.captures.model_memory import Storage, find_storages


class ModelBytes(NamedTuple):
    """Bytes of the storages on one device, each counted once, as the first of these that it is."""

    parameters: int
    gradients: int
    optimizer_state: int


def find_model_bytes(device: int, objects: Iterable[object] | None = None) -> ModelBytes | None:
    """Return the bytes on a device, by its number, -1 for the CPU; None where nothing of a model is found there.
    `objects` are those to search, None: all that the garbage collector knows. Objects that were frozen
    (`gc.freeze`) are not among them.
    """
    from torch import Tensor, nn, optim  # noqa: PLC0415 - the user's torch

    all_of_them = gc.get_objects() if objects is None else list(objects)
    parameters = [one for one in _find_instances(all_of_them, Tensor) if isinstance(one, nn.Parameter)]
    optimizers = _find_instances(all_of_them, optim.Optimizer)
    parameters += _find_groups(optimizers)
    found: set[Storage] = set()
    sums = [
        _add_fresh(found, tensors, device)
        for tensors in (parameters, (one.grad for one in parameters), _find_state(optimizers))
    ]
    return ModelBytes(*sums) if found else None


def _find_instances(objects: Iterable[object], kind: type) -> list[Any]:
    """Return the instances of a class by their types alone: `isinstance` asks an object, which may be anybody's."""
    types = {one for one in set(map(type, objects)) if kind in one.__mro__}
    return [one for one in objects if type(one) in types]


def _find_groups(optimizers: Iterable[Any]) -> list[Any]:
    """Return the tensors that optimizers update: master copies of parameters are not parameters of a module."""
    return [tensor for one in optimizers for group in one.param_groups for tensor in group["params"]]


def _find_state(optimizers: Iterable[Any]) -> Iterator[Any]:
    states = chain.from_iterable(one.state.values() for one in optimizers)
    return chain.from_iterable(state.values() for state in states if isinstance(state, dict))


def _add_fresh(found: set[Storage], tensors: Iterable[Any], device: int) -> int:
    """Add the storages that have not been found yet; return their bytes."""
    fresh = {one for one in find_storages(tensors) if one[2] == device} - found
    found |= fresh
    return sum(size for _, size, _ in fresh)
