"""TorchProfiler: what a session records, by whether a device is in use. torch's C functions are a strict stand-in."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankscope.agent.guard import ScriptInterruptError
from rankscope.agent.profiler import torch_profiler
from rankscope.agent.profiler.torch_profiler import (
    TEARDOWN,
    DeviceKind,
    TorchProfiler,
    communicates,
    find_devices,
)
from rankscope.agent.sample.torch_device import is_current_stream_capturing
from rankscope.measure.units import NS_PER_MS, NS_PER_S

ACTIVITY = SimpleNamespace(CPU="CPU", CUDA="CUDA", XPU="XPU")
SCOPE = SimpleNamespace(USER_SCOPE="user", FUNCTION="function", BACKWARD_FUNCTION="backward")


@dataclass
class Autograd:
    """The profiler's functions. A session must be prepared with the activities it is enabled with."""

    _ProfilerResult = SimpleNamespace(trace_activities=None)
    supported: frozenset[str] = frozenset({"CPU", "CUDA"})
    sessions: list[tuple[bool, set[str], set[str]]] = field(default_factory=list)
    counted_devices: int = 0
    _prepared: object = None
    _is_on: bool = False

    def _profiler_enabled(self) -> bool:
        return self._is_on

    def _prepare_profiler(self, configuration: Any, activities: set[str]) -> None:
        assert not self._is_on
        self._prepared = (configuration, activities)

    def _enable_profiler(self, configuration: Any, activities: set[str], scopes: set[str]) -> None:
        assert self._prepared == (configuration, activities)
        self._is_on = True
        self.sessions.append((configuration.with_shapes, set(activities), set(scopes)))

    def _disable_profiler(self) -> str:
        assert self._is_on
        self._is_on = False
        return "result"

    def _supported_activities(self) -> frozenset[str]:
        self.counted_devices += 1
        return self.supported


def c_profiler(*, knows_trace_only: bool = True) -> Any:
    def experimental(**options: bool) -> dict[str, bool]:
        if options and not knows_trace_only:
            raise TypeError("an unknown keyword")
        return options

    def configure(_state: object, with_shapes: object, *rest: object) -> Any:
        return SimpleNamespace(with_shapes=with_shapes, experimental=rest[-1])

    return SimpleNamespace(
        ProfilerActivity=ACTIVITY, RecordScope=SCOPE, ProfilerState=SimpleNamespace(KINETO="kineto"),
        ProfilerConfig=configure, _ExperimentalConfig=experimental,
    )  # fmt: skip


@dataclass
class Event:
    """A CUDA event that has come after so many questions; None: never."""

    comes_after: int | None = 0
    log: list[str] = field(default_factory=list)
    on_query: Callable[[], object] = lambda: None

    def record(self) -> None:
        self.log.append("record")

    def query(self) -> bool:
        self.log.append("query")
        self.on_query()
        return self.comes_after is not None and self.log.count("query") > self.comes_after

    def synchronize(self) -> None:
        assert self.query()
        self.log.append("synchronize")


@dataclass
class Script:
    """The state of the training script."""

    uses_device: bool = False
    communicates: bool = False
    captures: bool = False
    event: Event = field(default_factory=Event)
    autograd: Autograd = field(default_factory=Autograd)

    def profiler(self) -> TorchProfiler:
        device = DeviceKind(lambda: self.uses_device, lambda: True, "CUDA", self._mark)
        return TorchProfiler(
            self.autograd, c_profiler(), None, (device,), lambda: self.communicates,
            run_between=lambda action: None if self.captures else action(),
        )  # fmt: skip

    def _mark(self) -> list[Event]:
        self.event.record()
        return [self.event]


@pytest.mark.parametrize(
    ("script", "activities", "scopes"),
    [
        (Script(), {"CPU"}, {"user", "function", "backward"}),
        (Script(communicates=True), {"CPU"}, {"user", "function", "backward"}),
        (Script(uses_device=True), {"CPU", "CUDA"}, {"user"}),
        (Script(uses_device=True, communicates=True), {"CPU", "CUDA"}, {"user", "function"}),
    ],
)
def test_full_session_records_only_what_a_breakdown_needs(
    script: Script, activities: set[str], scopes: set[str]
) -> None:
    script.profiler().start(full=True)
    assert script.autograd.sessions == [(False, activities, scopes)]


def test_a_light_session_touches_no_device() -> None:
    script = Script(uses_device=True, communicates=True)
    profiler = script.profiler()
    profiler.start(full=False)
    assert script.autograd.sessions == [(True, {"CPU"}, {"user"})]
    assert profiler.is_first_of_device


def test_first_full_session_of_a_device_is_marked() -> None:
    script = Script()
    profiler = script.profiler()
    seen = []
    for script.uses_device in (False, True, True):
        seen.append((profiler.sees_device, profiler.is_first_of_device))
        profiler.start(full=True)
        profiler.stop()
    assert seen == [(False, False), (True, True), (True, False)]


def test_the_device_is_asked_until_it_has_done_its_work() -> None:
    script = Script(uses_device=True, event=Event(comes_after=3))
    assert script.profiler().wait_for_device(60 * NS_PER_S)
    assert script.event.log[:5] == ["record", *["query"] * 4]
    assert script.event.log[-1] == "synchronize"


def test_a_device_that_does_not_finish_is_not_waited_for_longer() -> None:
    script = Script(uses_device=True, event=Event(comes_after=None))
    assert not script.profiler().wait_for_device(NS_PER_MS)
    assert "synchronize" not in script.event.log


def test_without_a_device_nothing_is_waited_for() -> None:
    script = Script(event=Event(comes_after=None))
    assert script.profiler().wait_for_device(60 * NS_PER_S)
    assert script.event.log == []


