"""Find the place in the user's own code that led to each call: the innermost frame outside of torch and libraries.

Python's frames come from `with_stack=True`. Their line is where the function begins, for functions that were open when
the record began the line at that time; old traces (`Call stack`) have the line of the call.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import SourceRow
from rankscope.measure.backward_links import replace_by_forward
from rankscope.measure.kineto import NONE, Codes, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.own_files import is_own_file
from rankscope.measure.rank_view import RankView

SOURCES_MAX = 3
"""Places listed for an operator or a kernel, those with the most time."""
_PYTHON_OR_TORCH = re.compile(
    r"(?:^|/)(?:torch|functorch|asyncio|collections|concurrent|contextlib|copy|dataclasses|enum|functools|importlib"
    r"|inspect|logging|multiprocessing|random|runpy|subprocess|threading|typing|warnings|weakref)(?:/|\.py)"
    r"|^<|site-packages|dist-packages"
)
_LIBRARIES = re.compile(
    r"(?:^|/)(?:torchvision|torchaudio|triton|numpy|tqdm|transformers|accelerate|deepspeed|lightning|lightning_fabric"
    r"|pytorch_lightning)/"
)
"""The profiler cuts what is on sys.path off a path, so a library's folder is known by its name only."""
_PLACE = re.compile(r"^(.*\.py)\((\d+)\): (.*)$", re.DOTALL)


class Place(NamedTuple):
    """A line of a file, and the function that it is in."""

    file: str
    line: int
    function: str


def parse_place(frame: str) -> Place | None:
    """Return the place in the name of a Python frame; None for built-in functions and modules.

    >>> parse_place("train.py(54): step"), parse_place("<built-in method relu>")
    (Place(file='train.py', line=54, function='step'), None)
    """
    found = _PLACE.match(frame)
    return Place(found[1], int(found[2]), found[3]) if found is not None else None


def is_users(frame: str) -> bool:
    """Return whether a frame is in a file of the user's own.

    >>> [is_users(frame) for frame in ("train.py(54): step", "torch/nn/modules/linear.py(114): forward", "<built-in>")]
    [True, False, False]
    """
    return ".py(" in frame and not _is_foreign(frame) and _LIBRARIES.search(frame) is None


def _is_foreign(frame: str) -> bool:
    """Return whether a frame is Python's, torch's or the agent's, whose hooks are around calls of torch."""
    return _PYTHON_OR_TORCH.search(frame) is not None or is_own_file(frame.partition("(")[0])


# -- the place of each call -------------------------------------------------------------------------------------------


def find_users_frames(view: RankView, rows: Ints) -> Codes:
    """Return for each row the name (its place in the trace's names) of the innermost frame of the user's around it,
    NONE without one.
    """
    frames, nesting = view.host.frame_rows, view.host.frames
    found = np.full(len(rows), NONE, dtype=np.int32)
    if not len(frames):
        return found
    names = view.events.name[frames]
    mine = view.trace.names_like(is_users)[names]
    pointer = np.where(mine, np.arange(len(frames)), nesting.parent)
    pending = np.flatnonzero(~mine & (pointer != OUTSIDE))
    while len(pending := pending[(pointer[pending] != OUTSIDE) & ~mine[pointer[pending]]]):
        pointer[pending] = pointer[pointer[pending]]
    inside = nesting.find_innermost(*_find_threads(view, rows, frames))
    place = np.where(inside == OUTSIDE, OUTSIDE, pointer[inside])
    known = place != OUTSIDE
    found[known] = names[place[known]]
    return found


def find_sources(view: RankView, rows: Ints, operators: Sequence[int]) -> list[str | None]:
    """Return the frame of the user's code that led to each row: from the operator's stack (old traces) or from the open
    Python frames; where none is the user's the innermost of a library, else of torch. None without stacks.
    """
    frames, nesting = view.host.frame_rows, view.host.frames
    if not len(frames):
        return [_choose(view.trace.stacks.get(operator, "").split(";")) for operator in operators]
    found = []
    for place in nesting.find_innermost(*_find_threads(view, rows, frames)).tolist():
        names = []
        above = place
        while above != OUTSIDE:
            names.append(view.trace.name(int(frames[above])))
            above = int(nesting.parent[above])
        found.append(_choose(names))
    return found


