"""Reads the dump of NCCL's Inspector plugin for one process: the end of a file that another program appends to.

A line is a JSON object about one operation that has completed:

    header      id (hash of the communicator, the same on all members), comm_name (from NCCL 2.30.3 on, `unknown` where
                there is none), rank, n_ranks
    metadata    inspector_output_format_version, dump_timestamp_us (wall clock), hostname, pid
    coll_perf   coll, coll_sn, coll_msg_size_bytes, coll_exec_time_us, coll_timing_source, coll_algobw_gbs,
                coll_busbw_gbs; in its place p2p_perf from 2.30.3 on, with p2p_ before the same names

The format is v4.0 in every version so far. `coll_sn` counts the calls of that operation in that communicator from 0
(`seqNumber[func]` in src/plugin/profiler.cc). Before 2.30.3 a line has the last operation that completed since the dump
before, from then on each of 8 KiB and more, but for the oldest where more than 1,024 complete between two dumps. So the
last line of a communicator is its last operation, of those that are written, in all versions. GB are 10^9 bytes; a
bandwidth that is no number is the text "nan". A write may end amid a line. Source: inspector.cc, inspector_json.cc and
json.cc in plugins/profiler/inspector (ext-profiler/ in 2.28) of NCCL 2.28.3, 2.29.7, 2.30.3, and of master at 5067397
(2026-06).
"""

import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from rankscope.agent.sidecar.inspector_place import InspectorPlace
from rankscope.measure.errors import UnavailableError
from rankscope.measure.median import find_median
from rankscope.measure.nccl_inspector import InspectorBandwidth, InspectorCommunicator

BYTES_MAX: Final = 1024 * 1024
"""Bytes read at a time, the last ones: 2,400 operations. What is before them is counted."""
LINES_MAX: Final = 4096
LINE_BYTES_MAX: Final = 64 * 1024
"""Longest line: a verbose one of 64 channels has 15 KB."""
COMMUNICATORS_MAX: Final = 32
"""Communicators of a process that are kept, those written about last."""
OPERATIONS_MAX: Final = 16
FORMAT: Final = "v4."
HOST_TIMED: Final = "collective_cpu"
"""Timing source of an operation whose kernels were not timed: its time begins at the call, so it is no bandwidth."""
UNNAMED: Final = "unknown"
CLOCK_STEP_US_MAX: Final = 60 * 10**6
"""How far the wall clock may have been set back since the agent began; else lines count as an earlier process's."""
NAME_LENGTH_MAX: Final = 128
ID_LENGTH_MAX: Final = 64
COUNT_MAX: Final = 2**62
GB: Final = 10**9

_Number = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class _Header(msgspec.Struct, gc=False):
    id: str
    n_ranks: _Number
    comm_name: str = ""


class _Metadata(msgspec.Struct, gc=False):
    inspector_output_format_version: str
    dump_timestamp_us: int
    pid: int


class _Collective(msgspec.Struct, gc=False):
    coll: str
    coll_sn: _Number
    coll_msg_size_bytes: int
    coll_busbw_gbs: float | str
    coll_timing_source: str = ""


class _Transfer(msgspec.Struct, gc=False):
    p2p: str
    p2p_busbw_gbs: float | str
    p2p_timing_source: str = ""


class _Line(msgspec.Struct, gc=False):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _Transfer | None = None


class DumpReading(NamedTuple):
    """What was found in a dump, as fields of `InspectorRead` say it."""

    communicators: tuple[InspectorCommunicator, ...] = ()
    communicators_left_out: int = 0
    lines_skipped: int = 0
    bytes_skipped: int = 0


