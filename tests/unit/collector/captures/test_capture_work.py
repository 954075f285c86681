"""One capture whose disk fails in the middle: what is lost, and what is said."""

import hashlib
from pathlib import Path

from rankscope.collector.captures.capture import Capture
from rankscope.collector.captures.capture_work import CaptureSurroundings, CaptureWork
from rankscope.collector.captures.orders import AskedRank, Orders, Pace, Terms
from rankscope.collector.captures.store import CaptureStore
from rankscope.measure.messages import CaptureOrder, CapturePart, CaptureState, Message

SHA256 = hashlib.sha256(b"trace").hexdigest()


class Work:
    """A capture of two ranks in a folder, and the messages that were sent."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[tuple[str, Message]] = []
        asked = tuple(AskedRank(rank, "node", f"boot-{rank}") for rank in (0, 1))
        orders = Orders.begin(Terms(id="c", steps=1, bytes_max=100), asked, Pace(1, 1e8, 1_000_000_000), 0.0)
        store = CaptureStore(folder, kept_s=100.0, bytes_max=100)
        around = CaptureSurroundings(store, lambda *one: self.sent.append(one), lambda: 5.0, lambda _capture: None)
        capture = Capture(id="c", run="r", run_id="r@1", state="ordered", asked_wall_s=5.0, changed_wall_s=5.0)
        self.work = CaptureWork(capture, orders, around)
        self.work.go_on(0.0, {}, may_analyze=False)

    def write(self, rank: int, data: bytes = b"trace") -> None:
        """Say that a rank has written its file, and send it."""
        boot_id = f"boot-{rank}"
        self.work.take(boot_id, CaptureState(id="c", state="written", size_bytes=5, sha256=SHA256), 1.0)
        self.work.take(boot_id, CapturePart(id="c", offset=0, data=data), 1.0)


def test_file_that_cannot_be_written_is_lost_and_the_others_stay(tmp_path: Path) -> None:
    work = Work(tmp_path)
    (tmp_path / "c" / ".rank-0.part").mkdir()
    work.write(0)
    work.write(1)
    work.work.go_on(2.0, {}, may_analyze=False)
    capture = work.work.capture
    assert (capture.state, [one.state for one in capture.ranks]) == ("analyzing", ["failed", "fetched"])
    assert capture.problem.startswith("rank 0: its file cannot be written: Is a directory")


def test_file_that_was_changed_on_the_way_is_lost(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.write(0, b"ecart")
    work.work.go_on(2.0, {}, may_analyze=False)
    assert work.work.capture.ranks[0].reason == "its checksum is wrong: it was changed on the way"


def test_capture_that_fails_is_called_off_on_all_ranks(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.sent.clear()
    work.work.fail("the disk is gone")
    over = [boot_id for boot_id, message in work.sent if isinstance(message, CaptureOrder) and message.is_over]
    assert (work.work.capture.state, over) == ("failed", ["boot-0", "boot-1"])
    work.work.go_on(3.0, {}, may_analyze=True)
    assert not work.work.is_analyzing


def test_capture_that_fails_leaves_no_file(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.write(0)
    work.work.fail("the disk is gone")
    capture = work.work.capture
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["capture.json"]
    assert [(one.state, one.file, one.reason) for one in capture.ranks] == [("failed", "", "the disk is gone")] * 2
