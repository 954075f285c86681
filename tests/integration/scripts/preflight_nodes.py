"""One rank of a pre-flight as if alone on a node of its own, `node-RANK`, in a control group that bounds its CPU time:

    forked_ranks.py COUNT preflight_nodes.py GROUPS DYING OPTIONS...

GROUPS: folders of control groups, one a rank, separated by commas, or `-`. DYING: the rank that kills itself once all
have met, or `-`.
"""

import os
import signal
import sys
from pathlib import Path

RANK = int(os.environ["RANK"])
os.environ.update(RANKSCOPE_NODE=f"node-{RANK}", LOCAL_RANK="0")
groups, dying, *options = sys.argv[1:]
if groups != "-":
    (Path(groups.split(",")[RANK]) / "cgroup.procs").write_text(str(os.getpid()))

from rankscope.agent.preflight import command, runner  # noqa: E402 - in its control group before anything else

if dying == str(RANK):

    def die(*_: object, **__: object) -> None:
        """Die as by the kernel's out-of-memory killer."""
        os.kill(os.getpid(), signal.SIGKILL)

    runner.Runner.run = die  # type: ignore[method-assign]
command.main(options)
