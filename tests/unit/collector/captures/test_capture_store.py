"""The folder of captures: files that arrive in parts, and what is deleted."""

import hashlib
from pathlib import Path

from rankscope.collector.captures.capture import Capture, CaptureFile
from rankscope.collector.captures.store import CaptureStore, KeptCapture


def capture(name: str, *, state: str = "complete", changed_wall_s: float = 0.0, size: int = 10) -> Capture:
    return Capture(
        id=name, run="bert", run_id="bert@1", state=state, asked_wall_s=changed_wall_s, changed_wall_s=changed_wall_s,
        files=(CaptureFile("report.html", size),),
    )  # fmt: skip


def open_store(folder: Path, *, kept_s: float = 100.0, bytes_max: int = 100) -> CaptureStore:
    store = CaptureStore(folder, kept_s=kept_s, bytes_max=bytes_max)
    store.write(KeptCapture(capture("c1")))
    return store


def test_parts_in_any_order_make_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.write_part("c1", 3, 4, b"b")
    store.write_part("c1", 3, 0, b"aaaa")
    unfinished = store.list_files("c1")
    assert store.finish("c1", 3, 5, hashlib.sha256(b"aaaab").hexdigest()) == ""
    assert unfinished == ()
    assert store.list_files("c1") == (CaptureFile("rank-3.pt.trace.json.gz", 5),)


def test_file_with_another_checksum_is_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.write_part("c1", 3, 0, b"aaaa")
    assert "checksum is wrong" in store.finish("c1", 3, 4, hashlib.sha256(b"bbbb").hexdigest())
    assert [path.name for path in (tmp_path / "c1").iterdir()] == ["capture.json"]


def test_captures_are_read_back_oldest_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.write(KeptCapture(capture("a0", changed_wall_s=5.0)))
    (tmp_path / "broken").mkdir()
    unreadable: list[Path] = []
    assert [one.capture.id for one in store.load(unreadable.append)] == ["c1", "a0"]
    assert unreadable == [tmp_path / "broken"]


def test_folder_that_does_not_exist_has_no_captures(tmp_path: Path) -> None:
    assert CaptureStore(tmp_path / "none", kept_s=1.0, bytes_max=1).load(lambda _folder: None) == []


def test_old_captures_go_and_never_one_that_is_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    known = [capture("old"), capture("on", state="fetching"), capture("new", changed_wall_s=150.0)]
    assert [one.id for one in store.find_expired(known, 200.0, 10)] == ["old"]  # kept for 100 s


def test_oldest_captures_go_while_all_are_too_large(tmp_path: Path) -> None:
    store = open_store(tmp_path, bytes_max=25)
    known = [capture(str(number), changed_wall_s=float(number)) for number in range(4)]  # 40 bytes
    assert [one.id for one in store.find_expired(known, 5.0, 10)] == ["0", "1"]


def test_oldest_captures_go_while_there_are_too_many(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    known = [capture(str(number), changed_wall_s=float(number)) for number in range(3)]
    assert [one.id for one in store.find_expired(known, 5.0, 2)] == ["0"]
