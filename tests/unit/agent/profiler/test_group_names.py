"""Groups that nobody has described are named after the dimension for which DeepSpeed keeps them."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.agent.profiler.group_names import DIMENSIONS, KEEPER, MEGATRON, find_dimension, shorten_description
from rankscope.agent.profiler.process_groups import ProcessGroups


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """DeepSpeed's module of groups, none of which is made yet."""
    module = ModuleType(KEEPER)
    for variable in DIMENSIONS:
        setattr(module, variable, None)
    monkeypatch.setitem(sys.modules, KEEPER, module)
    return module


@pytest.fixture
def world_of_four() -> Iterator[None]:
    """Rank 0 of four, with torch's process group that does not communicate."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def test_group_is_named_after_the_variable_that_keeps_it(keeper: ModuleType) -> None:
    tensor, other = object(), object()
    keeper._TENSOR_MODEL_PARALLEL_GROUP = tensor  # type: ignore[attr-defined]
    assert (find_dimension(tensor), find_dimension(other)) == ("tp", "")


def test_group_of_experts_is_found_in_its_dict(keeper: ModuleType) -> None:
    experts = object()
    keeper._EXPERT_PARALLEL_GROUP = {"ep_size_4": object(), "ep_size_2": experts}  # type: ignore[attr-defined]
    assert find_dimension(experts) == "ep"


def test_group_of_a_pipeline_is_found_in_its_grid(keeper: ModuleType) -> None:
    data, stages, layer, model = object(), object(), object(), object()
    keeper.mpu = SimpleNamespace(  # type: ignore[attr-defined]
        dp_group=[0], dp_proc_group=data, pp_proc_group=stages, slice_proc_group=layer, ds_model_proc_group=model
    )
    assert [find_dimension(one) for one in (data, stages, layer, model)] == ["dp", "pp", "tp", "tp_pp"]
    assert find_dimension(object()) == ""


def test_groups_of_megatron_are_named_by_their_dimension() -> None:
    assert shorten_description("TENSOR_MODEL_PARALLEL_GROUP") == "tp"
    assert shorten_description("EXPERT_DATA_PARALLEL_GROUP_GLOO") == "edp_gloo"
    assert shorten_description("DATA_PARALLEL_GROUP_WITH_CP_AG") == "dp_cp_ag"
    assert shorten_description("HYBRID_DP_CP_GROUP_4") == "HYBRID_DP_CP_GROUP_4"


def test_no_two_groups_of_megatron_have_one_name() -> None:
    assert len(set(MEGATRON.values())) == len(MEGATRON)


@pytest.mark.usefixtures("world_of_four")
def test_label_of_a_group_has_the_short_name_and_its_members() -> None:
    dist.new_group([0, 2], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    groups = ProcessGroups(4).read().values()
    assert [(one.label, one.description) for one in groups] == [
        ("default_pg", "default_pg"),
        ("tp/0,2", "TENSOR_MODEL_PARALLEL_GROUP"),
    ]


def test_without_deepspeed_no_group_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, KEEPER, raising=False)
    assert find_dimension(object()) == ""


@pytest.mark.usefixtures("world_of_four")
def test_group_is_named_as_soon_as_its_variable_has_it(keeper: ModuleType) -> None:
    groups = ProcessGroups(4)
    made = dist.new_group([0, 2])
    before = [group.label for group in groups.read().values()]
    keeper._DATA_PARALLEL_GROUP = made  # type: ignore[attr-defined]
    after = [group.label for group in groups.read().values()]
    assert (before, after) == (["default_pg", "undefined/0,2"], ["default_pg", "dp/0,2"])


@pytest.mark.usefixtures("world_of_four")
def test_group_with_a_description_keeps_it(keeper: ModuleType) -> None:
    keeper._DATA_PARALLEL_GROUP = dist.new_group([0, 2], group_desc="mine")  # type: ignore[attr-defined]
    labels = [group.label for group in ProcessGroups(4).read().values()]
    assert labels == ["default_pg", "mine/0,2"]
