"""What torch's schedules announce, read of the real classes with stages that stand in for those of a process group."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from rankscope.agent.guard import Guard
from rankscope.agent.steps.pipeline_schedules import MEGATRON, MICROBATCHES, PART, SCHEDULES, PipelineSchedules
from rankscope.measure.records import PipelineSchedule


class Reached(Exception):  # noqa: N818 - no error: it says that torch's own step has begun
    """Raised by torch's step where it first uses a stage."""


class Stage(SimpleNamespace):
    """A stage without a process group."""

    def clear_runtime_states(self) -> None:
        raise Reached


def stage_of(place: int, count: int = 4, ranks: int = 4) -> Any:
    return Stage(
        stage_index=place, num_stages=count, group_size=ranks, group_rank=0, submod=nn.Identity(), is_first=not place,
        is_last=False, has_backward=True,
    )  # fmt: skip


def single(**options: Any) -> PipelineScheduleSingle:
    return schedules.Schedule1F1B(stage_of(1), n_microbatches=8, **options)


def several() -> PipelineScheduleMulti:
    held = [stage_of(place, count=8) for place in (4, 0)]
    return schedules.ScheduleInterleaved1F1B(held, n_microbatches=8, loss_fn=nn.functional.mse_loss)


def train(schedule: PipelineScheduleSingle | PipelineScheduleMulti) -> None:
    """Make a step, as far as it goes without a process group."""
    with pytest.raises(Reached):
        schedule.step()


@pytest.fixture
def guard() -> Guard:
    return Guard(error_budget=3)


@pytest.fixture
def read(guard: Guard) -> Iterator[PipelineSchedules]:
    made = PipelineSchedules(guard)
    assert made.read() is None
    yield made
    made.remove()


def test_schedule_that_trains_is_read(read: PipelineSchedules) -> None:
    schedule = single(loss_fn=nn.functional.mse_loss)
    assert read.read() is None, "it has not trained yet"
    train(schedule)
    assert read.read() == PipelineSchedule(name="Schedule1F1B", stages=(1,), stage_count=4, ranks=4, microbatches=8)


def test_last_schedule_counts_and_its_stages_are_in_order(read: PipelineSchedules) -> None:
    first, second = single(loss_fn=nn.functional.mse_loss), several()
    train(first)
    train(second)
    found = read.read()
    assert found is not None
    assert (found.name, found.stages, found.stage_count) == ("ScheduleInterleaved1F1B", (0, 4), 8)


def test_evaluation_and_schedule_without_loss_are_no_training(read: PipelineSchedules) -> None:
    schedule = single(loss_fn=nn.functional.mse_loss)
    with pytest.raises(Reached):
        schedule.eval()
    train(single())
    assert read.read() is None


def test_schedule_is_not_kept_alive(read: PipelineSchedules) -> None:
    schedule = single(loss_fn=nn.functional.mse_loss)
    train(schedule)
    del schedule
    gc.collect()
    assert read.read() is None


def test_torch_is_restored(guard: Guard) -> None:
    before = [vars(kind)["step"] for kind in (PipelineScheduleSingle, PipelineScheduleMulti)]
    made = PipelineSchedules(guard)
    made.read()
    assert [vars(kind)["step"] for kind in (PipelineScheduleSingle, PipelineScheduleMulti)] != before
    made.remove()
    assert [vars(kind)["step"] for kind in (PipelineScheduleSingle, PipelineScheduleMulti)] == before
    made.read()
    assert [vars(kind)["step"] for kind in (PipelineScheduleSingle, PipelineScheduleMulti)] == before


def test_torch_with_other_fields_is_counted_and_trains(read: PipelineSchedules, guard: Guard) -> None:
    schedule: Any = single(loss_fn=nn.functional.mse_loss)
    train(schedule)
    del schedule._stage.group_size
    assert read.read() is None
    assert guard.errors == {PART: 1}
    del schedule._has_backward
    with pytest.raises(AttributeError, match="_has_backward"):  # torch's own reading of it
        schedule.step()
    assert guard.errors == {PART: 2}


def test_nothing_is_wrapped_once_errors_have_switched_it_off(read: PipelineSchedules, guard: Guard) -> None:
    for _ in range(4):
        guard.record(PART, ValueError("another torch"))
    assert read.read() is None
    assert not hasattr(PipelineScheduleSingle.step, "__wrapped__")


def test_module_that_is_being_imported_is_waited_for(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType(SCHEDULES)
    half.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    made = PipelineSchedules(guard)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, SCHEDULES, half)
        assert made.read() is None
    made.read()
    train(schedule := single(loss_fn=nn.functional.mse_loss))
    assert made.read() is not None
    made.remove()
    assert schedule is not None


# -- Megatron-core, by modules with its functions ---------------------------------------------------------------------


def use_megatron(patched: pytest.MonkeyPatch, *, ranks: int, held: int | None, microbatches: int | None) -> None:
    """Be rank 1 of a pipeline of Megatron-core; without `microbatches` there is no calculator of them."""
    state, batches = ModuleType(MEGATRON), ModuleType(MICROBATCHES)
    known: dict[str, Any] = {
        "model_parallel_is_initialized": lambda: True,
        "get_pipeline_model_parallel_world_size": lambda: ranks,
        "get_pipeline_model_parallel_rank": lambda: 1 % ranks,
        "get_virtual_pipeline_model_parallel_world_size": lambda: held,
    }
    vars(state).update(known)
    calculator = None if microbatches is None else SimpleNamespace(get=lambda: microbatches)
    vars(batches).update(_GLOBAL_NUM_MICROBATCHES_CALCULATOR=calculator)
    patched.setitem(sys.modules, MEGATRON, state)
    patched.setitem(sys.modules, MICROBATCHES, batches)


def test_stages_of_megatron_are_read(read: PipelineSchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    use_megatron(monkeypatch, ranks=4, held=None, microbatches=8)
    assert read.read() == PipelineSchedule(
        name="forward_backward_pipelining_without_interleaving", stages=(1,), stage_count=4, ranks=4, microbatches=8
    )


def test_megatron_chunks_are_stages_with_or_without_microbatches(
    read: PipelineSchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_megatron(monkeypatch, ranks=4, held=2, microbatches=None)
    assert read.read() == PipelineSchedule(
        name="forward_backward_pipelining_with_interleaving", stages=(1, 5), stage_count=8, ranks=4, microbatches=0
    )


def test_megatron_without_a_pipeline_announces_none(
    read: PipelineSchedules, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_megatron(monkeypatch, ranks=1, held=None, microbatches=8)
    assert read.read() is None
    monkeypatch.setattr(sys.modules[MEGATRON], "model_parallel_is_initialized", lambda: False)
    assert read.read() is None
    monkeypatch.delattr(sys.modules[MEGATRON], "model_parallel_is_initialized")  # it is being imported
    assert read.read() is None
    assert guard.errors == {}


def test_torch_is_not_needed_for_megatron(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, SCHEDULES)
    use_megatron(monkeypatch, ranks=4, held=None, microbatches=8)
    made = PipelineSchedules(guard)
    found = made.read()
    assert found is not None
    assert found.ranks == 4
    made.remove()
