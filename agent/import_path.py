"""Imports standard modules for the agent even where the training script has modules of the same name.

A script's folder and PYTHONPATH are searched before the standard library, and may contain a `secrets.py`. If the agent
imported that one, the agent would fail. If Python's stayed in `sys.modules`, the script's `import secrets` would get
it, and training would fail.
"""

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def standard_library_first() -> Iterator[None]:
    """Search the standard library before the script's folders, and afterwards forget modules that those shadow.

    Folders are inserted into `sys.path` and removed one by one, since another thread may change the path meanwhile.
    """
    folders = _find_standard_folders()
    before = set(sys.modules)
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            with contextlib.suppress(ValueError):  # the script has replaced the path meanwhile
                sys.path.remove(folder)
        forget_shadowed(before)


def forget_shadowed(before: set[str]) -> None:
    """Drop from `sys.modules` the standard modules imported since `before` that a module of the script shadows.

    Existing references to them stay valid.
    """
    with contextlib.suppress(Exception):  # a custom importer may fail in any way
        _forget_shadowed(before)


def _forget_shadowed(before: set[str]) -> None:
    ahead = _find_folders_ahead()
    known = sys.stdlib_module_names - set(sys.builtin_module_names)
    new = {name.partition(".")[0] for name in tuple(sys.modules) if name not in before}
    shadowed = {name for name in new & known if name not in before and _has(ahead, name)}
    for name in tuple(sys.modules):
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _find_standard_folders() -> list[str]:
    home = os.path.dirname(getattr(os, "__file__", ""))
    known = (home, os.path.join(home, "lib-dynload"))
    return [folder for folder in dict.fromkeys(sys.path) if home and folder in known]


def _find_folders_ahead() -> list[str]:
    """Return the folders that are searched before the standard library."""
    standard = _find_standard_folders()
    return sys.path[: sys.path.index(standard[0])] if standard else []


def _has(folders: list[str], name: str) -> bool:
    found = importlib.machinery.PathFinder.find_spec(name, folders) if folders else None
    return found is not None and found.loader is not None  # a folder without __init__.py shadows nothing
