"""Delivers what killed ranks have left on the disk, as the sidecar of their node would, with its code.

`python -m bench.soak.left ENDPOINT KEY_FOLDER SPILL_DIR` looks into the folder of each node in there, again
and again until `finish` comes on stdin; then it ends as soon as nothing is left, and says how many lives and reports it
has delivered. It ends when stdin does. Ranks that live hold the lock of their files, so what is found is left.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankscope.agent.reporting.orphaned_reports import ReportAddress, claim_orphan, deliver
from rankscope.agent.reporting.spill_folder import find_boot_ids, open_folder
from rankscope.agent.sidecar.orphan_delivery import ATTEMPT_NS
from rankscope.measure.clock import SystemClock
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key

LOOK_S: Final = 2.0
"""Between two looks at the folder: to try the lock of each of 1,024 lives costs some 30 ms."""

FINISH_S_MAX: Final = 120.0
"""How long it tries to deliver what is left once all ranks have ended; the same as a sidecar's."""


def deliver_what_is_left(folder: str, address: ReportAddress, is_stopping: Callable[[], bool]) -> tuple[int, int]:
    """One look; how many lives and reports were delivered."""
    lives = reports = 0
    clock = SystemClock()
    for boot_id in find_boot_ids(folder):
        life = claim_orphan(folder, boot_id)
        if life is None:
            continue
        try:
            deadline_ns = clock.monotonic_ns() + ATTEMPT_NS
            if deliver(life, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping):
                lives, reports = lives + 1, reports + len(life.held)
                life.remove()
        finally:
            life.close()
    return lives, reports


def _wait_for_finish(finishing: threading.Event) -> None:
    sys.stdin.readline()
    finishing.set()


def main(endpoint: str, key_folder: str, spill_dir: str) -> None:
    """Deliver until told to finish, and nothing is left."""
    keys = ClientKeys(
        read_public_key(str(Path(key_folder) / "collector.pub"), "collector_key_file"),
        read_key_pair(str(Path(key_folder) / "agent.key"), "key_file"),
    )
    finishing, pause = threading.Event(), threading.Event()

    def find_folders() -> list[str]:
        return [open_folder(str(node)) for node in sorted(Path(spill_dir).glob("*"))]

    threading.Thread(target=_wait_for_finish, args=(finishing,), daemon=True).start()
    ends_s: list[float] = []

    def is_late() -> bool:
        if finishing.is_set() and not ends_s:
            ends_s.append(time.monotonic() + FINISH_S_MAX)
        return bool(ends_s) and time.monotonic() > ends_s[0]

    lives = reports = 0
    while not is_late() and not (finishing.is_set() and not any(find_boot_ids(folder) for folder in find_folders())):
        for folder in find_folders():
            delivered = deliver_what_is_left(folder, ReportAddress(endpoint, keys), is_late)
            lives, reports = lives + delivered[0], reports + delivered[1]
        pause.wait(LOOK_S)
    print(lives, reports, sum(len(find_boot_ids(folder)) for folder in find_folders()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
