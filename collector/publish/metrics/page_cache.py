"""Keep rendered pages of metrics: each is rendered at most once for a snapshot, slow ones before they are requested.

A page is rendered by the request that finds it outdated. One of many ranks takes up to a second, and no scrape must
wait for it: as long as it is requested now and then, one thread renders it anew after each snapshot, and requests get
the last finished one. Pages are kept compressed (144 MB of text are 7 MB).
"""

import functools
import importlib
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from rankscope.collector.cpu_share import CpuShareLimiter
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s

GZIP_LEVEL: Final = 1
"""57 MB of metrics: zlib's level 1 takes 0.34 s, level 9 2.8 s for a fifth less; isal's level 1 takes 0.08 s."""
GZIP_WINDOW_BITS: Final = 31
"""zlib's parameter for a window of 32 KiB within gzip's head and tail."""

SLOW_NS: Final[Mapping[str, int]] = {METRICS_PATH: 30 * NS_PER_MS, RANKS_PATH: 150 * NS_PER_MS}
"""CPU time from which a page is rendered ahead: a scrape of /metrics is to take at most 50 ms, one of ranks 250 ms."""
WANTED_NS: Final = 150 * NS_PER_S
"""A slow page is rendered for so long after a request: Prometheus scrapes every two minutes at the most."""
CPU_SHARE: Final = 0.5
"""Of one core at most for pages that are rendered before they are requested: all ranks of 16,384 take 0.8 s."""
PAGES_MAX: Final = 512
"""Both formats of as many shards as there may be; beyond that the page not requested for longest is dropped."""


class Compressor(Protocol):
    """What zlib and isal have in common."""

    def compress(self, data: bytes, /) -> bytes:
        """Add data, and return compressed bytes that are ready."""
        ...

    def flush(self) -> bytes:
        """Return the remaining bytes."""
        ...


class _Library(NamedTuple):
    begin: Callable[[], Compressor]
    decompress: Callable[[bytes], bytes]


Key = tuple[Page, TextFormat]


