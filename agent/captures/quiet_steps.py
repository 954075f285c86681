"""Looks where the training thread is in long steps, so that it is known for whom the ranks wait.

Problem: rank 0 uploads a file for half a second every 60 steps, and the others wait for it in a barrier. For all of
them the step is as long, in the same phase: whose it was, no time says.

So once a run has had STALLS_MIN long steps, the sampler wakes up some times in such a time and asks whether the
training thread has passed a hook since. If it has not for longer than a usual step, its stack is read, once.

    waits     its innermost frame is of torch.distributed
    works     it waits for data, saves, compiles, imports or is in an optimizer; in a process without a device also
              where its innermost frame is not torch's, unless that calls what may wait for another thread or rank
    neither   anything else, such as backward, where DistributedDataParallel waits

The step is the one in whose time it was looked at.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Final, NamedTuple

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name
from rankscope.agent.captures.stacks import find_activity, to_stack
from rankscope.measure.median import find_median
from rankscope.measure.own_files import is_own_file
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import (
    QUIET_PLACES_MAX,
    WAITS_FOR_RANKS,
    WORKS,
    QuietPlace,
    StackFrame,
    describe_frame,
    find_script_frame,
)
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s

STALLS_MIN: Final = 3
STALLS_KEPT: Final = 8
GONE_STEPS: Final = 2048
"""Steps after which a long one no longer counts."""
LOOKS_A_STALL: Final = 3
"""The first may come late in it, the second then knows that no hook was passed since."""
LOOK_NS_MIN, LOOK_NS_MAX = 100 * NS_PER_MS, NS_PER_S
"""Between two looks."""
WAIT: Final = frozenset({"collective", "process_group"})
WORK: Final = frozenset({"data", "checkpoint", "compile", "import", "optimizer"})
MAY_WAIT: Final = frozenset(
    {
        "wait", "get", "result", "join", "acquire", "recv", "recv_bytes", "barrier", "synchronize", "poll", "select",
        "item", "cpu", "numpy", "tolist", "multi_get", "TCPStore",
    }
)  # fmt: skip
"""Methods in C that may wait for another thread, or rank: as a collective's `wait()`, they have no frame of torch."""


class _Look(NamedTuple):
    """Where the thread was at a time of the host's clock."""

    host_ns: int
    does: str
    line: str
    call: str


class QuietSteps:
    """The looks at one training thread, as ThreadSampler takes them (`Sampled`); the agent thread teaches it which
    steps were long, and takes the places.

    `count_events`: hook events so far, None where they are switched off. `find_thread`: the training thread.
    `has_device`: whether the process uses one.
    """

    wants_others = False

    def __init__(
        self,
        *,
        count_events: Callable[[], int | None],
        find_thread: Callable[[], int | None],
        has_device: Callable[[], bool],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._count_events = count_events
        self._find_thread = find_thread
        self._has_device = has_device
        self._monotonic_ns = monotonic_ns
        self._stalls: deque[tuple[int, float]] = deque(maxlen=STALLS_KEPT)
        self._usual_ns = 0.0
        self._events: int | None = None
        self._since_ns = 0
        self._has_looked = False
        self._looks: deque[_Look] = deque(maxlen=QUIET_PLACES_MAX)
        self.is_wanted = False
        self.cpu_ns = self.thread = 0
        self.interval_s = ns_to_s(LOOK_NS_MAX)

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def learn(self, stalls: Iterable[tuple[int, float]], last_step: int, usual_ns: float) -> bool:
        """Learn which of the steps until the last one took long, with how much longer they were than a usual one.
        Return whether looks are to begin.
        """
        self._usual_ns, self.thread = usual_ns, self._find_thread() or 0
        self._stalls.extend(stalls)
        while self._stalls and self._stalls[0][0] < last_step - GONE_STEPS:
            self._stalls.popleft()
        was_wanted, self.is_wanted = self.is_wanted, len(self._stalls) >= STALLS_MIN
        if self.is_wanted:
            stall_ns = find_median([excess_ns for _, excess_ns in self._stalls])
            self.interval_s = ns_to_s(min(max(stall_ns / LOOKS_A_STALL, LOOK_NS_MIN), LOOK_NS_MAX))
        return self.is_wanted and not was_wanted

    def take(self, steps: Sequence[StepRecord]) -> tuple[QuietPlace, ...]:
        """Return where the thread was in these steps, which have ended."""
        places: dict[int, QuietPlace] = {}
        for one in steps:
            while self._looks and self._looks[0].host_ns < one.start_host_ns + one.duration_ns:
                look = self._looks.popleft()
                if look.host_ns >= one.start_host_ns:
                    places.setdefault(one.step, QuietPlace(one.step, look.does, look.line, look.call))
        return tuple(places.values())

    # -- the sampler's thread -----------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the thread has passed no hook for longer than a usual step, and was not looked at since."""
        events, now_ns = self._count_events(), self._monotonic_ns()
        if events != self._events:
            self._events, self._since_ns, self._has_looked = events, now_ns, False
        return not self._has_looked and events is not None and now_ns - self._since_ns > self._usual_ns

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Note where the thread is."""
        self._has_looked = True
        while frame is not None and is_own_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        frames = to_stack("", frame).frames
        call, of_script = find_called_name(frame.f_code, frame.f_lasti), find_script_frame(frames)
        does = find_doing(frames, call, has_device=self._has_device())
        line = "" if of_script is None else describe_frame(of_script)
        self._looks.append(_Look(host_ns, does, line, to_unicode(call)))

    def add_others(self, host_ns: int, frames: dict[int, FrameType]) -> None:
        """Nothing is wanted of other threads."""


def find_doing(frames: Sequence[StackFrame], call: str, *, has_device: bool) -> str:
    """Return what a thread with these frames, innermost first, does: WAITS_FOR_RANKS, WORKS, or empty where that is not
    known. `call`: what the innermost one calls.

    >>> barrier = StackFrame("torch/distributed/distributed_c10d.py", 4871, "barrier")
    >>> main = StackFrame("train.py", 52, "main")
    >>> find_doing([barrier, main], "work.wait", has_device=False)
    'waits_for_ranks'
    >>> find_doing([main], "time.sleep", has_device=False), find_doing([main], "work.wait", has_device=False)
    ('works', '')
    """
    if find_activity(frames[:1]) in WAIT:
        return WAITS_FOR_RANKS
    if find_activity(frames) in WORK:
        return WORKS
    # So long in a function of torch's is mostly a wait; one of a wrapper that is around the whole model says nothing.
    is_of_torch = not frames or frames[0].file.startswith("torch/") or "/torch/" in frames[0].file
    may_wait = not HAS_POSITIONS or call.rpartition(".")[2] in MAY_WAIT
    is_in_backward = find_activity(frames) == "backward"
    return "" if has_device or is_of_torch or may_wait or is_in_backward else WORKS
