"""What a growing process holds more of: the lists, dicts, sets and deques of Python that have become longer, what their
new elements take, who has them, and which line adds to them.

    first look    id and length of each container of LENGTH_MIN elements or more
    second look   the same, after half of the time
    third look    those that have grown in both halves; of the most grown ones the newest elements are measured

A look holds the interpreter's lock for 0.1 s, and 0.25 s more for each million objects, as two full collections of
Python's garbage collector do (bench/results/held_objects.md). There are four at most, in a process that is about to
take all memory of its machine, and none in any other. No list of all objects is there while training goes on
(`live_objects.py`), and who has a container is not found through a tuple.

Nothing of the script is called: lengths and sizes are those of the built-in types, and of tensors on the CPU and arrays
the bytes; those of subclasses are not asked. `tracemalloc`, which knows the line of each allocation, is not used: it
makes every allocation several times as dear, and its stop may crash threads that are amid an allocation
(python/cpython#128679, #143143).

Not seen: memory of C++ that no object of Python has (an autograd graph that is kept, a library's own), one object that
grows by itself, and instances that are linked to each other without a container.
"""

import gc
import os
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from operator import is_, not_
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.agent.captures.adding_lines import find_adding_lines, find_codes
from rankscope.agent.captures.model_memory import find_storages
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stacks import read_frames
from rankscope.agent.live_objects import find_instances, find_referrers, list_types
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.line_samples import CONTAINERS_MAX, GrownContainer, HeldGrowth
from rankscope.measure.messages import SampleOrder
from rankscope.measure.own_files import is_own_file
from rankscope.measure.records import StepRecord
from rankscope.measure.text import to_unicode

