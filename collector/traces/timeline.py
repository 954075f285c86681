"""Merge the traces of all ranks into one timeline on one clock, in Chrome's JSON format, as for Perfetto.

Each file is read twice, so that memory does not grow with the number of events: the first pass reads the collectives
and the earliest time, the second copies the events (timeline_events.py).

The clock
---------
All ranks leave a synchronizing collective together, so the ends of matched ones give the offset between the clocks of
two hosts (cross_rank.py, clock_offsets.py); ranks on one host have one clock, and share the median of their offsets.
The error bound is the spread of the same ends after the alignment. Events of two ranks that are closer together than
that have no known order. Should a rank always leave later than another, the ends do not show it: the offset bound is
what an offset can be wrong by at most, since no rank leaves a collective before the last has entered.

Where the collectives cannot be matched nothing is shifted: one host has one clock; several hosts' clocks are trusted,
and the error bound is None.

The original times are `baseTimeNanoseconds` + time + the rank's `offset_ns`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankscope.collector.traces import cross_rank
from rankscope.collector.traces.asked import check_length
from rankscope.collector.traces.clock_offsets import (
    BY_COLLECTIVES,
    BY_HOST_CLOCKS,
    BY_ONE_HOST,
    find_error_bound,
    find_offset_bound,
    place_clocks,
)
from rankscope.collector.traces.critical_path import PathInput, list_pieces
from rankscope.collector.traces.files import Paths, Progress, TraceFile, find_traces, read_chunks
from rankscope.collector.traces.kernel_sequences import SequenceSpans, find_spans
from rankscope.collector.traces.origin import MERGED_MARK, MERGED_REPORT, ByRank, read_origin, refuse_several
from rankscope.collector.traces.path_record import record_path
from rankscope.collector.traces.pipeline import pair_messages
from rankscope.collector.traces.recognized import check_output, choose_files, compile_kernels
from rankscope.collector.traces.timeline_arrows import Arrows
from rankscope.collector.traces.timeline_counters import CounterTrack, find_counters, write_counters
from rankscope.collector.traces.timeline_events import (
    EventArray,
    EventTimes,
    RankEvents,
    TimelineFile,
    describe_reading,
    read_raw_events,
)
from rankscope.collector.traces.timeline_path import name_rank, write_path
from rankscope.collector.traces.timeline_sequences import write_sequences
from rankscope.collector.traces.windows import find_steps_of_collectives
from rankscope.measure.errors import NotATraceError, RankscopeError, TraceError, UnavailableError
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, complete_groups, find_collectives, find_communication_rows
from rankscope.measure.traced_messages import TracedMessage, find_messages

REASONS_SHOWN_MAX = 3


# -- report -----------------------------------------------------------------------------------------------------------


class MergedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the timeline. `offset_ns` was subtracted from its times; `processes` maps the process ids of the
    timeline to those of the file.
    """

    rank: int | None
    file: str
    host: str | None
    offset_ns: int
    event_count: int
    processes: Mapping[str, str]


class MergeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the merged file. `event_count` counts the ranks' events, the metadata that names their processes, and
    one flow event for each rank at each linked collective or message; `arrow_count` the arrows between two ranks.
    """

    output: str
    ranks: Sequence[MergedRank]
    event_count: int
    arrow_count: int
    error_bound_ns: int | None
    how: str
    refused: str | None
    warnings: Sequence[str]
    errors: Sequence[tuple[str, str]]
    offset_bound_ns: int | None = None
    """Limit of the error of the offset between two clocks, 0 with one clock; None when it is not known."""


# -- merge ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """Result of the first pass over a file, in times of its host's clock."""

    file: str
    rank: int | None
    host: str | None
    world_size: int | None
    base_ns: int
    possible_ns: tuple[int, int]
    """First and last time in the file that can be right, without `base_ns`."""
    collectives: Mapping[Collective, tuple[str, str]]
    """Collectives, each with its process and thread in the file."""
    steps: Sequence[int | None]
    """Number of the step that launched each collective, None outside of steps."""
    messages: Mapping[TracedMessage, tuple[str, str]]
    """Messages between two ranks, each with its process and thread in the file."""
    on_host: bool
    warnings: Sequence[str]
    counters: Sequence[CounterTrack] = ()
    sequences: Sequence[SequenceSpans] = ()
    path: PathInput | None = None


