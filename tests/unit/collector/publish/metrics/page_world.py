"""A cache of pages whose snapshots, clock and time of rendering are the test's."""

from collections.abc import Callable, Iterator

from rankscope.collector.publish.metrics.page_cache import SLOW_NS, PageCache, decompress
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from rankscope.measure.units import NS_PER_S

METRICS, RANKS = Page(METRICS_PATH), Page(RANKS_PATH)
CLASSIC, OPENMETRICS = TextFormat.CLASSIC, TextFormat.OPENMETRICS


class CountedPages(MetricPages):
    """Pages that take any time by the test's clock; their text is the number of the snapshot."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def copy(self) -> "CountedPages":
        """Return one that counts in the same world."""
        return CountedPages(self._world)

    def render(self, snapshot: Snapshot, page: Page, text_format: TextFormat) -> Iterator[bytes]:
        """Log the page, and yield the number of the snapshot."""
        world = self._world
        world.rendered.append((page, text_format))
        world.cpu_ns += world.takes_ns
        if world.is_broken:
            raise ZeroDivisionError
        world.meanwhile()
        yield b"%d" % snapshot.counts.frames_received


class World:
    """A cache, its snapshots and its clock."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.now_ns = 1000 * NS_PER_S
        self.cpu_ns = 0
        self.takes_ns = max(SLOW_NS.values()) if is_slow else 0
        self.is_broken = False
        self.meanwhile: Callable[[], object] = lambda: None
        self.rendered: list[tuple[Page, TextFormat]] = []
        self.snapshot = Snapshot(wall_s=0.0, version="0")
        self.cache = PageCache(
            lambda: self.snapshot, CountedPages(self),
            read_ns=lambda: self.now_ns, read_cpu_ns=lambda: self.cpu_ns, pages_max=3,
        )  # fmt: skip

    def tick(self) -> None:
        """Make a new snapshot."""
        counts = CollectorCounts(frames_received=self.snapshot.counts.frames_received + 1)
        self.snapshot = Snapshot(wall_s=0.0, version="0", counts=counts)

    def request(self, page: Page = METRICS, text_format: TextFormat = CLASSIC) -> int:
        """Return the number of the snapshot that the page shows."""
        return int(decompress(self.cache.find(page, text_format)))
