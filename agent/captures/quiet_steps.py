"""Looks where the training thread is in long steps, so that it is known for whom the ranks wait.

Problem: rank 0 uploads a file for half a second every 60 steps, and the others wait for it in a barrier. For all of
them the step is as long, in the same phase: whose it was, no time says.

So once a run has had STALLS_MIN long steps, the agent thread looks a few times in such a time whether the training
thread has passed a hook since. If it has not for longer than a usual step, its stack is read, once: 0.1 ms on the agent
thread, and 20 us of that with the GIL held.

    waits     its innermost frame is of torch.distributed
    works     it waits for data, saves, compiles, imports or is in an optimizer; in a process without a device also
              where its innermost frame is not torch's, unless that calls what may wait for another thread or rank
    neither   anything else, such as backward, where DistributedDataParallel waits
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Final

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name
from rankscope.agent.captures.stacks import find_activity, read_frames, to_stack
from rankscope.agent.guard import Guard
from rankscope.measure.clock import Clock
from rankscope.measure.median import find_median
from rankscope.measure.own_files import is_own_file
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
from rankscope.measure.units import NS_PER_MS, NS_PER_S

PART: Final = "quiet_steps"
STALLS_MIN: Final = 3
STALLS_KEPT: Final = 8
GONE_STEPS: Final = 2048
"""Steps after which a long one no longer counts."""
LOOKS_A_STALL: Final = 4
LOOK_NS_MIN, LOOK_NS_MAX = 100 * NS_PER_MS, NS_PER_S
"""Between two looks. Waking up ten times a second takes 0.05 % of a core."""
WAIT: Final = frozenset({"collective", "process_group"})
WORK: Final = frozenset({"data", "checkpoint", "compile", "import", "optimizer"})
MAY_WAIT: Final = frozenset(
    {
        "wait", "get", "result", "join", "acquire", "recv", "recv_bytes", "barrier", "synchronize", "poll", "select",
        "item", "cpu", "numpy", "tolist", "multi_get", "TCPStore",
    }
)  # fmt: skip
"""Methods in C that may wait for another thread, or rank: as a collective's `wait()`, they have no frame of torch."""


class QuietSteps:
    """The looks at one training thread. Used on the agent thread. Errors are counted and affect nothing else.

    `count_events`: hook events so far, None where they are switched off. `find_place`: the open step and its phase, of
    the events that `flush` has had processed. `find_thread`: the training thread. `has_device`: whether the process
    uses one.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        *,
        count_events: Callable[[], int | None],
        flush: Callable[[], None],
        find_place: Callable[[], tuple[int | None, str]],
        find_thread: Callable[[], int | None],
        has_device: Callable[[], bool],
        read_frames: Callable[[], Mapping[int, FrameType]] = read_frames,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._count_events = count_events
        self._flush = flush
        self._find_place = find_place
        self._find_thread = find_thread
        self._has_device = has_device
        self._read_frames = read_frames
        self._stalls: deque[tuple[int, float]] = deque(maxlen=STALLS_KEPT)
        self._usual_ns = 0.0
        self._due_ns: int | None = None
        """None: looks are not wanted."""
        self._events: int | None = None
        self._since_ns = 0
        self._has_looked = False
        self._places: list[QuietPlace] = []

    def find_due(self, other_ns: int) -> int:
        """Return when to look next, by the host clock, at the latest then."""
        return other_ns if self._due_ns is None else min(self._due_ns, other_ns)

    def learn(self, stalls: Iterable[tuple[int, float]], last_step: int, usual_ns: float) -> None:
        """Learn which of the steps until the last one took long, with how much longer they were than a usual one."""
        self._usual_ns = usual_ns
        self._stalls.extend(stalls)
        while self._stalls and self._stalls[0][0] < last_step - GONE_STEPS:
            self._stalls.popleft()
        if len(self._stalls) < STALLS_MIN or self._guard.is_off(PART):
            self._due_ns = None
        elif self._due_ns is None:
            self._due_ns = self._clock.monotonic_ns()

    def look(self) -> None:
        """Look, if that is due."""
        now_ns = self._clock.monotonic_ns()
        if self._due_ns is None or now_ns < self._due_ns:
            return
        stall_ns = find_median([excess_ns for _, excess_ns in self._stalls])
        self._due_ns = now_ns + round(min(max(stall_ns / LOOKS_A_STALL, LOOK_NS_MIN), LOOK_NS_MAX))
        events = self._count_events()
        if events != self._events:
            self._events, self._since_ns, self._has_looked = events, now_ns, False
        elif not self._has_looked and events is not None and now_ns - self._since_ns > self._usual_ns:
            self._has_looked = True
            try:
                self._add_place()
            except Exception as error:  # noqa: BLE001 - frames are the script's
                self._guard.record(PART, error)

    def take(self) -> tuple[QuietPlace, ...]:
        """Return the places found since the last call."""
        places, self._places = tuple(self._places), []
        return places

    def _add_place(self) -> None:
        self._flush()
        (step, _), frame = self._find_place(), self._read_frames().get(self._find_thread() or 0)
        if step is None or frame is None or len(self._places) >= QUIET_PLACES_MAX:
            return
        while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
            frame = frame.f_back
        call = find_called_name(frame.f_code, frame.f_lasti)
        frames = to_stack("", frame).frames
        of_script = find_script_frame(frames)
        line = "" if of_script is None else describe_frame(of_script)
        does = find_doing(frames, call, has_device=self._has_device())
        self._places.append(QuietPlace(step, does, line, to_unicode(call)))


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
