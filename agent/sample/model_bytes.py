"""Sum what the parameters, gradients and optimizer state of this process take of a device's memory.

Optimizers and parameters are found among the objects that Python's garbage collector knows, so that nothing has to be
hooked or kept during training. That takes 0.1 to 0.5 s for a million objects: it is done once, when the device has run
out of memory, and not among more than OBJECTS_MAX, since a script that tries smaller batches goes on after it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from rankscope.agent.captures.model_memory import Storage, find_storages
from rankscope.agent.live_objects import find_instances, list_types
from rankscope.measure.errors import UnavailableError

OBJECTS_MAX: Final = 5_000_000
"""Objects that are searched. A data set kept in lists of Python may have many more; counting takes a fifth of it."""


class ModelBytes(NamedTuple):
    """Bytes of the storages on one device, each counted once, as the first of these that it is."""

    parameters: int
    gradients: int
    optimizer_state: int


def find_model_bytes(
    device: int, objects: Iterable[object] | None = None, *, objects_max: int = OBJECTS_MAX
) -> ModelBytes | None:
    """Return the bytes on a device, by its number, -1 for the CPU; None where nothing of a model is found there.
    `objects` are those to search, None: all that the garbage collector knows. Objects that were frozen
    (`gc.freeze`) are not among them. Raises UnavailableError for more than `objects_max`.
    """
    from torch import Tensor, nn, optim  # noqa: PLC0415 - the user's torch

    given = None if objects is None else list(objects)
    types = list_types() if given is None else list(map(type, given))
    if len(types) > objects_max:
        raise UnavailableError(f"the process has {len(types):,} objects; at most {objects_max:,} are searched")
    tensors, optimizers = _find_instances(set(types), given, Tensor, optim.Optimizer)
    parameters = [one for one in tensors if isinstance(one, nn.Parameter)] + _find_groups(optimizers)
    found: set[Storage] = set()
    sums = [
        _add_fresh(found, of_kind, device)
        for of_kind in (parameters, (one.grad for one in parameters), _find_state(optimizers))
    ]
    return ModelBytes(*sums) if found else None


def _find_instances(types: Iterable[type], given: Sequence[object] | None, *kinds: type) -> list[list[Any]]:
    """Return the instances of each class, those given or all there are, by their types alone: `isinstance` asks an
    object, which may be anybody's.
    """
    types_of = [{one for one in types if kind in one.__mro__} for kind in kinds]
    wanted = set[type]().union(*types_of)
    found = find_instances(wanted) if given is None else [one for one in given if type(one) in wanted]
    return [[one for one in found if type(one) in of_kind] for of_kind in types_of]


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
