"""The kinds of profiler windows, and who is asked whether one may begin."""

import enum
from typing import Protocol


class WindowKind(enum.Enum):
    """What a window records.

    LIGHT       the collectives
    FULL        operators, or the work of a device
    FIRST       the same: the first one of a device, which is discarded
    HOST        the operators of a host whose device has work of its own, which is not recorded
    """

    LIGHT = "light"
    FULL = "full"
    FIRST = "first"
    HOST = "host"


class WindowGate(Protocol):
    """What may speak against a window."""

    def may_begin(self, step: int, kind: WindowKind) -> str | None:
        """Return why no window of this kind may begin with this step, as it is counted; empty: it is not counted.
        None: nothing is in the way.
        """
        ...


class ProcessGraphs(Protocol):
    """What is known of the CUDA graphs of this process, as `windows.ProfilerWindows`."""

    def may_detach(self) -> bool | None:
        """Return whether CUPTI may be detached from the process; None: not known yet."""
        ...

    def has_graphs(self) -> bool:
        """Return whether the process has a CUDA graph."""
        ...
