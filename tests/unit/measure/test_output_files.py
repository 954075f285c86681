"""Files that options name: whether they can be written, and that they are written whole."""

import os
from pathlib import Path

import pytest

from rankscope.measure.errors import UnavailableError
from rankscope.measure.output_files import check_place, write_output, write_whole

OPTION = "--json-file"


def test_unwritable_file_is_named_before_there_is_any_output(tmp_path: Path) -> None:
    check_place(tmp_path / "new.json", OPTION)
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path / "none" / "a.json", f"there is no folder {tmp_path / 'none'}"),
        (tmp_path / "file" / "a.json", f"there is no folder {tmp_path / 'file'}"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(UnavailableError) as caught:
            check_place(str(path), OPTION)
        assert str(caught.value) == f"{path} (from {OPTION}) cannot be written: {problem}. Name another file."
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_file_that_this_user_may_not_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # nothing is locked for root
    for name, problem in (("file", "it"), ("new", f"in {tmp_path}")):
        with pytest.raises(UnavailableError, match=f"cannot be written: this user may not write {problem}\\. Name"):
            check_place(tmp_path / name, OPTION)


def test_name_without_a_folder_is_in_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_place("new.json", OPTION)
    write_whole("new.json", OPTION, "{}\n")
    assert (tmp_path / "new.json").read_text() == "{}\n"


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "exclude.txt"
    path.write_text("old\n")
    before = path.open()
    write_whole(path, "--exclude-file", "node-1\n")
    assert (before.read(), path.read_text()) == ("old\n", "node-1\n")
    assert [one.name for one in tmp_path.iterdir()] == ["exclude.txt"]
    before.close()


def test_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", OPTION, "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_place(tmp_path / "pipe", OPTION)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", OPTION, "node-1\n")
        assert os.read(reader, 100) == b"node-1\n"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_file_in_no_folder_is_said_with_the_option(tmp_path: Path) -> None:
    path = tmp_path / "none" / "exclude.txt"
    said = f"{path} (from --exclude-file) cannot be written: No such file or directory. Name another file."
    with pytest.raises(UnavailableError) as caught:
        write_whole(path, "--exclude-file", "")
    assert str(caught.value) == said
    with pytest.raises(UnavailableError) as caught:
        write_output(path, "--exclude-file", b"")
    assert str(caught.value) == said
