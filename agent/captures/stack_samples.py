"""Samples of one thread for the collector: its stacks, folded to the lines of the script, and their time in each step.

A sample stands for the time since the one before. So a call that keeps the interpreter's lock, which no sample can
interrupt, has its whole time: the thread is still at that call when the lock is let go. Of that time, what the garbage
collector took on the thread is told apart.

Frames of torch, Python and the agent are folded into the innermost line of the script, beside which stands what that
called: `time.sleep` at train.py:104. Of the script names of files and functions and line numbers are kept, of the
frames' variables only `__name__` is read, and no frame is kept.

Other threads of the process that run code of the script are looked at, too: what the training thread waits for may be
what they do.
"""

import os
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Final, NamedTuple

from rankscope.agent.captures.called_name import find_called_name, find_line
from rankscope.agent.captures.kernel_waits import RUNS, KernelWait, KernelWaits
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stacks import find_torch_folder, shorten_frame
from rankscope.agent.collection_times import CollectionTimes
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.line_samples import (
    BY_LIBRARY,
    FRAMES_MAX,
    LONG,
    NO_STEP,
    NOW,
    STACKS_MAX,
    STEPS_MAX,
    SampledStack,
    SampledStep,
)
from rankscope.measure.messages import SampleOrder
from rankscope.measure.own_files import is_own_file
from rankscope.measure.records import StepRecord
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS, ns_to_s

SAMPLES_MAX: Final = 16_384
"""Samples that wait for the end of their step. Beyond, the oldest are forgotten, and their step with them."""
WALK_MAX: Final = 256
"""Frames looked at, from the innermost: a recursive model may be thousands deep."""
PLACES_MAX: Final = 4096
"""Different stacks that are told apart while sampling."""
THREADS_MAX: Final = 64
"""Other threads looked at in one sample."""
COST_RATIO_MAX: Final = 0.01
"""Share of the time that sampling may take, by the CPU time of the sampler; beyond, samples become rarer."""
COST_FREE_NS: Final = 5 * NS_PER_MS
SLOWER: Final = 1.5
INTERVAL_S_MAX: Final = 0.5
COLLECTION: Final = "garbage collection"
EXPLICIT: Final = "gc.collect"
"""A collection that the script itself has called."""
COMPILATION: Final = "compilation (torch.compile)"
COLLECTED_NS_MIN: Final = NS_PER_MS
"""Time of collections that is told by a place of its own; less waits for more."""
INJECTED: Final = "a fault injected on purpose"
_LOADER: Final = "torch.utils.data."
_FAULTS: Final = "agent/faults/actions.py"
_COMPILING: Final = "torch/_dynamo/convert_frame.py"

_SCRIPT, _LIBRARY, _PYTHON, _OWN, _COMPILES, _INJECTS = range(1, 7)
"""Whose code it is: the script's, another library's, that of torch or Python, the agent's, the one of torch that
compiles, the agent's faults on purpose.
"""

_Position = tuple[int, int]
"""Id of a code object, and the offset of an instruction."""


class StackKey(NamedTuple):
    """What tells stacks apart: the positions in the script, innermost first; the module and function that the innermost
    called, where that is Python; the position in another library; what else is known of it; the stage, of a worker.
    """

    script: tuple[_Position, ...]
    called: tuple[str, int] | None
    inside: _Position | None
    special: str
    stage: str = ""


