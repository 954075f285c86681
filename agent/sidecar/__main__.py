"""`python -m rankscope.agent.sidecar FOLDER LOCK`: the sidecar, see watch.py. Started by a rank, see link.py.

It leaves its starter at once (a second fork), so that the rank has no child that it would have to wait for, and nobody
finds it among the rank's children.
"""

import os
import sys

from rankscope.agent.sidecar.beacon import find_names
from rankscope.agent.sidecar.directory import holds_lock, remove_folder, sweep
from rankscope.agent.sidecar.watch import Watch
from rankscope.measure.clock import SystemClock


def main(arguments: list[str]) -> None:
    """Watch the ranks in the folder until the last one has ended. LOCK, an open file, is held all the while."""
    folder = arguments[0]
    if os.fork():
        os._exit(0)
    sweep(os.path.dirname(folder), keep=os.path.basename(folder))
    watch = Watch(folder, SystemClock())
    try:
        watch.run()
        # A rank may have come while this one was about to leave; it relies on whoever holds the lock.
        while not remove_folder(folder) and find_names(folder) and holds_lock(int(arguments[1]), folder):
            watch.run()
    finally:
        watch.close()


if __name__ == "__main__":
    main(sys.argv[1:])
