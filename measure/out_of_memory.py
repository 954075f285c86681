"""Define what a rank reports when torch finds no GPU memory for an allocation.

The bytes are those at the moment of the error, before anything was freed: asked for, free on the device, and what
torch's caching allocator held. The allocations were read shortly after, when some of them may have been freed.
"""

from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import LongText, Name, Reasons
from rankscope.measure.identity import Count
from rankscope.measure.stalls import StackFrame

NOTICES_MAX: Final = 4
"""Errors in one report. A script that tries batch sizes until one fits raises dozens within a second: the newest
are reported, and `number` counts all of them."""
ALLOCATIONS_MAX: Final = 8
FRAMES_MAX: Final = 6
"""With texts of 160 characters, of which each takes 4 bytes, all frames together have 61 KB; in ASCII 15 KB."""


class HeldMemory(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Memory that was held for allocations with the same stack: bytes in all, how many blocks, and the Python frames
    that allocated, innermost first. `module`: whose code of torch.nn that was, `Linear in Attention`; empty: none's.
    """

    bytes: Count
    blocks: Count
    frames: Annotated[tuple[StackFrame, ...], msgspec.Meta(max_length=FRAMES_MAX)] = ()
    module: Name = ""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One out-of-memory error of torch's allocator. It need not end the process: scripts catch it and go on.

    `number` counts the errors of the process from 1; a later notice with the same number has more fields. `host_ns` is
    the time of the error. `limit_bytes` is the memory of the device, or the part of it that the script has allowed
    torch. `reserved_bytes` is what torch holds of the device, `allocated_bytes` what tensors use of that, and
    `inactive_split_bytes` the unused pieces of blocks in use, which cannot be returned to the device. `step` is the
    step that was open, `phase` its phase; None and empty outside of steps. `held` are the allocations with the most
    bytes, by stack, where torch records them. `parameters_bytes`, `gradients_bytes` and `optimizer_state_bytes` are
    those of the storages on the device at the first error of the process. `largest_free_bytes` is the largest unused
    piece that torch had, `snapshot` the path of torch's memory snapshot on the rank's machine. A field that could not
    be read is None or empty, with the reason in `absent`.
    """

    number: Annotated[int, msgspec.Meta(ge=1)]
    host_ns: int
    device: int = 0
    asked_bytes: Count = 0
    free_bytes: Count | None = None
    limit_bytes: Count | None = None
    allocated_bytes: Count | None = None
    reserved_bytes: Count | None = None
    inactive_split_bytes: Count | None = None
    step: Count | None = None
    phase: Name = ""
    held: Annotated[tuple[HeldMemory, ...], msgspec.Meta(max_length=ALLOCATIONS_MAX)] = ()
    absent: Reasons = {}
    parameters_bytes: Count | None = None
    gradients_bytes: Count | None = None
    optimizer_state_bytes: Count | None = None
    largest_free_bytes: Count | None = None
    snapshot: LongText = ""


Notices = Annotated[tuple[OutOfMemory, ...], msgspec.Meta(max_length=NOTICES_MAX)]
