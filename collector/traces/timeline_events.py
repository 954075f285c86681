"""Rewrite the events of one rank for a merged timeline, and write the timeline's file.

Every value of an event is copied as written, down to the last digit, except what two ranks must not share: process ids,
flow ids, and the zero of time. Only one block of events is objects at a time (measure/kineto_json.py).

Three kinds of metadata are replaced: the name, labels and sort index of a process. A profiler names every GPU of the
host in every rank's file; copied, they would be dozens of empty groups.
"""

import contextlib
import gzip
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, NamedTuple, cast, final

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.measure.errors import CutOffError, UnavailableError
from rankscope.measure.impossible_times import LATE_WORK, PROFILE_NS_MAX, find_middle
from rankscope.measure.kineto import KinetoTrace
from rankscope.measure.kineto_json import NOTHING, EventBlock, TraceBlocks
from rankscope.measure.kineto_numbers import TIME_US_MAX
from rankscope.measure.units import NS_PER_US

RawEvent = dict[str, msgspec.Raw]
"""An event whose values are the raw JSON of the file."""

FLOW_ID_MAX = (1 << 64) - 1
"""Viewers keep the id of a flow in 64 bits."""
SORT_STRIDE = 1000
"""Sort indices reserved for the processes of one rank."""
GZIP_LEVEL = 4
"""zlib's level: two thirds of the time of its default, a seventh larger. isal has other levels."""
DIGITS_OF_A_DAY = 11
"""86,400,000,000 us."""
FRACTION_DIGITS = 3
"""Digits of a microsecond's fraction, for whole ns."""

_BLOCK = msgspec.json.Decoder(list[RawEvent])
_RAW_BLOCK = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(RawEvent)
_METADATA = b'"M"'
_REPLACED = {b'"process_name"': "name", b'"process_labels"': "labels", b'"process_sort_index"': ""}
"""Metadata events that are replaced, with the argument that describes the process."""
_HEX = re.compile(rb'"(?:0[xX])?([0-9a-fA-F]{1,16})"')
_ID_KEYS = ("id", "bind_id")


# -- events of the file -----------------------------------------------------------------------------------------------


def read_raw_events(chunks: Iterable[bytes]) -> Iterator[tuple[list[RawEvent], int]]:
    """Yield the events of each block, and the number of values among them that are no events. Raises TraceError."""
    for block in TraceBlocks().read(chunks):
        yield _decode(block)


def _decode(block: EventBlock) -> tuple[list[RawEvent], int]:
    piece = _replace_broken_text(block.piece)
    try:
        found = _BLOCK.decode(piece)
        dropped = 0
    except msgspec.ValidationError:
        raws = _RAW_BLOCK.decode(piece)
        found = [event for raw in raws if (event := _decode_one(raw)) is not None]
        dropped = len(raws) - len(found)
    events = [event for event in found if "ph" in event]
    return events, dropped + len(found) - len(events)


