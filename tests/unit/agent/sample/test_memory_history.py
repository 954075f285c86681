"""MemoryHistory: when torch is told to record, what is written when an allocation fails, and what is left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.agent.guard import Guard
from rankscope.agent.sample import memory_history
from rankscope.agent.sample.memory_history import (
    DISK_FULL,
    ENOUGH,
    ENTRIES_MAX,
    FILES_MAX,
    FOREIGN,
    NO_FOLDER,
    OF_URL,
    RECENT,
    SPACING_NS,
    TOO_LARGE,
    MemoryHistory,
    find_largest_free,
    find_module_codes,
)
from rankscope.agent.sample.out_of_memory import HISTORY, NOT_READ, OutOfMemoryWatch
from rankscope.collector.memory.plain_pickle import load_plain
from rankscope.measure.identity import RankIdentity
from rankscope.measure.module_frames import MODULES_KEY
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import AllocatorSample, DeviceSample
from rankscope.measure.units import NS_PER_S, HostNs, WallNs
from tests.cuda_stand_in.allocator import StandInAllocator

GIB = 2**30
TOTAL = 80 * GIB
S = NS_PER_S
RING = {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": ENTRIES_MAX}


class Cuda(StandInAllocator):
    def is_initialized(self) -> bool:
        return True


class Clock:
    now_ns = 0

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(0)


class Rank:
    """A rank with a device of 80 GiB; it allocates so often a second."""

    def __init__(self, folder: str = "", *, headroom_ratio: float = 0.05, restart_count: int = 0) -> None:
        identity = RankIdentity(
            run="bert", rank=3, local_rank=3, world_size=8, node="n", restart_count=restart_count, boot_id="b", pid=1
        )
        self.cuda: Any = Cuda()
        self.clock = Clock()
        self.guard = Guard(3)
        self.history = MemoryHistory(
            self.cuda, identity, folder=folder, headroom_ratio=headroom_ratio, cost_ratio_max=0.005
        )
        self.watch = OutOfMemoryWatch(self.clock, self.guard, self.cuda, lambda _device: None, history=self.history)
        self.watch.start(lambda handle, now_ns, find: handle(now_ns, find), lambda: (5, "forward"), lambda: None)
        self.watch.attach()

    def report(
        self, peak: int, *, allocations: int = 1000, retries: int = 0, device: DeviceSample | None = None
    ) -> None:
        """Read the samples of a report, 1 s after the last."""
        self.clock.now_ns += S
        self.cuda.stats["allocation"]["all"]["allocated"] += allocations
        sample = AllocatorSample(
            host_ns=self.clock.now_ns, reserved_bytes=60 * GIB, allocated_peak_bytes=peak, retries=retries
        )
        self.watch.watch_headroom(0, () if device is None else (device,), sample)

    def fail(self) -> OutOfMemory:
        self.cuda.run_out(2 * GIB, limit_bytes=TOTAL, free_bytes=GIB)
        return self.watch.collect(last=True)[-1]

    @property
    def recordings(self) -> Any:
        return self.cuda.memory.recordings


def test_recording_begins_once_less_than_the_share_was_left() -> None:
    rank = Rank()
    rank.report(76 * GIB)
    rank.report(76 * GIB)
    assert rank.recordings == []  # 4 GiB of 80 are 5 %
    rank.report(77 * GIB)
    rank.report(77 * GIB)
    assert rank.recordings == [RING]
    rank.report(78 * GIB)
    assert rank.recordings == [RING]


def test_what_others_use_of_the_device_counts() -> None:
    rank = Rank()
    device = DeviceSample(host_ns=0, uuid="GPU", memory_total_bytes=TOTAL, memory_used_bytes=67 * GIB)
    rank.report(70 * GIB, device=device)
    rank.report(70 * GIB, device=device)
    assert rank.recordings == [RING]  # 60 of the 67 are torch's: 80 - 7 - 70 = 3


def test_allocation_that_was_tried_again_begins_it_too() -> None:
    rank = Rank()
    rank.report(GIB, retries=1)
    rank.report(GIB, retries=1)
    assert rank.recordings == [RING]


def test_nothing_is_recorded_where_it_would_cost_too_much() -> None:
    rank = Rank()
    for _ in range(5):
        rank.report(79 * GIB, allocations=2_000)  # 6 ms of a second
    assert rank.recordings == []
    rank.report(79 * GIB, allocations=1_600)  # 4.8 ms
    rank.report(79 * GIB, allocations=1_600)
    assert rank.recordings == [RING]


def test_zero_switches_it_off() -> None:
    rank = Rank(headroom_ratio=0.0)
    rank.report(80 * GIB, retries=9)
    rank.report(80 * GIB, retries=9)
    assert rank.recordings == []


def test_recording_of_the_script_is_left_alone(tmp_path: Path) -> None:
    rank = Rank(str(tmp_path))
    rank.cuda.memory._C.records_history = True
    rank.report(80 * GIB)
    rank.report(80 * GIB)
    assert rank.recordings == []
    rank.cuda.memory._snapshot = lambda: pytest.fail("its history may have no bound")
    assert rank.fail().absent["snapshot"] == FOREIGN
    assert list(tmp_path.iterdir()) == []


class Attention(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def frames_of(*functions: Any) -> list[dict[str, Any]]:
    codes = [one.__code__ for one in functions]
    return [{"filename": one.co_filename, "line": one.co_firstlineno + 1, "name": one.co_name} for one in codes]


def use(rank: Rank) -> None:
    """Let torch have 60 GiB, of which 50 are in use."""
    frames = frames_of(nn.Linear.forward, Attention.forward)
    blocks = [
        {"size": 50 * GIB, "state": "active_allocated", "frames": frames},
        {"size": 4 * GIB, "state": "inactive"},
        {"size": 6 * GIB, "state": "inactive"},
    ]
    rank.cuda.segments = [{"device": 0, "blocks": blocks}, {"device": 1, "blocks": [{"size": 9 * GIB, "state": "x"}]}]


def test_notice_has_lines_modules_the_largest_piece_and_the_file(tmp_path: Path) -> None:
    rank = Rank(str(tmp_path))
    use(rank)
    notice = rank.fail()
    path = tmp_path / "bert" / "out-of-memory" / "rank-3-1.pickle"
    assert (notice.largest_free_bytes, notice.snapshot) == (6 * GIB, str(path))
    (held,) = notice.held
    assert (held.bytes, held.module, held.frames[1].function) == (50 * GIB, "Linear in Attention", "forward")
    assert "held" not in notice.absent
    written = load_plain(path.read_bytes())
    assert len(written["segments"]) == 2
    assert {"Linear", "Attention"} <= {row[4] for row in written[MODULES_KEY]}
    assert path.stat().st_mode & 0o777 == 0o600


def test_attempts_have_folders_of_their_own(tmp_path: Path) -> None:
    notice = Rank(str(tmp_path), restart_count=2).fail()
    assert notice.snapshot == str(tmp_path / "bert" / "restart-2" / "out-of-memory" / "rank-3-1.pickle")


def test_dozens_of_errors_write_one_file_and_later_ones_few(tmp_path: Path) -> None:
    rank = Rank(str(tmp_path))
    assert rank.fail().snapshot
    assert {rank.fail().absent["snapshot"] for _ in range(24)} == {RECENT}
    whys = []
    for _ in range(FILES_MAX):
        rank.clock.now_ns += SPACING_NS
        whys.append(rank.fail().absent.get("snapshot"))
    assert whys == [None] * (FILES_MAX - 1) + [ENOUGH]
    assert len(list((tmp_path / "bert" / "out-of-memory").iterdir())) == FILES_MAX


@pytest.mark.parametrize(("folder", "why"), [("", NO_FOLDER), ("s3://bucket/captures", OF_URL)])
def test_without_a_folder_there_are_the_numbers_only(folder: str, why: str) -> None:
    rank = Rank(folder)
    use(rank)
    notice = rank.fail()
    assert (notice.snapshot, notice.absent["snapshot"], notice.largest_free_bytes) == ("", why, 6 * GIB)


def test_full_disk_and_large_snapshot_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_history, "FREE_BYTES_MIN", 2**62)
    assert Rank(str(tmp_path)).fail().absent["snapshot"] == DISK_FULL
    monkeypatch.setattr(memory_history, "FILE_BYTES_MAX", 10)
    assert Rank(str(tmp_path)).fail().absent["snapshot"] == TOO_LARGE
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "bert").write_text("a file")
    notice = Rank(str(tmp_path)).fail()
    assert (notice.snapshot, notice.absent["snapshot"]) == ("", "Not a directory")


def test_snapshot_that_fails_costs_no_notice(tmp_path: Path) -> None:
    rank = Rank(str(tmp_path))
    rank.cuda.memory._snapshot = lambda: 1 / 0
    notice = rank.fail()
    assert (notice.asked_bytes, notice.absent["snapshot"]) == (2 * GIB, NOT_READ)
    assert rank.guard.errors == {HISTORY: 1}


def test_failing_recording_is_switched_off_and_not_retried() -> None:
    rank = Rank()
    rank.cuda.memory._record_memory_history = lambda *_given, **_named: 1 / 0
    for _ in range(9):
        rank.report(80 * GIB)
    assert rank.guard.errors == {HISTORY: 3}


def test_pieces_in_use_are_not_free() -> None:
    assert find_largest_free([{"blocks": [{"size": 9, "state": "active_awaiting_free"}]}]) == 0


def test_code_of_modules_that_are_on_no_stack_is_left_out() -> None:
    assert list(find_module_codes([{"blocks": [{"frames": frames_of(frames_of)}, {"frames": None}]}])) == []
