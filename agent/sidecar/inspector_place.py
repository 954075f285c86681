"""Finds where NCCL's Inspector plugin writes its dumps, by the environment of a rank, as the plugin itself does.

    NCCL_PROFILER_PLUGIN                               the file of the plugin; read by NCCL, and by the doctor only
    NCCL_INSPECTOR_ENABLE                              1 switches it on
    NCCL_INSPECTOR_DUMP_DIR                            the folder, else nccl-inspector-SLURM_JOBID in the current one
    NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS   how often it writes; without it only when communicators end
    NCCL_INSPECTOR_DUMP_THREAD_ENABLE                  0: it writes nothing while the run goes on
    NCCL_INSPECTOR_PROM_DUMP                           1: Prometheus text in place of the JSON that is read here

A process writes one file, `HOST-pidPID.log`. Source: plugins/profiler/inspector/inspector.cc of NCCL 2.28.3 (in
ext-profiler/ then), 2.29.7, 2.30.3 and of master at 5067397 (2026-06).
"""

import os
import re
import socket
from collections.abc import Mapping
from typing import Final

import msgspec

PLUGIN: Final = "NCCL_PROFILER_PLUGIN"
ENABLE: Final = "NCCL_INSPECTOR_ENABLE"
FOLDER: Final = "NCCL_INSPECTOR_DUMP_DIR"
INTERVAL: Final = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
THREAD: Final = "NCCL_INSPECTOR_DUMP_THREAD_ENABLE"
PROMETHEUS: Final = "NCCL_INSPECTOR_PROM_DUMP"
SLURM_JOB: Final = "SLURM_JOBID"

INTERVAL_US_MAX: Final = 24 * 3600 * 10**6
_WHOLE: Final = re.compile(r"\s*([+-]?[0-9]{1,18})")


class InspectorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The dumps of a process: their file, and how often it is written. `begin_wall_us` is when the agent started, in us
    since 1970: what was written before is of an earlier process. `problem`: why nothing can be read while it runs.
    """

    path: str
    interval_us: int = 0
    begin_wall_us: int = 0
    problem: str = ""


def find_inspector_place(environment: Mapping[str, str], *, pid: int, wall_ns: int) -> InspectorPlace | None:
    """Return where process `pid` of this machine writes, which started at `wall_ns`; None where it is switched off."""
    if not _to_int(environment.get(ENABLE, ""), 0):
        return None
    folder = environment.get(FOLDER) or _name_folder(environment.get(SLURM_JOB))
    try:
        folder = os.path.abspath(folder)
    except OSError as error:  # the folder that the process is in was removed
        return InspectorPlace(path="", problem=f"where {folder} is cannot be found: {error}")
    path = os.path.join(folder, f"{socket.gethostname()}-pid{pid}.log")
    return InspectorPlace(
        path=path.encode(errors="replace").decode(),
        interval_us=min(INTERVAL_US_MAX, max(0, _to_int(environment.get(INTERVAL, ""), 0))),
        begin_wall_us=wall_ns // 1_000,
        problem=_find_problem(environment),
    )


def _find_problem(environment: Mapping[str, str]) -> str:
    if _to_int(environment.get(PROMETHEUS, ""), 0):
        return f"{PROMETHEUS} is set: it writes Prometheus text, and only its JSON is read; unset it"
    if not _to_int(environment.get(THREAD, ""), 1):
        return f"{THREAD} is 0: it writes nothing while the run goes on; unset it"
    if INTERVAL not in environment or _to_int(environment[INTERVAL], 0) < 0:
        return f"{INTERVAL} gives no interval: it writes nothing while the run goes on; 1000000 is once a second"
    return ""


def _name_folder(job: str | None) -> str:
    return "nccl-inspector-unknown-jobid" if job is None else f"nccl-inspector-{_to_int(job, 0)}"


def _to_int(text: str, default: int) -> int:
    """Return the number that a text begins with, as C reads it: 0 where there is none; `default` for an empty text."""
    found = _WHOLE.match(text)
    return default if not text else 0 if found is None else int(found[1])