def _replace_broken_text(piece: bytes) -> bytes:
    """Return the piece with broken UTF-8 replaced, which a reader of the merged file would reject."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return piece.decode(errors="replace").encode()
    return piece


def _decode_one(raw: msgspec.Raw) -> RawEvent | None:
    try:
        return _EVENT.decode(raw)
    except msgspec.ValidationError:
        return None


class EventTimes:
    """Collect the times of a trace's events while its chunks are read. Metadata events have no time."""

    def __init__(self) -> None:
        self._times_ns: list[npt.NDArray[np.int64]] = []
        self._blocks = TraceBlocks()

    @property
    def possible_ns(self) -> tuple[int, int] | None:
        """The first and the last time that can be right (see measure/impossible_times.py); None without any."""
        times_ns = np.concatenate(self._times_ns) if self._times_ns else np.empty(0, dtype=np.int64)
        if len(times_ns) == 0:
            return None
        if times_ns.max() - times_ns.min() >= PROFILE_NS_MAX:
            times_ns = times_ns[np.abs(times_ns - find_middle(times_ns)) < PROFILE_NS_MAX]
        return int(times_ns.min()), int(times_ns.max())

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same chunks, also where a CutOffError ends them."""
        try:
            for chunk in chunks:
                self._scan(self._blocks.feed(chunk))
                yield chunk
        except CutOffError:
            self._scan(self._blocks.finish())
            raise
        self._scan(self._blocks.finish())

    def _scan(self, blocks: Iterable[EventBlock]) -> None:
        for block in blocks:
            times = [parse_ns(bytes(e.get("ts", NOTHING))) for e in _decode(block)[0] if bytes(e["ph"]) != _METADATA]
            self._times_ns.append(np.array([time_ns for time_ns in times if time_ns is not None], dtype=np.int64))


# -- numbers ----------------------------------------------------------------------------------------------------------


def parse_ns(text: bytes) -> int | None:
    """Return the ns of decimal microseconds in JSON, exactly (beyond three digits: to the nearest).

    A float would round: for times since 1970 its resolution is a quarter of a microsecond.

    >>> parse_ns(b"1694128201427784.123"), parse_ns(b'"7.5"'), parse_ns(b"null")
    (1694128201427784123, 7500, None)
    """
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and len(fraction) <= FRACTION_DIGITS and (fraction.isdigit() or not fraction):
        time_us = int(whole)
        return time_us * NS_PER_US + int(fraction.ljust(FRACTION_DIGITS, b"0")) if time_us < TIME_US_MAX else None
    try:
        exact_us = Decimal(text.decode().strip('"'))
        if abs(exact_us) < TIME_US_MAX:
            return int((exact_us * NS_PER_US).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        pass
    return None


def format_us(time_ns: int) -> bytes:
    """Return integer ns as decimal microseconds, exactly.

    >>> format_us(1694128201427784123), format_us(2000), format_us(-1)
    (b'1694128201427784.123', b'2', b'-0.001')
    """
    whole_us, fraction_ns = divmod(abs(time_ns), NS_PER_US)
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{whole_us}.{fraction_ns:03d}".removesuffix(".000").encode()


# -- one rank ---------------------------------------------------------------------------------------------------------


class ThreadOfEvent(NamedTuple):
    """A thread in the merged timeline; `tid` is JSON."""

    pid: int
    tid: bytes


class RankEvents:
    """Rewrites one rank's events. `place` of `places` makes its flow ids distinct from those of other ranks; `pids`
    yields unused process ids; `shift_ns` is added to every time. Events outside of `possible_ns` are left out.
    """

    def __init__(
        self, label: str, place: int, places: int, shift_ns: int, pids: Iterator[int], *, possible_ns: tuple[int, int]
    ) -> None:
        self._label = label
        self._place = place
        self._places = places
        self._shift_ns = shift_ns
        self._pids = pids
        self._pid_of: dict[str, int] = {}
        self._raw_pid: dict[tuple[bytes, bytes], msgspec.Raw] = {}
        self._threads: dict[tuple[str, str], ThreadOfEvent] = {}
        self._descriptions: dict[tuple[str, str], str] = {}
        self._possible_ns = possible_ns
        self.untimed_count = 0
        self.impossible_count = 0

    def rewrite(self, events: Iterable[RawEvent]) -> list[RawEvent]:
        """Return the events for the merged timeline, without those that describe a process."""
        found = [self._rewrite_one(event) for event in events if not self._is_replaced(event)]
        return [event for event in found if event is not None]

    def _rewrite_one(self, event: RawEvent) -> RawEvent | None:
        key = (bytes(event.get("pid", NOTHING)), bytes(event.get("tid", NOTHING)))
        event["pid"] = self._raw_pid.get(key) or self._add_thread(*key)
        if bytes(event["ph"]) == _METADATA:
            event.pop("ts", None)
            return event
        time_ns = parse_ns(bytes(event.get("ts", NOTHING)))
        if time_ns is None:
            self.untimed_count += 1
        elif not self._possible_ns[0] <= time_ns <= self._possible_ns[1] or self._is_endless(event):
            self.impossible_count += 1
            return None
        else:
            event["ts"] = msgspec.Raw(format_us(time_ns + self._shift_ns))
        for id_key in _ID_KEYS:
            if id_key in event:
                event[id_key] = make_distinct(event[id_key], self._place, self._places)
        if "id2" in event:  # an id of its process, or of all
            inner = msgspec.json.decode(event["id2"], type=RawEvent)
            found = {name: make_distinct(raw, self._place, self._places) for name, raw in inner.items()}
            event["id2"] = msgspec.Raw(msgspec.json.encode(found))
        return event

    def _is_endless(self, event: RawEvent) -> bool:
        raw = bytes(event.get("dur", NOTHING))
        whole = raw.partition(b".")[0]
        if whole.isdigit() and len(whole) < DIGITS_OF_A_DAY:
            return False
        duration_ns = parse_ns(raw)
        return duration_ns is not None and duration_ns >= PROFILE_NS_MAX

    def _add_thread(self, raw_pid: bytes, raw_tid: bytes) -> msgspec.Raw:
        """Add a thread, and return the new id of its process."""
        pid_text, tid_text = _to_text(raw_pid), _to_text(raw_tid)
        if pid_text not in self._pid_of:
            self._pid_of[pid_text] = next(self._pids)
        pid = self._pid_of[pid_text]
        self._threads[pid_text, tid_text] = ThreadOfEvent(pid, raw_tid)
        self._raw_pid[raw_pid, raw_tid] = made = msgspec.Raw(str(pid).encode())
        return made

    def _is_replaced(self, event: RawEvent) -> bool:
        if bytes(event["ph"]) != _METADATA:
            return False
        argument = _REPLACED.get(bytes(event.get("name", NOTHING)))
        if argument is None:
            return False
        arguments = msgspec.json.decode(event["args"]) if "args" in event else None
        if isinstance(arguments, dict) and arguments.get(argument):
            self._descriptions[_to_text(bytes(event.get("pid", NOTHING))), argument] = str(arguments[argument])
        return True

    def find_thread(self, pid: str, tid: str) -> ThreadOfEvent | None:
        """Return the thread in the merged timeline of one in the file; None when it has no event."""
        return self._threads.get((pid, tid))

    # -- its processes ------------------------------------------------------------------------------------------------

    @property
    def processes(self) -> dict[str, str]:
        """New process ids, each with the one in the file, as text."""
        return {str(pid): text for text, pid in self._pid_of.items()}

    def name_processes(self) -> list[dict[str, Any]]:
        """Return metadata events with a name and a sort index for each process: the host first, then its devices."""
        found = []
        for index, text in enumerate(sorted(self._pid_of, key=self._order)):
            pid = self._pid_of[text]
            name = f"{self._label}: {self._describe_process(text)}"
            sort_index = self._place * SORT_STRIDE + min(index, SORT_STRIDE - 1)
            found += [
                {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
                {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": sort_index}},
            ]
        return found

    def _describe_process(self, pid: str) -> str:
        label = self._descriptions.get((pid, "labels"))
        if label is not None:
            return "host" if label == "CPU" else label
        name = self._descriptions.get((pid, "name"))
        return f"{name} {pid}" if name is not None else pid or "other"

    def _order(self, pid: str) -> tuple[int, int, str]:
        label = self._descriptions.get((pid, "labels"))
        if label is None:
            return 2, 0, pid
        number = label.rpartition(" ")[2]
        return int(label != "CPU"), int(number) if number.isdecimal() else 0, pid


def _to_text(raw: bytes) -> str:
    """Return an id as `read_trace` has it: the text of its value."""
    return str(msgspec.json.decode(raw)) if raw else str(None)


def make_distinct(raw: msgspec.Raw, place: int, places: int) -> msgspec.Raw:
    """Return an id that no other place has: numbers stay numbers, hexadecimal ones hexadecimal, text is lengthened.

    >>> [bytes(make_distinct(msgspec.Raw(text), 1, 4)) for text in (b"7", b'"0x10"', b'"a-7"')]
    [b'29', b'"0x41"', b'"a-7.1"']
    """
    text = bytes(raw)
    if text.isdigit() and (number := int(text) * places + place) <= FLOW_ID_MAX:
        return msgspec.Raw(str(number).encode())
    digits = _HEX.fullmatch(text)
    if digits is not None and (number := int(digits.group(1), 16) * places + place) <= FLOW_ID_MAX:
        return msgspec.Raw(f'"0x{number:x}"'.encode())
    return msgspec.Raw(msgspec.json.encode(f"{_to_text(text)}.{place}"))


# -- the file ---------------------------------------------------------------------------------------------------------


@final
class TimelineFile:
    """A file that gets its name only when it is complete; gzip when the name ends in .gz.

    Every failure to write is an UnavailableError that names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> "TimelineFile":
        """Open the file. Raises UnavailableError before any work is done."""
        if self.path.is_dir():
            raise UnavailableError(f"{self.path} cannot be written: it is a folder")
        with self._translate_errors():
            self._raw: IO[bytes] = self._partial.open("wb")
            self._file: IO[bytes] = _compress(self._raw) if self.path.suffix == ".gz" else self._raw
        return self

    def write(self, content: bytes) -> None:
        """Append `content`."""
        with self._translate_errors():
            self._file.write(content)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the file its name, or remove it after an exception."""
        try:
            if kind is None:
                with self._translate_errors():
                    self._file.close()
                    self._raw.close()
                    self._partial.replace(self.path)
        finally:
            for file in (self._file, self._raw):
                with contextlib.suppress(OSError):  # flushing fails on a full disk; the file is removed anyway
                    file.close()
            self._partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"{self.path} cannot be written: {error.strerror or error}. Is its folder there, and has it room?"
            ) from error


def _compress(raw: IO[bytes]) -> IO[bytes]:
    """Return a gzip stream without name or time in it: equal timelines are equal files."""
    try:
        igzip = importlib.import_module("isal.igzip")
    except ImportError:
        return cast("IO[bytes]", gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0))
    return cast("IO[bytes]", igzip.IGzipFile("", "wb", fileobj=raw, mtime=0))


class EventArray:
    """Writes events as the inside of a JSON array, piece by piece."""

    def __init__(self, file: TimelineFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self.count = 0

    def add(self, events: list[RawEvent] | list[dict[str, Any]]) -> None:
        """Append these events."""
        if not events:
            return
        if self.count:
            self._file.write(b",\n")
        self._file.write(self._encoder.encode(events)[1:-1])
        self.count += len(events)


def describe_reading(trace: KinetoTrace) -> list[str]:
    """Return warnings of the reading before the timeline is written: what was mended, and the work that is only shown.
    What is left out is counted while the timeline is written.
    """
    late_count = trace.left_out.get(LATE_WORK, 0)
    late = f"{late_count:,} events kept in the timeline, but not used to match collectives: {LATE_WORK}"
    return [*trace.mended, *([late] if late_count else [])]