class StackSamples:
    """The samples of one order, of the thread with this ident; `look` is called with each. `add` belongs to the
    sampler's thread, all else to the agent's.
    """

    wants_others = True
    is_due = True

    def __init__(
        self,
        order: SampleOrder,
        thread: int,
        files: ScriptFiles,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        waits: KernelWaits | None = None,
        look: Callable[[], None] | None = None,
        collections: CollectionTimes | None = None,
    ) -> None:
        self.order = order
        self.thread = thread
        self.interval_s = max(0.001, ns_to_s(order.interval_ns))
        self.is_wanted = True
        self.cpu_ns = 0
        self.samples = 0
        self.begun_ns = monotonic_ns()
        self._files = files
        self._waits = waits
        self._look = look
        self._collections = collections or CollectionTimes()
        self._collected_ns = 0
        self._times = array("q")
        self._places = array("i")
        self._place_of: dict[StackKey | None, int] = {}
        self._codes: dict[int, CodeType] = {}
        self._kinds: dict[int, int] = {}
        self._kernel: dict[int, Counter[KernelWait | None]] = {}
        self._names: dict[KernelWait, str] = {}
        self._steps: list[tuple[int, int, Counter[int]]] = []
        self._last_place = -1
        self._others: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)  # when, place, and how long
        self._others_steps: list[tuple[int, int, Counter[int]]] = []
        self._looked_ns: int | None = None
        self.threads: tuple[SampledStep, ...] = ()
        """What other threads did in the steps, once `finish` has been called."""
        self._collections.install()

    # -- the sampler's thread -----------------------------------------------------------------------------------------

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Add a sample."""
        key = None if frame is None else self._fold(frame)
        self._add_collected(host_ns, key)
        place = self._find_place(key)
        if place == self._last_place and self._waits is not None:
            self._note_wait(self._waits, place)
        self._last_place = place
        self._places.append(place)
        self._times.append(host_ns)  # after its place: readers count the times
        self.samples += 1
        if self._look is not None:
            self._look()
        if self.cpu_ns > COST_FREE_NS + COST_RATIO_MAX * (host_ns - self.begun_ns):
            self.interval_s = min(INTERVAL_S_MAX, SLOWER * self.interval_s)

    def _add_collected(self, host_ns: int, key: StackKey | None) -> None:
        """Add what the collector took on the thread since the last sample, as the first part of that time."""
        self._collected_ns += sum(one.duration_ns for one in self._collections.take() if one.thread == self.thread)
        if key is None or key.special or not self._times:
            self._collected_ns = 0
        elif self._collected_ns >= COLLECTED_NS_MIN:
            self._places.append(self._find_place(key._replace(special=COLLECTION)))
            self._times.append(min(host_ns, self._times[-1] + self._collected_ns))
            self._collected_ns = 0

    def add_others(self, host_ns: int, frames: dict[int, FrameType]) -> None:
        """Add a sample of each other thread that runs code of the script, for the time since the one before."""
        since_ns, self._looked_ns = self._looked_ns, host_ns
        for _ in range(THREADS_MAX):
            if not frames:
                break
            thread, frame = frames.popitem()
            if thread == self.thread or since_ns is None:
                continue
            key, is_by_library = self._walk(frame)
            if key.script:
                place = self._find_place(key._replace(stage=BY_LIBRARY) if is_by_library else key)
                self._others.append((host_ns, place, host_ns - since_ns))

    def _find_place(self, key: StackKey | None) -> int:
        place = self._place_of.get(key, -1)
        if place < 0:
            place = len(self._place_of)
            if place < PLACES_MAX:
                self._place_of[key] = place
        return place

    def _note_wait(self, waits: KernelWaits, place: int) -> None:
        wait = waits.read()
        self._kernel.setdefault(place, Counter())[wait] += 1
        if wait is not None and wait not in self._names:
            self._names[wait] = waits.describe(wait)  # now, while the file is open

    def _fold(self, frame: FrameType | None) -> StackKey:
        return self._walk(frame)[0]

    def _walk(self, frame: FrameType | None) -> tuple[StackKey, bool]:
        """Return what tells a stack apart, and whether its outermost frame that is not Python's is of a library."""
        is_by_library = False
        script: list[_Position] = []
        called: tuple[str, int] | None = None
        inside: _Position | None = None
        special = ""
        for _ in range(WALK_MAX):
            if frame is None:
                break
            code = frame.f_code
            kind = self._kinds.get(id(code)) or self._note(code)
            is_by_library = kind == _LIBRARY or (is_by_library and kind != _SCRIPT)
            if kind == _SCRIPT:
                if len(script) < FRAMES_MAX:
                    script.append((id(code), frame.f_lasti))
            elif not script:
                if kind == _INJECTS:
                    special = INJECTED
                elif kind != _OWN:
                    called = str(frame.f_globals.get("__name__", "")), id(code)
                    special = COMPILATION if kind == _COMPILES else special
                    if inside is None and kind == _LIBRARY:
                        inside = id(code), frame.f_lasti
            frame = frame.f_back
        return StackKey(tuple(script), called, inside, special), is_by_library

    def _note(self, code: CodeType) -> int:
        """Return whose code it is, and remember that."""
        file = code.co_filename
        if self._files.is_user(file):
            kind = _SCRIPT
        elif is_own_file(file):
            kind = _INJECTS if _FAULTS in file else _OWN
        elif file.endswith(_COMPILING):
            kind = _COMPILES
        else:
            kind = _LIBRARY if self._files.is_script(file) else _PYTHON
        self._codes[id(code)] = code  # so that no other code gets its id
        self._kinds[id(code)] = kind
        return kind

    # -- the agent's thread -------------------------------------------------------------------------------------------

    @property
    def has_enough(self) -> bool:
        """Whether there are as many steps as were ordered."""
        return len(self._steps) >= min(self.order.steps_max, STEPS_MAX)

    def is_over(self, now_ns: int) -> bool:
        """Whether its time has passed, or it has enough."""
        return self.has_enough or now_ns - self.begun_ns >= self.order.lasts_ns

    def take_steps(self, records: Sequence[StepRecord]) -> None:
        """Add up the samples of steps that have ended, in their order, and forget those of steps that do not count."""
        if self.order.mode == NOW:
            return
        for record in records:
            if not self.has_enough:
                self._take_step(record)
            self._forget_until(record.end_host_ns)
        if len(self._times) > SAMPLES_MAX:
            self._forget_until(self._times[len(self._times) - SAMPLES_MAX // 2])

    def _take_step(self, record: StepRecord) -> None:
        begin_ns, end_ns = record.start_host_ns, record.end_host_ns
        is_short = self.order.mode == LONG and record.duration_ns <= self.order.longer_than_ns
        if record.captured or is_short or not self._times or self._times[0] > begin_ns:
            return
        found = self._add_up(begin_ns, end_ns)
        if found:
            self._steps.append((record.step, record.duration_ns, found))
            others: Counter[int] = Counter()
            for index in range(len(self._others)):  # not as an iterator: the sampler adds to them
                host_ns, place, took_ns = self._others[index]
                if begin_ns < host_ns <= end_ns:
                    others[place] += min(took_ns, host_ns - begin_ns)
            self._others_steps.append((record.step, record.duration_ns, others))

    def _add_up(self, begin_ns: int, end_ns: int) -> Counter[int]:
        """Return the time of each place between these times. The time from the last sample to the end belongs to that
        sample, where it is of the same step.
        """
        found: Counter[int] = Counter()
        at_ns, place = begin_ns, -1
        for index in range(len(self._times)):
            time_ns = self._times[index]
            if time_ns <= begin_ns:
                continue
            if time_ns > end_ns:
                found[place if place >= 0 else self._places[index]] += end_ns - at_ns
                return found
            place = self._places[index]
            found[place] += time_ns - at_ns
            at_ns = time_ns
        if place >= 0:
            found[place] += end_ns - at_ns
        return found

    def _forget_until(self, host_ns: int) -> None:
        """Forget the samples before the last one up to this time."""
        count = len(self._times)
        last = next((index for index in range(count - 1, -1, -1) if self._times[index] <= host_ns), 0)
        del self._times[:last]
        del self._places[:last]
        while self._others and self._others[0][0] <= host_ns:
            self._others.popleft()

    def finish(self) -> tuple[tuple[SampledStack, ...], tuple[SampledStep, ...]]:
        """End sampling, and return the stacks with most time, and the steps."""
        self.close()
        if self._waits is not None:
            self._waits.close()
        if self.order.mode == NOW and len(self._times) > 1:
            begin_ns, end_ns = self._times[0], self._times[-1]
            self._steps = [(NO_STEP, end_ns - begin_ns, self._add_up(begin_ns, end_ns))]
        total_ns: Counter[int] = Counter()
        for _, _, found in (*self._steps, *self._others_steps):
            total_ns.update(found)
        keys = {place: key for key, place in self._place_of.items()}
        places = [place for place, _ in total_ns.most_common(STACKS_MAX) if place in keys]
        number = {place: index for index, place in enumerate(places)}
        stacks = tuple(self._describe(keys[place], place) for place in places)
        self.threads = _to_steps(self._others_steps, number) if any(one[2] for one in self._others_steps) else ()
        return stacks, _to_steps(self._steps, number)

    def close(self) -> None:
        """End sampling."""
        self.is_wanted = False
        self._collections.remove()

    @property
    def places(self) -> Sequence[int]:
        """The stack of each sample that is kept."""
        return self._places

    def _describe(self, key: StackKey | None, place: int) -> SampledStack:
        if key is None:
            return SampledStack()
        torch_folder = find_torch_folder()
        script = key.script or (() if key.inside is None else (key.inside,))
        frames = tuple(shorten_frame(self._to_frame(one), torch_folder) for one in reversed(script))
        inside = ""
        if key.inside is not None and key.script:
            frame = self._to_frame(key.inside)
            folder = frame.file.rpartition("/")[0].rpartition("/")[2]
            inside = to_unicode(f"{folder}/{describe_frame(frame)}")[:NAME_LENGTH_MAX]
        return SampledStack(
            frames=frames,
            call=to_unicode(self._name_call(key))[:NAME_LENGTH_MAX],
            inside=inside,
            waits_in=self._describe_wait(place),
            stage=key.stage,
        )

    def _name_call(self, key: StackKey) -> str:
        innermost = next(iter(key.script), key.inside)
        written = "" if innermost is None else find_called_name(self._codes[innermost[0]], innermost[1])
        if key.special and written != EXPLICIT:
            return key.special
        # What is written with its module or object says most; torch's own names say little to its user.
        if key.called is None or not key.script or "." in written[1:]:
            return written
        module, code = key.called
        called = self._codes[code]
        name = getattr(called, "co_qualname", called.co_name)
        is_plain = bool(written) and not written.startswith(".")
        is_torch = module.partition(".")[0] == "torch" and not module.startswith(_LOADER)
        return written if is_plain and is_torch else f"{module}.{name}"

    def _describe_wait(self, place: int) -> str:
        """Return what the kernel says of most samples of a place that came again; empty where it mostly ran."""
        counts = self._kernel.get(place)
        if not counts:
            return RUNS
        names: Counter[str] = Counter()
        for wait, count in counts.items():
            names[RUNS if wait is None else self._names[wait]] += count
        ((name, count),) = names.most_common(1)
        return name[:NAME_LENGTH_MAX] if 2 * count >= sum(counts.values()) else RUNS

    def _to_frame(self, position: _Position) -> StackFrame:
        code = self._codes[position[0]]
        return StackFrame(code.co_filename, find_line(code, position[1]), code.co_name)


def _to_steps(steps: Sequence[tuple[int, int, Counter[int]]], number: dict[int, int]) -> tuple[SampledStep, ...]:
    return tuple(
        SampledStep(step=step, duration_ns=duration_ns, stack_ns=_number(found, number))
        for step, duration_ns, found in steps
    )


def _number(found: Counter[int], number: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the time by the number of a stack; of stacks that are left out together, under the first free number."""
    left_out_ns = sum(ns for place, ns in found.items() if place not in number)
    pairs = [(number[place], ns) for place, ns in found.items() if place in number]
    return (*pairs, (len(number), left_out_ns)) if left_out_ns else tuple(pairs)


def find_native_id(thread: int) -> int | None:
    """Return the system's number of the thread with this ident; None where it has none."""
    if thread == threading.main_thread().ident:
        return os.getpid()  # in a fork, threading has that of the parent before CPython 3.12
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)
