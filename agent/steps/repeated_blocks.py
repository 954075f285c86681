"""Choose the repeated blocks of a model: modules of one class, with modules of their own, in torch's containers.

    ModuleList, ModuleDict, Sequential    BLOCKS_MIN or more of one class: 32 `TransformerBlock`, 16 `Bottleneck`
    a container within a block            not told apart: the 8 experts of each block, the 2 layers of its MLP
    several classes                       the one whose blocks have most parameters

A block is told by the class that the script wrote: what torch wraps around it (FSDP, torch.compile, checkpointing) is
looked through. Its hooks belong on the outermost wrapper, so that a recomputed forward is part of the backward; FSDP1
alone gathers the parameters in its own `forward`, which is no work of the block, and so is left outside.
"""

import sys
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rankscope.agent.steps.torch_functions import find_unheard

BLOCKS_MAX: Final = 512
"""Blocks that are looked at, those of copies of the model (an average of its weights, a frozen one) among them."""
FSDP1: Final = "_fsdp_wrapped_module"
WRAPPED: Final = ("_orig_mod", "_checkpoint_wrapped_module", FSDP1)
"""Where torch's wrappers have the module that they wrap."""
MIXED_IN: Final = frozenset({"FSDPModule", "ReplicateModule"})
"""Classes of torch that `fully_shard` and `replicate` put in front of a module's own."""


class Container(NamedTuple):
    """A container of blocks, in their order. `first` is the number of the first one, as its name says."""

    first: int
    blocks: "tuple[weakref.ref[Any], ...]"


class RepeatedBlocks(NamedTuple):
    """The blocks of one class. `device` is the type of the device that has their parameters, as torch names it."""

    kind: str
    device: str
    containers: tuple[Container, ...]


def choose_blocks(containers: Sequence[Any]) -> RepeatedBlocks | None:
    """Return the repeated blocks in these containers; None where there are none."""
    by_class: dict[str, list[tuple[Any, list[Any]]]] = defaultdict(list)
    for container in containers:
        blocks = _list_blocks(container)
        if blocks:
            by_class[name_class(blocks[0])].append((container, blocks))
    held = [(container, blocks) for found in by_class.values() for container, blocks in found]
    inner = set(map(id, _walk(*(block for _, blocks in held for block in blocks))))
    outermost = {
        kind: [(container, blocks) for container, blocks in found if id(container) not in inner]
        for kind, found in by_class.items()
    }
    sizes = {kind: _count_parameters(found) for kind, found in outermost.items() if found}
    if not sizes:
        return None
    kind = max(sizes, key=lambda name: (sizes[name], name))
    chosen: list[Container] = []
    for container, blocks in outermost[kind]:
        if sum(len(one.blocks) for one in chosen) + len(blocks) <= BLOCKS_MAX:
            hooked = tuple(weakref.ref(_find_hooked(block)) for block in blocks)
            chosen.append(Container(_find_first(container), hooked))
    device = next((one.device.type for _, blocks in outermost[kind] for one in _list_parameters(blocks[0])), "")
    return RepeatedBlocks(kind, device, tuple(chosen)) if chosen else None


def name_class(block: Any) -> str:
    """Return the class of a block, without what torch wraps around it.

    >>> class FSDPModule: ...
    >>> class Block: ...
    >>> name_class(type("FSDPBlock", (FSDPModule, Block), {})())
    'Block'
    """
    kind = type(_unwrap(block))
    while kind.__bases__[0].__name__ in MIXED_IN and len(kind.__bases__) > 1:
        kind = kind.__bases__[1]
    return kind.__name__


def _unwrap(block: Any) -> Any:
    while (inner := next((_children(block)[name] for name in WRAPPED if name in _children(block)), None)) is not None:
        block = inner
    return block


def _find_hooked(block: Any) -> Any:
    """Return the module whose calls are the block's: within FSDP1, else the outermost."""
    while _children(block).get(FSDP1) is not None:
        block = _children(block)[FSDP1]
    return block


def _children(module: Any) -> dict[str, Any]:
    return _read_dict(module, "_modules")


def _read_dict(module: Any, name: str) -> dict[str, Any]:
    """Return what a module has of a kind, by name. A ScriptModule has it in a class of torch's that is no dict."""
    found = vars(module).get(name)
    if found is None or issubclass(type(found), dict):
        return found or {}
    return dict(found.items())


def _list_blocks(container: Any) -> list[Any]:
    """Return the blocks of a container: all that it has, if they are of one class, no mere wrappers, and can have
    hooks, which a ScriptModule cannot; else empty.
    """
    blocks = list(_children(container).values())
    is_alike = len({name_class(block) for block in blocks}) == 1
    scripted = sys.modules["torch"].jit.ScriptModule
    are_blocks = all(_children(_unwrap(one)) and not issubclass(type(_find_hooked(one)), scripted) for one in blocks)
    return blocks if is_alike and are_blocks else []


def _count_parameters(found: list[tuple[Any, list[Any]]]) -> int:
    with find_unheard(sys.modules["torch"])():
        return sum(int(one.numel()) for _, blocks in found for block in blocks for one in _list_parameters(block))


def _list_parameters(module: Any) -> list[Any]:
    """Return the parameters of a module and of those in it, each once."""
    held = (_read_dict(one, "_parameters") for one in _walk(module))
    return list({id(one): one for some in held for one in list(dict.values(some)) if one is not None}.values())


def _walk(*modules: Any) -> list[Any]:
    """Return modules and all those in them, each once. `modules()` may be the script's own, which trains meanwhile."""
    found = {id(one): one for one in modules}
    waiting = list(found.values())
    while waiting:
        inner = [one for one in list(dict.values(_children(waiting.pop()))) if one is not None and id(one) not in found]
        found |= {id(one): one for one in inner}
        waiting += inner
    return list(found.values())


def _find_first(container: Any) -> int:
    """Return the number of the first block: 8 of the blocks 8 to 15 of a stage; 0 where their names are no numbers."""
    names = list(_children(container))
    numbers = [int(name) for name in names if name.isdecimal()]
    is_in_order = len(numbers) == len(names) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return numbers[0] if is_in_order else 0
