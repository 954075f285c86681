"""A cache of pages whose snapshots, clock and time of writing are the test's."""

import math
from collections.abc import Callable, Iterator

from rankscope.collector.publish.metrics.page_cache import SMALL_BYTES_MAX, PageCache, decompress
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot

METRICS, RANKS = Page(METRICS_PATH), Page(RANKS_PATH)
CLASSIC, OPENMETRICS = TextFormat.CLASSIC, TextFormat.OPENMETRICS


class CountedPages(MetricPages):
    """Pages that are as long as the test wants, and take as long by the test's clock; their text is the snapshot's
    number.
    """

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def render(self, snapshot: Snapshot, page: Page, text_format: TextFormat, rest: object = None) -> Iterator[bytes]:  # noqa: ARG002
        world = self._world
        world.written.append((page, text_format))
        world.now_s += world.took_s
        if world.broken:
            raise ZeroDivisionError
        if page == RANKS:
            world.meanwhile()
        yield b"%d" % snapshot.counts.frames_received
        yield b" " * world.padding


class World:
    """A cache, its snapshots and its clock."""

    def __init__(self, *, large: bool = False, took_s: float = 0.0, late_wait_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.took_s = took_s
        self.padding = SMALL_BYTES_MAX if large else 0
        self.broken = False
        self.meanwhile: Callable[[], object] = lambda: None
        self.written: list[tuple[Page, TextFormat]] = []
        self.snapshot = Snapshot(wall_s=self.now_s, version="0")
        self.asked_s: list[float] = []
        self.announced_s: float | None = None
        self.written_after_order: list[int] = []
        """How many pages had been written each time that the page of an order was."""
        self.picture_takes_s: float | None = None
        """How long one takes that is asked for; None: nobody is asked."""
        self.cache = PageCache(
            lambda: self.snapshot, CountedPages(self), now_s=lambda: self.now_s, sleep=self._sleep, pages_max=3,
            late_wait_s=late_wait_s, orders=self,  # type: ignore[arg-type]
        )  # fmt: skip
        # Preparing is the test's to do, at its moment.
        self.cache._wake = lambda: None  # type: ignore[method-assign]

    def order(self) -> float:
        """As SnapshotRequests."""
        if self.picture_takes_s is None:
            return -math.inf
        self.asked_s.append(self.now_s)
        return self.now_s

    def note_written(self) -> None:
        """As SnapshotRequests."""
        self.written_after_order.append(len(self.written))

    def announce(self, after_s: float | None) -> None:
        """As SnapshotRequests."""
        self.announced_s = None if after_s is None else self.now_s + after_s

    def _sleep(self, seconds: float) -> None:
        """Time goes by only while a picture is waited for."""
        if self.picture_takes_s is not None and self.snapshot.wall_s < self.asked_s[-1]:
            self.now_s += seconds
            if self.now_s - self.asked_s[-1] >= self.picture_takes_s:
                self.tick()

    def ask_twice(self) -> None:
        """At 1000 and 1015 s, with a new snapshot after each: the page is expected at 1030."""
        for self.now_s in (1000.0, 1015.0):
            self.ask()
            self.tick()

    def tick(self) -> None:
        """There is a new snapshot."""
        received = self.snapshot.counts.frames_received + 1
        counts = CollectorCounts(frames_received=received)
        self.snapshot = Snapshot(wall_s=self.now_s, version="0", counts=counts)

    def ask(self, page: Page = METRICS, text_format: TextFormat = CLASSIC) -> int:
        """The number of the snapshot that the page shows."""
        return int(decompress(self.cache.find(page, text_format)))

    def pass_time(self, seconds: float) -> None:
        """Let time go by, with a snapshot every second, and prepare what is to be prepared when it is."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick()
            wait_s = self.cache.prepare()
            while wait_s == 0.0:
                wait_s = self.cache.prepare()
            step_s = 1.0 if wait_s is None else min(1.0, wait_s)
            self.now_s += min(step_s, max(0.0, end_s - self.now_s)) or 1e-6
