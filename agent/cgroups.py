"""Finds the folders of a process's cgroups.

In a container the path may be the host's while only the container's part is mounted: then the mount itself is the
cgroup. So each cgroup has two candidate folders, of which callers use the one that exists.
"""

import contextlib
import os
from typing import NamedTuple


class CgroupFolders(NamedTuple):
    """Candidate folders, the likeliest first: `own` of the controller's hierarchy (cgroup v1), `shared` of all (v2).

    With both versions mounted, v2 is in the folder `unified` beside those of v1.
    """

    own: list[str]
    shared: list[str]


def find_cgroup_folders(membership: str, controller: str, mounts: str) -> CgroupFolders:
    """Return the folders named by a file like /proc/PID/cgroup; none if unreadable. `mounts` is like /sys/fs/cgroup."""
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
