"""The thread of captures with ranks that answer: from an order to files in the store."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankscope.collector.captures.capture import ENDED, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.capture_thread import NO_STORE, CaptureThread
from rankscope.collector.config import CollectorConfig
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.runs.runs import Runs
from rankscope.measure.clock import SystemClock
from rankscope.measure.messages import Message
from tests.unit.collector.captures.answering_ranks import AnsweringRank, AnsweringRanks
from tests.unit.collector.runs.run_stories import Story, boot_of

DEADLINE_S = 300.0


class Collector:
    """The captures of a collector with one run of four ranks, and its ranks."""

    def __init__(self, folder: Path, ranks: AnsweringRanks | None = None, **settings: object) -> None:
        self.run = Story(4).join().train(3).run
        self.ranks = ranks or AnsweringRanks({boot_of(rank): AnsweringRank() for rank in range(4)})
        self.changed = threading.Condition()
        self.is_sent = threading.Event()
        config = CollectorConfig(**{"store": str(folder / "store.db"), **settings})  # type: ignore[arg-type]
        self.faults = FaultLog(SystemClock())
        runs = Runs(config)
        runs.put(self.run)
        self.captures = CaptureThread(
            config, SystemClock(), self.faults,
            runs=runs, send=self._send, on_changed=self._note_change,
        )  # fmt: skip
        self.ranks.take = self.captures.take

    def _send(self, boot_id: str, message: Message) -> None:
        self.ranks.send(boot_id, message)
        self.is_sent.set()

    def _note_change(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def order(self, **other: object) -> Capture:
        found = self.captures.order(CaptureRequest(run="story", **other))  # type: ignore[arg-type]
        assert isinstance(found, Capture)
        return found

    def wait(self, is_so: Callable[[Capture], bool] = lambda one: one.state in ENDED) -> Capture:
        """Return the newest capture once it is so."""
        with self.changed:
            assert self.changed.wait_for(lambda: is_so(self.captures.captures[0]), DEADLINE_S)
            return self.captures.captures[0]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    found = Collector(tmp_path)
    found.captures.start()
    yield found
    found.captures.stop()


def test_files_of_all_ranks_arrive(collector: Collector, tmp_path: Path) -> None:
    collector.ranks.ranks[boot_of(1)].content = bytes(700_000)  # three parts
    asked = collector.order(ranks=(1, 3), steps=5)
    done = collector.wait()
    steps = {(one.first_step, one.last_step) for one in done.ranks}
    folder = tmp_path / "store.db-captures" / asked.id
    assert (done.id, done.state, steps) == (asked.id, "complete", {(asked.first_step, asked.last_step)})
    assert (folder / "rank-1.pt.trace.json.gz").read_bytes() == bytes(700_000)
    assert (folder / "rank-3.pt.trace.json.gz").read_bytes() == b"trace"
    assert "analyze ended with status" in done.problem  # these are no traces


def test_ranks_are_told_that_it_is_over(collector: Collector) -> None:
    collector.order(ranks=(1,))
    collector.wait()
    assert collector.ranks.ranks[boot_of(1)].orders[-1].is_over


def test_capture_that_no_rank_takes_fails_with_the_reason(collector: Collector) -> None:
    collector.ranks.ranks[boot_of(2)].refusal = "a profiler of the script is on"
    collector.order(ranks=(2,))
    assert collector.wait().problem == "rank 2: a profiler of the script is on"


def test_of_ten_orders_at_once_one_is_taken(collector: Collector) -> None:
    for rank in collector.ranks.ranks.values():
        rank.is_mute = True
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: collector.captures.order(CaptureRequest(run="story")), range(10)))
    refused = [one for one in found if isinstance(one, CaptureRefusal)]
    assert (len(refused), {one.status for one in refused}) == (9, {409})
    (taken,) = (one for one in found if isinstance(one, Capture))
    told = "has not ended: ordered, the ranks are being told the steps. Order again when it has"
    assert {one.error for one in refused} == {f"capture {taken.id} of this run {told}"}


def test_captures_are_counted_by_how_they_have_ended(collector: Collector) -> None:
    collector.captures.order(CaptureRequest(run="gpt"))
    collector.ranks.ranks[boot_of(2)].refusal = "a profiler of the script is on"
    collector.order(ranks=(2,))
    collector.wait()
    done = collector.order(ranks=(1, 3))
    collector.wait(lambda one: one.id == done.id and one.state in ENDED)
    totals = collector.captures.totals
    assert totals.by_state == {"complete": 1, "failed": 1, "refused": 1}
    assert (totals.pause_s, totals.fetched_bytes) == (0.25, 10)  # two files; their ranks stop together


def test_unknown_run_is_refused(collector: Collector) -> None:
    found = collector.captures.order(CaptureRequest(run="gpt"))
    assert found == CaptureRefusal(404, "no run 'gpt' is known to this collector. It has 'story'.")


def test_collector_without_a_store_refuses(tmp_path: Path) -> None:
    collector = Collector(tmp_path, store="")
    collector.captures.start()
    assert collector.captures.order(CaptureRequest(run="story")) == NO_STORE


def test_folder_that_cannot_be_written_fails_the_capture(tmp_path: Path) -> None:
    (tmp_path / "store.db-captures").write_text("a file in place of the folder")
    collector = Collector(tmp_path)
    collector.captures.start()
    collector.order(ranks=(1,))
    assert "the folder of captures cannot be used" in collector.wait().problem
    collector.captures.stop()


def test_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    collector = Collector(tmp_path, capture_bytes_max=1024 * 1024)
    collector.ranks.ranks[boot_of(0)].content = bytes(1024 * 1024 + 1)
    collector.captures.start()
    collector.order(ranks=(0,))
    assert "1,048,577 bytes; at most 1,048,576 of a rank" in collector.wait().problem
    collector.captures.stop()


def test_restarted_collector_goes_on_with_a_capture(tmp_path: Path) -> None:
    first = Collector(tmp_path)
    for rank in first.ranks.ranks.values():
        rank.is_mute = True
    first.captures.start()
    asked = first.order(ranks=(1,))
    assert first.is_sent.wait(DEADLINE_S)
    first.captures.stop()
    second = Collector(tmp_path)
    second.captures.start()
    done = second.wait()
    assert (done.id, done.state, done.ranks[0].state) == (asked.id, "complete", "fetched")
    assert second.ranks.ranks[boot_of(1)].orders[0].first_step == asked.first_step
    second.captures.stop()
