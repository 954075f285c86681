"""`rankscope files`: names it lists, files it copies, and files it keeps."""

from pathlib import Path

import pytest

from rankscope.collector.commands.files import find_names, find_root
from rankscope.collector.commands.main import USAGE_ERROR, main
from rankscope.measure.errors import UnavailableError

ROOT = Path(__file__).parents[4]


def test_list_prints_the_matching_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "--list", "deploy/s*"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "deploy/slurm/train.sbatch",
        "deploy/systemd/rankscope-collector.service",
    ]


def test_copy_creates_folders_and_writes_the_same_bytes(tmp_path: Path) -> None:
    assert main(["files", "--copy", str(tmp_path / "new"), "deploy/slurm/*"]) == 0
    name = "deploy/slurm/train.sbatch"
    assert (tmp_path / "new" / name).read_bytes() == (ROOT / name).read_bytes()


def test_copy_keeps_a_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "deploy/slurm/train.sbatch"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main(["files", "--copy", str(tmp_path), "deploy/s*"]) == 1
    assert mine.read_text() == "mine"
    assert (tmp_path / "deploy/systemd/rankscope-collector.service").exists()
    said = capsys.readouterr().err
    assert said == f"rankscope: {mine} differs and was kept: move it away to get this release's\n"


def test_copy_again_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["files", "--copy", str(tmp_path), "configs/*"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr() == ("", "")


def test_copy_into_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["files", "--copy", str(tmp_path / "file"), "configs/collector.toml"]) == 1
    said = capsys.readouterr().err
    assert said == (
        f"rankscope: {tmp_path}/file/configs/collector.toml cannot be written: Not a directory. Name another folder.\n"
    )


def test_pattern_without_a_match_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "--list", "nothing/*"]) == USAGE_ERROR
    assert "No file matches 'nothing/*'. `rankscope files --list` prints all" in capsys.readouterr().err


def test_files_of_an_installation_come_before_a_checkout(tmp_path: Path) -> None:
    for name in ("configs", "deploy", "docs", "shipped/configs", "shipped/deploy", "shipped/docs"):
        (tmp_path / name).mkdir(parents=True)
    assert find_root(tmp_path) == tmp_path / "shipped"


def test_installation_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"has no configs, deploy, docs: .* Install the wheel again"):
        find_root(tmp_path)


def test_keys_are_never_listed(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/collector.toml").write_text("")
    (tmp_path / "configs/collector.key").write_text("secret")
    assert find_names(tmp_path, "*") == ["configs/collector.toml"]
