"""Reads how much memory of the machine new allocations can get, before something is swapped out or killed.

    /proc/meminfo       MemTotal and MemAvailable: the kernel's estimate, which counts caches that it can drop
    memory.max          limit of a control group (cgroup v2), with memory.current in use; `inactive_file` in memory.stat
                        are caches that the kernel drops before it kills
    memory.limit_in_bytes, memory.usage_in_bytes, total_inactive_file    the same in version 1

Whichever leaves less counts: in a container mostly its limit. Limits of groups further up are not
seen from a container.
"""

import os
from typing import Final, NamedTuple

from rankscope.agent.cgroups import find_cgroup_folders
from rankscope.agent.sample.fabric import parse_count, read_text

NO_LINE: Final = "no_such_line"
UNLIMITED_BYTES_MIN: Final = 2**60
"""Version 1 writes a limit near 2**63 where there is none, version 2 the word `max`."""
KIB: Final = 1024


class HostMemory(NamedTuple):
    """Memory in bytes: all there is, and what is available of it."""

    total_bytes: int
    available_bytes: int


class GroupFiles(NamedTuple):
    """The files of a control group with its limit, its use, and its statistics with the name of droppable caches."""

    limit: str
    usage: str
    stat: str
    cache: str


def find_group_files(proc: str, cgroups: str) -> GroupFiles | None:
    """Return the files of this process's control group; None where none has a limit of memory."""
    folders = find_cgroup_folders(os.path.join(proc, "self", "cgroup"), "memory", cgroups)
    candidates = [
        *(_name_files(folder, "memory.max", "memory.current", "inactive_file") for folder in folders.shared),
        *(
            _name_files(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            for folder in folders.own
        ),
    ]
    return next((files for files in candidates if os.path.exists(files.limit)), None)


def _name_files(folder: str, limit: str, usage: str, cache: str) -> GroupFiles:
    return GroupFiles(
        os.path.join(folder, limit), os.path.join(folder, usage), os.path.join(folder, "memory.stat"), cache
    )


def read_memory(proc: str, group: GroupFiles | None) -> HostMemory | str:
    """Return the memory that processes of this control group have; or the reason why it is not known."""
    machine = _read_machine(os.path.join(proc, "meminfo"))
    limited = None if group is None else _read_group(group)
    if isinstance(machine, str):
        return machine
    if limited is None or limited.total_bytes >= machine.total_bytes:
        return machine
    return HostMemory(limited.total_bytes, min(limited.available_bytes, machine.available_bytes))


def _read_machine(path: str) -> HostMemory | str:
    text, reason = read_text(path)
    if text is None:
        return reason
    lines = (line.split() for line in text.splitlines())
    kib = {words[0]: parse_count(words[1]) for words in lines if len(words) > 1}
    total, available = kib.get("MemTotal:"), kib.get("MemAvailable:")
    return NO_LINE if total is None or available is None else HostMemory(total * KIB, available * KIB)


def _read_group(files: GroupFiles) -> HostMemory | None:
    """Return what a control group may have and has left; None where it has no limit, or this cannot be read."""
    limit, usage = (parse_count(read_text(path)[0] or "") for path in (files.limit, files.usage))
    if limit is None or usage is None or limit >= UNLIMITED_BYTES_MIN:
        return None
    lines = [line.split() for line in (read_text(files.stat)[0] or "").splitlines()]
    cache = next((parse_count(words[1]) for words in lines if words[:1] == [files.cache] and len(words) > 1), None)
    return HostMemory(limit, max(0, limit - max(0, usage - (cache or 0))))
