"""Where the files of a process's cgroups are: one folder for each of its places in the hierarchies.

In a container the path may be the host's while only the container's own part is mounted: then the mount itself is the
cgroup. So each place may be one of two folders, and whoever asks takes what is there.
"""

import contextlib
import os
from typing import NamedTuple


class CgroupFolders(NamedTuple):
    """Folders that may be there, the likeliest first: of the hierarchy of that controller (cgroup v1), and of the one
    that all controllers share (v2), which is mounted below v1's where there are both.
    """

    own: list[str]
    shared: list[str]


def find_cgroup_folders(membership: str, controller: str, mounts: str) -> CgroupFolders:
    """Those that a file like /proc/PID/cgroup names; none where it cannot be read. `mounts`: as /sys/fs/cgroup."""
    own: list[str] = []
    shared: list[str] = []
    with contextlib.suppress(OSError), open(membership, encoding="utf-8", errors="replace") as file:
        for line in file:
            number, controllers, path = [*line.rstrip("\n").split(":", 2), "", ""][:3]
            places = path.lstrip("/"), ""
            if controller in controllers.split(","):
                own = [os.path.join(mounts, controller, place) for place in places]
            elif number == "0":
                roots = mounts, os.path.join(mounts, "unified")
                shared = [os.path.join(root, place) for place in places for root in roots]
    return CgroupFolders(own, shared)
