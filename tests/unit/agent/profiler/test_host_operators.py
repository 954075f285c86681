"""Sessions of torch's first profiler: the same operators as Kineto's, and FLOPs counted from them."""

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _autograd, _profiler
from torch.utils.checkpoint import checkpoint

from rankscope.agent.profiler.host_operators import HostOperators, OperatorSession
from rankscope.agent.profiler.torch_profiler import TorchProfiler, find_operator_session
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.measure.flops import NO_VALUES
from rankscope.measure.records import WindowFlops
from rankscope.measure.unseen_products import COMPILED, OWN_KERNELS
from tests.flop_models import MODELS
from tests.unit.agent.profiler.recorded_window import record_and_reduce

DEADLINE_S = 300.0
CONVOLUTIONS = {name for name in MODELS if "convolutions" in name}
COMPILES = {name for name in MODELS if "compile" in name}


def record(run: Callable[[], None]) -> WindowFlops:
    """Record steps as a session of the host alone, and return their FLOPs."""
    answer = record_and_reduce(run, TorchProfiler.find(), host_only=True)
    assert answer.breakdowns == (), "the time of operators says nothing of a device"
    assert answer.flops is not None
    return answer.flops


@pytest.mark.parametrize("name", sorted(MODELS.keys() - CONVOLUTIONS - COMPILES))
def test_flops_of_a_step_are_those_counted_by_hand(name: str) -> None:
    known = MODELS[name]()
    found = record(known.run)
    assert (found.reason, found.step_count) == (None, 2)
    assert found.model_flops == 3 * known.forward
    assert found.executed_flops == known.forward + known.recompute + known.backward
    assert found.number_types == {}, "the types of inputs are not recorded"


@pytest.mark.parametrize("name", sorted(CONVOLUTIONS))
def test_convolutions_have_exact_forward_and_bounded_backward(name: str) -> None:
    known = MODELS[name]()
    found = record(known.run)
    assert (found.reason, found.model_flops) == (None, 3 * known.forward)
    assert (found.executed_flops, found.is_upper_bound) == (3 * known.forward, True)
    assert known.backward < 2 * known.forward, "inputs of the model need no gradient, which is not recorded"


def test_recomputed_convolution_is_as_its_forward() -> None:
    model, x = nn.Conv2d(2, 4, 3, stride=2), torch.randn(1, 2, 9, 9, requires_grad=True)
    found = record(lambda: checkpoint(model, x, use_reentrant=False).sum().backward())
    forward = 2 * 4 * 4 * 4 * 2 * 9  # (9 - 3) // 2 + 1 = 4
    assert (found.model_flops, found.executed_flops) == (3 * forward, 4 * forward)


def test_forward_only_convolution_has_no_flops_if_others_differ() -> None:
    one, other = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1)
    x = torch.randn(1, 2, 8, 8)

    def run(*frozen: nn.Module) -> None:
        with torch.no_grad():
            for model in frozen:
                model(x)
        (one(x).sum() + other(x).sum()).backward()

    assert record(run).reason is None
    assert record(lambda: run(one)).reason == f"products may be missing, of aten::convolution ({NO_VALUES})"


def test_convolution_of_unknown_kind_has_no_figure() -> None:
    weight, x = torch.randn(2, 2, 3, requires_grad=True), torch.randn(1, 2, 8)
    found = record(lambda: torch.convolution(x, weight, None, [1], [0], [1], False, [0], 1).sum().backward())
    assert NO_VALUES in (found.reason or "")


@pytest.mark.parametrize("name", sorted(COMPILES))
def test_compiled_code_has_no_figure(name: str) -> None:
    assert COMPILED in (record(MODELS[name]().run).reason or "")