KINDS: Final = frozenset({list, dict, set, deque, OrderedDict, defaultdict, Counter})
LENGTH_MIN: Final = 16
"""Attributes of an object are a dict too, mostly a shorter one."""
OBJECTS_MAX: Final = 4_000_000
"""Beyond, a look would take more than a second: only the number of objects is told."""
OWNERS_MAX: Final = 500_000
"""Objects and dicts that are searched for what the collector does not know."""
MEASURED_MAX: Final = 32
"""Containers whose new elements are measured, those with most of them."""
ELEMENTS_MAX: Final = 8
"""New elements of each that are measured."""
VISITED_MAX: Final = 400
"""Objects within an element that are measured."""
CHILDREN_MAX: Final = 64
DEPTH_MAX: Final = 4
STEADY_MIN: Final = 0.25
"""Share of what a container has grown by that each half must have."""
LEVELS_MAX: Final = 4
"""Containers in containers up to the one with a name."""
REFERRERS_MAX: Final = 64
STATUS: Final = "/proc/self/status"
RESIDENT: Final = ("RssAnon", "RssFile", "RssShmem")
KIB: Final = 1024
_SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""What an element refers to and does not hold."""


class _Look(NamedTuple):
    """The lengths by id, the number of all objects, and resident bytes by kind."""

    lengths: Mapping[int, int]
    objects: int
    resident: Mapping[str, int]


class HeldObjects:
    """The looks of one order, on the agent thread. `thread` is the ident of the one that trains."""

    def __init__(
        self,
        order: SampleOrder,
        thread: int,
        files: ScriptFiles,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        status: str = STATUS,
    ) -> None:
        self.order = order
        self._thread = thread
        self._files = files
        self._monotonic_ns = monotonic_ns
        self._status = status
        self._steps = 0
        self.cpu_ns = 0
        """CPU time of the looks."""
        self.begun_ns = monotonic_ns()
        self._looks = [self._look()]

    def take_steps(self, records: Sequence[StepRecord]) -> None:
        """Count the steps that have ended since the first look, and look again after half of the time."""
        self._steps += sum(one.end_host_ns > self.begun_ns for one in records)
        if len(self._looks) == 1 and 2 * (self._monotonic_ns() - self.begun_ns) >= self.order.lasts_ns:
            self._looks.append(self._look())

    def is_over(self, now_ns: int) -> bool:
        """Return whether its time has passed."""
        return len(self._looks) > 1 and now_ns - self.begun_ns >= self.order.lasts_ns

    def finish(self) -> HeldGrowth:
        """Look for the last time, and return what has grown."""
        last = self._look()
        first = self._looks[0]
        looks = [*self._looks, last]
        begin_ns = time.thread_time_ns()
        grown = _find_grown(looks) if len(looks) > 2 else {}  # noqa: PLR2004 - both halves
        selected = _select_ids(grown)
        measured = [_measure(one, *grown[id(one)]) for one in selected]
        most = sorted(range(len(selected)), key=lambda place: -(measured[place].added_bytes or 0))[:CONTAINERS_MAX]
        running = [code for code in self._find_running() if self._files.is_user(code.co_filename)]
        containers = tuple(_add_name(measured[place], selected[place], selected, running) for place in most)
        self.cpu_ns += time.thread_time_ns() - begin_ns
        return HeldGrowth(
            steps=self._steps,
            objects=last.objects,
            frozen=gc.get_freeze_count(),
            added_objects=last.objects - first.objects,
            is_searched=bool(last.lengths and first.lengths),
            resident_bytes={
                name: last.resident[name] - first.resident[name] for name in RESIDENT if name in first.resident
            },
            containers=containers,
        )

    def _look(self) -> _Look:
        begin_ns = time.thread_time_ns()
        count, containers = _select_containers()
        lengths = dict(zip(map(id, containers), map(len, containers), strict=True))
        del containers
        resident = read_resident(self._status)
        self.cpu_ns += time.thread_time_ns() - begin_ns
        return _Look(lengths, count, resident)

    def _find_running(self) -> Iterator[CodeType]:
        frame = read_frames().get(self._thread)
        while frame is not None:
            yield frame.f_code
            frame = frame.f_back


class _Named(NamedTuple):
    """Who has a container, the name in the source that stands for it, and functions that may add to it."""

    text: str
    variable: str
    functions: Sequence[Any]


def _select_containers() -> tuple[int, list[Any]]:
    """Return how many objects there are, and the long containers among them; of more than OBJECTS_MAX none. Some may be
    there twice.

    The collector does not know a dict of numbers, texts and arrays alone, before Python 3.14: these are found by the
    objects and dicts that have them.
    """
    types = list_types()
    count = len(types)
    if count > OBJECTS_MAX:
        return count, []
    owning = {one for one in set(types) if one.__dictoffset__ and not issubclass(one, _SHARED)}
    del types
    wanted = find_instances(owning | KINDS)
    known = list(compress(wanted, map(KINDS.__contains__, map(type, wanted))))
    owning.add(dict)
    owners = list(compress(wanted, map(owning.__contains__, map(type, wanted))))
    del wanted
    if len(owners) <= OWNERS_MAX:
        had = gc.get_referents(*owners)
        dicts = list(compress(had, map(is_, map(type, had), repeat(dict))))
        known += compress(dicts, map(not_, map(gc.is_tracked, dicts)))
    return count, list(compress(known, map((LENGTH_MIN - 1).__lt__, map(len, known))))


def _find_grown(looks: Sequence[_Look]) -> dict[int, tuple[int, int]]:
    """Return by id the first and the last length of the containers that have grown in both halves, the most grown."""
    first, middle, last = (one.lengths for one in looks[-3:])
    grown = {}
    for key, begin in first.items():
        half, end = middle.get(key), last.get(key)
        if half is None or end is None or end <= begin:
            continue
        if min(half - begin, end - half) >= STEADY_MIN * (end - begin):
            grown[key] = (begin, end)
    most = sorted(grown, key=lambda key: grown[key][0] - grown[key][1])[:MEASURED_MAX]
    return {key: grown[key] for key in most}


def _select_ids(wanted: Mapping[int, object]) -> list[Any]:
    if not wanted:
        return []
    _, containers = _select_containers()
    once = dict(zip(map(id, containers), containers, strict=True))
    return [once[key] for key in wanted if key in once]


def _take_newest(container: Any, added: int) -> list[Any]:
    """Return some of the newest elements; of a dict the values."""
    count = min(added, ELEMENTS_MAX)
    try:
        if isinstance(container, list | deque):
            return [container[-1 - place * added // count] for place in range(count)]
        if isinstance(container, dict):
            return list(islice(reversed(dict.values(container)), count))
        return list(islice(iter(container), count))  # which of a set are new is not known
    except (IndexError, RuntimeError):  # it has changed meanwhile
        return []


def _measure(container: Any, first: int, last: int) -> GrownContainer:
    """Return what a container that has grown from the first to the last length holds more of."""
    elements = _take_newest(container, last - first)
    size = measure_elements(elements)
    return GrownContainer(
        kind=type(container).__name__,
        length=len(container),
        added=last - first,
        added_bytes=None if size is None else round((last - first) * size),
        element=to_unicode(_name_type(elements[0]) if elements else "")[:NAME_LENGTH_MAX],
    )


# -- what an element takes --------------------------------------------------------------------------------------------


def measure_elements(elements: Sequence[Any]) -> float | None:
    """Return the mean bytes of elements, without what several of them have in common; None without any."""
    if not elements:
        return None
    sizes = [_Sizes().measure(one) for one in elements]
    times = Counter(key for one in sizes for key in one)
    return sum(size for one in sizes for key, size in one.items() if times[key] == 1) / len(elements)


class _Sizes:
    """The sizes of the objects within one element, by id. Of a long container the first are measured, for all."""

    def __init__(self) -> None:
        self._sizes: dict[Any, float] = {}

    def measure(self, element: Any) -> dict[Any, float]:
        """Return the bytes of the element and of what it holds."""
        self._add(element, 1.0, 0)
        return self._sizes

    def _add(self, one: Any, weight: float, depth: int) -> None:
        if id(one) in self._sizes or len(self._sizes) >= VISITED_MAX or issubclass(type(one), _SHARED):
            return
        kind = type(one)
        buffer = _find_buffer(one)
        if buffer is not None:
            key, size = buffer
            self._sizes[key] = weight * size
            return
        children: Iterable[Any] = ()
        if kind in KINDS or kind in {tuple, frozenset}:
            self._sizes[id(one)] = weight * sys.getsizeof(one)
            children = _list_children(one)
            weight *= max(1.0, len(one) / CHILDREN_MAX)
        elif kind in {int, float, complex, str, bytes, bytearray}:
            self._sizes[id(one)] = weight * sys.getsizeof(one)
        else:
            self._sizes[id(one)] = weight * max(0, kind.__basicsize__)
            children = gc.get_referents(one)[:CHILDREN_MAX]
        if depth < DEPTH_MAX:
            for child in children:
                self._add(child, weight, depth + 1)


def _list_children(one: Any) -> list[Any]:
    try:
        if isinstance(one, dict):
            pairs = list(islice(dict.items(one), CHILDREN_MAX))
            return [part for pair in pairs for part in pair]
        return list(islice(iter(one), CHILDREN_MAX))
    except RuntimeError:  # it has changed meanwhile
        return []


def _find_buffer(one: Any) -> tuple[Any, int] | None:
    """Return what tells the memory of a tensor or an array apart, and its bytes on the host; None for all else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(one) in {torch.Tensor, torch.nn.Parameter}:  # of others the script may have the code
        for address, size, device in find_storages([one]):
            return (address, "storage"), size if device < 0 else 0
        return id(one), 0
    if numpy is not None and type(one) is numpy.ndarray:
        whole = one
        while type(whole.base) is numpy.ndarray:
            whole = whole.base
        return id(whole), int(whole.nbytes)
    return None


