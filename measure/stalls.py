"""Describe a rank that makes no progress, and how far each of its process groups is.

Group, sequence and op are as in `records.CollectiveRecord`. Everything is bounded by its producer; what was left out is
counted.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import Name, Names, Reasons, Shapes, Some
from rankscope.measure.own_files import is_own_file
from rankscope.measure.units import NS_PER_S

ACTIVITIES = (
    "collective", "process_group", "store", "backward", "optimizer", "data", "compile", "checkpoint", "synchronize",
    "import", "other",
)  # fmt: skip
"""Activities of a training thread, by its innermost frame that shows one: in a call of torch.distributed; making a
process group; waiting in torch's store for what another rank sets; in autograd (where DistributedDataParallel waits);
in an optimizer; waiting for a data loader; in torch.compile; saving or loading; waiting for a device; importing
modules; none of these."""

EXCUSED_ACTIVITIES = frozenset({"compile", "checkpoint", "import"})
"""Activities that may last minutes in a healthy run: a stall in one of these is shown, but is no finding until it has
lasted EXCUSED_FACTOR times its limit."""

EXCUSED_FACTOR: Final = 10
"""Factor on the stall limit for excused activities (a checkpoint, a compilation), and for ranks that are busy."""

WAITING_ACTIVITIES = frozenset({"collective", "process_group", "store", "synchronize", "data"})
"""Activities in which a thread waits for others. That it uses a core, as who waits for a GPU does, is no work then."""
BUSY_CPU_RATIO: Final = 0.05
"""Cores in use from which a rank without hook events works. Ranks that waited over gloo used 0.002 to 0.005 of a core
beside the agent's thread (docs/decisions/034)."""
BUSY_WAKES_PER_S: Final = 30
"""Wake-ups a second of the main thread from which a rank without hook events works: in pieces so small that samples
miss them. A thread that waits for other ranks sleeps until they come; `Popen.wait(timeout)` looks 20 times a second."""


class StackFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One Python frame. The file is cut at its front, where it is the same for all."""

    file: Name
    line: int
    function: Name


def is_library_file(file: str) -> bool:
    """Return whether a frame's file belongs to a library, or to the agent. A torch outside the usual folders, because
    it was built from source, is recognized by a leading `torch/`, as the agent writes its files.
    """
    foreign = ("site-packages/", "dist-packages/", "lib/python")
    return file.startswith(("<", "torch/")) or any(part in file for part in foreign) or is_own_file(file)


def find_script_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame that is in the user's own code; `frames` are innermost first."""
    return next((frame for frame in frames if not is_library_file(frame.file)), None)


def describe_frame(frame: StackFrame) -> str:
    """Return a frame as text for users.

    >>> describe_frame(StackFrame("/home/me/train.py", 74, "main"))
    'train.py:74 (main)'
    """
    return f"{frame.file.rpartition('/')[2]}:{frame.line} ({frame.function})"


