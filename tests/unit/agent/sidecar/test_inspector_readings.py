"""When the dumps of NCCL's Inspector are read, on which thread, and what of it becomes a notice."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.agent.sidecar.beacon import Descriptor, Heartbeat, WatchedStall
from rankscope.agent.sidecar.inspector_place import InspectorPlace
from rankscope.agent.sidecar.inspector_readings import READ_NS, READ_NS_MIN, STUCK_NS, InspectorReadings
from rankscope.agent.sidecar.watch import Watch
from rankscope.measure.node_messages import InspectorRead, RankEnded
from tests.inspector_dumps import Plugin
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of
from tests.unit.agent.sidecar.watched_node import Clock, Node, RecordingSender

PID = 4242


class Sidecar:
    """The readings of a sidecar that watches one rank; `works` are the threads that it has started."""

    def __init__(self, folder: Path, problem: str = "") -> None:
        self.clock = Clock()
        self.plugin = Plugin(folder, PID)
        self.works: list[Callable[[], None]] = []
        self.readings = InspectorReadings(self.clock, start=self.works.append)
        place = InspectorPlace(path=str(self.plugin.path), interval_us=500_000, problem=problem)
        self.descriptor = Descriptor(
            identity=identity_of(3, PID),
            start_ticks=1,
            frozen_after_ns=1,
            inspector=None if problem == "off" else place,
        )

    def run_pass(self, since_ns: int | None = None, after_ns: int = 0) -> list[InspectorRead]:
        self.clock.now_ns += after_ns
        return [notice for _, notice in self.readings.run_pass([WatchedStall(self.descriptor, since_ns)])]

    def read(self, since_ns: int | None = None) -> list[InspectorRead]:
        """The notices of a whole reading."""
        assert self.run_pass(since_ns, READ_NS) == []
        self.works.pop()()
        return self.run_pass(since_ns)

    def complete(self) -> None:
        self.plugin.complete()
        self.plugin.dump()


@pytest.fixture
def sidecar(tmp_path: Path) -> Sidecar:
    return Sidecar(tmp_path)


def test_what_was_written_is_a_notice(sidecar: Sidecar) -> None:
    sidecar.complete()
    (first,) = sidecar.read()
    assert (first.identity.rank, first.since_host_ns, first.dump_interval_ns) == (3, None, S // 2)
    assert [one.last_sequence for one in first.communicators] == [0]
    sidecar.complete()
    (second,) = sidecar.read()
    assert second.since_host_ns == first.host_ns
    assert [one.bandwidths[0].count for one in second.communicators] == [1]


def test_without_news_there_is_a_notice_in_a_stall_only(sidecar: Sidecar) -> None:
    sidecar.complete()
    sidecar.read()
    (idle,) = sidecar.read()  # what was measured before is not of the present any more
    assert [one.bandwidths for one in idle.communicators] == [()]
    assert sidecar.read() == []
    (stalled,) = sidecar.read(since_ns=5)
    assert [(one.last_sequence, one.bandwidths) for one in stalled.communicators] == [(0, ())]
    assert stalled.host_ns == sidecar.clock.now_ns


def test_dumps_are_read_each_quarter_of_a_minute(sidecar: Sidecar) -> None:
    sidecar.run_pass()
    sidecar.works.pop()()
    sidecar.run_pass(after_ns=READ_NS - 1)
    assert sidecar.works == []
    sidecar.run_pass(after_ns=1)
    assert len(sidecar.works) == 1


def test_collector_that_was_started_anew_has_it_within_a_minute(sidecar: Sidecar) -> None:
    sidecar.complete()
    notices = [sidecar.read() for _ in range(7)]
    # The bandwidths, then that there are none, and that again a minute later.
    assert [len(one) for one in notices] == [1, 1, 0, 0, 0, 1, 0]


def test_begun_stall_is_read_about_at_once_but_not_repeatedly(sidecar: Sidecar) -> None:
    sidecar.complete()
    sidecar.read()
    assert sidecar.run_pass(since_ns=5, after_ns=READ_NS_MIN - 1) == []
    assert sidecar.works == []
    sidecar.run_pass(since_ns=5, after_ns=1)
    sidecar.works.pop()()
    assert len(sidecar.run_pass(since_ns=5)) == 1
    sidecar.run_pass(since_ns=5, after_ns=READ_NS - 1)
    assert sidecar.works == []


def test_missing_file_is_said_once(sidecar: Sidecar) -> None:
    (missing,) = sidecar.read()
    assert f"{sidecar.plugin.path} is not there" in missing.absent["dump"]
    assert sidecar.read() == []
    sidecar.complete()
    (found,) = sidecar.read()
    assert found.absent == {}
    sidecar.plugin.path.unlink()
    (gone,) = sidecar.read()
    assert "is not there" in gone.absent["dump"]


def test_folder_in_place_of_the_file_is_a_reason(sidecar: Sidecar) -> None:
    sidecar.plugin.path.mkdir()
    (notice,) = sidecar.read()
    assert "cannot be read" in notice.absent["dump"]


def test_plugin_that_writes_nothing_meanwhile_is_a_reason(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, "NCCL_INSPECTOR_PROM_DUMP is set")
    (notice,) = sidecar.read()
    assert notice.absent == {"dump": "NCCL_INSPECTOR_PROM_DUMP is set"}
    assert sidecar.read() == []


def test_without_the_plugin_nothing_is_read(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, "off")
    assert sidecar.run_pass(since_ns=5) == []
    assert sidecar.works == []


def test_endless_reading_is_told_once_and_no_other_begins(sidecar: Sidecar) -> None:
    sidecar.complete()
    sidecar.run_pass()
    assert sidecar.run_pass(after_ns=STUCK_NS - 1) == []
    (notice,) = sidecar.run_pass(after_ns=1)
    assert "has not answered for 60.0 s" in notice.absent["dump"]
    assert sidecar.run_pass(after_ns=STUCK_NS) == []
    (work,) = sidecar.works
    sidecar.works.clear()
    work()  # the disk answers after all
    assert [one.absent for one in sidecar.run_pass()] == [{}]


def test_without_threads_the_watch_goes_on(sidecar: Sidecar) -> None:
    def fail(_work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    sidecar.complete()
    works = sidecar.works
    sidecar.readings._start = fail
    assert sidecar.run_pass() == []
    sidecar.readings._start = works.append
    assert len(sidecar.read()) == 1


def test_damaged_lines_are_news(sidecar: Sidecar) -> None:
    sidecar.complete()
    sidecar.read()
    sidecar.plugin.append(b"garbage\n")
    (notice,) = sidecar.read()
    assert notice.lines_skipped == 1
    assert sidecar.read() == []


def test_rank_that_ended_is_forgotten(sidecar: Sidecar) -> None:
    sidecar.complete()
    sidecar.read()
    other = identity_of(4, PID + 1)
    sidecar.descriptor = Descriptor(
        identity=other, start_ticks=1, frozen_after_ns=1, inspector=InspectorPlace(path="/nowhere")
    )
    sidecar.read()
    assert sidecar.readings._dumps.keys() == {other.boot_id}


def test_watch_sends_it(tmp_path: Path) -> None:
    with contextlib.closing(Node(tmp_path / "ranks")) as node:
        node.folder.mkdir()
        process = node.prepare("pass")
        plugin = Plugin(tmp_path, process.pid)
        plugin.complete()
        plugin.dump()
        node.write_beacon(process, 0, inspector=InspectorPlace(path=str(plugin.path)))
        notices = [*node.run_pass(), *node.run_pass()]
        assert [type(one) for one in notices] == [InspectorRead]


def test_dead_disk_holds_nothing_up(tmp_path: Path) -> None:
    """A disk that never answers: here a reading that waits until the test lets it go."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    begun, answers = threading.Event(), threading.Event()

    def start(work: Callable[[], None]) -> None:
        def wait() -> None:
            begun.set()
            answers.wait(60)
            work()

        threading.Thread(target=wait, daemon=True).start()

    node = Node(folder)
    node.watch = Watch(
        str(folder),
        node.clock,
        make_sender=lambda to: RecordingSender(to, node.posted),
        inspector=InspectorReadings(node.clock, start=start),
    )
    with contextlib.closing(node):
        heartbeat = Heartbeat(node.clock.now_ns, 41)
        process = node.start("raise SystemExit(3)", 0, heartbeat, inspector=InspectorPlace(path=os.devnull))
        assert begun.wait(60)
        process.end()
        assert [type(notice) for notice in node.run_pass()] == [RankEnded]
        answers.set()
