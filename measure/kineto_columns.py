"""Decode Kineto trace bytes into typed event columns, times in integer ns (the caller opens and inflates the file).

Times in a trace are decimal microseconds, with a fraction in newer ones, counted from `baseTimeNanoseconds` or, in
older ones, from 1970. A 64-bit float holds them to the ns below 2^43 us (101 days); a time beyond that which is no
whole number of microseconds is parsed again from its text.

>>> trace = read_trace([b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2}]}'])
>>> trace.events.start_ns.tolist(), trace.events.duration_ns.tolist(), trace.name(0)
([1500], [2000], 'k')
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rankscope.measure.communication import MESSAGE_CALLS, needs_input_shapes
from rankscope.measure.errors import NotATraceError, TraceError
from rankscope.measure.impossible_times import (
    FAR_START,
    LATE_WORK,
    PROFILE_NS_MAX,
    TOO_LONG,
    ZERO_TIME,
    clip_spilled,
    find_impossible,
    find_middle,
)
from rankscope.measure.kineto import (
    DEVICE_WORK,
    NO_OPTIONS,
    NONE,
    AutogradLinks,
    Category,
    Codes,
    CollectiveArguments,
    DeviceWork,
    Events,
    Ints,
    KinetoTrace,
    LaunchShape,
    MemoryEvents,
    ReadOptions,
    StreamWait,
    find_category,
    name_ascend_category,
)
from rankscope.measure.kineto_json import (
    BLOCK_BYTES,
    COUNTER_RANGE,
    Address,
    Arguments,
    AutogradArguments,
    CompleteEvent,
    EventBlock,
    ExactCompleteEvent,
    InstantEvent,
    LaunchArguments,
    TraceBlocks,
    read_text,
)
from rankscope.measure.kineto_numbers import NO_TIME, is_int64, one_to_ns, to_floats, to_ints, to_ns, to_numbers

Value = TypeVar("Value")

WARNING_EXAMPLES = 3
NAME_CHARACTERS_MAX = 4_000
"""Longest name that is kept as it is. The longest in tests/traces has 2,990 characters."""
REJECTED_MAX = 1_000_000
"""Values that are no events, beyond which a file without more events than these is none."""
NAMES_MAX = THREADS_MAX = 100_000
CATEGORIES_MAX = 10_000
"""Different ones in a file. Each name is looked at in every table, 0.2 ms in all; traces of tests/traces have up to 386
names, 7 threads and 9 categories."""
WAITS_CATEGORY = "cuda_sync"


def read_trace(
    chunks: Iterable[bytes], options: ReadOptions = NO_OPTIONS, *, block_bytes: int = BLOCK_BYTES
) -> KinetoTrace:
    """Return the trace in these bytes, which may be cut anywhere. Raises TraceError with the reason and the byte."""
    blocks = TraceBlocks(block_bytes)
    columns = TraceColumns(options)
    columns.read(blocks, chunks)
    return columns.build(blocks.head, blocks.warnings)


class _Codes(dict[Any, int]):
    """Codes of keys, numbered in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code

    def translate(self, other: "_Codes") -> npt.NDArray[np.int32]:
        """Return, for each code of the other, the code of the same key here."""
        return np.array([self[key] for key in other], dtype=np.int32)

    def of(self, things: list[Any]) -> list[int]:
        try:
            return list(map(self.__getitem__, things))
        except TypeError:  # a list in place of a number or a name
            return [self[_hashable(thing)] for thing in things]


