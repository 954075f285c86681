"""Run a command as two tasks of srun, in a Slurm of one node that is started for it.

python -m tests.frameworks.in_slurm COMMAND...
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.slurm import running_slurm
from tests.programs import find_program


def main() -> int:
    """Return srun's status."""
    # Its sockets are in its folder, and their paths may not be long.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, running_slurm(Path(folder)) as cluster:
        environment = {**os.environ, "SLURM_CONF": cluster.environment["SLURM_CONF"]}
        command = [find_program("srun"), "--ntasks=2", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
