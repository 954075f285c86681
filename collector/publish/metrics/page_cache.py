"""Pages of metrics, written at most once for a snapshot, and large ones before they are asked for.

A small page is written when it is asked for and there is a new snapshot. A large one takes up to a second, which a
scrape must not wait for: whoever asked for it twice is expected again at the same distance (scrape_predictor.py), and
it is written shortly before. What nobody asks for is not written. In between the written page is what everybody gets,
until it is PREPARED_AGE_S_MAX old. Before it is written a picture of that moment is asked for: what there is may be
some seconds old in a large run.

A page is kept compressed (144 MB of text are 7 MB). It is written in short pieces with a pause between any two, so that
the thread that receives reports gets the interpreter when it wants it.
"""

import contextlib
import functools
import importlib
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.metrics.page_lead import PrerenderLead
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.scrape_predictor import ScrapePredictor
from rankscope.collector.publish.metrics.snapshot_requests import SnapshotRequests
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.clock import SystemClock

GZIP_LEVEL: Final = 1
"""57 MB of metrics: zlib's level 1 takes 0.34 s, level 9 2.8 s for a fifth less; isal's level 1 takes 0.08 s."""
GZIP_WINDOW_BITS: Final = 31
"""zlib's word for a window of 32 KiB within gzip's head and tail."""

SMALL_BYTES_MAX: Final = 1 << 20
SMALL_RANKS_MAX: Final = 2048
"""A page of so much text, 12,000 series, takes 10 ms to write, and to look at so many ranks for /metrics 15 ms: nothing
to prepare."""
PREPARED_AGE_S_MAX: Final = 5.0
"""A third of the usual scrape interval: an expected scrape finds a page of a second or two."""
LATE_AGE_S_MAX: Final = 30.0
"""Two scrape intervals: so old a page may be when the machine is too busy to write all of them in time."""
LEAD_S: Final = 0.4
LEAD_RATIO: Final = 1.25
"""The picture of a page is ordered so long before it is expected: 0.4 s and a quarter more than the longest of the last
ones took from there until it was written, and earlier still after some were late (`page_lead.py`). One that is late is
waited for, LATE_WAIT_S."""
TOOK_KEPT: Final = 3
LATE_WAIT_S: Final = 0.2
"""So long a scrape waits for its own page, which is being written, before it is given the one before, which is older by
a whole interval."""
LEAD_S_MAX: Final = 4.0
"""Earlier it would be too old when it is asked for."""
PAGES_MAX: Final = 512
"""Both formats of as many shards as there may be; beyond that the one that was not asked for longest goes."""

PICTURE_WAIT_S: Final = 0.7
"""So long a page that is to be written waits for its picture. When that is not there then, it shows the one before."""
PICTURE_LOOK_S: Final = 0.02

PAUSE_FOR_ASKERS_S: Final = 0.02
"""How long what is only expected waits while somebody waits for another page. A lock has no order of its own."""


class Compressor(Protocol):
    """What zlib and isal have in common."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more in."""
        ...

    def flush(self) -> bytes:
        """The rest."""
        ...


class _Library(NamedTuple):
    begin: Callable[[], Compressor]
    decompress: Callable[[bytes], bytes]


class Written(NamedTuple):
    """A page as it was written: compressed, whether it is written in no time, the number of its snapshot, when it was
    begun, and how long it took.
    """

    compressed: bytes
    is_small: bool
    snapshot_number: int
    begun_s: float
    took_s: float


class _Wanted:
    """A page that somebody has asked for."""

    def __init__(self) -> None:
        self.beat = ScrapePredictor()
        self.written: Written | None = None
        self.is_large = False
        """Whether it was large when it was last written."""
        self.is_being_written = False
        self.took_s: deque[float] = deque(maxlen=TOOK_KEPT)
        """How long the last ones took, from the order of their picture where there was one."""
        self.expected_s = float("-inf")
        """The last moment that it was expected at and written for, or found fresh enough."""

    def find_expected_s(self, now_s: float) -> float | None:
        """When it is likely to be asked for next; None: nobody is expected."""
        return self.beat.expected_s(max(now_s, self.expected_s))

    def find_order_s(self, expected_s: float, earlier_s: float) -> float:
        """When to order the picture of the page that is expected then, so much earlier than it usually takes."""
        return expected_s - min(LEAD_S + LEAD_RATIO * max(self.took_s) + earlier_s, LEAD_S_MAX)


Key = tuple[Page, TextFormat]


