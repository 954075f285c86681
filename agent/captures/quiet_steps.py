"""Looks where the training thread is in long steps, so that it is known for whom the ranks wait.

Problem: rank 0 uploads a file for half a second every 60 steps, and the others wait for it in a barrier. For all of
them the step is as long, in the same phase: whose it was, no time says.

So once a run has had STALLS_MIN long steps, the sampler wakes up some times in such a time and asks whether the
training thread has passed a hook since. If it has not for longer than a usual step, its stack is read at each look.

    waits     its innermost frame is of torch.distributed, but not of DTensor
    works     it waits for data, saves, compiles or imports; in a process without a device also where it is in an
              optimizer, or its innermost frame is not torch's; unless that calls what may wait for another thread or
              rank
    moves     it passes hooks, or is at another place than at the look before, as in an evaluation
    neither   anything else, such as backward, where DistributedDataParallel waits

A look stands for the time since the one before. A rank waited in a step, or was busy (it worked or moved), where it did
so for half of the time that the step was longer, and for most of what it did beyond a usual step: of ranks that take
turns neither is known.
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import FrameType
from typing import Final, NamedTuple

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name
from rankscope.agent.captures.stacks import TEXT_LENGTH_MAX, find_activity, to_stack
from rankscope.measure.median import find_median
from rankscope.measure.own_files import is_own_file
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import (
    MOVES,
    QUIET_PLACES_MAX,
    WAITS_FOR_RANKS,
    WORKS,
    QuietPlace,
    StackFrame,
    describe_frame,
    find_script_frame,
)
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s, s_to_ns

STALLS_MIN: Final = 3
STALLS_KEPT: Final = 8
GONE_STEPS: Final = 2048
"""Steps after which a long one no longer counts."""
LOOKS_A_STALL: Final = 8
"""So that ranks which take turns are seen to."""
LOOK_NS_MIN, LOOK_NS_MAX = 100 * NS_PER_MS, NS_PER_S
"""Between two looks."""
LONG_LOOKS: Final = 2
"""A step is judged that is longer by so many distances of looks."""
HOLDS_RATIO: Final = 0.5
"""Share of what a step is longer that is of one kind."""
MOST_RATIO: Final = 2 / 3
"""Share of all that it did beyond a usual step that is of one kind."""
EARLY_RATIO: Final = 0.9
"""Share of the distance of looks from which on one is taken: others may have the sampler wake up more often."""
LOOKS_MAX: Final = 256
CALLS_MAX: Final = 64
"""Places of which the call is remembered."""
WAIT: Final = frozenset({"collective", "process_group"})
TENSORS: Final = "torch/distributed/tensor/"
"""DTensor: operators are called from here, to compute as well as to communicate."""
WORK: Final = frozenset({"data", "compile", "import"})
WORK_THAT_MAY_WAIT: Final = frozenset({"checkpoint", "optimizer"})
"""A save copies from a device, an optimizer of the user's may wait for its own collectives."""
MAY_WAIT: Final = frozenset(
    {
        "wait", "get", "result", "join", "acquire", "recv", "recv_bytes", "barrier", "synchronize", "poll", "select",
        "item", "cpu", "copy_", "numpy", "tolist", "multi_get", "TCPStore", "is_completed",
    }
)  # fmt: skip
"""Methods in C that may wait for another thread, or rank: as a collective's `wait()`, they have no frame of torch."""


