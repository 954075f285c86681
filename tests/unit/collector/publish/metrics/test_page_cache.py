"""When a page of metrics is written: small ones when they are asked for, large ones before. The clock is the test's."""

import math
import threading
import time
from collections.abc import Iterator

import pytest

from rankscope.collector.publish.metrics.page_cache import (
    LATE_AGE_S_MAX,
    LEAD_S_MAX,
    PAUSE_FOR_ASKERS_S,
    PREPARED_AGE_S_MAX,
    SMALL_BYTES_MAX,
    PageCache,
)
from rankscope.collector.publish.metrics.pages import RANKS_PATH, MetricPages, Page, Shard
from rankscope.collector.runs.snapshot import Snapshot
from tests.unit.collector.publish.metrics.page_world import CLASSIC, METRICS, OPENMETRICS, RANKS, CountedPages, World

SCRAPE_S = 15.0
DEADLINE_S = 20.0


# -- small pages ------------------------------------------------------------------------------------------------------


def test_a_small_page_shows_the_present_snapshot() -> None:
    world = World()
    for number in range(3):
        assert world.ask() == number
        world.tick()


def test_a_page_of_one_snapshot_is_written_once_for_each_format() -> None:
    world = World()
    for _ in range(3):
        world.ask(METRICS, CLASSIC)
        world.ask(METRICS, OPENMETRICS)
        world.ask(RANKS, CLASSIC)
    assert sorted(world.written, key=str) == sorted(
        [(METRICS, CLASSIC), (METRICS, OPENMETRICS), (RANKS, CLASSIC)], key=str
    )


def test_what_nobody_asks_for_is_not_written() -> None:
    world = World(large=True)
    world.ask()
    world.pass_time(300.0)
    assert len(world.written) == 1


def test_a_small_page_is_never_prepared() -> None:
    world = World()
    for _ in range(4):
        world.ask()
        world.pass_time(SCRAPE_S)
    assert len(world.written) == 4


# -- large pages ------------------------------------------------------------------------------------------------------


def test_a_large_page_is_written_shortly_before_it_is_expected_and_no_scrape_waits() -> None:
    world = World(large=True, took_s=1.0)
    world.ask()
    world.pass_time(SCRAPE_S)
    world.ask()  # the second one: from here on the distance is known
    for _ in range(4):
        world.pass_time(SCRAPE_S)
        written = len(world.written)
        shown = world.ask()
        assert len(world.written) == written
        # Begun 1.65 s before, with the snapshot of that second.
        assert world.snapshot.counts.frames_received - shown <= 3


def test_between_two_scrapes_a_large_page_is_written_once() -> None:
    world = World(large=True)
    for _ in range(3):
        world.ask()
        world.pass_time(SCRAPE_S)
    before = len(world.written)
    for _ in range(10):
        world.ask()
        world.pass_time(SCRAPE_S)
    assert len(world.written) - before == 10


def test_two_servers_that_scrape_at_alternating_distances_both_find_a_page() -> None:
    world = World(large=True, took_s=0.5)
    for _ in range(3):
        world.ask()
        world.pass_time(4.0)
        world.ask()
        world.pass_time(SCRAPE_S - 4.0)
    for distance_s in (4.0, SCRAPE_S - 4.0) * 3:
        written = len(world.written)
        world.ask()
        assert len(world.written) == written
        world.pass_time(distance_s)


def test_whoever_asks_again_and_again_gets_the_written_page_until_it_is_too_old() -> None:
    world = World(large=True)
    shown = []
    for _ in range(20):
        shown.append(world.snapshot.counts.frames_received - world.ask())
        world.pass_time(1.0)
    assert max(shown) <= 2 * PREPARED_AGE_S_MAX  # there are up to two snapshots a second here
    # Once each time when the page would be more than PREPARED_AGE_S_MAX old at the next second.
    assert (PREPARED_AGE_S_MAX, len(world.written)) == (5.0, 4)


