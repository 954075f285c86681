"""Matrix products beside a training, with what stands for torch.cuda: how many are launched, and when none is."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rankscope.agent.fault_spec import parse_fault
from rankscope.agent.faults import gpu_actions
from rankscope.agent.faults.gpu_actions import CALIBRATED, MatmulBurn, PowerCap, find_refusal
from rankscope.measure.errors import UnavailableError

PRODUCT_MS = 0.25
FIRST_REFUSED_BY_SELECT = 1024


class Event:
    """An event, which the device has reached or not."""

    is_reached = True

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.is_timed = enable_timing

    def record(self) -> None:
        """Nothing has to be kept."""

    def synchronize(self) -> None:
        """The device has done all."""

    def query(self) -> bool:
        return Event.is_reached

    def elapsed_time(self, end: "Event") -> float:
        assert self.is_timed
        assert end.is_timed
        return PRODUCT_MS * CALIBRATED


class Cuda:
    """What stands for torch.cuda."""

    Event = Event

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.current: object = "the training's"
        self.initialized = True
        self.capturing = False

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Stream(self, *, priority: int) -> str:  # noqa: N802 - torch's name
        self.streams.append(priority)
        return "the fault's"

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Torch:
    """What stands for torch: it counts products, all of which have to be on the fault's stream."""

    bfloat16 = "bfloat16"

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.products = 0
        self.allocated: list[tuple[int, int]] = []

    no_grad = staticmethod(contextlib.nullcontext)

    def zeros(self, size: tuple[int, int], *, dtype: str, device: str) -> str:
        assert (dtype, device, self.cuda.current) == ("bfloat16", "cuda", "the fault's")
        self.allocated.append(size)
        return "matrix"

    def mm(self, _left: str, _right: str, *, out: str) -> None:
        assert (out, self.cuda.current) == ("matrix", "the fault's")
        self.products += 1


def burn_of(torch: Any, ms: int = 50) -> MatmulBurn:
    return MatmulBurn(ms, torch)


def test_as_many_products_are_launched_as_last_that_long() -> None:
    torch = Torch()
    burn = burn_of(torch)
    burn.act()
    assert torch.products == 2 * CALIBRATED + 200  # 50 ms / 0.25 ms
    burn.act()
    assert torch.products == 2 * CALIBRATED + 400
    assert (torch.cuda.streams, torch.allocated) == ([-1], [(4096, 4096)] * 3)  # once
    assert torch.cuda.current == "the training's"


def test_burst_is_left_out_while_the_last_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    burn = burn_of(torch)
    burn.act()
    before = torch.products
    monkeypatch.setattr(Event, "is_reached", False)
    burn.act()
    assert torch.products == before, "the queue of the device would grow with each step"


def test_nothing_is_launched_into_a_graph_that_is_captured() -> None:
    torch = Torch()
    torch.cuda.capturing = True
    burn_of(torch).act()
    assert (torch.products, torch.allocated) == (0, [])


def test_rank_without_a_gpu_is_said() -> None:
    torch = Torch()
    torch.cuda.initialized = False
    with pytest.raises(UnavailableError, match="this rank had not used an NVIDIA GPU when the fault began"):
        burn_of(torch).act()


def test_torch_without_gpus_refuses_matrix_products() -> None:
    # The torch of the tests is built for CPUs, which `may_have_device` reads from it.
    import torch  # noqa: PLC0415 - only here the real one

    expected = "this torch is built without support for GPUs" if torch.version.cuda is None else ""
    assert find_refusal(parse_fault("rank=0 kind=matmul_burn steps=0:9")) == expected
    assert find_refusal(parse_fault("rank=0 kind=host_sleep steps=0:9")) == ""


# -- the helper that holds a power limit ------------------------------------------------------------------------------

WAIT = "import os; from rankscope.agent.faults.power_cap import _wait_for_end_of; _wait_for_end_of(os.getppid())"


def test_helper_ends_though_a_forked_worker_keeps_its_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_actions, "HELPER_S_MAX", 10.0)
    with subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE) as helper:
        assert helper.stdin is not None
        of_worker = os.dup(helper.stdin.fileno())
        cap = PowerCap("GPU-8f6d")
        cap._helper = helper
        cap.end()
        has_ended = helper.poll() is not None
        os.close(of_worker)
    assert has_ended, "training would wait, and the limit stay until the end of the run"


def test_line_of_a_helper_is_read_in_a_process_with_many_open_files() -> None:
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max <= FIRST_REFUSED_BY_SELECT:
        pytest.skip("this machine allows no more open files")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:  # other tests of this process may hold files, too
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
        held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(FIRST_REFUSED_BY_SELECT))
        with subprocess.Popen(["/bin/echo", "ok 700000 200000"], stdout=subprocess.PIPE) as helper:
            assert helper.stdout is not None
            assert helper.stdout.fileno() >= FIRST_REFUSED_BY_SELECT
            assert gpu_actions._read_line(helper) == "ok 700000 200000"
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