class Tracks(NamedTuple):
    """Which tracks are drawn beside the events; `sequence_length` is the most kernels of a sequence, 0 for none."""

    counters: bool = False
    path: bool = False
    sequence_length: int = 0


NO_TRACKS = Tracks()


@dataclass(slots=True)
class _Notes:
    """Messages for the user; `skipped` are files of a folder whose content is no trace."""

    warnings: list[str] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def merge(
    paths: Paths,
    out: Path | str,
    *,
    cycle: int | None = None,
    rank_from: str | None = None,
    communication_kernels: str | None = None,
    counters: bool = False,
    critical_path: bool = False,
    sequences: int | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Write the traces behind these paths to `out` as one timeline; compressed when its name ends in .gz.

    A file that cannot be used is listed in `errors`, the others are merged. Raises UnavailableError when none can be
    used, a path has no file, or `out` cannot be written or is a trace itself; `out` is then unchanged. `progress`
    counts two readings of each file. `counters` adds tracks of what the devices of each rank did, `critical_path` one
    of what makes each step as long as it is, through the ranks, with arrows from one to the next, `sequences` one for
    each stream with the sequences of kernels that repeat, of up to so many. `cycle`, `rank_from` and
    `communication_kernels` are as in `analyze`. Raises SettingError for what cannot be asked for.

    >>> merge(["traces/"], Path("merged.json.gz")).error_bound_ns  # doctest: +SKIP
    7000
    """
    kernels = compile_kernels(communication_kernels)
    tracks = Tracks(counters=counters, path=critical_path, sequence_length=check_length(sequences))
    out = Path(out)
    check_output(out, "the output")
    files = find_traces(paths)
    files, chosen = choose_files(files, None, cycle, rank_from)
    notes = _Notes(warnings=[f"{file}: {note}" for file, note in chosen.items()])
    with TimelineFile(out) as output:
        sources = _read_sources(files, kernels, notes, progress, tracks)
        clock = align(sources)
        notes.warnings += clock.warnings
        return _write_timeline(output, sources, clock, notes, progress)


# -- first pass -------------------------------------------------------------------------------------------------------


def _read_sources(
    files: Sequence[TraceFile],
    kernels: re.Pattern[str] | None,
    notes: _Notes,
    progress: Progress | None,
    tracks: Tracks,
) -> list[Source]:
    """Return the usable files by rank. Raises UnavailableError without one."""
    kept = ByRank[Source]()
    for place, file in enumerate(files):
        try:
            source = read_source(file.path, file.rank, kernels, may_guess=file.may_guess, tracks=tracks)
            kept.add(source.rank, file.path, source)
            notes.warnings += [f"{file.path}: {warning}" for warning in source.warnings]
        except RankscopeError as error:
            is_no_trace = isinstance(error, NotATraceError) and not file.named
            (notes.skipped if is_no_trace else notes.errors).append((file.path, str(error)))
        except MemoryError:
            notes.errors.append((file.path, "not enough memory to read it"))
        if progress is not None:
            progress(place + 1, 2 * len(files))
    sources = kept.in_order()
    if not sources:
        reasons = (notes.errors or notes.skipped)[:REASONS_SHOWN_MAX]
        shown = "; ".join(f"{file}: {reason}" for file, reason in reasons)
        raise UnavailableError(f"none of the {len(files)} files can be merged: {shown}")
    return sources


def read_source(
    path: str,
    rank: int | None = None,
    kernels: re.Pattern[str] | None = None,
    *,
    may_guess: bool = True,
    tracks: Tracks = NO_TRACKS,
) -> Source:
    """Read a file for the first pass; `rank` goes before the one that it says, which its name may tell if `may_guess`,
    and kernels in whose names the pattern `kernels` is found communicate too.

    Raises TraceError or UnavailableError, NotATraceError for a file of several ranks.
    """
    times = EventTimes()
    trace = read_trace(times.watch(read_chunks(path)), ReadOptions(every_wait=tracks.path))
    origin = read_origin(trace.head, path if may_guess else "")
    refuse_several(trace)
    if times.possible_ns is None:
        raise TraceError("none of its events has a time")
    view = RankView(trace, communication_kernels=kernels)
    threads = [trace.threads[code] for code in trace.events.thread[find_communication_rows(view)].tolist()]
    collectives = complete_groups(find_collectives(view, origin.base_ns, origin.only_group_size))
    own = origin.rank if rank is None else rank
    messages = find_messages(view, collectives, origin.base_ns, own, origin.groups)
    return Source(
        file=path,
        rank=own,
        host=origin.host,
        world_size=origin.world_size,
        base_ns=origin.base_ns,
        possible_ns=times.possible_ns,
        collectives=dict(zip(collectives, threads, strict=True)),
        messages={message: threads[place] for place, message in messages.items()},
        steps=list(dict(zip(collectives, find_steps_of_collectives(view), strict=True)).values()),
        on_host=not view.has_device,
        warnings=describe_reading(trace),
        counters=find_counters(view, collectives, origin.base_ns) if tracks.counters else (),
        sequences=find_spans(view, tracks.sequence_length, origin.base_ns) if tracks.sequence_length else (),
        path=PathInput(
            own, record_path(view, collectives, origin.base_ns), collectives, messages, on_device=view.has_device
        )
        if tracks.path
        else None,
    )


# -- the clock --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """Clock offsets by rank from the first one's, the method that found them, and their error bound."""

    offsets_ns: Mapping[int | None, int]
    error_bound_ns: int | None
    how: str
    refused: str | None
    matching: cross_rank.Matching
    warnings: Sequence[str] = ()
    offset_bound_ns: int | None = None


def align(sources: Sequence[Source]) -> ClockOffsets:
    """Return the clock offsets, from matched collectives where there are any."""
    ranked = [
        cross_rank.RankCollectives(one.rank, one.host, list(one.collectives), one.on_host, one.steps)
        for one in sources
        if one.rank is not None
    ]
    matching = cross_rank.match(ranked, max((s.world_size for s in sources if s.world_size is not None), default=None))
    if matching.refused is not None:
        return _trust_clocks(sources, matching)
    clocks = {one.rank: _clock_of(one) for one in ranked}
    placed, trusted = place_clocks(clocks, matching.related)
    offsets = {one.rank: placed.get(_clock_of(one), 0) for one in sources}
    trusted += [one.file for one in sources if _clock_of(one) not in placed]
    return ClockOffsets(
        offsets_ns=offsets,
        error_bound_ns=None if trusted else find_error_bound(matching, offsets),
        offset_bound_ns=None if trusted else find_offset_bound(matching.matched, offsets, clocks),
        how=BY_ONE_HOST if len(placed) == 1 else BY_COLLECTIVES,
        refused=None,
        matching=matching,
        warnings=[f"{name}: no collective in common with the others: the host's clock was trusted" for name in trusted],
    )


def _clock_of(one: Source | cross_rank.RankCollectives) -> str | int | None:
    """Return the key of a rank's clock: its host, or its own number when the host is unknown."""
    return one.host if one.host is not None else one.rank


def _trust_clocks(sources: Sequence[Source], matching: cross_rank.Matching) -> ClockOffsets:
    hosts = {source.host for source in sources}
    on_one_host = len(sources) == 1 or (len(hosts) == 1 and None not in hosts)
    warnings = [f"collectives are not linked: {matching.refused}"]
    if not on_one_host:
        warnings.append(
            "the clocks of the hosts were trusted and their offsets are unknown: compare times of different ranks with "
            "care"
        )
    return ClockOffsets(
        offsets_ns=dict.fromkeys((source.rank for source in sources), 0),
        error_bound_ns=None,
        how=BY_ONE_HOST if on_one_host else BY_HOST_CLOCKS,
        refused=matching.refused,
        matching=matching,
        warnings=warnings,
    )


# -- second pass ------------------------------------------------------------------------------------------------------


def _write_timeline(
    output: TimelineFile, sources: Sequence[Source], clock: ClockOffsets, notes: _Notes, progress: Progress | None
) -> MergeReport:
    origin_ns = min(source.possible_ns[0] + source.base_ns - clock.offsets_ns[source.rank] for source in sources)
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": origin_ns, MERGED_MARK: 1}
    output.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n')
    array = EventArray(output)
    pids = count(1)
    copies: dict[int | None, RankEvents] = {}
    ranks = []
    for number, source in enumerate(sources):
        label = name_rank(source.rank)
        shift_ns = source.base_ns - clock.offsets_ns[source.rank] - origin_ns
        copies[source.rank] = copied = RankEvents(
            label, number, len(sources) + 1, shift_ns, pids, possible_ns=source.possible_ns
        )
        event_count = _copy_events(source, copied, array, notes)
        array.add(copied.name_processes())
        if source.counters:
            array.add(write_counters(source.counters, next(pids), label, shift_ns - source.base_ns))
        if source.sequences:
            array.add(write_sequences(source.sequences, next(pids), label, shift_ns - source.base_ns))
        ranks.append(
            MergedRank(
                rank=source.rank,
                file=source.file,
                host=source.host,
                offset_ns=clock.offsets_ns[source.rank],
                event_count=event_count,
                processes=copied.processes,
            )
        )
        if progress is not None:
            progress(len(sources) + number + 1, 2 * len(sources))
    arrows = Arrows(array, copies, clock.offsets_ns, origin_ns)
    if clock.refused is None:
        arrows.link_collectives(clock.matching.matched, {source.rank: source.collectives for source in sources})
    paths = [source.path for source in sources if source.path is not None]
    if paths:
        offsets_ns = {rank: offset_ns + origin_ns for rank, offset_ns in clock.offsets_ns.items()}
        messages = {path.rank: list(path.messages.values()) for path in paths if path.rank is not None}
        pieces = list_pieces(paths, clock.matching, pair_messages(messages).pairs)
        array.add(write_path(pieces, next(pids), offsets_ns))
    if clock.how != BY_HOST_CLOCKS:
        arrows.link_messages({source.rank: source.messages for source in sources if source.rank is not None})
    report = MergeReport(
        output=str(output.path),
        ranks=ranks,
        event_count=array.count,
        arrow_count=arrows.count,
        error_bound_ns=clock.error_bound_ns,
        how=clock.how,
        refused=clock.refused,
        warnings=notes.warnings,
        errors=notes.errors,
        offset_bound_ns=clock.offset_bound_ns,
    )
    output.write(f'\n],"{MERGED_REPORT}":'.encode() + msgspec.json.encode(_describe(report)) + b"}\n")
    return report


def _copy_events(source: Source, copied: RankEvents, array: EventArray, notes: _Notes) -> int:
    """Copy the events and return their number. A file unreadable since the first pass loses its remaining events."""
    before = array.count
    dropped = 0
    try:
        for events, others in read_raw_events(read_chunks(source.file)):
            dropped += others
            array.add(copied.rewrite(events))
    except RankscopeError as error:
        kept = array.count - before
        notes.errors.append((source.file, f"it changed while it was merged, {kept:,} of its events are kept: {error}"))
    if dropped:
        notes.warnings.append(f"{source.file}: {dropped:,} values among its events are no events: left out")
    if copied.untimed_count:
        notes.warnings.append(f"{source.file}: {copied.untimed_count:,} events have no usable time: copied as they are")
    if copied.impossible_count:
        notes.warnings.append(
            f"{source.file}: {copied.impossible_count:,} events left out: "
            "they begin a day or more from the middle of the trace, or last a day or more"
        )
    return array.count - before


def _describe(report: MergeReport) -> dict[str, Any]:
    """Return the report as it is stored in the file, without the file's name."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["output"]
    found["offsets_ns"] = {str(one.rank): one.offset_ns for one in report.ranks}
    return found