class TraceColumns:
    """Collects the columns block by block, so that no event stays an object."""

    def __init__(self, options: ReadOptions = NO_OPTIONS) -> None:
        """Begin without events."""
        self._options = options
        self._values_of = MESSAGE_CALLS | options.values_of
        self._arguments: dict[int, tuple[bytes, bytes]] = {}
        self._launch_shapes: dict[int, LaunchShape] = {}
        self._distinct_launches: dict[LaunchShape, LaunchShape] = {}
        self._autograd_rows = _Growing(_AUTOGRAD_TYPES)
        self._names = _Codes()
        self._threads = _Codes()
        self._needs_shapes = np.empty(0, dtype=bool)
        self._pids = _Codes()
        self._tids = _Codes()
        self._categories = _Codes()
        self._rows = _Growing(_COLUMN_TYPES)
        self._device_rows = _Growing(_DEVICE_TYPES)
        self._memory_rows = _Growing(_MEMORY_TYPES)
        self._collectives: dict[int, CollectiveArguments] = {}
        self._shapes: dict[int, tuple[bytes, bytes]] = {}
        #: Shapes, and arguments, that are equal are there once.
        self._distinct_shapes: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}
        self._addresses: dict[int, bytes] = {}
        self._stream_waits: dict[int, StreamWait] = {}
        self._stacks: dict[int, str] = {}
        self._counters: dict[int, dict[str, float]] = {}
        self._phases: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._event_count = 0

    def read(self, blocks: TraceBlocks, chunks: Iterable[bytes]) -> None:
        """Read all remaining chunks of the trace."""
        for block in blocks.read(chunks):
            self.add(block)

    # -- a block ------------------------------------------------------------------------------------------------------

    def add(self, block: EventBlock) -> None:
        """Append the used events of a block."""
        self._event_count += len(block.events) + len(block.rejected)
        self._phases.update({_phase(kind): count for kind, count in Counter(map(type, block.events)).items()})
        self._reject(block.rejected)
        rejected = sum(self._rejected.values())
        if rejected > REJECTED_MAX and 2 * rejected > self._event_count:
            raise NotATraceError(f"most of its {self._event_count:,} first values are no events: it is no trace")
        complete = [event for event in block.events if type(event) is CompleteEvent]
        times_us = [event.ts for event in complete]
        start_ns = to_ns(times_us)
        if start_ns is None:
            exact = [event.ts for event in block.read_exactly() if type(event) is ExactCompleteEvent]
            texts = [bytes(text).decode().strip('"').removesuffix("\\t") for text in exact]
            start_ns = np.array(list(map(one_to_ns, times_us, texts)), dtype=np.int64)
        durations_us = [event.dur for event in complete]
        duration_ns = to_ns(durations_us)
        if duration_ns is None:
            duration_ns = np.array([one_to_ns(one_us, str(one_us)) for one_us in durations_us], dtype=np.int64)
        timed = (start_ns != NO_TIME) & (duration_ns != NO_TIME)
        if not timed.all():
            self._reject(["an event without a usable time or duration"] * int((~timed).sum()))
            complete = [event for event, kept in zip(complete, timed, strict=True) if kept]
            start_ns, duration_ns = start_ns[timed], duration_ns[timed]
        first = len(self._rows)
        category, names = self._add_rows(complete, start_ns, duration_ns, with_stacks=block.mentions(b'"Call stack"'))
        has_waits = self._options.every_wait and any(event.cat == WAITS_CATEGORY for event in complete)
        has_arguments = self._options.arguments and any(map(block.mentions, _ARGUMENT_KEYS))
        if has_waits or has_arguments or self._has_values(first, names):
            addresses = [one for one, kept in zip(block.read_addresses(), timed, strict=True) if kept]
            self._add_addresses(first, complete, addresses)
        if self._options.autograd and block.mentions(b'"Sequence number"'):
            self._add_autograd(first, [one for one, kept in zip(block.read_autograd(), timed, strict=True) if kept])
        if self._options.launches and block.mentions(b'"grid"'):
            self._add_launches(first, [one for one, kept in zip(block.read_launches(), timed, strict=True) if kept])
        ranges = self._categories.get(COUNTER_RANGE)
        if ranges is not None and (category == ranges).any():
            kept = (one for one, used in zip(block.read_counters(), timed, strict=True) if used)
            self._counters.update({first + row: found for row, found in enumerate(kept) if found})
        self._add_memory([e for e in block.events if type(e) is InstantEvent and e.name == "[memory]"])
        self._refuse_too_many()

    def _refuse_too_many(self) -> None:
        """Raise TraceError where there are more names, threads or categories than can be summed up in time."""
        for what, found, most, cure in (
            ("names", self._names, NAMES_MAX, ". Leave numbers out of the names of ranges, or record fewer steps"),
            ("threads and streams", self._threads, THREADS_MAX, ""),
            ("categories", self._categories, CATEGORIES_MAX, ""),
        ):
            if len(found) > most:
                raise TraceError(f"it has more than {most:,} different {what}, the most that are read{cure}")

    def _reject(self, reasons: list[str]) -> None:
        for reason in reasons:
            self._rejected[reason.partition(" - at")[0]] += 1

    def _add_rows(
        self, complete: list[Any], start_ns: Ints, duration_ns: Ints, *, with_stacks: bool
    ) -> tuple[Codes, Codes]:
        """Append these events, and return the codes of their categories and names."""
        nothing = Arguments()
        arguments = [event.args or nothing for event in complete]
        spellings = [event.cat for event in complete]
        if "" in spellings:
            spellings = [
                event.cat or name_ascend_category(event.name, a.task_type)
                for event, a in zip(complete, arguments, strict=True)
            ]
        category = np.array(self._categories.of(spellings), dtype=np.int32)
        names = np.array(self._names.of(_bound_names([event.name for event in complete])), dtype=np.int32)
        threads = self._thread_codes(complete)
        external = to_ints([a.external_id for a in arguments])
        if (external == NONE).any():
            external = np.where(external == NONE, to_ints([a.external_id_old for a in arguments]), external)
        first = len(self._rows)
        correlation = to_ints([a.correlation for a in arguments])
        self._rows.append(category, names, threads, start_ns, duration_ns, correlation, external)
        kinds = np.array([find_category(name) for name in self._categories], dtype=np.int8)
        if complete:
            self._add_device_work(first, np.flatnonzero(_DEVICE_MASK[kinds[category]]), complete, arguments)
        if len(self._names) > len(self._needs_shapes):
            new = map(str, islice(self._names, len(self._needs_shapes), None))
            self._needs_shapes = np.concatenate(
                [self._needs_shapes, np.array([self._options.every_shape or needs_input_shapes(name) for name in new])]
            )
        for index in np.flatnonzero(self._needs_shapes[names]).tolist():
            dims, types = arguments[index].input_dims, arguments[index].input_type
            if len(dims) and len(types):
                found = (bytes(types), bytes(dims))
                self._shapes[first + index] = self._distinct_shapes.setdefault(found, found)
        for index, stack in enumerate([a.call_stack for a in arguments] if with_stacks else ()):
            if len(stack):
                self._stacks[first + index] = read_text(stack)
        return category, names

    def _has_values(self, first: int, names: Codes) -> bool:
        """Return whether a row from `first` on is a message between two ranks, or a call whose arguments are wanted."""
        calls = [self._names[name] for name in self._values_of if name in self._names]
        if calls and np.isin(names, calls).any():
            return True
        latest = takewhile(lambda item: item[0] >= first, reversed(self._collectives.items()))
        return any(found.op in _MESSAGE_OPS or found.op in self._values_of for _, found in latest)

    def _add_addresses(self, first: int, complete: list[Any], addresses: list[Address]) -> None:
        """Append to whom the messages of the rows from `first` on went, for what streams waited, and arguments."""
        for row, one in enumerate(addresses):
            if (
                self._options.every_wait
                and is_int64(one.record_correlation)
                and is_int64(one.awaited)
                and is_int64(one.stream)
            ):
                self._stream_waits[first + row] = StreamWait(one.stream, one.awaited, one.record_correlation)
            if len(one.concrete_inputs) and complete[row].name in self._values_of:
                self._addresses[first + row] = bytes(one.concrete_inputs)
            if self._options.arguments and (len(one.concrete_inputs) or len(one.strides)):
                arguments = (bytes(one.strides), bytes(one.concrete_inputs))
                self._arguments[first + row] = self._distinct_shapes.setdefault(arguments, arguments)
            found = self._collectives.get(first + row)
            if found is not None:
                self._collectives[first + row] = found._replace(
                    source=_integer(one.source), destination=_integer(one.destination)
                )
            if found is not None and found.op in self._values_of:
                self._collectives[first + row] = found._replace(in_split=_text(one.in_split))

    def _add_autograd(self, first: int, found: list[AutogradArguments]) -> None:
        """Append the operators from row `first` on that have a sequence number."""
        sequence = to_ints([one.sequence for one in found])
        rows = np.flatnonzero(sequence != NONE)
        forward_thread = to_ints([found[row].forward_thread for row in rows.tolist()])
        self._autograd_rows.append(rows + first, sequence[rows], forward_thread)

    def _add_launches(self, first: int, found: list[LaunchArguments]) -> None:
        """Append how the kernels from row `first` on were launched."""
        for row, one in enumerate(found):
            if one.grid is not None:
                shape = LaunchShape(
                    _dimensions(one.grid), _dimensions(one.block), _integer(one.registers), _integer(one.shared_memory)
                )
                self._launch_shapes[first + row] = self._distinct_launches.setdefault(shape, shape)

    def _thread_codes(self, complete: list[Any]) -> npt.NDArray[np.int32]:
        """Return the code of each event's (pid, tid). A tuple is made once per distinct pair, not per event."""
        pids = np.array(self._pids.of([event.pid for event in complete]), dtype=np.int64)
        tids = np.array(self._tids.of([event.tid for event in complete]), dtype=np.int64)
        pairs, place = np.unique(pids * len(self._tids) + tids, return_inverse=True)
        pid_of, tid_of = list(self._pids), list(self._tids)
        known = [divmod(pair, len(tid_of)) for pair in pairs.tolist()]
        return np.array([self._threads[pid_of[pid], tid_of[tid]] for pid, tid in known], dtype=np.int32)[place]

    def _add_device_work(self, first: int, rows: Ints, complete: list[Any], arguments: list[Arguments]) -> None:
        places = rows.tolist()
        of_rows = [arguments[row] for row in places]
        of_events = [complete[row] for row in places]
        streams = [_stream_of(event, a) for event, a in zip(of_events, of_rows, strict=True)]
        devices = [_device_of(event, a) for event, a in zip(of_events, of_rows, strict=True)]
        self._device_rows.append(
            rows + first,
            to_numbers(devices),
            to_numbers(streams),
            to_ints([a.bytes for a in of_rows]),
            to_floats([a.blocks_per_sm for a in of_rows]),
            to_floats([a.occupancy for a in of_rows]),
            to_floats([a.gigabytes_per_s for a in of_rows]),
        )
        for row in [row for row, a in zip(places, of_rows, strict=True) if a.collective is not None]:
            self._collectives[first + row] = read_collective(arguments[row])

    def _add_memory(self, found: list[Any]) -> None:
        times_ns = to_ns([event.ts for event in found])
        if times_ns is None:
            times_ns = np.array([one_to_ns(event.ts, str(event.ts)) for event in found], dtype=np.int64)
        rows = []
        for event, time_ns in zip(found, times_ns.tolist(), strict=True):
            a = event.args
            if a is None or time_ns == NO_TIME or not is_int64(a.bytes):
                self._reject(["a [memory] event without a usable time or size"])
                continue
            values = (a.device_type, a.device, a.allocated, a.reserved, a.address)
            numbers = [value if is_int64(value) else NONE for value in values]
            thread = self._threads[_hashable(event.pid), _hashable(event.tid)]
            rows.append((time_ns, a.bytes, *numbers, thread))
        if rows:
            self._memory_rows.append(*np.array(rows, dtype=np.int64).T)

    def absorb(self, later: "TraceColumns") -> None:
        """Append what another instance has collected of the events that follow, and empty it."""
        names = self._names.translate(later._names)
        threads = self._threads.translate(later._threads)
        categories = self._categories.translate(later._categories)
        first = len(self._rows)
        category, name, thread, *others = later._rows.take()
        self._rows.append(categories[category], names[name], threads[thread], *others)
        for own, of_later in (
            (self._device_rows, later._device_rows),
            (self._autograd_rows, later._autograd_rows),
        ):
            row, *others = of_later.take()
            own.append(row + first, *others)
        *others, thread = later._memory_rows.take()
        self._memory_rows.append(*others, threads[thread])
        for known, further in zip(self._by_row(), later._by_row(), strict=True):
            known.update({first + row: found for row, found in further.items()})
        self._phases.update(later._phases)
        self._rejected.update(later._rejected)
        self._event_count += later._event_count
        self._refuse_too_many()

    def _by_row(self) -> tuple[dict[int, Any], ...]:
        """Return what only some events have, by their rows."""
        return (
            self._collectives, self._shapes, self._addresses, self._stream_waits, self._launch_shapes, self._arguments,
            self._stacks, self._counters,
        )  # fmt: skip

    # -- the whole ----------------------------------------------------------------------------------------------------

    def build(self, head: Mapping[str, Any], mended: Sequence[str] = ()) -> KinetoTrace:
        """Return the trace, once, when all blocks are in. `mended` are warnings of the reader of its blocks."""
        count = len(self._rows)
        category, name, thread, start_ns, duration_ns, correlation, external_id = self._rows.take()
        device_columns = self._device_rows.take()
        spellings = [str(spelling) for spelling in self._categories]
        counted = np.bincount(category, minlength=len(spellings)).tolist()
        kinds = np.array([find_category(spelling) for spelling in spellings], dtype=np.int8)
        names, name = _sort_codes([str(key) for key in self._names], name)
        thread_keys = [(str(pid), str(tid)) for pid, tid in self._threads]
        threads, thread = _sort_codes(thread_keys, thread)
        warnings = [*mended, *self._warnings(duration_ns)]
        duration_ns = np.maximum(duration_ns, 0)
        category = kinds[category] if spellings else category.astype(np.int8)
        impossible = find_impossible(start_ns, duration_ns, _DEVICE_MASK[category])
        endless = 0
        if TOO_LONG in impossible or LATE_WORK in impossible:
            duration_ns, endless = _clip_endless(impossible, device_columns, start_ns, duration_ns, correlation)
            impossible = find_impossible(start_ns, duration_ns, _DEVICE_MASK[category])
        left_out = {reason: int(mask.sum()) for reason, mask in impossible.items()}
        warnings += [f"{count:,} events left out: {reason}" for reason, count in left_out.items()]
        order = _order(start_ns, duration_ns, thread, name, external_id, correlation, category)
        for mask in impossible.values():
            order = order[~mask[order]]
        columns = [category, name, thread, start_ns, duration_ns, correlation, external_id]
        del category, name, thread, start_ns, duration_ns, correlation, external_id
        events = Events(*_put_in_order(columns, order))
        keep, repeated = _find_repeats(events)
        if repeated:
            warnings.append(f"{repeated:,} events stand in the trace twice: counted once")
            order = order[keep]
            events = Events(*(column[keep] for column in (getattr(events, name) for name in Events.__slots__)))
        memory = self._build_memory(thread_keys, events.start_ns, warnings)
        new_row = np.full(count, NONE, dtype=np.int64)
        new_row[order] = np.arange(len(order))
        device_work = _place_device_work(device_columns, new_row)
        events, spilled = _clip_spilled(events, device_work)
        spilled += endless
        if spilled:
            warnings.append(
                "1 piece of device work lasts beyond the next one of its stream: it ends there"
                if spilled == 1
                else f"{spilled:,} pieces of device work last beyond the next ones of their stream: they end there"
            )
        return KinetoTrace(
            head=head,
            names=names,
            threads=threads,
            events=events,
            device_work=device_work,
            collectives=_place(self._collectives, new_row),
            shapes=_place(self._shapes, new_row),
            addresses=_place(self._addresses, new_row),
            stacks=_place(self._stacks, new_row),
            memory=memory,
            phases=dict(self._phases),
            categories=dict(zip(spellings, counted, strict=True)),
            event_count=self._event_count,
            warnings=warnings,
            stream_waits=_place(self._stream_waits, new_row),
            mended=tuple(mended),
            left_out=left_out,
            autograd=_place_autograd(self._autograd_rows.take(), new_row) if self._options.autograd else None,
            counters=_place(self._counters, new_row),
            launch_shapes=_place(self._launch_shapes, new_row),
            arguments=_place(self._arguments, new_row),
        )

    def _build_memory(self, threads: list[tuple[str, str]], start_ns: Ints, warnings: list[str]) -> MemoryEvents:
        """Return the allocations whose time may be right, beside the events that start at `start_ns`."""
        *columns, thread = self._memory_rows.take()
        columns.append(_sort_codes(threads, thread)[1].astype(np.int64))
        times_ns = columns[0]
        order = np.argsort(times_ns, kind="stable")
        if len(order):
            middle_ns = find_middle(start_ns if len(start_ns) else times_ns)
            far = np.abs(times_ns - middle_ns) >= PROFILE_NS_MAX
            if far.any():
                warnings.append(f"{int(far.sum()):,} [memory] events left out: a time a day or more from the others")
                order = order[~far[order]]
        return MemoryEvents(*_put_in_order(columns, order))

    def _warnings(self, duration_ns: Ints) -> list[str]:
        reasons = sorted(self._rejected.items(), key=lambda item: (-item[1], item[0]))
        found = [f"{count:,} x not used: {reason}" for reason, count in reasons[:WARNING_EXAMPLES]]
        left = sum(count for _, count in reasons[WARNING_EXAMPLES:])
        if left:
            found.append(f"{left:,} more events not used, for other reasons")
        negative = int((duration_ns < 0).sum())
        if negative:
            found.append(f"{negative:,} events have a negative duration: counted with duration 0")
        unpaired = self._phases["B"] + self._phases["E"]
        if unpaired:
            found.append(f"{unpaired:,} begin and end events (ph B, E) not used: Kineto writes whole ones (ph X)")
        return found


