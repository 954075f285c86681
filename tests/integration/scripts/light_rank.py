"""One light rank in a process of its own: `light_rank.py RUN RANK WORLD_SIZE ENDPOINT [SPILL_DIR]`.

It prints its boot id, then a line for every report: the number of the report and the step records made by then. It
stops when its input ends. With a folder for the spill it has a sidecar, as a rank of a training has.
"""

import os
import sys
import threading

from rankscope.agent.sidecar.beacon import Heartbeat
from rankscope.agent.sidecar.link import SidecarLink
from tests.integration.light_ranks import LightRank, light_identity


def main(run: str, rank: int, world_size: int, endpoint: str, spill_dir: str = "") -> None:
    """Be that rank."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it takes seconds and is not what is shown here
    identity = light_identity(run, rank, world_size)
    link = SidecarLink(identity, os.environ, frozen_after_ns=10**18)
    if spill_dir:
        link.update(endpoint=endpoint)
        link.open(0)

    def report(sequence: int) -> None:
        if spill_dir:
            link.update(spill_folder=light.spill.folder)
            link.write_heartbeat(Heartbeat(0))
        sys.stdout.write(f"{sequence} {light.made}\n")
        sys.stdout.flush()

    light = LightRank(identity, endpoint, spill_dir=spill_dir, on_report=report)
    sys.stdout.write(f"{identity.boot_id}\n")
    sys.stdout.flush()
    threading.Thread(target=stop_at_end_of_input, args=(light,), daemon=True).start()
    is_acknowledged = light.run()
    link.end(0, is_acknowledged=is_acknowledged)


def stop_at_end_of_input(light: LightRank) -> None:
    """Wait for the end of stdin."""
    sys.stdin.read()
    light.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
