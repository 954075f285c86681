"""Tests that agent and script each import their own module of the same name."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.import_path import forget_shadowed, standard_library_first

UNUSED = "sched"
"""A module of the standard library that nothing here imports."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A script's folder, which is searched first."""
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(UNUSED, None)
    yield tmp_path
    sys.modules.pop(UNUSED, None)


def import_unused() -> str:
    """The file that it comes from."""
    return str(importlib.import_module(UNUSED).__file__)


def test_module_of_the_script_does_not_replace_the_standard_one(folder: Path) -> None:
    (folder / f"{UNUSED}.py").touch()
    with standard_library_first():
        assert Path(import_unused()).parent != folder


def test_script_still_imports_its_own_module_afterwards(folder: Path) -> None:
    own = folder / f"{UNUSED}.py"
    own.touch()
    with standard_library_first():
        import_unused()
    assert import_unused() == str(own)


def test_module_that_the_script_has_not_is_kept(folder: Path) -> None:
    (folder / UNUSED).mkdir()  # without __init__.py: Python, too, prefers the standard library's
    with standard_library_first():
        import_unused()
    assert UNUSED in sys.modules


def test_module_imported_before_is_kept(folder: Path) -> None:
    (folder / "json.py").touch()
    before = sys.modules["json"]
    with standard_library_first():
        importlib.import_module("json")
    assert sys.modules["json"] is before


def test_path_keeps_additions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    with contextlib.suppress(ImportError), standard_library_first():
        sys.path.append("/added")
        raise ImportError("no torch here")
    assert sys.path == [*before, "/added"]


def test_replaced_path_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_library_first():
        monkeypatch.setattr(sys, "path", ["/new"])
    assert sys.path == ["/new"]


def test_importer_of_somebodys_own_that_fails_costs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError(path)

    monkeypatch.setattr(sys, "path_hooks", [fail])
    monkeypatch.delitem(sys.path_importer_cache, str(folder), raising=False)
    before = set(sys.modules) - {"json"}
    forget_shadowed(before)
    assert "json" in sys.modules
