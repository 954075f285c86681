"""Tests of reading torch's version before it is imported: autoload needs 2.5."""

from pathlib import Path

import pytest
import torch

from rankscope.agent import script_launch

UNKNOWN = script_launch.AUTOLOAD_SINCE


def test_the_installed_torch_is_seen_as_it_calls_itself() -> None:
    assert script_launch._read_torch_release() == tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("__all__ = ['__version__', 'cuda']\n__version__ = '2.4.1+cu121'\ncuda = '12.1'\n", (2, 4)),
        ('__version__ = "2.10.0a0+git1234"\n', (2, 10)),
        ("__version__ = internal\n", UNKNOWN),
        ("cuda = None\n", UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_torch_of_unknown_version_counts_as_current(
    text: str | None, release: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    if text is not None:
        (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert script_launch._read_torch_release() == release
    assert script_launch._is_autoloaded() is (release >= script_launch.AUTOLOAD_SINCE)


def test_without_torch_there_is_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert script_launch._read_torch_release() == UNKNOWN
