"""A command in several processes at a time, numbered as a launcher does that knows nothing of torch:

python as_launcher.py slurm|openmpi|nobody COUNT COMMAND...
"""

import os
import subprocess
import sys

NAMES = {
    "slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "openmpi": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "nobody": ("NUMBER",),
}  # fmt: skip

if __name__ == "__main__":
    names, count = NAMES[sys.argv[1]], sys.argv[2]
    processes = []
    for number in map(str, range(int(count))):
        told = dict(zip(names, (number, count, number, count), strict=False))
        processes.append(subprocess.Popen(sys.argv[3:], env={**os.environ, **told}))
    sys.exit(max([abs(process.wait()) for process in processes]))
