"""Where the training thread was during a window of a device, as the process that reduces the window gets it."""

import msgspec


class LineSamples(msgspec.Struct, frozen=True, array_like=True):
    """Where the training thread was: host times (int64, ascending) and places in `lines` (int32), of equal number.

    `in_backward` is for each line whether it was calling torch's backward. `threads` are the numbers by which the
    profiler may know the training thread.
    """

    times_host_ns: bytes = b""
    places: bytes = b""
    lines: tuple[str, ...] = ()
    in_backward: tuple[bool, ...] = ()
    threads: tuple[int, ...] = ()