_COLUMN_TYPES = (np.int32, np.int32, np.int32, np.int64, np.int64, np.int64, np.int64)
_DEVICE_TYPES = (np.int64, np.int64, np.int64, np.int64, np.float64, np.float64, np.float64)
_AUTOGRAD_TYPES = (np.int64, np.int64, np.int64)
_MEMORY_TYPES = (np.int64,) * len(MemoryEvents.__slots__)
_ARGUMENT_KEYS = (b'"Concrete Inputs"', b'"Input Strides"')
DIMENSIONS_MAX = 3
_MESSAGE_OPS = frozenset({"send", "recv"})
_DEVICE_MASK = np.array([kind in DEVICE_WORK for kind in Category])


def _bound_names(names: list[str]) -> list[str]:
    """Return the names, each bounded."""
    if not names or max(map(len, names)) <= NAME_CHARACTERS_MAX:
        return names
    return list(map(bound_name, names))


def bound_name(name: str) -> str:
    """Return the name, or beyond NAME_CHARACTERS_MAX its begin and end, with its length and checksum between them."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    half = NAME_CHARACTERS_MAX // 2
    return f"{name[:half]}...({len(name):,} characters, {zlib.crc32(name.encode()):08x})...{name[-half:]}"


def _stream_of(event: Any, a: Arguments) -> Any:
    stream = a.stream if a.stream is not None else a.stream_id
    return event.tid if stream is None else stream


def _device_of(event: Any, a: Arguments) -> Any:
    """Return the number of the device. Ascend's processes have numbers of their own, not that of the device."""
    if a.device is None and event.cat:
        return event.pid
    return a.device


