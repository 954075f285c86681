"""Tests of private folders in places that other users can write to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.private_folder import NAMES_MAX, choose_private, make_parents, make_private
from rankscope.measure.errors import UnavailableError

CURE = "use another place"
NOBODY = 65534
ME = f"rankscope-{os.getuid()}"

PLANT = """
import os, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
os.symlink("/tmp", sys.argv[1])
os.mkdir(sys.argv[1] + ".2", 0o777)
"""


@pytest.fixture
def wide_open() -> Iterator[None]:
    """Set umask 000, which removes no mode bits."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A place such as /tmp: everybody may make something, and nobody remove what is another's."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    return place


def mode_of(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


@pytest.mark.usefixtures("wide_open")
def test_folders_are_private_under_umask_000(tmp_path: Path) -> None:
    make_parents(str(tmp_path / "a" / "b"))
    make_private(str(tmp_path / "a" / "b" / "c"), CURE)
    assert [mode_of(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_folder_that_is_there_keeps_its_mode(shared: Path) -> None:
    make_parents(str(shared))
    assert mode_of(shared) == 0o1777


def test_the_first_name_is_chosen_before_and_after_it_is_made(shared: Path) -> None:
    chosen = choose_private(str(shared))
    assert chosen == str(shared / ME)
    make_private(chosen, CURE)
    assert choose_private(str(shared)) == chosen


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_name_of_another_user_is_skipped(shared: Path) -> None:
    """A link and a folder of `nobody` under our first two names: each process of ours finds the third.

    The working directory is `shared` already when the process becomes `nobody`, who may not pass through its parents.
    """
    subprocess.run([sys.executable, "-S", "-c", PLANT.format(user=NOBODY), ME], cwd=shared, check=True)
    assert (shared / ME).is_symlink()
    assert (shared / ME).lstat().st_uid == (shared / f"{ME}.2").stat().st_uid == NOBODY
    for _ in range(2):
        chosen = choose_private(str(shared))
        assert chosen == str(shared / f"{ME}.3")
        make_private(chosen, CURE)
        assert mode_of(Path(chosen)) == 0o700


def test_a_link_of_our_own_is_not_followed_either(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (shared / ME).symlink_to(tmp_path / "elsewhere")
    assert choose_private(str(shared)) == str(shared / f"{ME}.2")
    with pytest.raises(
        UnavailableError, match=r"rankscope-\d+ is not a private directory of this user \(lrwxrwxrwx, owner"
    ):
        make_private(str(shared / ME), CURE)


def test_error_names_the_first_folder_if_all_are_occupied(shared: Path) -> None:
    for number in range(1, NAMES_MAX + 1):
        (shared / (ME if number == 1 else f"{ME}.{number}")).write_text("")
    with pytest.raises(UnavailableError, match=r"Remove it, or use another place\.$"):
        make_private(choose_private(str(shared)), CURE)
