"""FirstGraph: when sessions wait for the first CUDA graph, for how long, and by which signs of the real torch."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rankscope.agent.config import AUTO, NO, YES
from rankscope.agent.steps.first_graph import COMPILED, MEGATRON, WAIT_NS, WAIT_STEPS, FirstGraph, find_sign
from rankscope.measure.units import NS_PER_S

STEP_NS = 2 * NS_PER_S
"""WAIT_STEPS of these take longer than WAIT_NS."""


class Run:
    """A run whose steps take `step_ns`; `sign` is what would show that it captures graphs."""

    def __init__(self, setting: str = AUTO, *, sign: str | None = None, step_ns: int = STEP_NS) -> None:
        self.captures = SimpleNamespace(begun=0)
        self.sign = sign
        self.questions = 0
        self._step_ns = step_ns
        self._step = 0
        self.first = FirstGraph(setting, self.captures, find=self._find, read_clock_ns=lambda: self._step * step_ns)

    def _find(self) -> str | None:
        self.questions += 1
        return self.sign

    def waits(self, step: int) -> bool:
        self._step = step
        assert self.first.waits(step) == self.first.is_waiting
        return self.first.is_waiting


def test_run_without_a_sign_does_not_wait() -> None:
    run = Run()
    assert [run.waits(step) for step in (4, 5)] == [False, False]
    assert run.first.describe() is None


@pytest.mark.parametrize(("setting", "sign"), [(AUTO, COMPILED), (YES, None)])
def test_sessions_wait_until_a_graph_is_captured(setting: str, sign: str | None) -> None:
    run = Run(setting, sign=sign)
    assert run.waits(4)
    run.captures.begun = 1
    assert [run.waits(step) for step in (5, 1_000)] == [False, False]
    assert run.first.describe() is None


def test_sign_may_come_later() -> None:
    run = Run()
    assert not run.waits(4)
    run.sign = MEGATRON
    assert run.waits(5)


def test_setting_no_asks_nothing_and_never_waits() -> None:
    run = Run(NO, sign=COMPILED)
    assert not run.waits(4)
    assert run.questions == 0


def test_graph_from_before_is_not_waited_for() -> None:
    run = Run(sign=COMPILED)
    run.captures.begun = 1
    assert not run.waits(4)
    run.captures.begun = 0
    assert not run.waits(5)


@pytest.mark.parametrize(
    ("step_ns", "last_step"),
    # Of steps of 2 s, WAIT_STEPS take longer than WAIT_NS; of 0.1 s, WAIT_NS is 600 steps.
    [(STEP_NS, 4 + WAIT_STEPS), (NS_PER_S // 10, 4 + 600)],
)
def test_wait_is_over_after_so_many_steps_and_so_long(step_ns: int, last_step: int) -> None:
    assert (WAIT_STEPS, WAIT_NS) == (64, 60 * NS_PER_S)
    run = Run(sign=COMPILED, step_ns=step_ns)
    assert all(run.waits(step) for step in range(4, last_step))
    assert run.first.describe() is None
    assert not run.waits(last_step)
    waited = f"{last_step - 4} steps and {(last_step - 4) * step_ns // NS_PER_S} s although {COMPILED}"
    assert waited in (run.first.describe() or "")
    assert not run.waits(last_step + 1)


def test_session_that_has_begun_ends_the_wait() -> None:
    run = Run(sign=COMPILED)
    assert run.waits(4)
    assert run.first.obstacle.startswith(f"{COMPILED}, and a profiler session before the first graph")
    run.first.on_session()
    assert not run.waits(5)
    assert run.first.describe() is None


# -- signs of the real torch ------------------------------------------------------------------------------------------


def compile_with(**given: object) -> Callable[[], object]:
    return lambda: torch.compile(torch.nn.Linear(2, 2), **given)  # type: ignore[call-overload]


IMPORTS = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
"""torch warns of what it imports itself."""


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's dynamo know of no call yet."""
    importlib.import_module("torch._inductor.config")
    module = importlib.import_module("torch._dynamo.eval_frame")
    monkeypatch.setattr(module, "cached_backends", {})


@IMPORTS
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (compile_with(mode="reduce-overhead"), COMPILED),
        (compile_with(mode="max-autotune"), COMPILED),
        (compile_with(options={"triton.cudagraphs": True}), COMPILED),
        (compile_with(backend="cudagraphs"), COMPILED),
        (compile_with(), None),
        (compile_with(mode="max-autotune-no-cudagraphs"), None),
        (compile_with(backend="eager"), None),
    ],
)
def test_torch_compile_call_shows_whether_graphs_are_asked_for(
    call: Callable[[], object], expected: str | None
) -> None:
    assert find_sign() is None
    call()
    assert find_sign() == expected


@IMPORTS
@pytest.mark.usefixtures("dynamo")
def test_setting_of_inductor_counts_for_calls_without_their_own() -> None:
    compile_with()()
    assert find_sign() is None
    with sys.modules["torch._inductor.config"].patch({"triton.cudagraphs": True}):
        assert find_sign() == COMPILED


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, None),
        (SimpleNamespace(), None),
        (SimpleNamespace(cuda_graph_impl="none", enable_cuda_graph=False), None),
        (SimpleNamespace(cuda_graph_impl="local"), MEGATRON),
        (SimpleNamespace(enable_cuda_graph=True), MEGATRON),
    ],
)
def test_arguments_of_megatron_show_whether_graphs_are_asked_for(
    arguments: object, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("megatron.training.global_vars")
    module._GLOBAL_ARGS = arguments  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "torch._dynamo.eval_frame", raising=False)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", module)
    assert find_sign() == expected