def test_a_page_that_is_too_old_is_written_anew_for_whoever_comes_late() -> None:
    world = World(large=True)
    world.ask()
    world.tick()
    world.now_s += PREPARED_AGE_S_MAX + 0.1
    assert world.ask() == 1


def test_a_scrape_on_its_beat_does_not_wait_for_a_page_that_could_not_be_written_in_time() -> None:
    world = World(large=True)
    shown = []
    for world.now_s in (1000.0, 1015.0):
        shown.append(world.ask())
        world.tick()
    assert shown == [0, 1]  # the first two are written for who asks
    world.now_s = 1030.0
    assert world.ask() == 1
    world.now_s = 1046.0  # the page is more than LATE_AGE_S_MAX old
    assert world.ask() == 2


@pytest.mark.parametrize(("patience_s", "shown"), [(DEADLINE_S, 2), (0.0, 1)])
def test_a_scrape_on_its_beat_waits_a_little_for_its_page_while_that_is_written(patience_s: float, shown: int) -> None:
    world = World(large=True, late_wait_s=patience_s)
    for world.now_s in (1000.0, 1015.0):
        world.ask(RANKS)
        world.tick()
    world.now_s = 1029.9
    is_begun, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_begun.set()
        goes_on.wait(DEADLINE_S)

    world.meanwhile = hold
    preparing = threading.Thread(target=world.cache.prepare)
    preparing.start()
    assert is_begun.wait(DEADLINE_S)
    world.now_s = 1030.0
    if patience_s:
        threading.Timer(0.05, goes_on.set).start()
    assert world.ask(RANKS) == shown
    goes_on.set()
    preparing.join()


def test_a_page_is_ordered_as_early_as_the_last_ones_with_their_pictures_ask_for() -> None:
    world = World(large=True, took_s=1.0)
    world.ask_twice()
    world.picture_takes_s = 0.29  # looked for every 0.02 s
    for scrape_s, lead_s in ((1030.0, 1.65), (1045.0, 0.4 + 1.25 * 1.3)):
        world.now_s = scrape_s - lead_s - 0.01
        assert world.cache.prepare() == pytest.approx(0.01)
        world.now_s = scrape_s - lead_s + 1e-6
        world.cache.prepare()
        world.now_s = scrape_s
        world.ask()


def test_a_page_is_begun_as_early_as_the_longest_of_the_last_ones_asks_for() -> None:
    """One that took long once may do so again."""
    world = World(large=True)
    for world.took_s in (0.2, 2.0, 0.2):
        world.ask()
        world.pass_time(SCRAPE_S - world.took_s)
    world.ask()
    written = len(world.written)
    world.now_s += SCRAPE_S - 2.5
    world.tick()
    world.cache.prepare()
    assert len(world.written) == written + 1


@pytest.mark.parametrize(("picture_takes_s", "shown"), [(0.0, 3), (0.35, 3), (0.65, 3), (0.8, 2)])
def test_a_page_is_written_from_a_picture_of_its_moment_where_there_is_one_in_time(
    picture_takes_s: float, shown: int
) -> None:
    world = World(large=True, took_s=1.0)
    world.ask_twice()
    world.picture_takes_s = picture_takes_s
    # Its picture is ordered 1.65 s before 1030, and it is begun at most 0.7 s later.
    world.now_s = 1028.34
    assert world.cache.prepare() == pytest.approx(0.01)
    world.now_s = 1028.35 + 1e-6
    assert world.cache.prepare() == 0.0
    assert len(world.asked_s) == 1
    assert world.ask() == shown


