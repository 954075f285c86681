"""Logs a line once on each node, although every rank on it wants to.

The first rank binds an abstract Unix socket named after the text and keeps it until its process ends; the other ranks
of the run on the node find the name in use and stay silent. No file is left.
"""

import errno
import hashlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from rankscope.agent.guard import log_line

RUN_VARIABLES: Final = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that the ranks of one run on a node share, and no other run has."""


def log_once_per_node(text: str, environment: Mapping[str, str], *, topic: str = "") -> None:
    """Log the text unless a living process of this run on this node has done so.

    `topic` replaces the text as the key when ranks word it differently.
    """
    if _is_first(topic or text, environment):
        log_line(text)


def log_once_per_session(text: str) -> None:
    """Log the text unless a living process of this session (of a terminal, a batch job) has done so."""
    if _is_first(text, {"SLURM_STEP_ID": f"session {os.getsid(0)}", "WORLD_SIZE": ""}):
        log_line(text)


def _is_first(topic: str, environment: Mapping[str, str]) -> bool:
    run = [environment[name] for name in RUN_VARIABLES if name in environment]
    if not run or environment.get("WORLD_SIZE", "1") == "1":
        run = [str(os.getpid())]
    digest = hashlib.sha256("\n".join((str(os.getuid()), *run, topic)).encode(errors="replace")).hexdigest()
    try:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return True
    try:
        name.bind(f"\0rankscope-said-{digest[:32]}")
    except OSError as error:
        name.close()
        return error.errno != errno.EADDRINUSE  # without abstract sockets every rank logs it
    name.detach()  # the kernel keeps the name until this process ends
    return True
