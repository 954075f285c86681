"""When a page of metrics is rendered: small ones by requests, large ones before. The clock is the test's."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from rankscope.collector.publish.metrics.page_cache import WANTED_NS, PageCache
from rankscope.collector.runs.snapshot import Snapshot
from tests.unit.collector.publish.metrics.page_world import CLASSIC, METRICS, OPENMETRICS, RANKS, CountedPages, World

DEADLINE_S = 20.0


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of large pages without the render thread: the test renders ahead."""
    world = World(is_large=True)
    monkeypatch.setattr(world.cache, "_start", lambda: None)
    yield world
    world.cache.close()


# -- small pages ------------------------------------------------------------------------------------------------------


def test_a_small_page_shows_the_latest_snapshot() -> None:
    world = World()
    for number in range(3):
        assert world.request() == number
        world.tick()


def test_a_page_is_rendered_once_for_a_snapshot_in_each_format() -> None:
    world = World()
    for _ in range(3):
        world.request(METRICS, CLASSIC)
        world.request(METRICS, OPENMETRICS)
        world.request(RANKS, CLASSIC)
    assert world.rendered == [(METRICS, CLASSIC), (METRICS, OPENMETRICS), (RANKS, CLASSIC)]


def test_a_small_page_is_not_rendered_ahead() -> None:
    world = World()
    world.request()
    world.tick()
    world.cache.render_outdated()
    assert len(world.rendered) == 1


def test_no_thread_starts_for_small_pages() -> None:
    world = World()
    world.request()
    assert world.cache._thread is None


# -- large pages ------------------------------------------------------------------------------------------------------


def test_no_request_waits_for_a_large_page_that_was_rendered_once(large: World) -> None:
    assert large.request() == 0
    large.tick()
    assert large.request() == 0
    assert len(large.rendered) == 1


def test_a_large_page_is_rendered_ahead_from_each_snapshot(large: World) -> None:
    large.request()
    for number in range(1, 4):
        large.tick()
        large.cache.render_outdated()
        large.cache.render_outdated()  # from the same snapshot: nothing to do
        assert large.request() == number
    assert len(large.rendered) == 4


def test_the_page_that_takes_least_time_is_rendered_first(large: World) -> None:
    large.took_ns = {METRICS: 2, RANKS: 1}
    for page in (METRICS, RANKS):
        large.request(page)
    large.tick()
    large.rendered.clear()
    large.cache.render_outdated()
    assert large.rendered == [(RANKS, CLASSIC), (METRICS, CLASSIC)]


def test_a_large_page_that_nobody_requests_any_more_is_dropped(large: World) -> None:
    large.request()
    large.now_ns += WANTED_NS
    large.tick()
    large.cache.render_outdated()
    assert len(large.rendered) == 2
    large.now_ns += 1
    large.tick()
    large.cache.render_outdated()
    assert len(large.rendered) == 2
    assert large.request() == 2  # and is rendered by the next request


def test_a_large_page_that_became_small_is_rendered_by_requests(large: World) -> None:
    large.request()
    large.padding = 0
    large.tick()
    large.cache.render_outdated()
    large.tick()
    assert large.request() == 2


def test_a_page_that_cannot_be_rendered_ahead_is_dropped_and_counted(
    large: World, caplog: pytest.LogCaptureFixture
) -> None:
    large.request()
    large.is_broken = True
    large.tick()
    large.cache.render_outdated()
    assert large.cache.errors_contained == 1
    assert "a page of metrics could not be rendered" in caplog.text
    with pytest.raises(ZeroDivisionError):
        large.request()
    large.is_broken = False
    assert large.request() == 1


def test_the_render_thread_renders_after_a_new_snapshot() -> None:
    world, is_rendered = World(is_large=True), threading.Event()
    world.request()
    world.meanwhile = is_rendered.set
    world.tick()
    world.cache.note_snapshot()
    try:
        assert is_rendered.wait(DEADLINE_S)
    finally:
        world.cache.close()
    assert world.request() == 1


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_page_not_requested_for_longest_is_dropped() -> None:
    """There is room for three."""
    world = World()
    keys = [(METRICS, CLASSIC), (METRICS, OPENMETRICS), (RANKS, CLASSIC), (RANKS, OPENMETRICS)]
    for key in keys:
        world.request(*key)
    world.rendered.clear()
    for key in keys[1:]:
        world.request(*key)
    assert world.rendered == []
    world.request(*keys[0])
    assert world.rendered == [keys[0]]


def test_requests_at_the_same_time_render_a_page_once() -> None:
    world = World()
    together, shown = threading.Barrier(4, timeout=DEADLINE_S), []

    def request() -> None:
        together.wait()
        shown.append(world.request())

    threads = [threading.Thread(target=request) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (shown, len(world.rendered)) == ([0] * 4, 1)


def test_a_rendered_page_does_not_keep_its_snapshot() -> None:
    """Of 16,384 ranks a snapshot is 0.1 GB, and a large page may be some snapshots old."""
    world = World(is_large=True)
    world.request()
    former: weakref.ref[Snapshot] = weakref.ref(world.snapshot)
    world.tick()
    gc.collect()
    world.cache.close()
    assert former() is None


def test_a_page_of_many_ranks_is_large_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(Snapshot, "sizes", {"a": 2049})
    cache = PageCache(lambda: world.snapshot, CountedPages(world))
    cache.find(METRICS, CLASSIC)
    cache.close()
    assert cache._thread is not None
