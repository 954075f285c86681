"""Act as a rank without torch: write its beacon, then follow the commands on stdin.

beat NS          a heartbeat at that time        goodbye CODE     the agent ends; then the process waits for its end
"""

import os
import sys

from rankscope.agent.sidecar.beacon import Heartbeat
from rankscope.agent.sidecar.link import SidecarLink
from rankscope.measure.identity import BootId, RankIdentity, RunId


def main() -> None:
    """Act as rank argv[2] of run argv[1]."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it takes seconds and is not what is shown here
    rank = int(sys.argv[2])
    identity = RankIdentity(
        run=RunId(sys.argv[1]), rank=rank, local_rank=rank, world_size=2, node="n0", restart_count=0,
        boot_id=BootId(f"boot-of-{rank}"), pid=os.getpid(),
    )  # fmt: skip
    link = SidecarLink(identity, os.environ, frozen_after_ns=10**18)
    link.open(0)
    sys.stdout.write(f"{link.folder}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        word, number = line.split()
        if word == "beat":
            link.write_heartbeat(Heartbeat(int(number)))
        else:
            link.end(int(number), is_acknowledged=True)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
