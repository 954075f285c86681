"""What a rank's main thread blocks in while its GPU works: its blocking calls by source line, for every view. Pure."""

import msgspec

from rankscope.measure.records import WindowSynchronizations
from rankscope.measure.text import to_line


class BlockingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Blocking calls of one kind in which a rank's host waited for its GPU, in its last full windows, mean of a step.
    `line` is null where it is not known, `operator` where none was recorded. During `idle_ns`, at most the wait, the
    GPU was idle around the end of a call.
    """

    line: str | None
    operator: str | None
    call: str
    count: float
    wait_ns: float
    idle_ns: float


def list_blocking_calls(windows: WindowSynchronizations | None) -> tuple[BlockingCalls, ...] | None:
    """Return the kinds with the longest waits, the longest first; None without a window with steps."""
    if windows is None or windows.step_count <= 0:
        return None
    return tuple(
        BlockingCalls(
            line=None if kind.line is None else to_line(kind.line),
            operator=None if kind.operator is None else to_line(kind.operator),
            call=to_line(kind.call),
            count=kind.count / windows.step_count,
            wait_ns=kind.waits_ns / windows.step_count,
            idle_ns=kind.idle_ns / windows.step_count,
        )
        for kind in windows.kinds
    )
