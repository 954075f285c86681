"""Keeps code that is executed from being freed while torch's profiler may read its names."""

import sys
from collections import deque
from functools import cache
from typing import Any, Final

EXECUTED_KEPT: Final = 1024
"""So many of the latest code objects that were executed are kept: the code of modules, of `exec` and of `eval`, without
the functions in it, which their modules keep. 2.5 MB were measured, of modules of torch and SymPy.
"""


@cache
def keep_executed_code() -> deque[Any]:
    """Keep the latest code objects that this process executes from now on, and return those kept now. Once a process.

    With stacks torch 2.13 notes where the names of Python's files and functions are in memory, and reads them when the
    profiler ends. The code of a module is freed once it is imported, and so are its names: the process may crash. It
    does not matter whose session it is, and whether the script imports in it or a thread of ours (decision 047).
    """
    kept = deque[Any](maxlen=EXECUTED_KEPT)
    keep = kept.append

    def keep_code(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            keep(arguments[0])

    sys.addaudithook(keep_code)
    return kept
