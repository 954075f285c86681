"""Define samples of a training thread: at which lines of the script it was in its steps, and for how long.

A sample stands for the time since the one before it, so that a call which keeps the interpreter's lock, and so the
sampler from looking, has its time too. The samples of a whole step sum to the step.
"""

from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import Name, Numbers, Some
from rankscope.measure.identity import Count
from rankscope.measure.stalls import StackFrame

STACKS_MAX: Final = 256
"""Different stacks of one answer; what is beyond counts as one without frames."""
FRAMES_MAX: Final = 24
"""Frames of the script kept of a stack, the innermost ones."""
STEPS_MAX: Final = 1024
"""Steps of one answer."""
NO_STEP: Final = -1
"""Number of the time of a stalled rank, which belongs to no step."""

WHOLE, LONG, NOW, HELD = "whole", "long", "now", "held"
SAMPLE_MODES: Final = (WHOLE, LONG, NOW, HELD)
"""Of which time samples are wanted: of all steps that lie in it as a whole; of those of them that last longer than a
limit; of the time itself, since the rank is stalled and no step ends. The last wants no samples, but what the process
holds more of after that time than before (HeldGrowth)."""

IDLE, FETCH, COLLATE, HAND_OVER = "idle", "fetch", "collate", "hand_over"
STAGES: Final = (IDLE, FETCH, COLLATE, HAND_OVER)
"""What a worker of a data loader does: it waits for the indices of a batch, reads and transforms its samples, makes a
batch of them, or hands it over.
"""
BY_LIBRARY: Final = "by_library"
"""Stage of another thread of the rank that a library has started, as the nodes of torchdata do."""
WORKERS_MAX: Final = 64
"""Workers of one answer."""

SAMPLE_STATES: Final = ("accepted", "busy", "taken", "refused")
"""States of an order on one rank: it samples; it cannot yet, since it samples for another order; the samples are there;
there will be none.
"""


class SampledStack(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Where a thread was. `frames` are the script's, outermost first; without one of the script, the innermost of
    another library than torch.

    `call` is what the innermost of them called, `time.sleep`, empty where it computed itself or that is not known;
    `inside` the line of another library than torch that this led to, `PIL/Image.py:3480 (open)`. `waits_in` is what the
    kernel says of most of its samples, `read of train.bin (nfs4)`, empty where the thread ran. `stage` is one of
    STAGES, of a worker, or BY_LIBRARY.
    """

    frames: Annotated[tuple[StackFrame, ...], msgspec.Meta(max_length=FRAMES_MAX)] = ()
    call: Name = ""
    inside: Name = ""
    waits_in: Name = ""
    stage: Name = ""


class SampledStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One step, NO_STEP for the time of a stalled rank, and the time in each stack: pairs of its place in the answer
    and ns, which sum to the duration.
    """

    step: int
    duration_ns: int
    stack_ns: Annotated[tuple[tuple[int, int], ...], Some] = ()


class SampledWorker(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Where a worker of a data loader was, number `number` of `count`, while it began to fetch `fetches` batches. The
    step is the time of its samples, NO_STEP.
    """

    number: int
    count: int
    fetches: int
    stacks: Annotated[tuple[SampledStack, ...], msgspec.Meta(max_length=STACKS_MAX)] = ()
    step: SampledStep


class SampledLoader(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The queues of a data loader with `workers`, in `looks` looks; the others are sums over these. `ready`: batches
    that have arrived; `early`: those of them that came before the one that is next, and wait for it; `unpinned`: those
    that wait for the thread that pins memory, None without one. `start_method` is that of the workers, `fork`.
    """

    workers: Count
    start_method: Name = ""
    looks: Count = 0
    ready: Count = 0
    early: Count = 0
    unpinned: Count | None = None


CONTAINERS_MAX: Final = 4
"""Containers of one answer, those whose new elements take most."""


class GrownContainer(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A list, dict, set or deque of Python that has become longer by `added` elements, to `length`. `name` is who has
    it, `kept of train.py`, empty where no module, object or closure does; `line` where code adds to it, `train.py:33
    (main)`, empty where that is not known. `element` is the type of the newest, `added_bytes` what the new ones take on
    the host, estimated from some of them; None where none could be measured.
    """

    name: Name = ""
    kind: Name = ""
    length: Count = 0
    added: Count = 0
    added_bytes: Count | None = None
    element: Name = ""
    line: Name = ""


class HeldGrowth(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a process holds more of after `steps` steps. `objects` are those that Python's garbage collector knows, of
    which there are `added_objects` more; with too many of them `is_searched` is False, and no container is looked at.
    `frozen` are those it knows no more (`gc.freeze`): containers among them are not looked at.
    `resident_bytes` is by how much each kind of resident memory has changed, by the kernel's name; empty where it does
    not tell.
    """

    steps: Count = 0
    objects: Count = 0
    added_objects: int = 0
    frozen: Count = 0
    is_searched: bool = True
    resident_bytes: Numbers = {}
    containers: Annotated[tuple[GrownContainer, ...], msgspec.Meta(max_length=CONTAINERS_MAX)] = ()
