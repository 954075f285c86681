"""What the agent imports inside somebody's training process: never a module of theirs in place of Python's own.

A script's folder, and PYTHONPATH, are searched before the standard library, and a job may have a `calendar.py` or a
`secrets.py` there. Were it imported in place of Python's, the agent would fail. And were Python's left behind in
`sys.modules`, the script's own `import secrets` would get that one, and training would fail.
"""

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def standard_library_first() -> Iterator[None]:
    """Search the standard library before the job's folders, and forget afterwards what those have under the same name.

    Folders are only added, and taken away again one by one: another thread may import something, or change the path.
    """
    folders = _find_standard_folders()
    before = set(sys.modules)
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            with contextlib.suppress(ValueError):  # somebody has made the path anew meanwhile
                sys.path.remove(folder)
        forget_shadowed(before)


def forget_shadowed(before: set[str]) -> None:
    """Drop from `sys.modules` what has been imported since of the standard library, and would have come from one of the
    job's folders had the script imported it. Whoever holds such a module keeps it.
    """
    with contextlib.suppress(Exception):  # an importer of somebody's own may fail in any way
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
    """The folders that are searched before the standard library."""
    standard = _find_standard_folders()
    return sys.path[: sys.path.index(standard[0])] if standard else []


def _has(folders: list[str], name: str) -> bool:
    found = importlib.machinery.PathFinder.find_spec(name, folders) if folders else None
    return found is not None and found.loader is not None  # a folder without __init__.py shadows nothing
