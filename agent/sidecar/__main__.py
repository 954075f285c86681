"""`python -m rankscope.agent.sidecar FOLDER LOCK`: the sidecar, see watch.py. Started by a rank, see link.py.

It leaves its starter at once (a second fork), so that the rank has no child that it would have to wait for, and nobody
finds it among the rank's children.
"""

import os
import sys

from rankscope.agent.sidecar.directory import remove_folder, sweep
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
    finally:
        watch.close()
        remove_folder(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
