"""Which modules of a model are its repeated blocks, and which of torch's wrappers their hooks belong on."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from rankscope.agent.steps.module_containers import find_containers
from rankscope.agent.steps.repeated_blocks import RepeatedBlocks, choose_blocks, name_class

WIDTH = 4


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU())


class Small(Block):
    pass


class Layers(nn.ModuleList):
    """A container of the script's own."""


def walk(module: nn.Module) -> Iterator[int]:
    """Yield the ids of a module and of those in it, without their methods."""
    yield id(module)
    if not isinstance(module, torch.jit.ScriptModule):
        for inner in module._modules.values():
            if inner is not None:
                yield from walk(inner)


def find(*models: nn.Module) -> RepeatedBlocks | None:
    mine = {one for model in models for one in walk(model)}  # others may be left by earlier tests
    return choose_blocks([one for one in find_containers() if id(one) in mine])


def blocks_of(found: RepeatedBlocks | None) -> list[Any]:
    assert found is not None
    return [block() for one in found.containers for block in one.blocks]


def test_blocks_are_found_in_order_in_each_kind_of_container() -> None:
    for make in (nn.ModuleList, Layers, lambda blocks: nn.Sequential(*blocks)):
        blocks = [Block() for _ in range(5)]
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make(blocks))
        found = find(model)
        assert blocks_of(found) == blocks
        assert found is not None
        assert (found.kind, found.device, found.containers[0].first) == ("Block", "cpu", 0)


@pytest.mark.parametrize(
    "blocks",
    [
        [Block() for _ in range(3)],
        [nn.Linear(WIDTH, WIDTH) for _ in range(8)],
        [Block(), Block(), Block(), Small()],
    ],
    ids=["too few", "layers without modules", "of two classes"],
)
def test_what_is_no_repeated_block_is_not_found(blocks: list[nn.Module]) -> None:
    model = nn.ModuleList(blocks)
    assert find(model) is None


def test_numbers_of_a_stage_are_those_of_its_names() -> None:
    found = find(model := nn.ModuleDict({str(number): Block() for number in range(8, 13)}))
    assert found is not None
    assert (len(model), found.containers[0].first) == (5, 8)
    names = nn.ModuleDict({name: Block(9) for name in ("a", "b", "c", "d")})
    found = find(names)
    assert found is not None
    assert found.containers[0].first == 0


def test_class_with_most_parameters_is_chosen_in_all_containers() -> None:
    small = nn.ModuleList(Small() for _ in range(9))
    first, second = (nn.ModuleList(Block(16) for _ in range(4)) for _ in range(2))
    assert set(map(id, blocks_of(find(small, first, second)))) == set(map(id, [*first, *second]))


def test_containers_within_a_block_are_not_told_apart() -> None:
    class Expert(Block):
        pass

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Expert(32) for _ in range(4))

    model = nn.ModuleList(Outer() for _ in range(4))
    found = find(model)
    assert found is not None
    assert (found.kind, blocks_of(found)) == ("Outer", list(model))


def test_wrappers_of_torch_are_looked_through_and_hooked() -> None:
    compiled: Any = torch.compile(Block(), backend="eager")
    wrapped: Any = checkpoint_wrapper(Block())
    both: Any = torch.compile(checkpoint_wrapper(Block()), backend="eager")
    model = nn.ModuleList([compiled, wrapped, both, Block()])
    found = find(model)
    assert found is not None
    assert found.kind == "Block"
    assert blocks_of(found) == list(model)


def test_block_within_fsdp1_is_hooked_inside_of_it() -> None:
    class Sharded(nn.Module):
        """As FullyShardedDataParallel holds a module."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._fsdp_wrapped_module = module

    blocks = [Block() for _ in range(4)]
    model = nn.ModuleList(map(Sharded, blocks))
    found = find(model)
    assert found is not None
    assert (found.kind, blocks_of(found)) == ("Block", blocks)


def test_class_of_fully_shard_is_the_scripts_own() -> None:
    class FSDPModule:
        pass

    block = Block()
    block.__class__ = type("FSDPBlock", (FSDPModule, Block), {})
    assert name_class(block) == "Block"


def test_model_that_is_gone_is_not_kept() -> None:
    model = nn.ModuleList(Block() for _ in range(4))
    found = find(model)
    del model
    gc.collect()
    assert blocks_of(found) == [None] * 4


class Asking(Block):
    """A block whose methods must be called by its script alone, which trains meanwhile."""

    def fail(self, *_arguments: object, **_keywords: object) -> Any:
        raise AssertionError("called")

    parameters = named_parameters = modules = named_modules = children = named_children = fail


def test_no_method_of_a_block_is_called() -> None:
    model = nn.ModuleList([Asking() for _ in range(4)])
    found = find(model)
    assert found is not None
    assert (found.kind, found.device, len(found.containers[0].blocks)) == ("Asking", "cpu", 4)


class Scripted(Block):
    """A block of which a part is scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_blocks_may_have_scripted_parts_but_not_be_scripted() -> None:
    model = nn.ModuleList([nn.ModuleList([Scripted() for _ in range(4)]), nn.ModuleList([Block() for _ in range(4)])])
    found = find(model)
    assert found is not None
    assert found.kind == "Scripted", "by the parameters of its scripted part"
    scripted = nn.ModuleList([torch.jit.script(Block()) for _ in range(4)])
    assert find(scripted) is None


def test_containers_deep_within_each_other_are_gone_through_once() -> None:
    reads = 0

    class Counted(nn.Sequential):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "__dict__"
            return super().__getattribute__(name)

    model = Counted(*(Block() for _ in range(4)))
    for _ in range(50):
        model = Counted(model, *(Counted(Block()) for _ in range(3)))
    containers = [one for one in model.modules() if type(one) is Counted and len(one) == 4]
    reads = 0
    choose_blocks(containers)
    assert reads <= 14 * len([one for one in model.modules() if type(one) is Counted])  # 38 of each, if not once
