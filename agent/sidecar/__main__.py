"""Runs the sidecar: `python -m rankscope.agent.sidecar FOLDER LOCK`. Started by a rank, see link.py.

It forks at once and the parent exits, so that the rank has no child process to wait for.
"""

import contextlib
import os
import signal
import sys

from rankscope.agent.guard import is_debugging
from rankscope.agent.sidecar.beacon import find_names
from rankscope.agent.sidecar.directory import find_places, holds_lock, remove_folder, sweep
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.agent.sidecar.watch import Watch
from rankscope.agent.temporary_folders import sweep_temporary
from rankscope.measure.clock import SystemClock


def main(arguments: list[str]) -> None:
    """Watch the ranks in the folder until the last one has ended. LOCK is the descriptor of the locked file."""
    folder = arguments[0]
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that has started it may block all
    if not is_debugging():
        _redirect_stderr()
    faults = SidecarFaults(folder)
    try:
        sweep(os.path.dirname(folder), keep=os.path.basename(folder))
        sweep_temporary(find_places(os.environ.get("TMPDIR", "")))
        with contextlib.closing(Watch(folder, SystemClock(), faults=faults)) as watch:
            watch.run()
            # A rank may have appeared meanwhile; it relies on the sidecar that holds the lock.
            while not remove_folder(folder) and find_names(folder) and holds_lock(int(arguments[1]), folder):
                watch.run()
    except Exception as error:
        faults.note("watch", error)
        raise


def _redirect_stderr() -> None:
    """Point stderr, which served to report a failed start, to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


if __name__ == "__main__":
    main(sys.argv[1:])
