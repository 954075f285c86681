"""When a page of metrics is rendered: fast ones by requests, slow ones before. The clock is the test's."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from rankscope.collector.publish.metrics.page_cache import SLOW_NS, WANTED_NS
from rankscope.collector.publish.metrics.pages import Page
from rankscope.collector.runs.snapshot import Snapshot
from tests.unit.collector.publish.metrics.page_world import CLASSIC, METRICS, OPENMETRICS, RANKS, World

DEADLINE_S = 300.0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of slow pages without the render thread: the test renders ahead."""
    world = World(is_slow=True)
    monkeypatch.setattr(world.cache, "_start", lambda: None)
    yield world
    world.cache.close()


# -- fast pages ------------------------------------------------------------------------------------------------------


def test_a_fast_page_shows_the_latest_snapshot() -> None:
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


def test_a_fast_page_is_not_rendered_ahead() -> None:
    world = World()
    world.request()
    world.tick()
    world.cache.render_outdated()
    assert len(world.rendered) == 1


def test_no_thread_starts_for_fast_pages() -> None:
    world = World()
    world.request()
    assert world.cache._thread is None


# -- slow pages ------------------------------------------------------------------------------------------------------


def test_no_request_waits_for_a_slow_page_that_was_rendered_once(slow: World) -> None:
    assert slow.request() == 0
    slow.tick()
    assert slow.request() == 0
    assert len(slow.rendered) == 1


def test_a_slow_page_is_rendered_ahead_from_each_snapshot(slow: World) -> None:
    slow.request()
    for number in range(1, 4):
        slow.tick()
        slow.cache.render_outdated()
        slow.cache.render_outdated()  # from the same snapshot: nothing to do
        assert slow.request() == number
    assert len(slow.rendered) == 4


def test_the_page_that_takes_least_time_is_rendered_first(slow: World) -> None:
    slow.takes_ns += 1
    slow.request(METRICS)
    slow.takes_ns -= 1
    slow.request(RANKS)
    slow.tick()
    slow.rendered.clear()
    slow.cache.render_outdated()
    assert slow.rendered == [(RANKS, CLASSIC), (METRICS, CLASSIC)]


def test_a_slow_page_that_nobody_requests_any_more_is_dropped(slow: World) -> None:
    slow.request()
    slow.now_ns += WANTED_NS
    slow.tick()
    slow.cache.render_outdated()
    assert len(slow.rendered) == 2
    slow.now_ns += 1
    slow.tick()
    slow.cache.render_outdated()
    assert len(slow.rendered) == 2
    assert slow.request() == 2  # and is rendered by the next request


def test_a_slow_page_that_became_fast_is_rendered_by_requests(slow: World) -> None:
    slow.request()
    slow.takes_ns = 0
    slow.tick()
    slow.cache.render_outdated()
    slow.tick()
    assert slow.request() == 2


def test_page_that_fails_to_render_ahead_is_dropped_and_counted(slow: World, caplog: pytest.LogCaptureFixture) -> None:
    slow.request()
    slow.is_broken = True
    slow.tick()
    slow.cache.render_outdated()
    assert slow.cache.errors_contained == 1
    assert "a page of metrics could not be rendered" in caplog.text
    with pytest.raises(ZeroDivisionError):
        slow.request()
    slow.is_broken = False
    assert slow.request() == 1


def test_the_render_thread_renders_after_a_new_snapshot() -> None:
    world, is_rendered = World(is_slow=True), threading.Event()
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
    """Of 16,384 ranks a snapshot is 0.1 GB, and a slow page may be some snapshots old."""
    world = World(is_slow=True)
    world.request()
    former: weakref.ref[Snapshot] = weakref.ref(world.snapshot)
    world.tick()
    gc.collect()
    world.cache.close()
    assert former() is None


@pytest.mark.parametrize("page", [METRICS, RANKS])
def test_a_page_is_slow_from_its_limit_of_cpu_time_on(page: Page) -> None:
    for takes_ns, is_slow in ((SLOW_NS[page.path] - 1, False), (SLOW_NS[page.path], True)):
        world = World()
        world.takes_ns = takes_ns
        world.request(page)
        world.cache.close()
        assert (world.cache._thread is not None) == is_slow
