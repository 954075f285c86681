"""All channels of a collector together: where they keep what was delivered, and how they end."""

from contextlib import closing
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.journal import Journal
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.notifications.channel import RETRIED, TryResult
from rankscope.collector.notifications.notifier import Notifier, find_file, make_notifier
from tests.driven_clock import WALL_S, DrivenClock
from tests.unit.collector.detect.findings import RUN, slow
from tests.unit.collector.notifications.worlds import Receiver


class Collector:
    """A journal with one open incident, and its notifier."""

    def __init__(self, store: Path | None, receivers: dict[str, Receiver]) -> None:
        clock = DrivenClock()
        faults = FaultLog(clock)
        config = CollectorConfig(store=str(store or ""))
        self.journal = Journal(config, WALL_S, faults.count)
        self.notifier: Notifier = make_notifier(
            config, receivers, self.journal, find_run=lambda _: None, read_severities=dict, clock=clock, faults=faults
        )
        self.journal.open(RUN, slow(), WALL_S + 2_000.0)
        self.journal.tick([], WALL_S + 2_000.0)

    def run(self) -> None:
        """Deliver everything, and end."""
        self.notifier.start()
        self.notifier.stop(60.0)
        self.journal.shut_down(WALL_S + 2_000.0)


def test_each_receiver_gets_the_incident_and_a_file_at_the_store(tmp_path: Path) -> None:
    store, receivers = tmp_path / "runs.db", {"webhook": Receiver(), "otlp": Receiver()}
    Collector(store, receivers).run()
    assert [receiver.kinds for receiver in receivers.values()] == [["resolved"], ["resolved"]]  # its run is not known
    for name in receivers:
        assert find_file(store, name).exists()


def test_file_beside_a_store_of_another_collector_is_untouched(tmp_path: Path) -> None:
    store, receiver = tmp_path / "runs.db", Receiver()
    with closing(IncidentStore(store)):
        Collector(store, {"webhook": receiver}).run()
    assert receiver.kinds == ["resolved"]
    assert not find_file(store, "webhook").exists()


@pytest.mark.parametrize(
    ("has_store", "text"),
    [(True, "the next collector of this store delivers them"), (False, "they are lost")],
)
def test_end_says_what_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture, has_store: bool, text: str) -> None:
    receiver = Receiver(answers=[TryResult(RETRIED, "away")])
    Collector(tmp_path / "runs.db" if has_store else None, {"webhook": receiver}).run()
    assert f"webhook: 1 events are not delivered; {text}" in caplog.text


def test_without_receivers_there_is_nothing_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector(tmp_path / "runs.db", {})
    collector.run()
    assert (collector.notifier.counts, caplog.text.count("events are not")) == ({}, 0)
