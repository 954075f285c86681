"""Says a thing once on each node, though every rank on it has come upon it.

Whoever says it holds a name in the kernel (an abstract Unix socket, of which no file is left) for as long as it lives;
the other ranks of the job find the name in use. So what one rank alone has come upon is said too.
"""

import errno
import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from rankscope.agent.guard import log_line

JOB: Final = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""What the ranks of a job on one node have in common, and no other job has."""


def log_once_per_node(text: str, environment: Mapping[str, str], *, topic: str = "") -> None:
    """Say it, unless a living process of this job on this node has. `topic` stands for the text where ranks word it
    differently.
    """
    if _is_first(topic or text, environment):
        log_line(text)


def _is_first(topic: str, environment: Mapping[str, str]) -> bool:
    job = [environment[name] for name in JOB if name in environment]
    if not job or environment.get("WORLD_SIZE", "1") == "1":
        job = [str(os.getpid())]
    digest = hashlib.sha256("\n".join((str(os.getuid()), *job, topic)).encode(errors="replace")).hexdigest()
    try:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return True
    try:
        name.bind(f"\0rankscope-said-{digest[:32]}")
    except OSError as error:
        name.close()
        return error.errno != errno.EADDRINUSE  # where there are no such names it is said by everybody
    name.detach()  # the kernel keeps the name until this process ends
    return True