class _Rendered(NamedTuple):
    """A page of one snapshot, compressed, and the CPU time that it took. The snapshot may be gone: of many ranks it is
    larger than the page.
    """

    compressed: bytes
    snapshot: "weakref.ref[Snapshot]"
    took_ns: int
    is_slow: bool

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether it is rendered from this snapshot."""
        return self.snapshot() is snapshot


class PageCache:
    """Pages by key; any thread. The render thread starts with the first slow page. `read_snapshot` returns the latest
    snapshot, `read_ns` a monotonic time, `read_cpu_ns` the CPU time of the thread that calls it.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        pages: MetricPages,
        *,
        read_ns: Callable[[], int] = time.monotonic_ns,
        read_cpu_ns: Callable[[], int] = time.thread_time_ns,
        pages_max: int = PAGES_MAX,
    ) -> None:
        self._read_snapshot = read_snapshot
        self._pages = pages
        self._read_ns = read_ns
        self._read_cpu_ns = read_cpu_ns
        self._pages_max = pages_max
        #: When each page was requested last, in that order.
        self._requested_ns: dict[Key, int] = {}
        self._rendered: dict[Key, _Rendered] = {}
        #: What the render thread uses: a renderer renders one page at a time, and no request waits for a slow page.
        self._pages_ahead = pages.copy()
        #: Held while a page is rendered for a request.
        self._rendering = threading.Lock()
        self._limiter = CpuShareLimiter(CPU_SHARE, 0)
        self._changed = threading.Condition()
        self._has_new_snapshot = self._is_closed = False
        self._thread: threading.Thread | None = None
        self._faults = FaultLog(SystemClock())
        self.errors_contained = 0
        """Pages that could not be rendered ahead of a request: errors in the collector."""

    def find(self, page: Page, text_format: TextFormat) -> bytes:
        """Return the page, compressed."""
        key = page, text_format
        self._note_request(key)
        rendered = self._rendered.get(key)
        if rendered is None or (not rendered.is_slow and not rendered.is_of(self._read_snapshot())):
            with self._rendering:
                rendered = self._rendered.get(key)  # another request may have rendered it meanwhile
                if rendered is None or not rendered.is_of(self._read_snapshot()):
                    rendered = self._render(key, self._pages)
        if rendered.is_slow:
            self._start()
        return rendered.compressed

    def note_snapshot(self) -> None:
        """Note that there is a new snapshot: slow pages are rendered from it."""
        with self._changed:
            self._has_new_snapshot = True
            self._changed.notify()

    def render_outdated(self) -> None:
        """Render the slow pages that are requested now and then, those first that take least time; drop the others."""
        now_ns = self._read_ns()
        with self._changed:
            wanted = {key for key, requested_ns in self._requested_ns.items() if now_ns - requested_ns <= WANTED_NS}
            for key in self._rendered.keys() - wanted:
                del self._rendered[key]
            slow = {key: rendered for key, rendered in self._rendered.items() if rendered.is_slow}
        for key in sorted(slow, key=lambda key: slow[key].took_ns):
            if not slow[key].is_of(self._read_snapshot()):
                self._render_ahead(key)

    def close(self) -> None:
        """End the render thread, after the page that it is rendering."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _note_request(self, key: Key) -> None:
        with self._changed:
            self._requested_ns.pop(key, None)
            self._requested_ns[key] = self._read_ns()
            if len(self._requested_ns) > self._pages_max:
                oldest = next(iter(self._requested_ns))
                del self._requested_ns[oldest]
                self._rendered.pop(oldest, None)

    def _render_ahead(self, key: Key) -> None:
        """Render a page for which no request waits. Where that fails the page is dropped, so that the next request
        gets the error and no outdated numbers.
        """
        try:
            self._render(key, self._pages_ahead)
        except Exception:  # noqa: BLE001 - it is noted
            self.errors_contained += 1
            self._faults.note("pages", "a page of metrics could not be rendered")
            with self._changed:
                self._rendered.pop(key, None)

    def _render(self, key: Key, pages: MetricPages) -> _Rendered:
        """Render the page from the latest snapshot, and keep it."""
        snapshot, began_ns = self._read_snapshot(), self._read_cpu_ns()
        compressed = _compress(pages.render(snapshot, *key))
        took_ns = self._read_cpu_ns() - began_ns
        rendered = _Rendered(compressed, weakref.ref(snapshot), took_ns, is_slow=took_ns >= SLOW_NS[key[0].path])
        with self._changed:
            if key in self._requested_ns:
                self._rendered[key] = rendered
        return rendered

    def _start(self) -> None:
        with self._changed:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="rankscope-pages", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        name_this_thread("pages")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_new_snapshot or self._is_closed)
                self._has_new_snapshot = False
                pause_s = ns_to_s(self._limiter.find_wait_ns(self._read_ns()))
                self._changed.wait_for(lambda: self._is_closed, pause_s)
                if self._is_closed:
                    return
            began_ns, began_cpu_ns = self._read_ns(), self._read_cpu_ns()
            self.render_outdated()
            self._limiter.record(began_ns, self._read_cpu_ns() - began_cpu_ns)


def decompress(compressed: bytes) -> bytes:
    """Return the text of a page, for clients that accept no compression."""
    return _load_library().decompress(compressed)


def _compress(pieces: Iterable[bytes]) -> bytes:
    """Return the pieces as one gzip member."""
    compressor = _load_library().begin()
    found = [compressor.compress(piece) for piece in pieces]
    found.append(compressor.flush())
    return b"".join(found)


@functools.cache
def _load_library() -> _Library:
    """Return isal where it is installed (`rankscope[collector]`), else zlib."""
    try:
        library: Any = importlib.import_module("isal.isal_zlib")
    except ImportError:
        library = zlib
    return _Library(
        lambda: library.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW_BITS),
        lambda compressed: library.decompress(compressed, wbits=GZIP_WINDOW_BITS),
    )
