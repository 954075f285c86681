"""Who this process is, read from what the launcher put into the environment."""

import os
import socket
from collections.abc import Mapping

from rankscope.measure.identity import LABEL_LENGTH_MAX, RankIdentity
from rankscope.measure.machine import read_machine_id


def read_identity(environment: Mapping[str, str], run: str, node: str = "") -> RankIdentity:
    """The identity of this life of this process. A process that no launcher started is rank 0 of 1.

    `run` is the configured name; empty means the launcher's (TORCHELASTIC_RUN_ID), and where that is the launcher's
    own default `none`, one made from the machine and the port where the ranks meet, so that two jobs are told apart:
    also those on two machines whose ranks meet at localhost each.
    `node` is the configured name of the machine; empty means its host name.
    """
    node = node or socket.gethostname()
    return RankIdentity(
        run=(run or _launcher_run(environment, node))[:LABEL_LENGTH_MAX],
        rank=_number(environment, "RANK", 0),
        local_rank=_number(environment, "LOCAL_RANK", 0),
        world_size=max(1, _number(environment, "WORLD_SIZE", 1)),
        node=node[:LABEL_LENGTH_MAX],
        restart_count=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        boot_id=os.urandom(8).hex(),
        pid=os.getpid(),
        machine_id=read_machine_id(),
    )


def drop_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child of ours that is no rank: it must neither find the launcher's variables nor start an
    agent.
    """
    left_out = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "RANKSCOPE", "RANKSCOPE_PID", "LD_PRELOAD")
    return {name: value for name, value in environment.items() if name not in left_out}


def is_this_machine(host: str) -> bool:
    """Whether only processes of this machine can meet at that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _launcher_run(environment: Mapping[str, str], node: str) -> str:
    launcher = environment.get("TORCHELASTIC_RUN_ID", "")
    if launcher and launcher != "none":
        return launcher
    if "MASTER_PORT" in environment:
        master = environment.get("MASTER_ADDR", "")
        return f"{node if not master or is_this_machine(master) else master}:{environment['MASTER_PORT']}"
    return f"{node}:{os.getpid()}"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