def _phase(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)


def _hashable(thing: Any) -> Any:
    """Return a list or an object, found in place of a number or name, as its text."""
    return thing if thing.__hash__ else str(thing)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _dimensions(value: object) -> str | None:
    """Return `512x1x1` for a list of whole numbers, as many as a grid has dimensions."""
    if not isinstance(value, list) or not 0 < len(value) <= DIMENSIONS_MAX or not all(map(is_int64, value)):
        return None
    return "x".join(map(str, value))


def read_collective(a: Arguments) -> CollectiveArguments:
    """Return what the arguments of a communication kernel, or of the operator that launched it, say of it."""
    return CollectiveArguments(
        op=str(a.collective),
        in_elements=_integer(a.in_elements),
        out_elements=_integer(a.out_elements),
        group_size=_integer(a.group_size),
        dtype=_text(a.dtype),
        group_name=_text(a.group_name),
        group_description=_text(a.group_description),
        group_ranks=_text(a.group_ranks),
        sequence=_integer(a.sequence),
    )


def _clip_endless(
    impossible: Mapping[str, npt.NDArray[np.bool_]],
    device_columns: Sequence[Ints],
    start_ns: Ints,
    duration_ns: Ints,
    correlation: Ints,
) -> tuple[Ints, int]:
    """Return the durations with device work ended where its stream went on, and the number of pieces, before what is
    too long is left out: a collective that is missing on one rank would be taken for the next one.
    """
    work = np.stack(device_columns[:3])
    never = np.zeros(len(start_ns), dtype=bool)
    for reason in {ZERO_TIME, FAR_START} & impossible.keys():
        never |= impossible[reason]
    return _clip_rows(work[:, ~never[work[0]]], start_ns, duration_ns, correlation)