class PageCache:
    """Gives pages, from any thread, and prepares them in one of its own, which begins with the first large page.

    `read_snapshot` gives the latest snapshot; `now_s` and `sleep` are the clock.
    `orders`: where it orders snapshots; None: there are none but at ticks.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        pages: MetricPages,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        pages_max: int = PAGES_MAX,
        late_wait_s: float = LATE_WAIT_S,
        orders: SnapshotRequests | None = None,
    ) -> None:
        self._read_snapshot = read_snapshot
        self._pages = pages
        self._now_s = now_s
        self._sleep = sleep
        self._orders = orders
        self._pages_max = pages_max
        self._late_wait_s = late_wait_s
        self._wanted: dict[Key, _Wanted] = {}
        self._lead = PrerenderLead()
        self._seen: Snapshot | None = None
        self._seen_number = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._askers = 0
        self._is_writing_large = False
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._faults = FaultLog(SystemClock())
        self.errors_contained = 0
        """Pages that could not be prepared: mistakes of ours."""

    def find(self, page: Page, text_format: TextFormat) -> bytes:
        """The page, compressed."""
        key = page, text_format
        wanted, is_on_beat = self._note(key)
        written = wanted.written
        is_outdated = written is None or self._is_outdated(written)
        if written is not None and is_on_beat:
            if not written.is_small:
                self._lead.note(is_late=is_outdated)
            if is_outdated:
                written = self._wait_for(wanted, written)
                is_outdated = self._is_outdated(written)
        if written is None or (is_outdated and not self._is_good_enough(written, is_on_beat=is_on_beat)):
            with self._waiting():
                written = wanted.written  # perhaps somebody else has asked for it too
                if written is None or self._is_outdated(written):
                    written = self._write(key, wanted)
        if not written.is_small:
            self._wake()
        return written.compressed

    def prepare(self) -> float | None:
        """Write what is expected soon. Returns after how many seconds to come again, None: nobody is expected."""
        waits_s = []
        self._announce_order()
        for key, wanted in self._find_large():  # those that take least time first: they wait for none of the others
            wait_s = self._prepare_page(key, wanted)
            if wait_s is not None:
                waits_s.append(wait_s)
        return min(waits_s, default=None)

    def close(self) -> None:
        """End the thread, after the page that it is writing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _wait_for(self, wanted: _Wanted, written: Written) -> Written:
        """The page that is being written, when it is there soon; else the one that there is."""
        with self._changed:
            self._changed.wait_for(lambda: not wanted.is_being_written, self._late_wait_s)
            return wanted.written or written

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Write for somebody who waits for it: what is only expected is begun after that."""
        with self._changed:
            self._askers += 1
        try:
            with self._writing:
                yield
        finally:
            with self._changed:
                self._askers -= 1

    def _note(self, key: Key) -> tuple[_Wanted, bool]:
        """It is asked for now, and becomes the last of `_wanted`. Returns whether that was to be expected, too."""
        now_s = self._now_s()
        with self._changed:
            wanted = self._wanted.pop(key, None) or _Wanted()
            self._wanted[key] = wanted
            is_on_beat = wanted.beat.is_on_beat(now_s)
            wanted.beat.note(now_s)
            if len(self._wanted) > self._pages_max:
                del self._wanted[next(iter(self._wanted))]
            return wanted, is_on_beat

    def _look(self) -> tuple[int, Snapshot]:
        """The present snapshot and its number. Pages are known by the number of theirs: to keep a snapshot for each,
        with every rank of it, would take more room than the pages.
        """
        snapshot = self._read_snapshot()
        with self._changed:
            if snapshot is not self._seen:
                self._seen = snapshot
                self._seen_number += 1
            return self._seen_number, snapshot

    def _is_outdated(self, written: Written) -> bool:
        if written.snapshot_number == self._look()[0]:
            return False
        return written.is_small or self._now_s() - written.begun_s > PREPARED_AGE_S_MAX

    def _is_good_enough(self, written: Written, *, is_on_beat: bool) -> bool:
        """Whether to give what there is rather than let a scrape wait: for a large page that is being written, or for
        its own, which was expected and could not be written in time.
        """
        is_late = self._is_writing_large or (is_on_beat and not written.is_small)
        return is_late and self._now_s() - written.begun_s <= LATE_AGE_S_MAX

    def _find_large(self) -> list[tuple[Key, _Wanted]]:
        with self._changed:
            found = [
                (wanted.written.took_s, key, wanted)
                for key, wanted in self._wanted.items()
                if wanted.written is not None and not wanted.written.is_small
            ]
        return [(key, wanted) for _, key, wanted in sorted(found, key=lambda each: each[0])]

    def _prepare_page(self, key: Key, wanted: _Wanted) -> float | None:
        """Write a page if it is time to, or let it go when nobody is expected any more. Returns how long there is
        nothing to do for it, None: for ever.
        """
        now_s, written = self._now_s(), wanted.written
        if written is None:
            return None
        expected_s = wanted.find_expected_s(now_s)
        if expected_s is None:
            useless_s = max(written.begun_s + PREPARED_AGE_S_MAX, wanted.expected_s)
            if now_s > useless_s:
                wanted.written = None
                return None
            return useless_s - now_s + LEAD_S
        order_s = wanted.find_order_s(expected_s, self._lead.earlier_s)
        if now_s < order_s:
            return order_s - now_s
        if self._askers:
            return PAUSE_FOR_ASKERS_S
        wanted.expected_s = expected_s
        if expected_s - written.begun_s > PREPARED_AGE_S_MAX:
            try:
                self._wait_for_picture(order_s + PICTURE_WAIT_S)
                with self._writing:
                    self._write(key, wanted, since_s=now_s)
            finally:
                if self._orders is not None:
                    self._orders.note_written()
        return 0.0

    def _announce_order(self) -> None:
        """Say when the next picture will be ordered, as far as is known."""
        if self._orders is None:
            return
        now_s = self._now_s()
        moments_s = []
        for _, wanted in self._find_large():
            expected_s = wanted.find_expected_s(now_s)
            if expected_s is not None:
                moments_s.append(wanted.find_order_s(expected_s, self._lead.earlier_s))
        self._orders.announce(max(0.0, min(moments_s) - now_s) if moments_s else None)

    def _wait_for_picture(self, until_s: float) -> None:
        """Until there is one of now, or that moment has come. Orders it, and says when the next one will be."""
        from_wall_s = -math.inf if self._orders is None else self._orders.order()
        self._announce_order()
        while self._read_snapshot().wall_s < from_wall_s and self._now_s() < until_s:
            self._sleep(PICTURE_LOOK_S)

    def _write(self, key: Key, wanted: _Wanted, since_s: float | None = None) -> Written:
        """Write the page of the present snapshot. To be called with `_writing` held. `since_s`: since when it was
        waited for, None: since now.
        """
        begun_s = self._now_s()
        number, snapshot = self._look()
        self._is_writing_large, wanted.is_being_written = wanted.is_large, True
        try:
            compressed, text_bytes = _compress(self._pages.render(snapshot, *key))
            ranks = sum(snapshot.sizes.values()) if key[0].path == METRICS_PATH else 0
            is_small = text_bytes <= SMALL_BYTES_MAX and ranks <= SMALL_RANKS_MAX
            wanted.is_large = not is_small
            written_s = self._now_s()
            wanted.took_s.append(written_s - (begun_s if since_s is None else since_s))
            wanted.written = Written(compressed, is_small, number, begun_s, written_s - begun_s)
            return wanted.written
        finally:
            with self._changed:
                self._is_writing_large = wanted.is_being_written = False
                self._changed.notify_all()

    def _let_go(self) -> None:
        """Nothing is written for a while: the pictures of all ranks that the last pages were written from are let go
        of. Not where somebody writes: it would be made anew.
        """
        if not self._writing.acquire(blocking=False):
            return
        try:
            if self._seen is not None:
                self._seen.drop_built_runs()
        finally:
            self._writing.release()

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="rankscope-pages", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        name_this_thread("pages")
        while True:
            try:
                wait_s = self.prepare()
            except Exception:  # noqa: BLE001 - it is noted
                self.errors_contained += 1
                self._faults.note("pages", "a page of metrics could not be prepared")
                wait_s = None
            if wait_s != 0.0:
                self._let_go()
            with self._changed:
                if self._is_closed:
                    return
                if wait_s != 0.0:
                    self._changed.wait(wait_s)


def decompress(compressed: bytes) -> bytes:
    """The text of a page, for who cannot take it compressed."""
    return _load_library().decompress(compressed)


def _compress(pieces: Iterable[bytes]) -> tuple[bytes, int]:
    """The pieces as one gzip member, and how long they were together."""
    compressor = _load_library().begin()
    found, text_bytes = [], 0
    for piece in pieces:
        text_bytes += len(piece)
        found.append(compressor.compress(piece))
    found.append(compressor.flush())
    return b"".join(found), text_bytes


@functools.cache
def _load_library() -> _Library:
    """isal where it is installed (`rankscope[collector]`), else zlib."""
    try:
        library: Any = importlib.import_module("isal.isal_zlib")
    except ImportError:
        library = zlib
    return _Library(
        lambda: library.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW_BITS),
        lambda compressed: library.decompress(compressed, wbits=GZIP_WINDOW_BITS),
    )
