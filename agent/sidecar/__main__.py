"""`python -m rankscope.agent.sidecar FOLDER LOCK`: the sidecar, see watch.py. Started by a rank, see link.py.

It leaves its starter at once (a second fork), so that the rank has no child that it would have to wait for, and nobody
finds it among the rank's children.
"""

import contextlib
import os
import sys

from rankscope.agent.guard import is_debugging
from rankscope.agent.sidecar.beacon import find_names
from rankscope.agent.sidecar.directory import holds_lock, remove_folder, sweep
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.agent.sidecar.watch import Watch
from rankscope.measure.clock import SystemClock


def main(arguments: list[str]) -> None:
    """Watch the ranks in the folder until the last one has ended. LOCK, an open file, is held all the while."""
    folder = arguments[0]
    if os.fork():
        os._exit(0)
    if not is_debugging():
        _let_go_of_stderr()
    faults = SidecarFaults(folder)
    try:
        sweep(os.path.dirname(folder), keep=os.path.basename(folder))
        with contextlib.closing(Watch(folder, SystemClock(), faults=faults)) as watch:
            watch.run()
            # A rank may have come while this one was about to leave; it relies on whoever holds the lock.
            while not remove_folder(folder) and find_names(folder) and holds_lock(int(arguments[1]), folder):
                watch.run()
    except Exception as error:
        faults.note("watch", error)
        raise


def _let_go_of_stderr() -> None:
    """Where the start was to say what kept it from succeeding."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


if __name__ == "__main__":
    main(sys.argv[1:])
