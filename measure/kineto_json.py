"""Parse the JSON of a Kineto trace in pieces: bytes in any chunks become blocks of whole decoded events.

A trace is one JSON object with a long array `traceEvents`, or only that array. Only the events of about one block are
objects at a time, so that memory does not depend on the size of the trace.

How a block is cut
------------------
A block ends at a comma between two objects. Whether that comma separates two
*events* (and not two objects in an event's arguments, or two halves of a string) is checked by decoding: the piece in
front of it must be an array of its own. At an unclosed bracket or quote the decoder reports "truncated", and the comma
before is tried. The end of the array is found the same way: the decoder reports "trailing characters" and their
position.

Damage
------
Versions of Kineto wrote names with control characters and broken UTF-8, `nan` and `inf` without quotes,
and paths with a single backslash. A block that does not decode is mended in place, byte for byte, and decoded event by
event; what is still no event is counted, with the first reason.

Where the structure is broken (a quote without a backslash in a name, a comma too many, a bracket missing, the end of
the file) each event is read by itself (kineto_damage.py), and `warnings` says what was mended. A trace without any
event that can be read is an error.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rankscope.measure.errors import CutOffError, NotATraceError, TraceError
from rankscope.measure.kineto_damage import (
    BRACKET_MISSING,
    SPACE,
    CutError,
    Damage,
    mend_commas,
    mend_first_event,
    mend_values,
    name_format,
    position_of,
    split_events,
)

BLOCK_BYTES = 1 << 20
"""About 3,500 events: bytes and objects stay in the caches. Blocks of 4 MiB and more are a fifth slower."""
START_BYTES = 512
"""So many bytes of a file tell whether it is JSON; a tar archive says what it is at byte 257."""
CUTS_MAX = 64
"""Commas tried before more bytes are awaited. A comma that separates no events is rare; one suffices mostly."""
HEAD_BYTES_MAX = TAIL_BYTES_MAX = EVENT_BYTES_MAX = 64 << 20
"""Bytes in which the events must begin. Real heads have up to 26 kB."""

DAMAGED_EVENT_BYTES_MAX = 16 << 20
"""Bytes of a damaged trace in which an event must end."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


NOTHING = msgspec.Raw()
"""A field that the event does not have."""
ABSENT = -1
"""Value of an absent number field, so that a column of integers is made at once."""


# -- the events as they stand in the file -----------------------------------------------------------------------------


class Arguments(msgspec.Struct, gc=False):
    """Used fields of an event's `args`. Numbers stay untyped: some writers put text in their place."""

    external_id: Any = msgspec.field(default=ABSENT, name="External id")
    correlation: Any = ABSENT
    stream: Any = None
    device: Any = None
    external_id_old: Any = msgspec.field(default=ABSENT, name="external id")
    bytes: Any = ABSENT
    blocks_per_sm: Any = msgspec.field(default=None, name="blocks per SM")
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    gigabytes_per_s: Any = msgspec.field(default=None, name="memory bandwidth (GB/s)")
    input_dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    call_stack: msgspec.Raw = msgspec.field(default=NOTHING, name="Call stack")
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Any = msgspec.field(default=None, name="Seq")
    task_type: Any = msgspec.field(default=None, name="Task Type")
    stream_id: Any = msgspec.field(default=None, name="Stream Id")


class CompleteEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """An event with a duration. `ts` and `dur` are microseconds."""

    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: Arguments | None = None


class ExactCompleteEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """CompleteEvent with `ts` as written, for times that a 64-bit float cannot hold."""

    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: int | float | str | None = None
    args: Arguments | None = None


class Address(msgspec.Struct, gc=False):
    """Fields of an event's `args` that say to whom a message goes, of NCCL's kernels and of torch's calls, how much
    of an all-to-all goes to whom, for what a stream waits (cuda_sync, "Stream Wait Event"), or how the inputs of an
    operator lie in memory.
    """

    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    concrete_inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")
    in_split: Any = msgspec.field(default=None, name="In split size")
    stream: Any = None
    awaited: Any = msgspec.field(default=None, name="wait_on_stream")
    record_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class AddressedEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """CompleteEvent with these fields only: few blocks have messages, and every field costs in all of them."""

    args: Address | None = None


