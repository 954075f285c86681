"""Ranges of modules: torch's hooks are there during a capture only, and leave nothing behind."""

import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from rankscope.agent.capture_settings import RecordOptions
from rankscope.agent.captures.marked_ranges import (
    COMPILED,
    MarkedRanges,
    count_parameters,
    find_modules_obstacle,
    name_modules,
    record_range,
)
from rankscope.agent.captures.trace_recording import PART
from rankscope.agent.guard import Guard
from rankscope.agent.scopes import switch
from rankscope.measure.capture_limits import MODULES_KEY

MODULES = RecordOptions(modules=True)


class Rank:
    """The ranges of a rank, noted by their names as they begin (`+`) and end (`-`)."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_at = ""
        self.guard = Guard(error_budget=99)
        self.ranges = MarkedRanges(self.guard, make_range=lambda name: Range(self, name.removeprefix("nn.Module: ")))

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails_at:
            raise RuntimeError("torch has changed")


class Range:
    """One range of a rank."""

    def __init__(self, rank: Rank, name: str) -> None:
        self._rank, self._name = rank, name

    def __enter__(self) -> None:
        self._rank.note(f"+{self._name}")

    def __exit__(self, *_error: object) -> None:
        self._rank.note(f"-{self._name}")


class Failing(nn.Module):
    """Raises in its forward."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self._error = error

    def forward(self, _x: torch.Tensor) -> torch.Tensor:
        raise self._error


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.ranges.end()
    assert not _has_any_global_hook()
    assert switch.make_range is None


def test_modules_are_numbered_by_class_and_first_call(rank: Rank) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    rank.ranges.begin(MODULES)
    model(torch.ones(1, 2))
    names = ["+Sequential_0", "+Linear_0", "-Linear_0", "+ReLU_0", "-ReLU_0", "+Linear_1", "-Linear_1", "-Sequential_0"]
    assert rank.calls == names
    model(torch.ones(1, 2))
    assert rank.calls == 2 * names


def test_shared_module_is_one_instance(rank: Rank) -> None:
    shared = nn.Linear(2, 2)
    rank.ranges.begin(MODULES)
    nn.Sequential(shared, shared)(torch.ones(1, 2))
    assert Counter(call for call in rank.calls if call[0] == "+") == {"+Sequential_0": 1, "+Linear_0": 2}


def test_without_the_option_there_are_no_hooks(rank: Rank) -> None:
    rank.ranges.begin(RecordOptions())
    assert not _has_any_global_hook()


def test_forward_that_raises_ends_its_range_and_those_around_it(rank: Rank) -> None:
    error = ValueError("of the script")
    rank.ranges.begin(MODULES)
    with pytest.raises(ValueError, match="of the script") as raised:
        nn.Sequential(nn.Identity(), Failing(error))(torch.ones(1))
    assert raised.value is error
    assert rank.calls == ["+Sequential_0", "+Identity_0", "-Identity_0", "+Failing_0", "-Failing_0", "-Sequential_0"]


def test_range_left_by_an_interrupt_ends_with_the_capture(rank: Rank) -> None:
    rank.ranges.begin(MODULES)
    with pytest.raises(KeyboardInterrupt):
        Failing(KeyboardInterrupt())(torch.ones(1))
    assert rank.calls == ["+Failing_0"]
    rank.ranges.end()
    assert rank.calls == ["+Failing_0", "-Failing_0"]


def test_range_left_by_an_interrupt_ends_with_that_around_it(rank: Rank) -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.failing = Failing(KeyboardInterrupt())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(KeyboardInterrupt):
                self.failing(x)
            return x

    rank.ranges.begin(MODULES)
    Catching()(torch.ones(1))
    assert rank.calls == ["+Catching_0", "+Failing_0", "-Failing_0", "-Catching_0"]


