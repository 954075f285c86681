"""One large trace, decoded by several processes: the parent inflates and cuts, the workers decode.

A cut is not proven here as `TraceBlocks.feed` proves it (that takes decoding), only guessed; whoever decodes a piece of
a wrong cut says so, and the trace is read again the plain way, which also finds the right words for a broken file.
"""

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from os import sched_getaffinity
from pathlib import Path

from rankscope.collector.traces.files import read_chunks
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto import KinetoTrace
from rankscope.measure.kineto_columns import TraceColumns, read_trace
from rankscope.measure.kineto_json import TraceBlocks

PIECE_BYTES = 8 << 20
"""A piece is as long to decode (0.1 s) as a hundred times what handing it over takes."""
LARGE_FILE_BYTES = 4 << 20
"""Compressed; 40 to 60 MB of JSON. Below, what processes cost is more than they save."""
PENDING_PIECES_PER_WORKER = 2
WORKERS_MAX = 16
"""Inflating and cutting, which is not shared, takes a tenth of the whole."""


def read_file(path: str, workers: int = 1) -> KinetoTrace:
    """The trace in a file, by as many processes as are worth it. Raises what `read_chunks` and `read_trace` do."""
    if workers > 1 and _is_large(path):
        try:
            return read_in_parallel(read_chunks(path), min(workers, WORKERS_MAX))
        except TraceError:
            pass  # a wrong cut, or a broken file: the plain way tells which
    return read_trace(read_chunks(path))


def _is_large(path: str) -> bool:
    try:
        return Path(path).stat().st_size >= LARGE_FILE_BYTES
    except OSError:  # a URL, of which nobody knows
        return False


def read_in_parallel(chunks: Iterable[bytes], workers: int, piece_bytes: int = PIECE_BYTES) -> KinetoTrace:
    """The trace in these bytes. Raises TraceError also when a cut was guessed wrongly."""
    blocks = TraceBlocks(piece_bytes)
    whole, last = TraceColumns(), TraceColumns()
    pending: deque[Future[TraceColumns]] = deque()
    with ProcessPoolExecutor(workers, mp_context=process_context()) as pool:
        try:
            for chunk in chunks:
                piece = blocks.read_piece(chunk)
                if piece is not None:
                    pending.append(pool.submit(_decode_piece, piece))
                while len(pending) > PENDING_PIECES_PER_WORKER * workers:
                    whole.absorb(pending.popleft().result())
            last.read(blocks, ())
            while pending:
                whole.absorb(pending.popleft().result())
        except TraceError:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    whole.absorb(last)
    return whole.build(blocks.head)


def _decode_piece(piece: bytes) -> TraceColumns:
    columns = TraceColumns()
    columns.read(TraceBlocks(), (piece,))
    return columns


def process_context() -> BaseContext:
    """How to start workers: by fork, which costs nothing, where that is safe: with no other thread about."""
    return get_context("fork" if threading.active_count() == 1 else "forkserver")


def cores() -> int:
    """The cores that this process may use."""
    return len(sched_getaffinity(0))
