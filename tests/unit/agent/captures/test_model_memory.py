"""Where the model's memory is, as a capture notes it: against the tensors themselves."""

import json
from pathlib import Path
from typing import Any

import torch

from rankscope.agent.capture_settings import CaptureSteps, RecordOptions
from rankscope.agent.captures.model_memory import PART, STORAGES_MAX, ModelMemory, find_storages
from rankscope.agent.captures.trace_captures import make_profile
from rankscope.agent.guard import Guard
from rankscope.collector.traces import analyze
from rankscope.measure.capture_limits import MEMORY_KEY


class Session:
    """Keeps what is put into the head of its trace."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}

    def add_metadata_json(self, key: str, value: str) -> None:
        self.head[key] = json.loads(value)


class Hooks:
    """Stands in for torch's hooks of optimizers."""

    def __init__(self) -> None:
        self.before: Any = None

    def register(self, before: Any) -> Any:
        self.before = before
        return lambda: setattr(self, "before", None)


def make(hooks: Hooks, obstacle: str | None = None) -> ModelMemory:
    return ModelMemory(Guard(5), hooks.register, lambda: 77, lambda: obstacle)


def size_of(tensors: Any) -> int:
    return sum(one.untyped_storage().nbytes() for one in tensors)


def train(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_of_a_capture_are_those_of_the_model(tmp_path: Path) -> None:
    model, optimizer = train(2)
    memory, sizes = ModelMemory(Guard(5), find_obstacle=lambda: None), []
    session = make_profile(CaptureSteps(1, 1, 2), RecordOptions(memory=True))
    truth = optimizer.register_step_pre_hook(lambda *_: sizes.append(size_of(p.grad for p in model.parameters())))
    session.start()
    memory.begin()
    step(model, optimizer)
    session.step()
    step(model, optimizer)
    memory.session = session
    memory.end()
    assert memory.session is None
    session.stop()
    truth.remove()
    path = tmp_path / "rank0.json"
    session.export_chrome_trace(str(path))
    (report,) = analyze(str(path), memory_every=1).ranks[0].memory
    assert report.timeline is not None
    curve = report.timeline.curve
    assert sizes == [size_of(model.parameters())] * 2
    assert max(curve.bytes["gradients"]) == sizes[0]
    assert set(curve.bytes["parameters"]) == {size_of(model.parameters())}
    state = [value for one in optimizer.state.values() for value in one.values()]
    assert set(curve.bytes["optimizer_state"]) == {size_of(state)}


def test_head_has_each_list_where_it_has_changed() -> None:
    hooks, session = Hooks(), Session()
    model, optimizer = train(1)
    memory = make(hooks)
    memory.begin()
    hooks.before(optimizer, (), {})
    hooks.before(optimizer, (), {})
    memory.session = session
    memory.end()
    assert memory.session is None
    first, second = session.head[MEMORY_KEY]["marks"]
    assert first["parameters"] == [list(one) for one in find_storages(model.parameters())]
    assert (first["gradients"], sorted(second)) == ([], ["time_ns"])
    assert hooks.before is None


def test_views_of_a_storage_count_once_and_non_tensors_not() -> None:
    flat = torch.zeros(10)
    found = find_storages([flat[:5], flat[5:], None, 3, torch.zeros(0), torch.zeros(4, device="meta")])
    assert found == [(flat.untyped_storage().data_ptr(), 40, -1)]


def test_optimizer_that_is_unlike_torchs_costs_the_notes_only() -> None:
    hooks, session, guard = Hooks(), Session(), Guard(5)
    memory = ModelMemory(guard, hooks.register, find_obstacle=lambda: None)
    memory.begin()
    hooks.before(object(), (), {})
    memory.session = session
    memory.end()
    assert memory.session is None
    assert session.head == {}
    assert guard.errors == {PART: 1}


def test_nothing_is_hooked_beside_compiled_code() -> None:
    hooks = Hooks()
    make(hooks, "compiled").begin()
    assert hooks.before is None


def test_notes_are_bounded_and_what_is_left_out_is_counted() -> None:
    assert STORAGES_MAX < 10**5
    hooks, session = Hooks(), Session()
    memory = make(hooks)
    memory.begin()
    many = [torch.zeros(1) for _ in range(STORAGES_MAX // 2 + 1)]
    for tensors in (many, [*many[:-1], torch.zeros(1)]):
        hooks.before(type("Optimizer", (), {"param_groups": [{"params": tensors}], "state": {}})(), (), {})
    memory.session = session
    memory.end()
    assert memory.session is None
    notes = session.head[MEMORY_KEY]
    assert (len(notes["marks"]), notes["left_out"]) == (1, 1)


def test_session_that_takes_no_notes_is_no_error() -> None:
    hooks = Hooks()
    memory = make(hooks)
    memory.begin()
    hooks.before(train(0)[1], (), {})
    memory.session = object()
    memory.end()
    assert hooks.before is None
