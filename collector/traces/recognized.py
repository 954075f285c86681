"""Recognize trace files before they are read whole: which rank, from where that is known, which cycle of a schedule.

A profiler with a schedule writes one file a cycle and process, named `WORKER.TIME.pt.trace.json`: files of one rank
that differ in the time alone are its cycles. Containers may all have the same worker name, so the rank in the head of
the file goes first. Only the head of each file is read.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.collector.traces.files import TraceFile, rank_in_name, read_chunks
from rankscope.collector.traces.origin import Origin, read_origin
from rankscope.measure.errors import NotATraceError, RankscopeError, SettingError, UnavailableError
from rankscope.measure.kineto_json import TraceBlocks
from rankscope.measure.output_files import check_place, describe_unwritable

FROM_PATTERN, FROM_HEAD, FROM_NAME = "--rank-from", "the trace", "the file's name"
READERS_MAX = 16
DIGEST_CHUNK_BYTES = 1 << 20
HEAD_BLOCK_BYTES = 1 << 30
"""No block of events is decoded where only the head is read."""
_CYCLE = re.compile(r"^(?P<worker>.+)[._](?P<time>\d{10,20})(?P<ending>(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?)$")


class Recognized(NamedTuple):
    """One file. `rank_from` says where its rank is from; `cycle` is its place, from 1, among the `cycles` files of its
    rank; `refusal` is the reason why its head cannot be read, `is_no_trace` that it is another file of a folder;
    `same_as` another file with the same content.
    """

    file: TraceFile
    rank: int | None
    rank_from: str | None
    origin: Origin | None
    refusal: str | None = None
    is_no_trace: bool = False
    cycle: int = 1
    cycles: int = 1
    same_as: str | None = None


def compile_rank_from(pattern: str | None) -> re.Pattern[str] | None:
    """Return the pattern that finds a rank in a path. Raises SettingError for one that is unusable."""
    if pattern is None:
        return None
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise SettingError(f"--rank-from is {pattern!r}, which is not a valid regular expression: {error}") from None
    if found.groups < 1:
        raise SettingError(f"--rank-from is {pattern!r}; it needs a group around the rank, such as 'node(\\d+)'")
    return found


def compile_kernels(pattern: str | None) -> re.Pattern[str] | None:
    """Return the pattern of the user's own kernels that communicate, None for the empty one, which every name has.
    Raises SettingError for one that is unusable.
    """
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise SettingError(
            f"--communication-kernels is {pattern!r}, which is not a valid regular expression: {error}"
        ) from None


def recognize(files: Sequence[TraceFile], rank_from: re.Pattern[str] | None = None) -> list[Recognized]:
    """Return the files with what their heads and names tell, in their order."""
    with ThreadPoolExecutor(READERS_MAX) as pool:  # a bucket answers each within 0.1 s
        found = list(pool.map(lambda file: _recognize_one(file, rank_from), files))
    if rank_from is not None and found and not any(one.rank_from == FROM_PATTERN for one in found):
        raise SettingError(
            f"--rank-from is {rank_from.pattern!r}; its groups match no number in any path, for example "
            f"{found[0].file.path}"
        )
    return _number_cycles(_find_copies(found))


def _recognize_one(file: TraceFile, rank_from: re.Pattern[str] | None) -> Recognized:
    origin = refusal = None
    is_no_trace = False
    try:
        origin = read_origin(read_head(file.path), "")
    except RankscopeError as error:
        refusal = str(error)
        is_no_trace = isinstance(error, NotATraceError) and not file.named
    rank, where = find_rank(file.path, rank_from), FROM_PATTERN
    file = file._replace(rank=rank)
    if rank is None and origin is not None:
        rank, where = origin.rank, FROM_HEAD
    if rank is None:
        rank, where = rank_in_name(file.path), FROM_NAME
    return Recognized(file, rank, where if rank is not None else None, origin, refusal, is_no_trace)


def find_rank(path: str, rank_from: re.Pattern[str] | None) -> int | None:
    r"""Return the rank that the user's pattern finds in a path: the first group with a number.

    >>> [find_rank(path, re.compile(r"/n(\d+)/")) for path in ("runs/n3/trace.json", "runs/trace.json")]
    [3, None]
    """
    found = rank_from.search(path) if rank_from is not None else None
    return next((int(text) for text in found.groups() if text and text.isdecimal()), None) if found else None


def read_head(path: str) -> Mapping[str, Any]:
    """Return what a trace says of itself in front of its events. Raises TraceError and UnavailableError."""
    blocks = TraceBlocks(HEAD_BLOCK_BYTES)
    for chunk in read_chunks(path):
        for _ in blocks.feed(chunk):
            pass
        head = blocks.early_head
        if head is not None:
            return head
    for _ in blocks.finish():
        pass
    return blocks.head


def check_output(path: Path, option: str) -> None:
    """Raise UnavailableError where the file of an option cannot be written, or is a trace that would be lost: before
    the traces are read, which may take minutes.
    """
    check_place(path, option)
    if path.is_file() and _is_trace(path):
        raise UnavailableError(describe_unwritable(path, option, "it is a trace, which would be lost"))


def _is_trace(path: Path) -> bool:
    try:
        read_origin(read_head(str(path)), "")
    except RankscopeError:
        return False
    return True


# -- copies -----------------------------------------------------------------------------------------------------------


def _find_copies(found: Sequence[Recognized]) -> list[Recognized]:
    """Mark local files with the same content as an earlier one: only those of one size are compared."""
    sizes: dict[int, list[str]] = defaultdict(list)
    for one in found:
        size = _size_of(one.file.path)
        if size is not None:
            sizes[size].append(one.file.path)
    same: dict[str, str] = {}
    for paths in sizes.values():
        first: dict[str, str] = {}
        for path in paths if len(paths) > 1 else ():
            earlier = first.setdefault(_digest(path), path)
            if earlier != path:
                same[path] = earlier
    return [one._replace(same_as=same.get(one.file.path)) for one in found]


def _size_of(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:  # a URL
        return None


def _digest(path: str) -> str:
    """Return a text that is equal for equal content; the path itself if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(DIGEST_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return path
    return digest.hexdigest()


# -- cycles -----------------------------------------------------------------------------------------------------------


def _number_cycles(found: Sequence[Recognized]) -> list[Recognized]:
    groups: dict[tuple[int | None, str], list[tuple[int, str]]] = defaultdict(list)
    for one in found:
        named = _CYCLE.match(one.file.path)
        if named is not None and one.same_as is None:
            groups[one.rank, named["worker"]].append((int(named["time"]), one.file.path))
    places = {
        path: (place + 1, len(group)) for group in groups.values() for place, (_, path) in enumerate(sorted(group))
    }
    numbered = []
    for one in found:
        cycle, cycles = places.get(one.file.path, (1, 1))
        numbered.append(one._replace(cycle=cycle, cycles=cycles))
    return numbered


def choose_cycle(found: Sequence[Recognized], cycle: int | None) -> tuple[list[Recognized], dict[str, str]]:
    """Return the files of one cycle of each rank, None the last one, without copies; and by file a note for the user.

    Raises UnavailableError if no rank has this cycle.
    """
    kept = [one for one in found if one.same_as is None and one.cycle == (one.cycles if cycle is None else cycle)]
    notes = {
        one.same_as: f"{one.file.path} has the same content and is not used" for one in found if one.same_as is not None
    }
    if cycle is None:
        notes |= {
            one.file.path: (
                f"the last of {one.cycles} cycles of this rank is used; --cycle N chooses another (1 to {one.cycles})"
            )
            for one in kept
            if one.cycles > 1
        }
    if not kept and found:
        most = max(one.cycles for one in found)
        known = f"the cycles here are 1 to {most}" if most > 1 else "each rank has one cycle here"
        raise UnavailableError(f"--cycle is {cycle}; {known}")
    return kept, notes


def _drop_guesses(kept: Sequence[Recognized]) -> list[Recognized]:
    """Return the files without the ranks that were guessed from the names of several, or that another file says of
    itself: such a number is that of a host or a job.
    """
    counts = Counter(one.rank for one in kept if one.refusal is None)
    return [
        one._replace(rank=None, rank_from=None, file=one.file._replace(may_guess=False))
        if one.rank_from == FROM_NAME and counts[one.rank] > 1
        else one
        for one in kept
    ]


def find_cycles(files: Sequence[TraceFile], rank: int | None, rank_from: str | None) -> list[int]:
    """Return the numbers of the cycles of a rank, or of all. Raises UnavailableError where each has only one."""
    found = recognize(files, compile_rank_from(rank_from))
    kept = [one for one in found if one.refusal is None and (rank is None or one.rank in {rank, None})]
    numbers = sorted({one.cycle for one in kept if one.same_as is None})
    if len(numbers) < 2:  # noqa: PLR2004 - nothing to set side by side
        raise UnavailableError(
            "--cycle is all, but no rank has several cycles here: files of one rank that a schedule has written are "
            "named WORKER.TIME.pt.trace.json, with the same WORKER and another TIME"
        )
    return numbers


def choose_files(
    files: Sequence[TraceFile], rank: int | None, cycle: int | None, rank_from: str | None
) -> tuple[list[TraceFile], dict[str, str]]:
    """Return the files of one cycle, of one rank or all, each content once; and notes for the user by file."""
    pattern = compile_rank_from(rank_from)
    if len(files) == 1 and pattern is None and cycle is None:
        return list(files), {}
    kept, notes = choose_cycle(recognize(files, pattern), cycle)
    kept = _drop_guesses(kept)
    if rank is not None:
        kept = [one for one in kept if one.rank in {rank, None}] or kept
    return [one.file for one in kept], notes