def _name_type(one: Any) -> str:
    kind = type(one)
    module = str(kind.__module__)
    return kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"


# -- names ------------------------------------------------------------------------------------------------------------


def _add_name(
    grown: GrownContainer, container: Any, selected: list[Any], running: Sequence[CodeType]
) -> GrownContainer:
    """Add who has a container beside the list of those selected, and where code adds to it: that which is `running`, or
    that of who has it.
    """
    named = _find_holder(container, selected)
    lines = find_adding_lines([*running, *find_codes(named.functions)], named.variable, type(container))
    return msgspec.structs.replace(
        grown,
        name=to_unicode(named.text)[:NAME_LENGTH_MAX],
        line=to_unicode(", ".join(lines[:2]))[:NAME_LENGTH_MAX] if named.variable or len(lines) == 1 else "",
    )


def _find_holder(container: Any, selected: list[Any]) -> _Named:
    """Return who has a container beside the list of those selected; an empty name where that is not found."""
    suffix, target, skipped = "", container, {id(container), id(selected)}
    for _ in range(LEVELS_MAX):
        referrers = [one for one in find_referrers(target) if id(one) not in skipped]
        named = _find_in_modules(target)
        for one in referrers[:REFERRERS_MAX]:
            named = named or _find_owner(one, target)
        if named is not None:
            return named._replace(text=f"{named.text}{suffix}", variable="" if suffix else named.variable)
        owner = next((one for one in referrers if type(one) in KINDS), None)
        if owner is None:
            break
        suffix = f"[{_find_key(owner, target)}]{suffix}"
        skipped.add(id(owner))
        target = owner
        referrers.clear()  # else this list would have the next target, too
    return _Named("", "", ())