class Own(torch.autograd.Function):
    """A function of a script that might launch a kernel of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        del ctx
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        del ctx
        return gradients[0] * 2


def test_function_of_the_script_has_no_figure() -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    found = record(lambda: Own.apply(model(x)).sum().backward())  # type: ignore[no-untyped-call]
    assert found.reason == f"products may be missing, of Own ({OWN_KERNELS}), OwnBackward ({OWN_KERNELS})"


def test_operator_without_a_formula_has_no_flops_however_short() -> None:
    model, x = nn.Linear(256, 256), torch.randn(512, 256)

    def run() -> None:
        model(x).sum().backward()
        torch.linalg.inv(torch.eye(2))

    assert "aten::_linalg_solve_ex (no formula)" in (record(run).reason or "")


def test_session_is_busy_for_others_and_they_for_it() -> None:
    profiler = TorchProfiler.find()
    profiler.start(full=True, host_only=True)
    assert profiler.is_busy()
    with pytest.raises(RuntimeError, match="a profiler is on already"):
        profiler.start(full=True)
    profiler.stop()
    assert not profiler.is_busy()
    with pytest.raises(RuntimeError, match="no profiler session"):
        profiler.stop()
    profiler.start(full=True, shapes=True)  # Kineto's come after it as before
    torch.ones(2)
    assert "aten::ones" in {one.name() for one in profiler.stop().trace_activities()}


def test_session_that_does_not_begin_leaves_no_range_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: OperatorSession) -> None:
        raise RuntimeError("a profiler is on")

    monkeypatch.setattr(OperatorSession, "start", fail)
    wrapped: list[bool] = []
    ranges = OpenRanges()
    ranges.watch_sessions(lambda: wrapped.append(True), lambda: wrapped.append(False))
    with pytest.raises(RuntimeError, match="a profiler is on"):
        TorchProfiler.find(ranges).start(full=True, host_only=True)
    assert wrapped == [True, False]


def test_operators_are_those_of_kineto_in_the_same_order() -> None:
    known = MODELS["transformer block, SDPA"]()
    known.run()
    profiler, names = TorchProfiler.find(), []
    for host_only in (False, True):
        profiler.start(full=True, shapes=True, host_only=host_only)
        known.run()
        found = [one for one in profiler.stop().trace_activities() if one.type() == "cpu_op"]
        names.append([one.name() for one in sorted(found, key=lambda one: one.timestamp())])
    assert names[0] == names[1]


def test_other_threads_are_not_recorded() -> None:
    profiler = TorchProfiler.find()
    profiler.start(full=True, host_only=True)
    thread = threading.Thread(target=lambda: torch.ones(2))
    thread.start()
    thread.join()
    assert profiler.stop().trace_activities() == []


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_session_can_end_after_kineto_has_on_another_thread() -> None:
    profiler = TorchProfiler.find()
    profiler.start(full=True, host_only=True)

    def profile() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as users:
            torch.zeros(2)
        assert {event.name for event in users.events() or ()} >= {"aten::zeros"}

    thread = threading.Thread(target=profile)
    thread.start()
    thread.join()
    torch.ones(2)
    assert "aten::ones" in {one.name() for one in profiler.stop().trace_activities()}


def event(kind: str, handle: int, start_us: float) -> Any:
    return SimpleNamespace(kind=lambda: kind, handle=lambda: handle, start_us=lambda: start_us)


def test_ranges_in_one_microsecond_nest_and_open_ones_end_last() -> None:
    events = [event("mark", 0, 1.0), event("push", 1, 5.0), event("push", 2, 5.0), event("pop", 2, 5.0),
              event("pop", 9, 5.0), event("push", 3, 7.0)]  # fmt: skip
    outer, inner, last = HostOperators([events]).trace_activities()
    assert (inner.timestamp(), inner.duration()) == (5_001, 1)
    assert (outer.timestamp(), outer.duration()) == (5_000, 2_000)
    assert (last.timestamp(), last.duration()) == (7_000, 0)


NESTED = """
import sys
import torch
from rankscope.agent.profiler.torch_profiler import TorchProfiler

profiler = TorchProfiler.find()
assert profiler.records_operators
torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
sys.exit(profiler.records_operators)
"""


def test_no_session_once_the_script_has_made_jagged_tensors() -> None:
    # A process of its own: torch counts them for good.
    ended = subprocess.run([sys.executable, "-c", NESTED], check=False, timeout=DEADLINE_S)
    assert ended.returncode == 0, "torch would write a page to stderr for each of their operators"


def test_torch_without_that_profiler_has_none() -> None:
    assert find_operator_session(_autograd, _profiler) is not None
    assert find_operator_session(SimpleNamespace(), _profiler) is None
