"""Decode one large trace with several processes: the parent inflates and cuts, the workers decode.

Cuts are guessed, not proven as by `TraceBlocks.feed`, which has to decode. Decoding a piece of a wrong cut fails; the
trace is then read again by one process, which also mends a damaged file.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from os import sched_getaffinity
from pathlib import Path

from rankscope.collector.traces.files import read_chunks
from rankscope.measure.errors import TraceError
from rankscope.measure.kineto import NO_OPTIONS, KinetoTrace, ReadOptions
from rankscope.measure.kineto_columns import TraceColumns, read_trace
from rankscope.measure.kineto_json import TraceBlocks

PIECE_BYTES = 8 << 20
"""Decoding a piece takes 0.1 s, a hundred times what handing it over does."""
LARGE_FILE_BYTES = 4 << 20
"""Smallest compressed file worth several processes; 40 to 60 MB of JSON."""
PENDING_PIECES_PER_WORKER = 2
WORKERS_MAX = 16
"""Inflating and cutting, done by one process, takes a tenth of the whole."""


def read_file(
    path: str,
    workers: int = 1,
    options: ReadOptions = NO_OPTIONS,
    *,
    on_part: Callable[[float], None] | None = None,
) -> KinetoTrace:
    """Return the trace in a file, decoded by up to `workers` processes; `on_part` is told how much of the file is read.
    Raises TraceError and UnavailableError.
    """
    if workers > 1 and _is_large(path):
        try:
            return read_in_parallel(read_chunks(path, on_part), min(workers, WORKERS_MAX), options)
        except TraceError:
            pass  # a wrong cut, or a damaged file: one process finds which, and mends it
    return read_trace(read_chunks(path, on_part), options)


def _is_large(path: str) -> bool:
    try:
        return Path(path).stat().st_size >= LARGE_FILE_BYTES
    except OSError:  # a URL
        return False


def read_in_parallel(
    chunks: Iterable[bytes], workers: int, options: ReadOptions = NO_OPTIONS, *, piece_bytes: int = PIECE_BYTES
) -> KinetoTrace:
    """Return the trace in these bytes. Raises TraceError also for a wrong cut."""
    blocks = TraceBlocks(piece_bytes, mends=False)
    new_columns = partial(TraceColumns, options)
    whole, last = new_columns(), new_columns()
    pending: deque[Future[TraceColumns]] = deque()
    with ProcessPoolExecutor(workers, mp_context=process_context()) as pool:
        try:
            for chunk in chunks:
                piece = blocks.read_piece(chunk)
                if piece is not None:
                    pending.append(pool.submit(_decode_piece, piece, new_columns))
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


def _decode_piece(piece: bytes, new_columns: Callable[[], TraceColumns]) -> TraceColumns:
    columns = new_columns()
    columns.read(TraceBlocks(mends=False), (piece,))
    return columns


def process_context() -> BaseContext:
    """Return the start method for workers: fork, the cheapest, where no other thread runs."""
    return get_context("fork" if threading.active_count() == 1 else "forkserver")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(sched_getaffinity(0))