def _find_in_modules(target: Any) -> _Named | None:
    """Return the name of a container in a module. Their dicts may be frozen (`gc.freeze`), and nobody's referrers."""
    for module in list(sys.modules.values()):
        names = _read_attributes(module)
        if names is not None and id(target) in set(map(id, names.values())):
            key = _find_key(names, target).strip("'")
            functions = [one for one in list(names.values()) if type(one) in {FunctionType, type}]
            file = names.get("__file__")
            owner = os.path.basename(file) if type(file) is str and file else names.get("__name__")
            return _Named(f"{key} of {owner}", key, functions)
    return None


def _find_owner(holder: Any, target: Any) -> _Named | None:
    """Return the name by which an object or a closure has a container."""
    kind = type(holder)
    if kind is dict:
        for one in find_referrers(holder)[:REFERRERS_MAX]:
            if _has_attributes(one, holder):
                return _name_attribute(one, holder, target)
    if kind is CellType:
        return _find_closure(holder)
    if kind not in KINDS and not issubclass(type(holder), _SHARED):
        attributes = _read_attributes(holder)
        if attributes is not None:
            return _name_attribute(holder, attributes, target)
    return None


def _find_key(holder: Any, target: Any) -> str:
    """Return by which key or index a container has it; of what is large, `...`."""
    try:
        pairs = dict.items(holder) if isinstance(holder, dict) else enumerate(holder)
        key = next((key for key, value in islice(pairs, 10_000) if value is target), None)
    except RuntimeError:
        key = None
    return repr(key) if type(key) in {str, int} else "..."


def _read_attributes(owner: Any) -> dict[Any, Any] | None:
    """Return the dict of an object's attributes; None where it has none, or the script's code would be asked for it."""
    for kind in type(owner).__mro__:
        descriptor = kind.__dict__.get("__dict__")
        if descriptor is not None:
            is_own = type(descriptor) in {GetSetDescriptorType, MemberDescriptorType}
            found = descriptor.__get__(owner) if is_own else None
            return found if type(found) is dict else None
    return None


def _has_attributes(owner: Any, attributes: dict[Any, Any]) -> bool:
    return type(owner) not in KINDS and not issubclass(type(owner), _SHARED) and _read_attributes(owner) is attributes


def _name_attribute(owner: Any, attributes: dict[Any, Any], target: Any) -> _Named | None:
    key = _find_key(attributes, target).strip("'")
    kind = type(owner)
    if key == "..." or is_own_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""):
        return None
    return _Named(f"attribute {key} of {kind.__qualname__}", key, [kind])


def _find_closure(cell: Any) -> _Named | None:
    for function in find_instances([FunctionType]):
        places = [place for place, one in enumerate(function.__closure__ or ()) if one is cell]
        if places:
            name = function.__code__.co_freevars[places[0]]
            return _Named(f"{name} in {function.__qualname__}", name, [function])
    return None


def read_resident(path: str = STATUS) -> dict[str, int]:
    """Return the resident bytes of this process by kind: anonymous memory, files, shared memory; empty where the
    kernel does not tell.
    """
    try:
        with open(path, encoding="ascii") as file:
            words = [line.split() for line in file]
    except (OSError, ValueError):
        return {}
    return {
        line[0][:-1]: int(line[1]) * KIB
        for line in words
        if len(line) > 1 and line[0][:-1] in RESIDENT and line[1].isdecimal()
    }
