"""Reads the identity of this rank process from the launcher's environment variables."""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.measure.identity import LABEL_LENGTH_MAX, RankIdentity
from rankscope.measure.machine import read_machine_id

UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
USER_VARIABLES: Final = ("SLURM_JOB_USER", "LOGNAME", "USER")
"""The owner of the Slurm job, else the login name. The user database is not asked: on a cluster that may be a request
to a directory server, which training would wait for.
"""
NAMESPACE_VARIABLES: Final = ("POD_NAMESPACE", "MY_POD_NAMESPACE")
POD_VARIABLES: Final = ("POD_NAME", "MY_POD_NAME")
"""Names under which pods conventionally get their own from the downward API; Kubernetes sets none by itself. A host
name is no pod's name: that of an indexed job, or of a pod with the host's network, is another.
"""
NAMESPACE_FILE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""Mounted with a pod's service account."""


def read_identity(
    environment: Mapping[str, str],
    run: str,
    node: str = "",
    *,
    with_user: bool = False,
    namespace_file: str = NAMESPACE_FILE,
) -> RankIdentity:
    """Return the identity of this rank process; without a launcher it is rank 0 of 1.

    `run` is the configured name; empty means the launcher's (TORCHELASTIC_RUN_ID), with the script's name before it
    where that is a UUID. If it is unset or torchrun's
    default `none`, the name is made from MASTER_ADDR (from `node` where that is localhost) and MASTER_PORT, so that
    concurrent runs differ. `node` is the configured name of the machine; empty means its host name. The user is left
    out unless `with_user`.
    """
    node = node or socket.gethostname()
    return RankIdentity(
        run=_to_text(run or _launcher_run(environment, node)),
        rank=_number(environment, "RANK", 0),
        local_rank=_number(environment, "LOCAL_RANK", 0),
        world_size=max(1, _number(environment, "WORLD_SIZE", 1)),
        node=_to_text(node),
        restart_count=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        boot_id=os.urandom(8).hex(),
        pid=os.getpid(),
        machine_id=read_machine_id(),
        slurm_job_id=_first(environment, "SLURM_JOB_ID"),
        user=_first(environment, *USER_VARIABLES) if with_user else "",
        k8s_namespace=_first(environment, *NAMESPACE_VARIABLES) or _read_namespace(environment, namespace_file),
        k8s_pod=_first(environment, *POD_VARIABLES),
    )


def name_script(arguments: Sequence[str]) -> str:
    """Return the file name of the training script by the arguments of the interpreter; empty where it is no file.

    >>> name_script(["/home/me/train.py", "--epochs", "3"]), name_script(["-c"]), name_script([])
    ('train.py', '', '')
    """
    name = os.path.basename(arguments[0]) if arguments else ""
    return "" if name.startswith("-") else _to_label(name)


def name_run(script: str, uuid: str) -> str:
    """Return the name of a run that has only a UUID: the script before its first eight digits, which all ranks have.

    >>> name_run("train.py", "6f0a9c1b-52d4-4b0e-9d3c-0f6e2b7a1c55")
    'train-6f0a9c1b'
    """
    stem = os.path.splitext(script)[0]
    return f"{stem}-{uuid[:8]}" if stem else uuid


def read_script() -> str:
    """Return the file name of the script that this process runs; empty where it is no file, or not known."""
    with contextlib.suppress(Exception):  # a script may have put anything into sys.argv, and an embedder nothing
        return name_script(sys.argv)
    return ""


def _first(environment: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that is set, as a label; empty when none is."""
    return _to_label(next(filter(None, map(environment.get, names)), None) or "")


def _to_label(text: str) -> str:
    """Return text that can be sent, without spaces around it."""
    return _to_text(text.strip())


def _to_text(text: str) -> str:
    """Return text that can be sent: of limited length, with a question mark for each byte that is no UTF-8."""
    return text[:LABEL_LENGTH_MAX].encode("utf-8", "replace").decode()


def _read_namespace(environment: Mapping[str, str], path: str) -> str:
    """Return the namespace of the service account in a pod; empty elsewhere, and where none is mounted."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            return _to_label(file.read(LABEL_LENGTH_MAX))
    return ""


def reads_machine(environment: Mapping[str, str], world_size: int) -> bool:
    """Return whether this rank samples its machine for all ranks there: that with local rank 0. Where local ranks are
    not known none does, unless it is the only one: else every rank would.
    """
    return _number(environment, "LOCAL_RANK", 0 if world_size == 1 else -1) == 0


def drop_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a helper process: without the launcher's variables, and such that no agent starts, and
    that Python says nothing of its own on the script's stderr and no coverage of the script's is measured in it.
    """
    left_out = (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "RANKSCOPE", "RANKSCOPE_PID", "RANKSCOPE_WORKER_PAGE", "LD_PRELOAD",
        "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "COVERAGE_PROCESS_START",
        "COVERAGE_PROCESS_CONFIG",
    )  # fmt: skip
    return {name: value for name, value in environment.items() if name not in left_out}


def is_this_machine(host: str) -> bool:
    """Return whether `host` is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _launcher_run(environment: Mapping[str, str], node: str) -> str:
    launcher = environment.get("TORCHELASTIC_RUN_ID", "")
    if UUID.fullmatch(launcher):  # of `torchrun --standalone`, which nobody has chosen
        return name_run(read_script(), launcher)
    if launcher and launcher != "none":
        return launcher
    if "MASTER_PORT" in environment:
        master = environment.get("MASTER_ADDR", "")
        return f"{node if not master or is_this_machine(master) else master}:{environment['MASTER_PORT']}"
    return f"{node}:{os.getpid()}"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