def test_when_the_next_picture_will_be_ordered_is_said_before_and_again_when_one_is() -> None:
    world = World(large=True, took_s=1.0)
    for scrape_s in (1000.0, 1015.0):
        for page, later_s in ((RANKS, 0.0), (METRICS, 5.0)):
            world.now_s = scrape_s + later_s - 1.0  # each takes 1 s
            world.tick()
            world.ask(page)
    world.picture_takes_s = 0.0
    world.now_s = 1025.0
    world.cache.prepare()
    assert world.announced_s == pytest.approx(1029.0 - 1.65)
    announced_amid_s: list[float | None] = []
    world.meanwhile = lambda: announced_amid_s.append(world.announced_s)
    world.now_s = 1029.0 - 1.65 + 1e-6
    world.cache.prepare()
    assert announced_amid_s == [pytest.approx(1034.0 - 1.65)]
    assert world.written_after_order == [len(world.written)]


def test_a_page_that_cannot_be_written_is_no_longer_being_written() -> None:
    world = World(large=True)
    world.ask_twice()
    world.now_s = 1029.9
    world.broken = True
    with pytest.raises(ZeroDivisionError):
        world.cache.prepare()
    assert len(world.written_after_order) == 1


def test_where_nobody_is_expected_no_order_is() -> None:
    world = World(large=True)
    world.ask()
    world.announced_s = 1.0
    world.cache.prepare()
    assert world.announced_s is None


def test_what_is_new_enough_is_not_waited_for() -> None:
    world = World(large=True)
    world.ask_twice()
    world.now_s = 1029.9
    world.picture_takes_s = math.inf
    world.tick()
    world.cache.prepare()
    assert (world.now_s, world.asked_s, len(world.written)) == (1029.9, [1029.9], 3)


def test_while_a_large_page_is_written_a_scrape_gets_what_there_is_of_another_and_does_not_wait() -> None:
    world = World(large=True)
    world.ask(METRICS)
    world.ask(RANKS)
    world.tick()
    world.now_s += LATE_AGE_S_MAX
    found: list[int] = []
    # In the same thread: whoever waited for the other page here would wait for ever.
    world.meanwhile = lambda: found.append(world.ask(METRICS))
    world.ask(RANKS)
    assert (found, world.ask(METRICS)) == ([0], 1)


def test_what_is_expected_is_begun_only_when_nobody_waits_for_a_page() -> None:
    world = World(large=True)
    for world.now_s in (1000.0, 1020.0):
        world.ask()
        world.tick()
    world.now_s = 1039.9
    with world.cache._waiting():
        assert world.cache.prepare() == PAUSE_FOR_ASKERS_S
        assert len(world.written) == 2
    world.cache.prepare()
    assert len(world.written) == 3


def test_of_two_pages_that_are_expected_the_one_that_takes_less_time_is_written_first() -> None:
    world = World(large=True)
    for begin_s in (1000.0, 1020.0):
        for page, world.took_s in ((RANKS, 2.0), (METRICS, 0.1)):
            world.tick()
            world.now_s = begin_s
            world.ask(page)
    world.written.clear()
    world.now_s = 1039.8
    world.cache.prepare()
    assert [page for page, _ in world.written] == [METRICS, RANKS]


def test_a_page_that_takes_long_is_not_begun_so_early_that_it_would_be_too_old() -> None:
    world = World(large=True, took_s=4.0)
    assert LEAD_S_MAX < PREPARED_AGE_S_MAX
    for _ in range(4):
        world.ask()
        world.pass_time(SCRAPE_S - 4.0)
    written = len(world.written)
    world.ask()
    assert len(world.written) == written


def test_a_page_that_nobody_comes_for_any_more_is_let_go() -> None:
    world = World(large=True)
    for _ in range(3):
        world.ask()
        world.pass_time(SCRAPE_S)
    written = len(world.written)
    world.pass_time(120.0)
    assert len(world.written) <= written + 1
    assert all(wanted.written is None for wanted in world.cache._wanted.values())


# -- bounds and mistakes ----------------------------------------------------------------------------------------------