def find_frames_around(view: RankView, rows: Ints, count: int) -> list[tuple[str, ...]]:
    """Return for each row the innermost frames around it, the innermost first, at most `count`: Python's, or those of
    an operator's recorded stack (old traces); empty where none are known.
    """
    frames, nesting = view.host.frame_rows, view.host.frames
    if not len(frames):
        stacks = (view.trace.stacks.get(row, "") for row in rows.tolist())
        return [tuple(part.strip() for part in stack.split(";")[:count] if part.strip()) for stack in stacks]
    names, parents = view.events.name[frames].tolist(), nesting.parent.tolist()
    known: dict[int, tuple[str, ...]] = {OUTSIDE: ()}
    found = []
    for place in nesting.find_innermost(*_find_threads(view, rows, frames)).tolist():
        if place not in known:
            around: list[str] = []
            above = place
            while above != OUTSIDE and len(around) < count:
                around.append(view.trace.names[names[above]])
                above = parents[above]
            known[place] = tuple(around)
        found.append(known[place])
    return found


def _find_threads(view: RankView, rows: Ints, frames: Ints) -> tuple[Codes, Ints]:
    """Return the thread and the time at which to search the frames of each row. Some versions of Kineto give Python
    frames other thread ids: when a row's thread has no frames and only one thread has any, that one is used. So the
    place of a backward operator is that of the call of backward().
    """
    threads = view.events.thread[rows].copy()
    with_frames = np.unique(view.events.thread[frames])
    if len(with_frames) == 1:
        threads[~np.isin(threads, with_frames)] = with_frames[0]
    return threads, view.events.start_ns[rows]


def _choose(frames: Sequence[str]) -> str | None:
    in_files = [frame for frame in frames if ".py(" in frame and not is_own_file(frame.partition("(")[0])]
    of_libraries = [frame for frame in in_files if not _is_foreign(frame)]
    return next(iter([frame for frame in of_libraries if is_users(frame)] or of_libraries or in_files), None)


# -- the places of a name ---------------------------------------------------------------------------------------------


def sum_sources(view: RankView, names: Codes, rows: Ints, own_ns: Ints) -> dict[int, list[SourceRow]]:
    """Return for each of the names the places that led to its rows (NONE: not known) with the most of `own_ns`, at most
    SOURCES_MAX. Columns of equal length. Empty without stacks.
    """
    codes, places = _find_places(view, rows)
    known = np.flatnonzero(codes != NONE)
    keys = names[known].astype(np.int64) * max(len(places), 1) + codes[known]
    distinct, which = np.unique(keys, return_inverse=True)
    counts = np.bincount(which, minlength=len(distinct))
    total_ns = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total_ns, which, own_ns[known])
    found: dict[int, list[SourceRow]] = {}
    for key, count, ns in zip(distinct.tolist(), counts.tolist(), total_ns.tolist(), strict=True):
        name, code = divmod(key, len(places))
        found.setdefault(name, []).append(SourceRow(**places[code]._asdict(), count=count, total_ns=ns))
    return {name: sorted(of, key=_most_time_first)[:SOURCES_MAX] for name, of in found.items()}


def _most_time_first(one: SourceRow) -> tuple[int, str, int, str]:
    return -one.total_ns, one.file, one.line, one.function


def _find_places(view: RankView, rows: Ints) -> tuple[Ints, list[Place]]:
    """Return for each row the number of the place that led to it, NONE where it is not known, and these places."""
    codes = np.full(len(rows), NONE, dtype=np.int64)
    known = np.flatnonzero(rows != NONE)
    numbers: dict[Place, int] = {}
    if len(view.host.frame_rows):
        frames = find_users_frames(view, replace_by_forward(view, rows[known]))
        texts = {code: view.trace.names[code] for code in np.unique(frames).tolist() if code != NONE}
        number_of = np.full(len(view.trace.names) + 1, NONE, dtype=np.int64)  # NONE, -1, is the last place
        for code, text in texts.items():
            place = parse_place(text)
            if place is not None:
                number_of[code] = numbers.setdefault(place, len(numbers))
        codes[known] = number_of[frames]
    elif view.trace.stacks:
        by_stack = {text: _place_of_stack(text) for text in set(view.trace.stacks.values())}
        for at in known.tolist():
            place = by_stack.get(view.trace.stacks.get(int(rows[at]), ""))
            if place is not None:
                codes[at] = numbers.setdefault(place, len(numbers))
    return codes, list(numbers)


def _place_of_stack(text: str) -> Place | None:
    frame = next((frame for frame in text.split(";") if is_users(frame)), None)
    return parse_place(frame.strip()) if frame is not None else None
