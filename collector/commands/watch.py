"""Look at folders of traces again and again, and do something when what lies there has changed and is whole."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from rankscope.collector.traces.files import find_traces
from rankscope.measure.errors import UnavailableError

LOOK_EVERY_S: Final = 2.0
"""A file that is being written grows within that; one that rests longer is read as it is, and again when it grows."""

_State = tuple[tuple[str, int, int], ...]


def watch(paths: Sequence[str], act: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
    """Call `act` whenever the traces behind these paths are others than it last saw, or have changed, and nothing has
    changed since the look before: a trace that is half written is left for later. Returns at Ctrl-C.
    """
    seen: _State = ()
    before: _State = ()
    try:
        while True:
            now = _look(paths)
            if now and now == before != seen:
                act()
                seen = now
            before = now
            sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        return


def _look(paths: Sequence[str]) -> _State:
    """Return the traces with their sizes and times of change; none where there are none, or one has just gone."""
    try:
        found = [(file.path, os.stat(file.path)) for file in find_traces(paths)]  # noqa: PTH116 - of a string
    except (UnavailableError, OSError):
        return ()
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)