class _Look(NamedTuple):
    """What the thread did from one time of the host's clock to another."""

    begin_ns: int
    end_ns: int
    does: str
    line: str = ""
    call: str = ""


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
        # In a function of 500 lines it takes a tenth of a second; a thread that waits is at one place for many looks.
        self._find_call = lru_cache(maxsize=CALLS_MAX)(find_called_name)
        self._stalls: deque[tuple[int, float]] = deque(maxlen=STALLS_KEPT)
        self._usual_ns = 0.0
        self._events: int | None = None
        self._since_ns = self._asked_ns = self._told_ns = 0
        self._frames: Sequence[StackFrame] = ()
        self._has_moved = False
        self._looks: deque[_Look] = deque(maxlen=LOOKS_MAX)
        self._lock = threading.Lock()  # of the looks
        self.is_wanted = False
        self.cpu_ns = self.thread = 0
        self.interval_s = ns_to_s(LOOK_NS_MAX)

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def learn(
        self, stalls: Iterable[tuple[int, float]], last_step: int, usual_ns: float, *, may_look: bool = True
    ) -> bool:
        """Learn which of the steps until the last one took long, with how much longer they were than a usual one, and
        whether the sampler takes samples. Return whether looks are to begin.
        """
        self._usual_ns, self.thread = usual_ns, self._find_thread() or 0
        self._stalls.extend(stalls)
        while self._stalls and self._stalls[0][0] < last_step - GONE_STEPS:
            self._stalls.popleft()
        was_wanted, self.is_wanted = self.is_wanted, may_look and len(self._stalls) >= STALLS_MIN
        if self.is_wanted:
            stall_ns = find_median([excess_ns for _, excess_ns in self._stalls])
            self.interval_s = ns_to_s(min(max(stall_ns / LOOKS_A_STALL, LOOK_NS_MIN), LOOK_NS_MAX))
        begins = self.is_wanted and not was_wanted
        if begins:
            self._events = None  # what it did before is not known
        return begins

    def take(self, steps: Sequence[StepRecord]) -> tuple[QuietPlace, ...]:
        """Return what the thread did in the long ones of these steps, which have ended, and where."""
        places: list[QuietPlace] = []
        with self._lock:
            for one in steps:
                end_ns, inside = one.start_host_ns + one.duration_ns, list[_Look]()
                while self._looks and self._looks[0].end_ns <= end_ns:
                    inside.append(self._looks.popleft())
                inside.extend(itertools.islice(self._looks, 1))  # that goes on in the next step
                place = self._find_place(one, inside)
                if place is not None:
                    places.append(place)
        return tuple(places[-QUIET_PLACES_MAX:])

    def _find_place(self, step: StepRecord, looks: Iterable[_Look]) -> QuietPlace | None:
        """Return what the thread did in a long step by the looks at it; None where that is of no kind."""
        excess_ns = step.duration_ns - self._usual_ns
        if excess_ns < LONG_LOOKS * s_to_ns(self.interval_s):
            return None
        places, kinds = Counter[QuietPlace](), Counter[str]()
        for one in looks:
            end_ns = min(one.end_ns, step.start_host_ns + step.duration_ns)
            ns = max(0, end_ns - max(one.begin_ns, step.start_host_ns))
            places[QuietPlace(step.step, one.does, one.line, one.call)] += ns
            kinds[one.does] += ns
        kinds[MOVES] = max(0, kinds[MOVES] - round(self._usual_ns))  # it does in each step
        busy_ns, waits_ns = kinds[WORKS] + kinds[MOVES], kinds[WAITS_FOR_RANKS]
        if max(busy_ns, waits_ns) < max(HOLDS_RATIO * excess_ns, MOST_RATIO * kinds.total()):
            return None
        does = WAITS_FOR_RANKS if waits_ns > busy_ns else WORKS if kinds[WORKS] >= kinds[MOVES] else MOVES
        return next(place for place, _ in places.most_common() if place.does == does)

    # -- the sampler's thread -----------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the thread has passed no hook for longer than a usual step."""
        events, now_ns = self._count_events(), self._monotonic_ns()
        gap_ns = now_ns - self._asked_ns
        if gap_ns < EARLY_RATIO * s_to_ns(self.interval_s):
            return False
        self._asked_ns = now_ns
        if events != self._events:
            if self._events is not None:
                self._tell(_Look(self._told_ns, now_ns - gap_ns // 2, MOVES))  # it passed the last hook in between
            else:
                self._told_ns = now_ns
            self._events, self._since_ns, self._frames, self._has_moved = events, now_ns, (), False
        return events is not None and now_ns - self._since_ns > self._usual_ns

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Note where the thread is."""
        while frame is not None and is_own_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            self._tell(_Look(self._told_ns, host_ns, ""))
            return
        frames = to_stack("", frame).frames
        call, of_script = self._find_call(frame.f_code, frame.f_lasti)[:TEXT_LENGTH_MAX], find_script_frame(frames)
        does = find_doing(frames, call, has_device=self._has_device())
        line = "" if of_script is None else describe_frame(of_script)
        self._has_moved |= bool(self._frames) and frames != self._frames
        self._frames = frames
        if not does and self._has_moved and not may_wait(call):
            does = MOVES
        self._tell(_Look(self._told_ns, host_ns, does, line, to_unicode(call)))

    def _tell(self, look: _Look) -> None:
        """Keep a look; one that finds what the last one did makes that longer."""
        if look.does == MOVES:
            look = look._replace(line="", call="")
        with self._lock:
            last = self._looks[-1] if self._looks else None
            if last is not None and last.end_ns == look.begin_ns:
                if not last.does and look.does == MOVES and self._has_moved:  # it moved between the two
                    last = last._replace(does=MOVES, line="", call="")
                    self._looks[-1] = last
                if last[2:] == look[2:]:
                    self._looks.pop()
                    look = look._replace(begin_ns=last.begin_ns)
            self._looks.append(look)
        self._told_ns = look.end_ns

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
    activity = find_activity(frames)
    if find_activity(frames[:1]) in WAIT and TENSORS not in frames[0].file:
        return WAITS_FOR_RANKS
    if activity in WORK:
        return WORKS
    if may_wait(call):
        return ""
    if activity in WORK_THAT_MAY_WAIT and not (has_device and activity == "optimizer"):
        return WORKS
    # So long in a function of torch's is mostly a wait; one of a wrapper that is around the whole model says nothing.
    is_of_torch = not frames or frames[0].file.startswith("torch/") or "/torch/" in frames[0].file
    return "" if has_device or is_of_torch or activity == "backward" else WORKS


def may_wait(call: str) -> bool:
    """Return whether what is called may wait for another thread or rank; so may all where that cannot be told."""
    return not HAS_POSITIONS or call.rpartition(".")[2] in MAY_WAIT