class InspectorDump:
    """The dump of process `pid`, read on from where the last reading ended."""

    def __init__(self, place: InspectorPlace, pid: int) -> None:
        self._place = place
        self._pid = pid
        self._decoder = msgspec.json.Decoder(_Line)
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._is_amid_line = False
        self._known: dict[str, InspectorCommunicator] = {}
        self._left_out = 0
        self._lines_skipped = 0
        self._bytes_skipped = 0

    def read(self) -> DumpReading:
        """Read what was written since, at most BYTES_MAX. Raise OSError, or UnavailableError for what is no file."""
        bandwidths: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for line in self._split(self._read_block()):
            self._add(line, bandwidths)
        found = tuple(self._with_bandwidths(one, bandwidths) for one in self._known.values())
        return DumpReading(found, self._left_out, self._lines_skipped, self._bytes_skipped)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _read_block(self) -> bytes:
        """Return the new lines that are whole."""
        # Without waiting, should it be a pipe.
        file = os.open(self._place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise UnavailableError(f"{self._place.path} is not a file")
            self._place_reading(found)
            block = os.pread(file, BYTES_MAX, self._offset)
        finally:
            os.close(file)
        end = block.rfind(b"\n") + 1
        if not end and len(block) > LINE_BYTES_MAX:
            self._skip_bytes(len(block))
            return b""
        begin = block.find(b"\n") + 1 if self._is_amid_line else 0
        self._bytes_skipped += begin if end else 0
        self._is_amid_line = self._is_amid_line and not end
        self._offset += end
        return block[begin:end]

    def _place_reading(self, found: os.stat_result) -> None:
        """Begin again in a file that is another one or was cut, and leave out what is too much."""
        file = (found.st_dev, found.st_ino)
        if self._file not in {None, file} or found.st_size < self._offset:
            self._offset, self._is_amid_line = 0, False
            self._forget_last()
        self._file = file
        if found.st_size - self._offset > BYTES_MAX:
            self._skip_bytes(found.st_size - self._offset - BYTES_MAX)

    def _skip_bytes(self, count: int) -> None:
        self._offset += count
        self._bytes_skipped += count
        self._is_amid_line = True
        self._forget_last()

    def _forget_last(self) -> None:
        """Forget which operations were last: others may have been in what is skipped."""
        for name, one in self._known.items():
            self._known[name] = msgspec.structs.replace(one, last_op="", last_sequence=None, last_bytes=None)

    # -- lines --------------------------------------------------------------------------------------------------------

    def _split(self, block: bytes) -> Iterator[bytes]:
        lines = block.rsplit(b"\n", LINES_MAX + 1)[:-1] if block else []
        if len(lines) > LINES_MAX:
            self._skip_lines(lines.pop(0).count(b"\n") + 1)
        return iter(lines)

    def _skip_lines(self, count: int) -> None:
        self._lines_skipped += count
        self._forget_last()

    def _add(self, text: bytes, bandwidths: defaultdict[tuple[str, str], list[float]]) -> None:
        line = self._parse(text)
        if line is None:
            self._skip_lines(1)
            return
        name = line.header.id[:ID_LENGTH_MAX]
        done, sent = line.coll_perf, line.p2p_perf
        one = self._find_communicator(name, line.header)
        if done is not None:
            size = done.coll_msg_size_bytes
            one = msgspec.structs.replace(
                one,
                last_op=done.coll[:ID_LENGTH_MAX],
                last_sequence=done.coll_sn,
                last_bytes=size if 0 <= size <= COUNT_MAX else None,
            )
            _keep(bandwidths, (name, done.coll[:ID_LENGTH_MAX]), done.coll_busbw_gbs, done.coll_timing_source)
        elif sent is not None:
            _keep(bandwidths, (name, sent.p2p[:ID_LENGTH_MAX]), sent.p2p_busbw_gbs, sent.p2p_timing_source)
        self._known[name] = one

    def _parse(self, text: bytes) -> _Line | None:
        """Return the line; None for one of a format that is not known here, or of another process."""
        if len(text) > LINE_BYTES_MAX:
            return None
        try:
            line = self._decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        about = line.metadata
        is_own = about.pid == self._pid and about.dump_timestamp_us >= self._place.begin_wall_us - CLOCK_STEP_US_MAX
        is_known = about.inspector_output_format_version.startswith(FORMAT)
        return line if is_own and is_known and (line.coll_perf or line.p2p_perf) is not None else None

    def _find_communicator(self, name: str, header: _Header) -> InspectorCommunicator:
        """Return what is known of the communicator, and remove it: it is added again as the last one written about."""
        if name not in self._known and len(self._known) >= COMMUNICATORS_MAX:
            del self._known[next(iter(self._known))]
            self._left_out += 1
        named = "" if header.comm_name == UNNAMED else header.comm_name[:NAME_LENGTH_MAX]
        return self._known.pop(name, None) or InspectorCommunicator(id=name, name=named, size=header.n_ranks)

    def _with_bandwidths(
        self, one: InspectorCommunicator, bandwidths: defaultdict[tuple[str, str], list[float]]
    ) -> InspectorCommunicator:
        found = sorted((op, values) for (name, op), values in bandwidths.items() if name == one.id)
        kept = tuple(
            InspectorBandwidth(op=op, count=len(values), bus_bandwidth_bytes_per_s=find_median(values))
            for op, values in found[:OPERATIONS_MAX]
        )
        return msgspec.structs.replace(one, bandwidths=kept)


def _keep(
    bandwidths: defaultdict[tuple[str, str], list[float]], key: tuple[str, str], value: float | str, source: str
) -> None:
    """Keep a bandwidth that was measured by the time of kernels. 0 stands for a time of 0 us, and for no formula."""
    if not isinstance(value, str) and 0 < value * GB < math.inf and source != HOST_TIMED:
        bandwidths[key].append(value * GB)