class StallSamples(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Samples of a rank without hook events, `count` of them in `span_ns`, the latest ones.

    `changes`: how many found the main thread's stack different from the sample before. `cpu_ns`: CPU time of the
    process from the first to the last, all threads but the agent's; `wakes`: how often the main thread slept
    meanwhile, None where the kernel does not count it. `frame`: the innermost call of the script that is in all of
    them, at its line in the last; None if none is.
    """

    count: int
    span_ns: int
    changes: int
    cpu_ns: int
    frame: StackFrame | None = None
    wakes: int | None = None

    @property
    def shows_work(self) -> bool:
        """Return whether the stack moves, the CPU time grows or the main thread wakes all the time.

        >>> StallSamples(count=9, span_ns=8_000, changes=0, cpu_ns=399).shows_work
        False
        >>> StallSamples(count=9, span_ns=8_000, changes=0, cpu_ns=400).shows_work
        True
        >>> StallSamples(count=9, span_ns=8 * NS_PER_S, changes=0, cpu_ns=0, wakes=239).shows_work
        False
        >>> StallSamples(count=9, span_ns=8 * NS_PER_S, changes=0, cpu_ns=0, wakes=240).shows_work
        True
        """
        if self.changes > 0 or self.span_ns <= 0:
            return self.changes > 0
        wakes_per_s = (self.wakes or 0) * NS_PER_S / self.span_ns
        return self.cpu_ns >= BUSY_CPU_RATIO * self.span_ns or wakes_per_s >= BUSY_WAKES_PER_S


class QuietPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a training thread did in `step`, a long one, for half of the time that it was longer or more. `does`:
    WAITS_FOR_RANKS, WORKS or MOVES: it went on in the script, as in an evaluation. `line` is where it was most of this
    time, `train.py:52 (main)`, and `call` what the innermost frame called, `time.sleep`; empty without one.
    """

    step: int
    does: Name = ""
    line: Name = ""
    call: Name = ""


WAITS_FOR_RANKS, WORKS, MOVES = "waits_for_ranks", "works", "moves"
QUIET_PLACES_MAX: Final = 16  # in a report, each of another step


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One thread's Python frames, innermost first; `frames_left_out` is the number of outer ones left out."""

    name: Name
    frames: Annotated[tuple[StackFrame, ...], Some] = ()
    frames_left_out: int = 0


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Progress of one process group on one rank: the sequence of the last collective of each state, None if the backend
    does not report it (gloo: started).
    """

    group: Name
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


TRANSFERS: Final = frozenset({"send", "recv"})
UNRECORDED_SEQUENCE: Final = 0
"""Sequence of a send or receive that the backend does not record: the rank is blocked in it, and counters do not count
it."""


class PendingCollective(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Collective that was enqueued and has not completed. `sizes` are the shapes of its inputs, `bytes` their total
    size; `timeout_ns` is the age at which the backend gives up. A send or receive that the backend does not record has
    the sequence UNRECORDED_SEQUENCE.
    """

    group: Name
    op: Name
    sequence: int
    age_ns: int
    bytes: int | None = None
    sizes: Shapes = ()
    dtypes: Names = ()
    state: Name = ""
    timeout_ns: int | None = None


def is_transfer(one: PendingCollective) -> bool:
    """Return whether it is a send or receive between two ranks, as NCCL and `agent/captures/blocked_transfer.py` name
    it.

    >>> is_transfer(PendingCollective(group="pp", op="recv 1<-0", sequence=3, age_ns=0))
    True
    """
    return one.op.partition(" ")[0] in TRANSFERS


def find_deadline(pending: Iterable[PendingCollective], taken_host_ns: int) -> int | None:
    """Return when, by the host's clock, the first of these passes its timeout; their ages were read at `taken_host_ns`.

    >>> one = PendingCollective(group="default_pg", op="all_reduce", sequence=1, age_ns=30, timeout_ns=100)
    >>> find_deadline([one], taken_host_ns=1_000), find_deadline([], taken_host_ns=1_000)
    (1070, None)
    """
    left_ns = [one.timeout_ns - one.age_ns for one in pending if one.timeout_ns is not None]
    return taken_host_ns + min(left_ns) if left_ns else None


class Stall(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Stall of a rank: no hook event since `since_host_ns` (to one report interval).

    `number` counts the stalls of this process from 1; `last_step` is the last step that ended, None before any;
    `limit_ns` the duration after which it counts as a stall. `absent` gives by field why something could not be read.
    `samples` are of the time before it was taken; None: not reported.
    """

    number: int
    since_host_ns: int
    taken_host_ns: int
    limit_ns: int
    activity: Name = "other"
    last_step: int | None = None
    stacks: Annotated[tuple[ThreadStack, ...], Some] = ()
    threads_left_out: int = 0
    pending: Annotated[tuple[PendingCollective, ...], Some] = ()
    pending_left_out: int = 0
    absent: Reasons = {}
    samples: StallSamples | None = None

    @property
    def is_excused(self) -> bool:
        """Return whether the activity may last minutes in a healthy run."""
        return self.activity in EXCUSED_ACTIVITIES

    @property
    def is_busy(self) -> bool:
        """Return whether the rank works, on something without hook events, and does not wait."""
        return self.samples is not None and self.samples.shows_work and self.activity not in WAITING_ACTIVITIES


class KernelThread(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One thread as the kernel sees it: its state's letter (R runs, S sleeps, D waits for a device, T is stopped), the
    kernel function and the number of the system call it waits in, its CPU time. None: not to be read.
    """

    thread: int
    name: Name
    state: Name
    wait_channel: Name | None = None
    system_call: int | None = None
    cpu_ns: int | None = None
