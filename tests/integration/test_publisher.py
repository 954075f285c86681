"""The publisher process of `rankscope serve`: it is killed, stopped and left alone, and nothing else suffers."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import psutil
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.publish import publisher_link
from rankscope.collector.publish.http_listener import HttpListener, listen_http
from rankscope.collector.publish.publisher_link import PublisherLink, Sources
from rankscope.collector.publish.snapshot_messages import Health
from rankscope.collector.publisher import PublisherProcess
from rankscope.collector.runs.run_dump import RunDump, dump_run
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.wakeup import Wakeup
from rankscope.measure.clock import SystemClock
from tests.integration.serving import Served, read_url, serving, wait_for, wait_for_end_of
from tests.integration.wire_peer import connected
from tests.unit.collector.runs.run_stories import Story

RESTARTS = 'rankscope_collector_errors_total{part="publisher"} 1.0'


def find_publisher(served: Served) -> psutil.Process:
    """Return the only child of a collector, once it has one."""
    return wait_for(
        lambda: next(iter(psutil.Process(served.pid).children()), None), lambda: "the collector has no child"
    )


@pytest.fixture
def served() -> Iterator[Served]:
    """A collector with its publisher."""
    with serving() as served:
        served.read_metrics()
        yield served


def test_killed_publisher_is_started_again_and_nothing_is_lost(served: Served) -> None:
    with connected(served.endpoint, "boot-one") as peer:
        peer.join().report(3)
        served.wait_for_run("good", lambda run: run.ranks[0].reports_admitted == 3)
        find_publisher(served).kill()
        peer.report(3)  # and they are acknowledged meanwhile
        run = served.wait_for_run("good", lambda run: run.ranks[0].reports_admitted == 6)
    assert run.ranks[0].report_gaps == 0
    served.wait_for_metrics(RESTARTS)
    assert "The publisher (metrics, API, live page) was ended by SIGKILL; starting it again." in served.read_stderr()


def test_requests_during_a_restart_wait_and_are_answered(served: Served) -> None:
    find_publisher(served).kill()
    assert read_url(f"{served.url}/healthz") == b"ok\n"


def test_publisher_ignores_the_signals_that_end_a_collector(served: Served) -> None:
    publisher = find_publisher(served)
    for number in (signal.SIGINT, signal.SIGTERM):
        publisher.send_signal(number)
    assert read_url(f"{served.url}/healthz") == b"ok\n"
    assert find_publisher(served).pid == publisher.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_publisher_ends_with_its_collector_and_frees_the_port(served: Served, number: signal.Signals) -> None:
    publisher = find_publisher(served)
    served.end(number)
    with serving(http_listen=f"127.0.0.1:{served.ports[1]}") as again:
        assert again.read_run_names() == []
    wait_for_end_of(publisher.pid)


def test_stopped_publisher_delays_no_report(served: Served) -> None:
    publisher = find_publisher(served)
    publisher.suspend()
    try:
        with connected(served.endpoint, "boot-one") as peer:
            peer.join()
            for _ in range(20):
                peer.report()  # waits for its acknowledgement
    finally:
        publisher.resume()
    served.wait_for_run("good", lambda run: bool(run.ranks) and run.ranks[0].reports_admitted == 20)


# -- the link without a collector -------------------------------------------------------------------------------------


class Linked:
    """A link to a real publisher process, whose snapshots are the test's."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.faults = FaultLog(SystemClock())
        self.snapshot = self.make_snapshot()
        self.publishers: list[PublisherProcess] = []
        self.read_dump: Callable[[str], RunDump | None] = lambda _run: dump_run(story.run, story.now_ns)
        self.listener = listen_http("127.0.0.1:0")
        self.url = self.listener.url(is_secure=False)
        self.published = Wakeup()
        self.link = PublisherLink(
            lambda connection: self._start(connection, self.listener),
            Sources(lambda: self.snapshot, tuple, lambda: Health(0), self._dump),
            self.faults,
            self.published,
        )
        self.link.start()

    def _start(self, connection: Connection, listener: HttpListener) -> PublisherProcess:
        self.publishers.append(PublisherProcess(connection, CollectorConfig(), listener))
        return self.publishers[-1]

    def _dump(self, run: str) -> RunDump | None:
        return self.read_dump(run)

    def make_snapshot(self) -> Snapshot:
        """Return the state of the story."""
        return Snapshot(wall_s=time.time(), version="0.1.0", runs=[self.story.run.lazy_snapshot(self.story.now_ns)])

    def close(self) -> None:
        """End the publisher."""
        self.link.close()
        self.listener.socket.close()


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that accepts nothing for 10 s is replaced. One that starts takes seconds on a busy machine."""
    monkeypatch.setattr(publisher_link, "SEND_S_MAX", 10)


@pytest.fixture
def linked() -> Iterator[Linked]:
    """A link with a run of 256 ranks."""
    found = Linked(Story(256).join().train(3))
    try:
        read_url(f"{found.url}/healthz")
        yield found
    finally:
        found.close()


@pytest.mark.usefixtures("short_patience")
def test_publisher_that_reads_nothing_is_replaced(linked: Linked) -> None:
    stopped = psutil.Process(linked.publishers[0]._child.pid)
    stopped.suspend()
    pause = threading.Event()
    for _ in range(2000):
        linked.snapshot = linked.make_snapshot()
        linked.published.set()  # never waits
        if len(linked.publishers) > 1:
            break
        pause.wait(0.05)
    assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE
    assert linked.faults.counts == {"publisher": 1}
    assert b'"run":"story"' in read_url(f"{linked.url}/api/v1/runs")


def test_inside_of_a_run_is_asked_of_the_service(linked: Linked) -> None:
    assert b'"run_id":"story"' in read_url(f"{linked.url}/api/v1/debug/runs/story")


def test_error_in_a_source_ends_no_thread(linked: Linked, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_run: str) -> RunDump | None:
        raise ZeroDivisionError

    working, linked.read_dump = linked.read_dump, fail
    with pytest.raises(OSError):  # noqa: PT011 - a status or an ended connection: its publisher is ended too
        read_url(f"{linked.url}/api/v1/debug/runs/story")
    linked.read_dump = working
    assert b'"run_id":"story"' in read_url(f"{linked.url}/api/v1/debug/runs/story")
    assert "a message for the publisher could not be made" in caplog.text


def test_publisher_that_cannot_be_started_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tries, is_tried_again = [0], threading.Event()

    def fail(_connection: Connection) -> PublisherProcess:
        tries[0] += 1
        if tries[0] == 2:
            is_tried_again.set()
        raise BlockingIOError("no process can be started")

    snapshot = Snapshot(wall_s=0.0, version="0")
    link = PublisherLink(
        fail, Sources(lambda: snapshot, tuple, lambda: Health(0), lambda _run: None), FaultLog(SystemClock()), Wakeup()
    )
    link.start()
    assert is_tried_again.wait(20.0)
    link.close()
    assert "could not be started (no process can be started); starting it again" in caplog.text