def test_module_that_began_before_the_capture_has_no_range(rank: Rank) -> None:
    class Beginning(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rank.ranges.begin(MODULES)
            return nn.functional.relu(nn.Identity()(x))

    Beginning()(torch.ones(1))
    assert rank.calls == ["+Identity_0", "-Identity_0"]


@pytest.mark.parametrize("fails_at", ["+Linear_0", "-Linear_0"])
def test_error_of_a_range_is_counted_and_changes_no_number(rank: Rank, fails_at: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    expected = model(torch.ones(1, 2))
    rank.fails_at = fails_at
    rank.ranges.begin(MODULES)
    assert torch.equal(model(torch.ones(1, 2)), expected)
    assert rank.guard.errors == {PART: 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_modules_run_again_in_the_backward(rank: Rank, reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    rank.ranges.begin(MODULES)
    checkpoint(block, torch.ones(1, 2, requires_grad=True), use_reentrant=reentrant).sum().backward()
    # Without reentrance the second forward ends by an exception of torch's once it has what it needs.
    assert Counter(rank.calls) == {
        f"{sign}{name}": 2 for sign in "+-" for name in ("Sequential_0", "Linear_0", "Linear_1")
    }


def test_end_of_a_capture_forgets_modules_and_hooks(rank: Rank) -> None:
    rank.ranges.begin(MODULES)
    module = nn.Linear(2, 2)
    module(torch.ones(1, 2))
    assert _has_any_global_hook()
    rank.ranges.end()
    assert not _has_any_global_hook()
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_module_is_not_kept_alive_during_a_capture(rank: Rank) -> None:
    rank.ranges.begin(MODULES)
    module = nn.Linear(2, 2)
    module(torch.ones(1, 2))
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_hook_that_cannot_be_removed_does_not_keep_the_others() -> None:
    def fail() -> None:
        raise KeyError("gone")

    removed: list[str] = []

    def register(*_hooks: Callable[..., None]) -> list[Callable[[], None]]:
        return [fail, lambda: removed.append("second")]

    ranges = MarkedRanges(Guard(error_budget=1), register=register)
    ranges.begin(MODULES)
    ranges.end()
    assert removed == ["second"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_traced_module_has_no_range_in_it() -> None:
    ranges = MarkedRanges(Guard(error_budget=1))
    ranges.begin(MODULES)
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    ranges.end()
    assert "record_function" not in str(traced.inlined_graph)


def test_modules_are_marked_unless_something_is_compiled() -> None:
    assert find_modules_obstacle({}) is None
    assert find_modules_obstacle({"torch._dynamo.utils": SimpleNamespace(counters={})}) is None
    frames = SimpleNamespace(counters={"frames": Counter(total=1)})
    assert find_modules_obstacle({"torch._dynamo.utils": frames}) == COMPILED
    assert find_modules_obstacle({"torch._dynamo.utils": SimpleNamespace()}) == COMPILED, "not known, so not safe"


def test_torch_knows_what_it_has_compiled() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert find_modules_obstacle() is None
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert find_modules_obstacle() == COMPILED
    torch._dynamo.reset()


def test_ranges_are_those_of_torchs_profiler() -> None:
    assert isinstance(record_range("part"), torch.profiler.record_function)


# -- parameters --------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding and a head with one weight, a layer that never runs, and one parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head, self.unused = nn.Embedding(10, 4), nn.Linear(4, 10), nn.Linear(3, 3)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.words(x)) * self.scale
        return found


class Session:
    """Keeps what is put into the head of its trace."""

    def __init__(self) -> None:
        self.head: dict[str, object] = {}

    def add_metadata_json(self, key: str, text: str) -> None:
        self.head[key] = json.loads(text)


def test_head_says_how_many_parameters_each_module_has(rank: Rank) -> None:
    rank.ranges.session = session = Session()
    rank.ranges.begin(MODULES)
    model = Tied()
    for _ in range(2):
        model(torch.ones(2, dtype=torch.int64))
    rank.ranges.end()
    counts = {"Tied_0": 10 * 4 + 10 + 3 * 3 + 3 + 1, "Embedding_0": 40, "Linear_0": 50}
    (notes,) = session.head.values()
    assert isinstance(notes, dict)
    assert notes["parameters"] == counts
    assert rank.ranges.session is None
    rank.ranges.session = later = Session()
    rank.ranges.begin(MODULES)
    rank.ranges.end()
    assert later.head == {}


def test_head_says_where_each_module_is_in_the_code(rank: Rank) -> None:
    rank.ranges.session = session = Session()
    rank.ranges.begin(MODULES)
    inner, outer = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)
    nn.Sequential(inner, inner)(torch.ones(2))
    outer(torch.ones(2))
    rank.ranges.end()
    paths = {"Sequential_0": "", "Sequential_1": "0", "Linear_0": "0.0", "ReLU_0": "0.1", "Linear_1": ""}
    assert session.head[MODULES_KEY] == {"version": 1, "parameters": COUNTED, "paths": paths}


COUNTED = {"Sequential_0": 6, "Sequential_1": 6, "Linear_0": 6, "ReLU_0": 0, "Linear_1": 6}


def test_attributes_of_wrappers_are_in_no_path() -> None:
    model = nn.ModuleDict({"_orig_mod": nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)])})})
    assert [path for path, _ in name_modules(model)] == ["", "", "layers", "layers.0"]


def test_divided_parameters_count_whole_lazy_ones_are_unknown() -> None:
    part = nn.Linear(2, 2, bias=False)
    part.weight.ds_numel = 400  # type: ignore[attr-defined]
    assert count_parameters(part) == 400
    assert count_parameters(nn.LazyLinear(3)) is None
    assert count_parameters(object()) is None


def test_session_without_notes_is_an_error_of_the_capture_alone(rank: Rank) -> None:
    rank.ranges.session = object()
    rank.ranges.begin(MODULES)
    nn.Linear(2, 2)(torch.ones(1, 2))
    rank.ranges.end()
    assert rank.guard.errors == {PART: 1}
