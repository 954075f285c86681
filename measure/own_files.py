"""Tells files of this package from the user's, by a file's name as a frame, a traceback or a trace has it.

A trace has names without what is on `sys.path`: `rankscope/agent/steps/torch_hooks.py` of an installed package, and
`agent/steps/torch_hooks.py` of a checkout. A folder of the user may be called `agent` as well, so there only files
count that this package has two folders deep, as it has all hooks.
"""

import contextlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

FILES_MAX: Final = 1024
"""Names of files of which the answer is remembered."""
_PACKAGES: Final = ("agent", "measure", "uplink", "preflight")
_HOME: Final = Path(__file__).absolute().parents[1]
_FOLDERS: Final = tuple(f"{_HOME / name}/" for name in _PACKAGES)
_INSTALLED: Final = tuple(f"rankscope/{name}/" for name in _PACKAGES)


@lru_cache(maxsize=FILES_MAX)
def is_own_file(file: str) -> bool:
    """Return whether a file is one of this package, of its part that runs within a training.

    >>> [is_own_file(file) for file in ("rankscope/agent/scopes.py", "/home/me/agent/steps/torch_hooks.py")]
    [True, True]
    >>> [is_own_file(file) for file in ("agent/scopes.py", "agent/steps/torch.py", "/home/me/rankscope_train.py")]
    [False, False, False]
    """
    if file.startswith((*_FOLDERS, *_INSTALLED)) or any(f"/{folder}" in file for folder in _INSTALLED):
        return True
    with contextlib.suppress(OSError):  # a process may have no file left to open, and asks this of its last error
        return "/".join(file.split("/")[-3:]) in _find_nested()
    return False


@cache
def _find_nested() -> frozenset[str]:
    """Return the files in the folders of the agent, `agent/steps/torch_hooks.py`; none where they are in an archive."""
    return frozenset(f"agent/{file.parent.name}/{file.name}" for file in (_HOME / "agent").glob("*/*.py"))