def _clip_spilled(events: Events, work: DeviceWork) -> tuple[Events, int]:
    """Return the events with device work ended where its stream went on, and the number of pieces."""
    rows = np.stack([work.row, work.device, work.stream])
    duration_ns, count = _clip_rows(rows, events.start_ns, events.duration_ns, events.correlation)
    return replace(events, duration_ns=duration_ns) if count else events, count


def _clip_rows(work: Ints, start_ns: Ints, duration_ns: Ints, correlation: Ints) -> tuple[Ints, int]:
    """Return the durations of all events, those of device work ended where its stream went on, and how many were;
    `work` are its rows, devices and streams, (3, n).
    """
    rows, *place = work
    if not len(rows):
        return duration_ns, 0
    begin_ns, end_ns = start_ns[rows], (start_ns + duration_ns)[rows]
    lane = np.unique(np.stack(place, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    clipped_ns = clip_spilled(begin_ns, end_ns, lane, correlation[rows])
    changed = np.flatnonzero(clipped_ns != end_ns)
    found = duration_ns.copy()
    found[rows[changed]] = (clipped_ns - begin_ns)[changed]
    return found, len(changed)


# -- columns ----------------------------------------------------------------------------------------------------------


class _Growing:
    """Columns of equal length that grow where they are: joined from parts, all would be there twice."""

    def __init__(self, types: Sequence[type[np.generic]]) -> None:
        self._types = types
        self._columns = [bytearray() for _ in types]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._columns[0]) // np.dtype(self._types[0]).itemsize

    def append(self, *columns: npt.NDArray[Any]) -> None:
        """Append rows, given as columns of equal length."""
        for own, dtype, column in zip(self._columns, self._types, columns, strict=True):
            own.extend(np.ascontiguousarray(column, dtype).data.cast("B"))

    def take(self) -> list[npt.NDArray[Any]]:
        """Return the columns, and begin anew: they are there once, until the caller drops them."""
        columns, self._columns = self._columns, [bytearray() for _ in self._types]
        return [np.frombuffer(column, dtype) for column, dtype in zip(columns, self._types, strict=True)]


def _put_in_order(columns: list[npt.NDArray[Any]], order: Ints) -> Iterator[npt.NDArray[Any]]:
    """Yield the columns in an order, each dropped from the list when it is copied: there is no second table of them."""
    while columns:
        yield columns.pop(0)[order]


def _sort_codes(keys: list[Any], codes: npt.NDArray[Any]) -> tuple[list[Any], npt.NDArray[Any]]:
    """Return the keys sorted, each once, and the codes re-mapped to them, so that nothing depends on the order of the
    file.
    """
    distinct = sorted(set(keys))
    rank = {key: code for code, key in enumerate(distinct)}
    table = np.array([rank[key] for key in keys], dtype=np.int32)
    return distinct, table[codes] if len(keys) else codes


def _order(start_ns: Ints, duration_ns: Ints, *ties: npt.NDArray[Any]) -> Ints:
    """Return the order by start, then longest first, then by the other columns: independent of the file's order."""
    order = np.argsort(start_ns, kind="stable")
    same = np.zeros(len(order) + 1, dtype=bool)
    same[1:-1] = start_ns[order][1:] == start_ns[order][:-1]
    tied = np.flatnonzero(same[1:] | same[:-1])
    if len(tied):
        rows = order[tied]
        keys = [column[rows] for column in (*reversed(ties), -duration_ns, start_ns)]
        order[tied] = rows[np.lexsort(keys)]
    return order


def _find_repeats(events: Events) -> tuple[npt.NDArray[np.bool_], int]:
    """Return a mask of the events to keep, and how many were repeats.

    A thread or stream cannot do the same thing twice at once: two events that are equal in everything, with an identity
    and some length, are one event written twice. Two events of no length may well be two.
    """
    identified = (events.duration_ns > 0) & ((events.external_id != NONE) | (events.correlation != NONE))
    columns = (events.start_ns, events.duration_ns, events.name, events.thread, events.correlation, events.external_id)
    keep = np.ones(len(events), dtype=bool)
    if len(events) > 1:
        # Equal events are neighbors in this order.
        equal = np.ones(len(events) - 1, dtype=bool)
        for column in (*columns, events.category):
            equal &= column[1:] == column[:-1]
        keep[1:] = ~(equal & identified[1:])
    return keep, int((~keep).sum())


def _place(found: Mapping[int, Value], place: Ints) -> dict[int, Value]:
    return {row: value for old, value in found.items() if (row := int(place[old])) != NONE}


def _place_device_work(columns: list[npt.NDArray[Any]], place: Ints) -> DeviceWork:
    row = place[columns[0]] if len(columns[0]) else columns[0]
    order = np.argsort(row, kind="stable")
    order = order[row[order] != NONE]
    return DeviceWork(row[order], *(column[order] for column in columns[1:]))


def _place_autograd(columns: list[Ints], place: Ints) -> AutogradLinks:
    row, sequence, forward_thread = columns
    row = place[row]
    order = np.argsort(row, kind="stable")
    order = order[row[order] != NONE]
    return AutogradLinks(row[order], sequence[order], forward_thread[order])
