"""Tests of the sidecar's delivery of orphaned reports: search, retries, refusals."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.agent.reporting.orphaned_reports import OrphanedReports, OrphanRefusedError, ReportAddress, claim_orphan
from rankscope.agent.reporting.spill_folder import find_boot_ids, open_folder
from rankscope.agent.sidecar import orphan_delivery
from rankscope.agent.sidecar.beacon import Descriptor
from rankscope.agent.sidecar.faults import SidecarFaults, read_faults
from rankscope.agent.sidecar.orphan_delivery import OrphanDelivery
from rankscope.measure.clock import Clock, SystemClock
from rankscope.measure.errors import SettingError
from tests.no_threads import allow_no_threads
from tests.unit.agent.reporting.spilled_reports import BOOT_ID, RUN, frame_of, hello_of, spill_in

DEADLINE_S = 300.0
ENDPOINT = "tcp://collector:1"


class Collector:
    """A collector that accepts orphaned reports after `refusals` attempts, which fail with `error` if given."""

    def __init__(self, refusals: int = 0, error: Exception | None = None) -> None:
        self.refusals = refusals
        self.error = error
        self.taken: list[tuple[str, str, list[int]]] = []
        self.has_taken = threading.Event()

    def deliver(
        self,
        orphan: OrphanedReports,
        address: ReportAddress,
        _clock: Clock,
        _deadline_ns: int,
        _is_stopping: Callable[[], bool],
    ) -> bool:
        if self.refusals:
            self.refusals -= 1
            if self.error is not None:
                raise self.error
            return False
        self.taken.append((address.endpoint, orphan.hello.identity.boot_id, [held.sequence for held in orphan.held]))
        return True


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Collector], OrphanDelivery]]:
    """Deliveries to a given collector, retried at once."""
    monkeypatch.setattr(orphan_delivery, "PAUSE_S", 0.001)
    made: list[OrphanDelivery] = []

    def make(collector: Collector) -> OrphanDelivery:
        made.append(OrphanDelivery(SystemClock(), collector.deliver))
        return made[-1]

    yield make
    for each in made:
        each.close()


def leave(tmp_path: Path, boot_id: str = BOOT_ID, run: str = RUN) -> str:
    spill = spill_in(tmp_path, boot_id, run=run)
    for sequence in (1, 2):
        assert spill.append(frame_of(sequence))
    spill.close()
    return open_folder(str(tmp_path))


def descriptor_of(folder: str, boot_id: str = BOOT_ID, endpoint: str = ENDPOINT) -> Descriptor:
    return Descriptor(
        identity=hello_of(boot_id).identity, start_ticks=1, frozen_after_ns=1, endpoint=endpoint, spill_folder=folder
    )


def wait_until_idle(delivery: OrphanDelivery) -> None:
    ended = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if delivery.is_idle:
            return
        ended.wait(0.005)
    pytest.fail("it is not idle")


def test_orphaned_reports_are_delivered_and_removed(
    tmp_path: Path, brought: Callable[[Collector], OrphanDelivery]
) -> None:
    folder, collector = leave(tmp_path), Collector()
    delivery = brought(collector)
    assert delivery.queue_ended(descriptor_of(folder)) == ""
    wait_until_idle(delivery)
    assert collector.taken == [(ENDPOINT, BOOT_ID, [1, 2])]
    assert (delivery.delivered, find_boot_ids(folder)) == (1, [])


@pytest.mark.parametrize("error", [None, SettingError("no address"), OSError("gone")])
def test_a_collector_that_does_not_take_it_is_asked_again(
    tmp_path: Path, brought: Callable[[Collector], OrphanDelivery], error: Exception | None
) -> None:
    collector = Collector(refusals=3, error=error)
    delivery = brought(collector)
    delivery.queue_ended(descriptor_of(leave(tmp_path)))
    wait_until_idle(delivery)
    assert len(collector.taken) == 1


def test_a_collector_that_refuses_it_for_good_is_not_waited_for(
    tmp_path: Path, brought: Callable[[Collector], OrphanDelivery]
) -> None:
    collector = Collector(refusals=1, error=OrphanRefusedError("run_taken"))
    folder, delivery = leave(tmp_path), brought(collector)
    delivery.queue_ended(descriptor_of(folder))
    wait_until_idle(delivery)
    assert (collector.taken, delivery.delivered) == ([], 0)
    assert find_boot_ids(folder) == [BOOT_ID]


def test_earlier_processes_of_a_run_are_delivered_once(
    tmp_path: Path, brought: Callable[[Collector], OrphanDelivery]
) -> None:
    leave(tmp_path, "earlier-1")
    folder, collector = leave(tmp_path, "earlier-2"), Collector()
    delivery = brought(collector)
    delivery.queue_earlier(descriptor_of(folder))
    wait_until_idle(delivery)
    leave(tmp_path, "since-then")
    delivery.queue_earlier(descriptor_of(folder))
    wait_until_idle(delivery)
    assert sorted(boot_id for _, boot_id, _ in collector.taken) == ["earlier-1", "earlier-2"]


def test_reports_of_another_run_stay(tmp_path: Path, brought: Callable[[Collector], OrphanDelivery]) -> None:
    folder, collector = leave(tmp_path, "other-orphan", run="another"), Collector()
    delivery = brought(collector)
    delivery.queue_earlier(descriptor_of(folder))
    wait_until_idle(delivery)
    assert (collector.taken, find_boot_ids(folder)) == ([], ["other-orphan"])


@pytest.mark.parametrize(("has_folder", "endpoint"), [(False, ENDPOINT), (True, "")])
def test_without_folder_or_collector_nothing_is_queued(
    tmp_path: Path, brought: Callable[[Collector], OrphanDelivery], has_folder: bool, endpoint: str
) -> None:
    descriptor = descriptor_of(leave(tmp_path) if has_folder else "", endpoint=endpoint)
    delivery = brought(Collector())
    delivery.queue_earlier(descriptor)
    assert delivery.queue_ended(descriptor) == ""
    assert delivery.is_idle


def test_torn_end_is_described(tmp_path: Path, brought: Callable[[Collector], OrphanDelivery]) -> None:
    folder = leave(tmp_path)
    (path,) = Path(folder).glob("*.spill")
    path.write_bytes(path.read_bytes()[:-1])
    collector = Collector()
    delivery = brought(collector)
    assert delivery.queue_ended(descriptor_of(folder)) == "the last record on the disk is truncated"
    wait_until_idle(delivery)
    assert collector.taken == [(ENDPOINT, BOOT_ID, [1])]


def test_undelivered_reports_stay_on_the_disk(tmp_path: Path) -> None:
    folder, stopped = leave(tmp_path), threading.Event()
    is_trying = threading.Event()

    def deliver(*arguments: object) -> bool:
        is_trying.set()
        is_stopping = arguments[-1]
        assert callable(is_stopping)
        while not is_stopping():
            stopped.wait(0.001)
        return False

    delivery = OrphanDelivery(SystemClock(), deliver)
    delivery.queue_ended(descriptor_of(folder))
    assert is_trying.wait(DEADLINE_S)
    delivery.close()
    orphan = claim_orphan(folder, BOOT_ID)
    assert orphan is not None
    orphan.close()


def test_without_a_thread_the_delivery_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    delivery = OrphanDelivery(SystemClock(), collector.deliver, faults=SidecarFaults(str(tmp_path)))
    allow_no_threads(monkeypatch)
    delivery.queue_ended(descriptor_of(leave(tmp_path)))
    delivery.start_if_needed()
    assert not delivery.is_idle
    assert "can't start new thread" in read_faults(str(tmp_path))
    monkeypatch.undo()
    delivery.start_if_needed()
    wait_until_idle(delivery)
    delivery.close()
    assert [sequences for *_, sequences in collector.taken] == [[1, 2]]
