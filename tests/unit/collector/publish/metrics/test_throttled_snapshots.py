"""The picture that those who look again and again share: the latest one, unless to make it takes too long."""

from rankscope.collector.publish.metrics.throttled_snapshots import ThrottledSnapshots
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from tests.lazy_runs import LazyRun

MS = 1_000_000


class World:
    """A collector with one run, whose picture takes so much work to make; time passes when the test says so."""

    def __init__(self, work_ms: int) -> None:
        self.now_ns = self.worked_ns = 0
        self._work_ns = work_ms * MS
        self.lazy = LazyRun(self._build, run="bert")
        self.latest = Snapshot(wall_s=0.0, version="0", runs=[self.lazy])
        self.paced = ThrottledSnapshots(
            lambda: self.latest, read_ns=lambda: self.now_ns, read_cpu_ns=lambda: self.worked_ns
        )

    def _build(self) -> RunSnapshot:
        self.worked_ns += self._work_ns
        return RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=())

    def pass_ms(self, passed_ms: int) -> bool:
        """After so long there is a new snapshot; whether it is the one that is read."""
        self.now_ns += passed_ms * MS
        self.latest = Snapshot(wall_s=0.0, version="0", runs=[self.lazy])
        return self.paced.read() is self.latest


def test_picture_that_costs_little_is_always_the_latest() -> None:
    world = World(work_ms=50)  # a twentieth of a second
    assert [world.pass_ms(1) for _ in range(5)] == [True] * 5


def test_picture_that_costs_much_is_shown_until_a_twentieth_of_a_core_allows_the_next() -> None:
    world = World(work_ms=200)  # 20 * 200 ms = 4 s
    assert world.pass_ms(0)
    assert [world.pass_ms(1_000) for _ in range(8)] == [False, False, False, True] * 2
    assert world.lazy.made == 3


def test_first_picture_is_made_at_once_and_the_same_one_only_once() -> None:
    world = World(work_ms=50)
    assert [world.paced.read() for _ in range(5)] == [world.latest] * 5
    assert world.lazy.made == 1
