"""Errors of torch's allocator on a real GPU: its observer is called inside the allocation, and its bytes are reported.

The script catches each error, and the GPU works as before.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rankscope.agent.guard import Guard
from rankscope.agent.sample.memory_history import MemoryHistory
from rankscope.agent.sample.out_of_memory import MODEL_FIELDS, ONCE, OutOfMemoryWatch
from rankscope.agent.sample.torch_memory import parse_stats
from rankscope.collector.memory.snapshot_process import read_snapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.stalls import find_script_frame

pytestmark = pytest.mark.gpu

MIB = 2**20
HELD_BYTES = 256 * MIB


class Script:
    """A script that asks for twice the memory of the device."""

    def __init__(self, history: MemoryHistory | None = None) -> None:
        torch.zeros(1, device="cuda")
        self.total_bytes = torch.cuda.get_device_properties(0).total_memory
        self.guard = Guard(3)
        self.watch = OutOfMemoryWatch(SystemClock(), self.guard, torch.cuda, history=history)
        self.woken = 0
        self.watch.start(lambda handle, now_ns, *rest: handle(now_ns, *rest), lambda: (7, "forward"), self._wake)
        self.watch.attach()

    def _wake(self) -> None:
        self.woken += 1

    def run_out(self) -> OutOfMemory:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * self.total_bytes, dtype=torch.uint8, device="cuda")
        (notice,) = self.watch.collect(last=False)
        return notice


@pytest.fixture
def script() -> Iterator[Script]:
    found = Script()
    yield found
    found.watch.stop()
    assert found.guard.errors == {}


def test_notice_has_what_was_asked_and_what_there_was(script: Script) -> None:
    tensor = torch.empty(HELD_BYTES, dtype=torch.uint8, device="cuda")
    layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.Adam(layer.parameters(), foreach=False)
    layer(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    allocated = torch.cuda.memory_allocated()
    notice = script.run_out()
    assert (notice.number, notice.step, notice.phase, script.woken) == (1, 7, "forward", 1)
    assert 2 * script.total_bytes <= notice.asked_bytes <= 2 * script.total_bytes + 2 * MIB
    assert (notice.limit_bytes, notice.allocated_bytes) == (script.total_bytes, allocated)
    assert notice.free_bytes is not None
    assert 0 < notice.free_bytes < script.total_bytes
    assert notice.reserved_bytes is not None
    assert allocated <= notice.reserved_bytes < script.total_bytes
    assert set(notice.absent) == {"held"}
    kinds = [getattr(notice, name) for name in MODEL_FIELDS]
    assert kinds == [4 * MIB, 4 * MIB, 8 * MIB], "Adam's count of steps is on the host"
    assert bool((tensor.fill_(3) == 3).all()), "the GPU works as before"


def test_held_memory_is_that_of_the_line_that_allocated(script: Script) -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        tensor = torch.empty(HELD_BYTES, dtype=torch.uint8, device="cuda")
        script.watch.read_held([script.run_out()])
        (notice,) = script.watch.collect(last=False)
        largest = max(notice.held, key=lambda one: one.bytes if one.frames else 0)
        frame = find_script_frame(largest.frames)
        assert frame is not None
        assert frame.file.endswith("test_out_of_memory.py")
        assert largest.bytes >= tensor.nbytes
        assert script.run_out().absent == dict.fromkeys((*MODEL_FIELDS, "held"), ONCE)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


class Widened(torch.nn.Linear):
    """A layer of the script."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what torch's layer does."""
        return super().forward(x)


def test_snapshot_holds_the_history_that_the_agent_recorded(tmp_path: Path) -> None:
    identity = RankIdentity(
        run="edge", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="b", pid=1
    )
    history = MemoryHistory(torch.cuda, identity, folder=str(tmp_path), headroom_ratio=1.0, cost_ratio_max=1.0)
    script = Script(history)
    layer = Widened(1024, HELD_BYTES // 4096, bias=False, device="cuda")
    try:
        for _ in range(2):
            time.sleep(0.01)
            stats = torch.cuda.memory_stats_as_nested_dict(0)
            script.watch.watch_headroom(0, (), parse_stats(stats, time.monotonic_ns()))
        assert history.is_own
        output = layer(torch.ones(1024, 1024, device="cuda"))
        begin_s = time.monotonic()
        notice = script.run_out()
        print(f"the allocation that failed took {time.monotonic() - begin_s:.3f} s")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        script.watch.stop()
    assert script.guard.errors == {}
    assert "Linear in Widened" in {one.module for one in notice.held}
    (device,) = read_snapshot(notice.snapshot).report.devices
    assert {row.module: row.bytes for row in device.modules}["Linear in Widened"] >= output.nbytes
    assert device.room is not None
    assert device.room.asked_bytes >= 2 * script.total_bytes
    assert device.room.fits_bytes < device.room.asked_bytes