def test_of_too_many_pages_the_one_that_was_not_asked_for_longest_goes() -> None:
    world = World()
    shards = [Page(RANKS_PATH, Shard(part, 4)) for part in range(4)]
    for shard in (*shards[:3], shards[0], shards[3]):
        world.ask(shard)
    assert [page.shard and page.shard.part for page, _ in world.cache._wanted] == [2, 0, 3]


def test_a_page_that_cannot_be_written_is_told_to_whoever_asks_and_may_be_asked_for_again() -> None:
    world = World()
    world.broken = True
    with pytest.raises(ZeroDivisionError):
        world.ask()
    world.broken = False
    assert world.ask() == 0


def test_two_who_ask_at_the_same_time_share_what_is_written() -> None:
    world = World()
    both = threading.Barrier(2, timeout=DEADLINE_S)
    found: list[int] = []

    def ask() -> None:
        both.wait()
        found.append(world.ask())

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (found, len(world.written)) == ([0, 0], 1)


# -- the thread -------------------------------------------------------------------------------------------------------


def test_the_thread_begins_with_the_first_large_page_prepares_and_ends_with_the_cache() -> None:
    now_s = [0.0]
    prepared = threading.Event()

    class LargePages(MetricPages):
        def render(self, *_: object, **__: object) -> Iterator[bytes]:
            if threading.current_thread().name == "rankscope-pages":
                prepared.set()
            yield b"#" * (SMALL_BYTES_MAX + 1)

    cache = PageCache(lambda: Snapshot(wall_s=0.0, version="0"), LargePages(), now_s=lambda: now_s[0])
    before = set(threading.enumerate())
    for now_s[0] in (0.0, 10.0):
        cache.find(METRICS, CLASSIC)
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"rankscope-pages"}
    now_s[0] = 19.9  # the page is expected at 20 s, and is to be written 0.4 s before
    cache._wake()
    assert prepared.wait(DEADLINE_S)
    cache.close()
    cache.close()
    assert set(threading.enumerate()) <= before


def test_a_mistake_in_the_thread_is_counted_and_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    cache = PageCache(lambda: Snapshot(wall_s=0.0, version="0"), MetricPages())
    went_on = threading.Event()
    mistakes = iter([ZeroDivisionError()])

    def prepare() -> float | None:
        for mistake in mistakes:
            raise mistake
        went_on.set()
        return None

    cache.prepare = prepare  # type: ignore[method-assign]
    deadline_s = time.monotonic() + DEADLINE_S
    while not went_on.is_set() and time.monotonic() < deadline_s:
        cache._wake()
        went_on.wait(0.01)
    cache.close()
    assert went_on.is_set()
    assert cache.errors_contained == 1
    assert "a page of metrics could not be prepared" in caplog.text


# -- what pages are written from --------------------------------------------------------------------------------------


class WatchedSnapshot(Snapshot):
    """Tells when it lets go of its pictures."""

    def __init__(self) -> None:
        super().__init__(wall_s=0.0, version="0")
        self.has_let_go = threading.Event()

    def drop_built_runs(self) -> None:
        super().drop_built_runs()
        self.has_let_go.set()


def test_when_a_large_page_is_written_the_pictures_of_all_ranks_are_let_go_of() -> None:
    world, snapshot = World(large=True), WatchedSnapshot()
    world.snapshot = snapshot
    cache = PageCache(lambda: snapshot, CountedPages(world))
    cache.find(METRICS, CLASSIC)
    try:
        assert snapshot.has_let_go.wait(DEADLINE_S)
    finally:
        cache.close()


def test_while_a_page_is_written_its_pictures_stay() -> None:
    world, snapshot = World(large=True), WatchedSnapshot()
    world.snapshot = snapshot
    world.meanwhile = world.cache._let_go
    world.ask(RANKS)
    assert not snapshot.has_let_go.is_set()
    world.cache._let_go()
    assert snapshot.has_let_go.is_set()


def test_before_any_page_there_is_nothing_to_let_go_of() -> None:
    world = World()
    world.cache._let_go()
    assert world.ask() == 0
