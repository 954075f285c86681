"""Snapshots requested between two ticks, in a collector in this process whose clock the test drives."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.publish.metrics.snapshot_requests import NEW_S, SHARE
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.service import Service
from rankscope.measure.units import NS_PER_S
from tests.driven_clock import DrivenClock

DEADLINE_S = 60.0
TICK_S = 10.0


@contextlib.contextmanager
def collecting(clock: DrivenClock) -> Iterator[Service]:
    """A collector on a thread after its first tick; there is no further one, since the test drives its clock."""
    service = Service(
        CollectorConfig(listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store="", tick_s=TICK_S), clock
    )
    has_ticked = threading.Event()
    thread = threading.Thread(target=service.run, args=(lambda _snapshot: has_ticked.set(),))
    thread.start()
    try:
        assert has_ticked.wait(DEADLINE_S)
        yield service
    finally:
        service.stop()
        thread.join()


def wait_for_next(service: Service, than: Snapshot) -> Snapshot:
    """Return the first snapshot that is not this one."""
    pause = threading.Event()
    for _ in range(round(DEADLINE_S / 0.01)):
        if service.snapshot is not than:
            return service.snapshot
        pause.wait(0.01)
    pytest.fail("no snapshot within the deadline")


def test_requested_snapshot_does_not_wait_for_the_tick() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        before = service.snapshot
        clock.now_s += TICK_S / 2
        from_wall_s = service._snapshot_requests.order()
        found = wait_for_next(service, before)
    assert before.wall_s < from_wall_s <= found.wall_s
    assert found.wall_s - before.wall_s == TICK_S / 2


def test_recent_snapshot_is_good_enough() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        before = service.snapshot
        clock.now_s += NEW_S / 2
        assert service._snapshot_requests.order() <= before.wall_s
        assert not service._snapshot_requests.is_open(clock.monotonic_ns())


def test_requested_snapshots_use_at_most_their_share() -> None:
    clock = DrivenClock()
    with collecting(clock) as service:
        took_ns = NS_PER_S // 10
        service._snapshot_requests.take(clock.monotonic_ns(), took_ns)
        before = service.snapshot
        clock.now_s += took_ns / NS_PER_S / SHARE - 0.001
        assert service._snapshot_requests.order() == before.wall_s
        assert not service._snapshot_requests._is_open.is_set()
        clock.now_s += 0.001
        assert service._snapshot_requests.order() > before.wall_s
        wait_for_next(service, before)