def test_a_device_is_not_asked_during_a_capture() -> None:
    script = Script(uses_device=True, captures=True)
    assert not script.profiler().wait_for_device(60 * NS_PER_S)
    assert script.event.log == []


def test_a_capture_that_begins_meanwhile_ends_the_wait() -> None:
    script = Script(uses_device=True, event=Event(comes_after=None))
    profiler = script.profiler()
    script.event.on_query = lambda: setattr(script, "captures", True)
    assert not profiler.wait_for_device(60 * NS_PER_S)
    assert script.event.log == ["record", "query"]


def test_who_gives_up_waits_no_longer() -> None:
    script = Script(uses_device=True, event=Event(comes_after=None))
    assert not script.profiler().wait_for_device(60 * NS_PER_S, lambda: True)


def test_what_a_signal_handler_raises_is_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    class PreemptedError(Exception):
        pass

    def interrupted(_seconds: float) -> None:
        raise PreemptedError

    monkeypatch.setattr(time, "sleep", interrupted)
    script = Script(uses_device=True, event=Event(comes_after=None))
    with pytest.raises(ScriptInterruptError) as found:
        script.profiler().wait_for_device(60 * NS_PER_S)
    assert isinstance(found.value.error, PreemptedError)


@pytest.mark.parametrize("fails", [None, "_prepare_profiler", "_enable_profiler"])
def test_the_variable_is_set_only_while_cupti_is_detached(monkeypatch: pytest.MonkeyPatch, fails: str | None) -> None:
    monkeypatch.delenv(TEARDOWN, raising=False)
    monkeypatch.setattr(torch_profiler, "DETACH_PAUSE_S", 0.0)
    script, seen = Script(uses_device=True), []
    profiler = script.profiler()
    profiler.start(full=True)
    profiler.stop()
    before = profiler.is_first_of_device
    script.event.on_query = lambda: seen.append((os.environ.get(TEARDOWN), profiler.is_busy()))
    if fails is not None:

        def fail(*_: object) -> None:
            raise RuntimeError("torch has changed")

        monkeypatch.setattr(script.autograd, fails, fail)
        with pytest.raises(RuntimeError, match="has changed"):
            profiler.detach()
    else:
        profiler.detach()
        assert set(seen) == {("1", True), ("1", False)}, "within its session, and until Kineto has read it once more"
    assert (before, profiler.is_first_of_device) == (False, True)
    assert (os.environ.get(TEARDOWN), profiler.is_busy()) == (None, False)


def test_nothing_is_detached_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEARDOWN, raising=False)
    script = Script(uses_device=True, captures=True)
    assert not script.profiler().detach()
    assert (script.autograd.sessions, os.environ.get(TEARDOWN)) == ([], None)


def test_only_devices_with_a_context_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(device_count=lambda: 4, current_device=lambda: 0)
    assert torch_profiler.find_used_devices(module) == [0]
    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in {1, 3}, raising=False)
    assert torch_profiler.find_used_devices(module) == [1, 3]


@pytest.mark.parametrize(
    ("cuda", "variable", "can"),
    [("13.0", None, True), ("12.6", None, True), ("12.4", None, False), (None, None, False), ("13.0", "0", False)],
)
def test_cupti_is_detached_only_where_torch_itself_does(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, variable: str | None, can: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv(TEARDOWN, raising=False)
    if variable is not None:
        monkeypatch.setenv(TEARDOWN, variable)
    assert Script().profiler().can_detach is can


def test_an_older_torch_makes_its_event_objects() -> None:
    autograd = Autograd()
    profiler = TorchProfiler(autograd, c_profiler(knows_trace_only=False))
    profiler.start(full=True)
    assert (profiler.stop(), len(autograd.sessions)) == ("result", 1)


# -- which devices there are ------------------------------------------------------------------------------------------


@dataclass
class Module:
    """torch.cuda or torch.xpu, as far as it is used."""

    compiled: bool
    initialized: bool = False

    def _is_compiled(self) -> bool:
        return self.compiled

    def is_initialized(self) -> bool:
        return self.initialized

    Event = Event


def profiler_of(autograd: Autograd) -> TorchProfiler:
    return TorchProfiler(autograd, c_profiler(), None, find_devices(autograd, c_profiler()))


def test_devices_are_not_counted_before_the_script_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, autograd = Module(compiled=True), Autograd()
    monkeypatch.setattr(torch, "cuda", cuda)
    profiler = profiler_of(autograd)
    assert (profiler.sees_device, profiler.misses_device) == (False, False)
    assert autograd.counted_devices == 0, "to count them would initialize the driver"
    cuda.initialized = True
    assert (profiler.sees_device, profiler.misses_device, autograd.counted_devices) == (True, False, 1)


@pytest.mark.parametrize(("supported", "teardown"), [({"CPU"}, "0"), ({"CPU", "CUDA"}, "1")])
def test_a_device_in_use_that_cannot_be_recorded_is_missed(
    monkeypatch: pytest.MonkeyPatch, supported: set[str], teardown: str
) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", teardown)
    monkeypatch.setattr(torch, "cuda", Module(compiled=True, initialized=True))
    profiler = profiler_of(Autograd(frozenset(supported)))
    assert (profiler.sees_device, profiler.misses_device, profiler.is_first_of_device) == (False, True, False)


def test_torch_without_build_information_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace())
    monkeypatch.setattr(torch, "xpu", None)
    assert find_devices(Autograd(), c_profiler()) == ()


def test_this_torch_is_checked_like_any_other() -> None:
    profiler = TorchProfiler.find()
    assert profiler.sees_device == torch.cuda.is_initialized()
    assert not torch.cuda.is_initialized()
    assert (communicates(), is_current_stream_capturing()) == (False, False)
