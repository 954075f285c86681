"""Folders that are watched, by a clock that the test turns, and the page of `rankscope analyze --watch`."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.collector.commands import watch as watching
from rankscope.collector.commands.main import main
from rankscope.collector.commands.watch import watch
from tests.unit.measure.written_traces import event, kernel, to_json


def looks(folder: Path, *turns: Callable[[], object]) -> list[int]:
    """Return after how many looks something was done; between two of them the next of `turns` happens, then Ctrl-C."""
    acted: list[int] = []
    done = 0

    def sleep(_: float) -> None:
        nonlocal done
        done += 1
        if done > len(turns):
            raise KeyboardInterrupt
        turns[done - 1]()

    watch([str(folder)], lambda: acted.append(done + 1), sleep)
    return acted


def write(file: Path, text: str) -> Callable[[], object]:
    return lambda: file.write_text(text)


def rest() -> None:
    """Change nothing."""


def test_trace_that_grows_is_left_until_it_rests(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    assert looks(tmp_path, write(trace, "a"), write(trace, "ab"), write(trace, "abc"), rest, rest) == [5]


def test_what_does_not_change_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", "a")()
    assert looks(tmp_path, rest, rest, rest, rest) == [2]


def test_new_and_rewritten_traces_are_read_again(tmp_path: Path) -> None:
    trace, other = tmp_path / "rank0.json", tmp_path / "rank1.json"
    write(trace, "a")()
    os.utime(trace, (1, 1))
    turns = (rest, write(other, "b"), rest, rest, write(trace, "c"), rest)
    assert looks(tmp_path, *turns) == [2, 4, 7]


def test_folder_without_traces_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    assert looks(folder, rest, folder.mkdir, write(tmp_path / "other", "x"), rest) == []
    assert looks(folder, write(folder / "rank0.json", "a"), rest, (folder / "rank0.json").unlink, rest) == [3]


# -- the page ---------------------------------------------------------------------------------------------------------

STEP = event("user_annotation", "ProfilerStep#1", 0, 100)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 0.05)


@pytest.mark.usefixtures("often")
def test_page_is_written_again_until_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, page = tmp_path / "traces", tmp_path / "page.html"
    traces.mkdir()
    pages: list[str] = []

    def wait_for(text: str) -> None:
        for _ in range(600):
            if page.exists() and text in page.read_text():
                break
            threading.Event().wait(0.05)
        pages.append(page.read_text() if page.exists() else "")

    def train() -> None:
        try:
            for name in ("first_kernel", "second_kernel"):
                (traces / "rank0.json").write_bytes(to_json(STEP, kernel(name, 10, 50)))
                wait_for(name)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    trainer = threading.Thread(target=train)
    trainer.start()
    assert main(["analyze", str(traces), "--html", str(page), "--watch"]) == 0
    trainer.join()
    assert ["first_kernel" in pages[0], "second_kernel" in pages[1]] == [True, True]
    assert all('<meta http-equiv="refresh" content="30">' in one for one in pages)
    assert "refresh" not in page.read_text()
    assert "second_kernel" in page.read_text()
    assert capsys.readouterr().out.count(f"{page}: 1 rank, ") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["."], "--watch is given without --html"),
        ([".", "--html", "x.html", "--json"], "--json is given with --watch, which writes a page only"),
        (["-", "--html", "x.html"], "--watch looks at files and folders of this machine"),
        (["s3://bucket/x", "--html", "x.html"], "--watch looks at files and folders of this machine"),
    ],
)
def test_what_cannot_be_watched_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", *words, "--watch"]) == 2
    assert said in capsys.readouterr().err