class AutogradArguments(msgspec.Struct, gc=False):
    """Fields of an operator's `args` that tie a backward operator to the forward one."""

    sequence: Any = msgspec.field(default=ABSENT, name="Sequence number")
    forward_thread: Any = msgspec.field(default=ABSENT, name="Fwd thread id")


class AutogradEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """CompleteEvent with these fields only, as AddressedEvent."""

    args: AutogradArguments | None = None


class LaunchArguments(msgspec.Struct, gc=False):
    """Fields of a kernel's `args` that say how it was launched."""

    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(default=None, name="registers per thread")
    shared_memory: Any = msgspec.field(default=None, name="shared memory")


class LaunchEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """CompleteEvent with these fields only, as AddressedEvent."""

    args: LaunchArguments | None = None


class CounterEvent(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """CompleteEvent with these fields only: the arguments of a range of counters are the counters."""

    cat: str = ""
    args: msgspec.Raw = NOTHING


class MemoryArguments(msgspec.Struct, gc=False):
    """Fields of a `[memory]` event: one allocation, and the device's totals after it."""

    bytes: Any = msgspec.field(default=None, name="Bytes")
    device: Any = msgspec.field(default=None, name="Device Id")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    address: Any = msgspec.field(default=None, name="Addr")


class InstantEvent(msgspec.Struct, gc=False, tag="i", tag_field="ph"):
    """Event without a duration; those named `[memory]` are used."""

    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: int | float | str | None = None
    args: MemoryArguments | None = None


def _other_events() -> Any:
    """Return a type for each other phase of the format, which skips everything in it."""
    phases = "BEICbneSTpFstfPNODMVvRca(),"
    types = [
        msgspec.defstruct(f"Phase{ord(phase)}Event", [], tag=phase, tag_field="ph", gc=False, module=__name__)
        for phase in phases
    ]
    union: Any = InstantEvent
    for other in types:
        union = union | other
    return union


_OTHER = _other_events()
_BLOCK = msgspec.json.Decoder(list[CompleteEvent | _OTHER])  # type: ignore[valid-type]
_EXACT_BLOCK = msgspec.json.Decoder(list[ExactCompleteEvent | _OTHER])  # type: ignore[valid-type]
_ADDRESSED_BLOCK = msgspec.json.Decoder(list[AddressedEvent | _OTHER])  # type: ignore[valid-type]
_ADDRESSED_EVENT = msgspec.json.Decoder(AddressedEvent | _OTHER)
_AUTOGRAD_BLOCK = msgspec.json.Decoder(list[AutogradEvent | _OTHER])  # type: ignore[valid-type]
_AUTOGRAD_EVENT = msgspec.json.Decoder(AutogradEvent | _OTHER)
_LAUNCH_BLOCK = msgspec.json.Decoder(list[LaunchEvent | _OTHER])  # type: ignore[valid-type]
_LAUNCH_EVENT = msgspec.json.Decoder(LaunchEvent | _OTHER)
_COUNTER_BLOCK = msgspec.json.Decoder(list[CounterEvent | _OTHER])  # type: ignore[valid-type]
_COUNTER_EVENT = msgspec.json.Decoder(CounterEvent | _OTHER)
_COUNTERS = msgspec.json.Decoder(dict[str, Any] | None)
COUNTER_RANGE = "cuda_profiler_range"
_EVENT = msgspec.json.Decoder(CompleteEvent | _OTHER)
_EXACT_EVENT = msgspec.json.Decoder(ExactCompleteEvent | _OTHER)
_RAW_BLOCK = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class _CutInsideError(Exception):
    """Raised if the piece ends inside an event."""


class _BrokenError(TraceError):
    """Raised for a piece with a broken structure."""


class _ArrayEndedError(Exception):
    """The array of events ended inside the piece, at `end` (the position of its bracket)."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class EventBlock:
    """Decoded events of one `piece` of the file, in its order, and why the others are no events."""

    def __init__(self, piece: bytes, *, mended: bool = False) -> None:
        self.piece = piece
        self._mended = mended
        self.rejected: list[str] = []
        self.events: list[Any] = self._decode_each() if mended else _BLOCK.decode(piece)

    def mentions(self, text: bytes) -> bool:
        """Return whether this text occurs anywhere in the piece: a quick check that no event has a field."""
        return text in self.piece

    def read_exactly(self) -> list[Any]:
        """Return the same events with `ts` as it is written."""
        return self._read_again(_EXACT_BLOCK, _EXACT_EVENT)

    def read_addresses(self) -> list[Address]:
        """Return of each complete event to whom its message went, if it is one, for what its stream waits, if it is a
        wait, and the values and strides of its inputs, if it is an operator. It decodes the block again.
        """
        found = self._read_again(_ADDRESSED_BLOCK, _ADDRESSED_EVENT)
        return [event.args or Address() for event in found if type(event) is AddressedEvent]

    def read_autograd(self) -> list[AutogradArguments]:
        """Return of each complete event what ties it to autograd, if anything does. It decodes the block again."""
        found = self._read_again(_AUTOGRAD_BLOCK, _AUTOGRAD_EVENT)
        return [event.args or AutogradArguments() for event in found if type(event) is AutogradEvent]

    def read_launches(self) -> list[LaunchArguments]:
        """Return of each complete event how it was launched, if it is a kernel. It decodes the block again."""
        found = self._read_again(_LAUNCH_BLOCK, _LAUNCH_EVENT)
        return [event.args or LaunchArguments() for event in found if type(event) is LaunchEvent]

    def read_counters(self) -> list[dict[str, float]]:
        """Return of each complete event its counters by name, if it is a range of them. It decodes the block again."""
        found = self._read_again(_COUNTER_BLOCK, _COUNTER_EVENT)
        return [_read_counters(event) for event in found if type(event) is CounterEvent]

    def _read_again(self, of_block: Any, of_event: Any) -> list[Any]:
        if not self._mended:
            return list(of_block.decode(self.piece))
        return [of_event.decode(raw) for raw in _RAW_BLOCK.decode(self.piece) if _is_event(raw)]

    def _decode_each(self) -> list[Any]:
        events = []
        for raw in _RAW_BLOCK.decode(self.piece):
            try:
                events.append(_EVENT.decode(raw))
            except msgspec.DecodeError as error:
                self.rejected.append(str(error))
        return events


def _read_counters(event: CounterEvent) -> dict[str, float]:
    if event.cat != COUNTER_RANGE or not len(event.args):
        return {}
    found = _COUNTERS.decode(event.args) or {}
    return {name: float(value) for name, value in found.items() if type(value) in {int, float}}


def _is_event(raw: msgspec.Raw) -> bool:
    try:
        _EVENT.decode(raw)
    except msgspec.DecodeError:
        return False
    return True


class TraceBlocks:
    """Splitter of one trace into blocks. `read` it, or `feed` it chunks in order, then `finish`; then `head` is known.

    Every error is a TraceError with the byte of the (inflated) trace. Without `mends` broken structure is an error too.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES, *, mends: bool = True) -> None:
        self._block_bytes = block_bytes
        self._mends = mends
        self._damage = Damage()
        self._has_events = False
        self._ended_early: CutOffError | None = None
        self._is_cut_inside = False
        self._likely_events: int | None = None
        self._buffer = b""
        #: Chunks after the buffer that are too few to be looked at yet: joined at once, each byte is copied once.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._cut_from_bytes = block_bytes
        self._consumed = 0
        self._part = "head"
        self._head = b""
        self._is_object = True

    def read(self, chunks: Iterable[bytes]) -> Iterator[EventBlock]:
        """Yield all blocks of the trace in these chunks, also where a CutOffError ends them."""
        try:
            for chunk in chunks:
                yield from self.feed(chunk)
        except CutOffError as error:
            if not self._mends:
                raise
            self._ended_early = error
        yield from self.finish()

    def feed(self, chunk: bytes) -> Iterator[EventBlock]:
        """Yield the blocks that are complete with this chunk."""
        if not self._take(chunk):
            return
        if self._part == "head":
            self._find_events()
        if self._part == "events" and len(self._buffer) >= self._cut_from_bytes:
            held = len(self._buffer)
            for block in self._cut():
                self._has_events |= bool(block.events)
                yield block
            self._wait_for_more(held)

    def _take(self, chunk: bytes) -> bool:
        """Append a chunk to the buffer, and return whether there is enough to look at: of what follows the events,
        blanks and all beyond TAIL_BYTES_MAX are left out.
        """
        if self._part == "tail" and (chunk.isspace() or len(self._buffer) > TAIL_BYTES_MAX):
            return False
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        if self._part == "events" and len(self._buffer) + self._waiting_bytes < self._cut_from_bytes:
            return False
        self._join_waiting()
        return True

    def _join_waiting(self) -> None:
        self._buffer = b"".join((self._buffer, *self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def _wait_for_more(self, held: int) -> None:
        """After an attempt to cut the buffer, of `held` bytes, wait for twice as much before the next where nothing
        could be cut, so that the time grows with the bytes. Raises TraceError where no event ends for EVENT_BYTES_MAX.
        """
        if len(self._buffer) < held or self._part != "events":
            self._cut_from_bytes = self._block_bytes
            return
        if held > EVENT_BYTES_MAX:
            raise TraceError(f"no event ends within {held:,} bytes", byte=self._consumed)
        self._cut_from_bytes = 2 * held

    def read_piece(self, chunk: bytes) -> bytes | None:
        """Return what is ready as an undecoded JSON array of events, for readers that decode elsewhere; None if too
        little is.

        Its end is a guess: if it is wrong, decoding it raises a TraceError, or `finish` does.
        """
        if not self._take(chunk):
            return None
        if self._part == "head":
            self._find_events()
        if self._part != "events" or len(self._buffer) < self._cut_from_bytes:
            return None
        comma = next(_find_cuts(self._buffer), None)
        if comma is None:
            self._wait_for_more(len(self._buffer))
            return None
        self._cut_from_bytes = self._block_bytes
        piece = b"[" + self._buffer[:comma] + b"]"
        self._consume(comma + 1)
        return piece

    def finish(self) -> Iterator[EventBlock]:
        """Yield the remaining blocks when the file has ended."""
        self._join_waiting()
        if self._part == "head":
            self._find_events()
        if self._part == "head" and not self._skip_head():
            raise self._ended_early or _explain_no_events(self._buffer)
        if self._part == "events":
            yield from self._end_events()
        self._read_tail()

    @property
    def warnings(self) -> list[str]:
        """What was mended, as sentences for the user."""
        return self._damage.warnings

    @property
    def early_head(self) -> dict[str, Any] | None:
        """What stands in front of the events; None until they have begun."""
        if self._part == "head":
            return None
        found: dict[str, Any] = _decode_whole(self._head + b'"traceEvents":[]}') if self._is_object else {}
        found.pop("traceEvents", None)
        return found

    @property
    def head(self) -> dict[str, Any]:
        """Everything in the trace but its events."""
        return self._fields

    # -- in front of the events ---------------------------------------------------------------------------------------

    def _find_events(self) -> None:
        text = self._buffer.removeprefix(_BYTE_ORDER_MARK).lstrip(SPACE)
        if not text.startswith(b"{") and (known := name_format(self._buffer)) is not None:
            raise TraceError(f"not JSON: it is {known}", byte=0)
        if len(text) >= START_BYTES and text[:1] not in b"{[":
            raise _explain_no_events(self._buffer)
        if text.startswith(b"["):
            self._start_events(len(self._buffer) - len(text) + 1, is_object=False)
            return
        for found in _EVENTS_KEY.finditer(self._buffer):
            head = self._buffer[: found.start()].removeprefix(_BYTE_ORDER_MARK)
            try:
                _decode_whole(head + b'"traceEvents":[]}')
            except msgspec.DecodeError as error:
                if self._likely_events is None and "truncated" not in str(error):
                    self._likely_events = found.end()
                continue  # the key of an inner object, or the JSON in front of it is broken
            self._head = head
            self._start_events(found.end(), is_object=True)
            return
        if len(self._buffer) > HEAD_BYTES_MAX:
            if self._skip_head():
                return
            reason = f'no "traceEvents" in its first {len(self._buffer):,} bytes: not a Kineto trace'
            raise NotATraceError(reason, byte=0)

    def _skip_head(self) -> bool:
        """Begin with the events although the JSON in front of them is broken; return whether there are any."""
        if self._likely_events is None or not self._mends:
            return False
        self._damage.notes.append("the JSON in front of the events is broken: what stands there is not used")
        self._head = b"{"
        self._start_events(self._likely_events, is_object=True)
        return True

    def _start_events(self, position: int, *, is_object: bool) -> None:
        self._is_object = is_object
        self._consumed = position
        self._buffer = self._buffer[position:]
        self._part = "events"

    # -- the events ---------------------------------------------------------------------------------------------------

    def _cut(self) -> Iterator[EventBlock]:
        for comma in _find_cuts(self._buffer):
            try:
                block = self._decode(b"[" + self._buffer[:comma] + b"]")
            except _CutInsideError:
                continue
            except _ArrayEndedError as ended:
                yield self._close(ended.end - 1)
                return
            except _BrokenError:
                if not self._mends:
                    raise
                yield from self._cut_damaged()
                return
            self._consume(comma + 1)
            yield block
            return

    def _end_events(self) -> Iterator[EventBlock]:
        try:
            block = self._decode(b"[" + self._buffer)
        except _ArrayEndedError as ended:
            yield self._close(ended.end - 1)
            return
        except _BrokenError:
            if not self._mends:
                raise
            yield from self._end_damaged()
            return
        except _CutInsideError:
            if not self._mends:
                raise _explain_cut(self._consumed + len(self._buffer)) from None
            yield from self._end_damaged()
            return
        self._part = "tail"
        self._consume(len(self._buffer))
        yield block

    def _close(self, end: int) -> EventBlock:
        """Return the last block, if the array's bracket is at `end` of the buffer; what follows is the tail."""
        block = self._decode(b"[" + self._buffer[:end] + b"]")
        self._consume(end + 1)
        self._part = "tail"
        return block

    def _consume(self, count: int) -> None:
        self._consumed += count
        self._buffer = self._buffer[count:]

    def _decode(self, piece: bytes) -> EventBlock:
        try:
            return _decode_or_mend(piece, self._consumed)
        except RecursionError:
            raise TraceError("an event is nested too deeply", byte=self._consumed) from None

    # -- damaged events -----------------------------------------------------------------------------------------------

    def _cut_damaged(self) -> Iterator[EventBlock]:
        """Yield the events of the buffer but the last, each mended by itself."""
        *texts, last = split_events(self._buffer)
        if texts:
            yield _mend_each(texts, self._damage)
            self._consume(len(self._buffer) - len(last))
        elif len(last) > DAMAGED_EVENT_BYTES_MAX:
            raise TraceError(f"the JSON is broken: no event ends within {len(last):,} bytes", byte=self._consumed)

    def _end_damaged(self) -> Iterator[EventBlock]:
        """Yield the last events, each mended by itself, as far as they are whole, and find what follows them."""
        *texts, last = split_events(self._buffer)
        try:
            first = mend_first_event(last)
        except CutError:
            first, rest = None, None
        else:
            rest = self._damage.find_rest(last, first)
            texts.append(last if first is None else first.event)
        block = _mend_each(texts, self._damage)
        if first is not None:
            self._damage.mended.update(first.mended)
        if not (block.events or self._has_events):
            raise (
                _explain_cut(self._consumed + len(self._buffer))
                if rest is None
                else _BrokenError("the JSON is broken", byte=self._consumed)
            )
        self._consume(len(self._buffer))
        self._part = "tail"
        if rest is None:
            self._ended_early = self._ended_early or CutOffError("it ends inside its events", byte=self._consumed)
            self._is_cut_inside = True
        self._buffer = rest or b""
        yield block

    # -- behind the events --------------------------------------------------------------------------------------------

    def _read_tail(self) -> None:
        self._fields: dict[str, Any] = {}
        if self._ended_early is not None:
            where = self._consumed + len(self._buffer)
            cut = f"the file is cut off at byte {where:,}"
            self._damage.notes.append(f"{cut}: what follows is missing (a profiler writes device work last)")
        if self._is_cut_inside:
            self._buffer = b"}" if self._is_object else b""
        if _EVENTS_KEY.search(self._buffer):
            raise TraceError(
                "it holds several traces, one behind the other: give each rank and each record a file of its own",
                byte=self._consumed,
            )
        if not self._is_object:
            rest = self._buffer.strip(SPACE)
            if rest:
                self._fail_at_tail(f"text follows the array of events: {rest[:20]!r}", self._consumed)
            return
        try:
            found = _decode_whole(self._head + b'"traceEvents":[]' + self._buffer)
        except msgspec.DecodeError as error:
            what = f"the JSON behind the events is broken ({error})"
            if "truncated" in str(error):
                what = "the trace is cut off behind its events"
            self._fail_at_tail(what, self._consumed + len(self._buffer))
            found = _decode_whole(self._head + b'"traceEvents":[]}')
        found.pop("traceEvents", None)  # it may be the end of another key
        self._fields = found

    def _fail_at_tail(self, reason: str, byte: int) -> None:
        """Note that what follows the events could not be read. Raises TraceError where nothing is mended."""
        error = TraceError(reason, byte=byte)
        if not self._mends:
            raise error
        if BRACKET_MISSING not in self._damage.notes:
            self._damage.notes.append(f"{error}: what stands there is not used")


def _explain_no_events(buffer: bytes) -> TraceError:
    text = buffer.removeprefix(_BYTE_ORDER_MARK).strip(SPACE)
    if not text:
        return TraceError("the file is empty", byte=0)
    if not text.startswith(b"{"):
        return TraceError(f"not JSON: it begins with {text[:12]!r}", byte=0)
    try:
        _decode_whole(text)
    except msgspec.DecodeError as error:
        return TraceError(f"the JSON is broken ({error})", byte=0)
    return NotATraceError('JSON without "traceEvents": not a Kineto trace', byte=0)


def _explain_cut(byte: int) -> TraceError:
    return TraceError(
        "the trace is cut off: it ends inside its events. Was it still being written, or only partly copied?",
        byte=byte,
    )


def _decode_or_mend(piece: bytes, consumed: int) -> EventBlock:
    try:
        return EventBlock(piece)
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass
    except msgspec.DecodeError as error:
        # For half a surrogate pair close to the end the decoder also reports "truncated": mend it first.
        if b"\\ud" not in piece[-12:].lower():
            _raise_if_position(error, piece)
    mended = mend_values(piece)
    try:
        return EventBlock(mended, mended=True)
    except msgspec.DecodeError as error:
        _raise_if_position(error, mended)
        raise _BrokenError(f"the JSON is broken ({error})", byte=consumed + position_of(error) - 1) from None


def _mend_each(texts: list[bytes], damage: Damage) -> EventBlock:
    """Return the events of these texts, each mended by itself; those that are still broken are counted."""
    events = [event for event in map(damage.mend_event, texts) if event is not None]
    block = EventBlock(b"[" + b",".join(events) + b"]", mended=True)
    block.rejected += ["its JSON is broken"] * (len(texts) - len(events))
    return block


def _decode_whole(text: bytes) -> Any:
    """Anything but events. Raises DecodeError."""
    try:
        try:
            return msgspec.json.decode(mend_values(text))
        except msgspec.DecodeError:
            return msgspec.json.decode(mend_commas(mend_values(text)))
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def _find_cuts(buffer: bytes) -> Iterator[int]:
    """Yield the positions of commas between two objects, the last first."""
    end = len(buffer)
    for _ in range(CUTS_MAX):
        while True:
            brace = buffer.rfind(b"{", 0, end)
            if brace <= 0:
                return
            comma = _last_of(buffer, brace)
            end = brace
            if comma > 0 and buffer[comma] == ord(",") and buffer[_last_of(buffer, comma)] == ord("}"):
                break
        yield comma


def _last_of(buffer: bytes, end: int) -> int:
    """Return the position of the last byte before `end` that is no space; -1 when there is none."""
    position = end - 1
    while position >= 0 and buffer[position] in SPACE:
        position -= 1
    return position


def _raise_if_position(error: msgspec.DecodeError, piece: bytes) -> None:
    """Raise if the error only means that the piece ends too early or too late."""
    text = str(error)
    if "truncated" in text:
        raise _CutInsideError from None
    if "trailing characters" in text:
        raise _ArrayEndedError(piece.rfind(b"]", 0, position_of(error) - 1)) from None


# -- damage -----------------------------------------------------------------------------------------------------------


def read_text(raw: msgspec.Raw) -> str:
    """Return the text of a field that was left undecoded, mended if needed; empty if it is no text."""
    try:
        return _TEXT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return _TEXT.decode(mend_values(bytes(raw)))
    except msgspec.DecodeError:
        return ""
