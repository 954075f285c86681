"""Tests of the sidecar's passes, with real processes and a simulated clock."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.sidecar import watch
from rankscope.agent.sidecar.beacon import AGENT_ENDED, ALIVE, GOODBYE_ACKNOWLEDGED, Heartbeat
from rankscope.agent.sidecar.faults import read_faults
from rankscope.agent.sidecar.orphan_delivery import OrphanDelivery
from rankscope.agent.sidecar.recorder_files import pop_reading, write_dump
from rankscope.agent.sidecar.watch import DUMPS_MAX, REPEAT_NS, Watch
from rankscope.measure.identity import BootId
from rankscope.measure.node_messages import RankEnded, RankUnresponsive, RasAnswered
from rankscope.measure.stalls import StackFrame
from tests.ras_stand_in import Nccl, communicator, present, ras, to_json
from tests.unit.agent.flight_dumps import dump_of, entry_of, status_of
from tests.unit.agent.reporting.spilled_reports import frame_of, spill_in
from tests.unit.agent.sidecar.fake_worker_server import dump, nccl_entry
from tests.unit.agent.sidecar.ranks_of_a_node import ENDS, MS, S
from tests.unit.agent.sidecar.watched_node import Node, RecordingSender

REASONS = {
    "exit 0": "finished", "exit 3": "failed", "os._exit 7": "failed", "SIGSEGV": "crashed", "abort()": "crashed",
    "SIGKILL": "killed", "SIGTERM": "terminated",
}  # fmt: skip

CRASH = 'Current thread 0x0a (most recent call first):\n  File "train.py", line 24 in main\n'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
def test_end_without_goodbye_is_reported(node: Node, end: str) -> None:
    statement, exit_code, number = ENDS[end]
    process = node.start(statement)
    assert node.run_pass() == []
    process.end()
    (notice,) = node.run_pass()
    assert isinstance(notice, RankEnded)
    assert (notice.reason, notice.exit_code, notice.signal) == (REASONS[end], exit_code, number)
    assert (notice.identity.pid, notice.last_step) == (process.pid, 41)
    assert node.posted[0][0] == "tcp://collector:1"
    assert list(node.folder.iterdir()) == []
    assert node.run_pass() == []


def test_end_that_matches_the_goodbye_needs_no_notice(node: Node) -> None:
    for rank, (statement, code) in enumerate((("pass", None), ("pass", 0), ("raise SystemExit(3)", 3))):
        process = node.start(statement, rank, Heartbeat(node.clock.now_ns, state=GOODBYE_ACKNOWLEDGED, exit_code=code))
        process.end()
        assert node.run_pass() == []


@pytest.mark.parametrize(
    ("heartbeat", "statement", "reason"),
    [
        (Heartbeat(0, state=GOODBYE_ACKNOWLEDGED), "ctypes.string_at(0)", "crashed"),
        (Heartbeat(0, state=GOODBYE_ACKNOWLEDGED), "raise SystemExit(3)", "failed"),
        (Heartbeat(0, state=AGENT_ENDED), "pass", "finished"),
    ],
)
def test_end_that_differs_from_the_goodbye_is_reported(
    node: Node, heartbeat: Heartbeat, statement: str, reason: str
) -> None:
    node.start(statement, heartbeat=heartbeat).end()
    assert [notice.reason for notice in node.run_pass() if isinstance(notice, RankEnded)] == [reason]


@pytest.mark.parametrize(
    ("state", "crash", "reasons"),
    [
        (GOODBYE_ACKNOWLEDGED, "", []),
        (GOODBYE_ACKNOWLEDGED, CRASH, ["crashed"]),
        (AGENT_ENDED, "", ["exit_unknown"]),
        (AGENT_ENDED, CRASH, ["crashed"]),
    ],
)
def test_goodbye_stands_where_the_launcher_took_the_exit_status(
    node: Node, monkeypatch: pytest.MonkeyPatch, state: int, crash: str, reasons: list[str]
) -> None:
    # As srun does under a kernel that has no exit status behind a pidfd.
    monkeypatch.setattr(watch, "read_exit_status", lambda *_: None)
    process = node.start("pass", heartbeat=Heartbeat(node.clock.now_ns, state=state))
    if crash:
        (node.folder / "boot-of-0.crash").write_text(crash)
    process.end()
    notices = [notice for notice in node.run_pass() if isinstance(notice, RankEnded)]
    assert [notice.reason for notice in notices] == reasons
    assert all(notice.absent["exit_code"] == "its parent reaped it before it could be read" for notice in notices)


@pytest.mark.parametrize(
    ("state", "later_ns", "reasons"),
    [
        (GOODBYE_ACKNOWLEDGED, 4 * MS, []),
        (GOODBYE_ACKNOWLEDGED, 0, ["crashed"]),
        (GOODBYE_ACKNOWLEDGED, -4 * MS, ["crashed"]),
        (AGENT_ENDED, 4 * MS, ["exit_unknown"]),
        (ALIVE, 4 * MS, ["crashed"]),
    ],
)
def test_signal_that_the_agent_has_ended_after_was_survived(
    node: Node, monkeypatch: pytest.MonkeyPatch, state: int, later_ns: int, reasons: list[str]
) -> None:
    monkeypatch.setattr(watch, "read_exit_status", lambda *_: None)
    process = node.start("pass", heartbeat=Heartbeat(node.clock.now_ns, state=state))
    crash, written_ns = node.folder / "boot-of-0.crash", 1_795_000_000 * S
    crash.write_text(CRASH)
    os.utime(crash, ns=(written_ns, written_ns))
    os.utime(node.folder / "boot-of-0.beat", ns=(written_ns + later_ns, written_ns + later_ns))
    process.end()
    notices = [notice for notice in node.run_pass() if isinstance(notice, RankEnded)]
    assert [(notice.reason, bool(notice.stacks)) for notice in notices] == [
        (reason, reason == "crashed") for reason in reasons
    ]


@pytest.mark.parametrize("is_torn", [False, True])
def test_end_report_has_damage_of_the_spill(node: Node, tmp_path: Path, is_torn: bool) -> None:
    spill = spill_in(tmp_path / "spill", "boot-of-0")
    assert spill.append(frame_of(1))
    spill.close()
    if is_torn:
        (file,) = Path(spill.folder).glob("*.spill")
        file.write_bytes(file.read_bytes() + b"half of a rec")
    node.watch._orphans = OrphanDelivery(node.clock, lambda *_: True)
    node.start("ctypes.string_at(0)", spill_folder=spill.folder).end()
    (notice,) = node.run_pass()
    assert isinstance(notice, RankEnded)
    assert notice.absent.get("spill") == ("the last record on the disk is truncated" if is_torn else None)


@pytest.mark.parametrize(("after_s", "reason"), [(8, "crashed"), (10, "collective_timeout")])
def test_abort_after_a_timeout_is_a_collective_timeout(node: Node, after_s: int, reason: str) -> None:
    heartbeat = Heartbeat(node.clock.now_ns, 41, 7, deadline_host_ns=node.clock.now_ns + 10 * S)
    process = node.start("os.abort()", heartbeat=heartbeat)
    assert node.pass_time(after_s) == []
    process.end()
    assert [notice.reason for notice in node.run_pass() if isinstance(notice, RankEnded)] == [reason]


def test_end_report_has_the_stacks_of_a_crash(node: Node) -> None:
    process = node.start("ctypes.string_at(0)")
    (node.folder / "boot-of-0.crash").write_text(CRASH)
    process.end()
    (notice,) = node.run_pass()
    assert isinstance(notice, RankEnded)
    assert [stack.frames for stack in notice.stacks] == [(StackFrame("train.py", 24, "main"),)]
    assert list(node.folder.iterdir()) == []


def test_of_two_ranks_in_one_cgroup_one_oom_kill_takes_one(tmp_path: Path) -> None:
    # The kernel's own files, as the sidecar sees them through another root.
    (tmp_path / "ranks").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    events = tmp_path / "cgroup" / "memory.events"
    events.parent.mkdir()
    events.write_text("oom_kill 0\n")
    node = Node(tmp_path / "ranks")
    node.watch = Watch(
        str(node.folder), node.clock, mounts=str(events.parent), make_sender=lambda to: RecordingSender(to, node.posted)
    )
    ranks = [node.start(ENDS["SIGKILL"][0], rank) for rank in (0, 1)]
    events.write_text("oom_kill 1\n")
    for process in ranks:
        process.end()
    found = [(notice.reason, notice.oom_kills) for notice in node.run_pass() if isinstance(notice, RankEnded)]
    node.close()
    assert found == [("out_of_memory", 1), ("killed", 0)]


def test_invalid_descriptors_are_ignored(node: Node) -> None:
    (node.folder / "boot-of-9.json").write_text("{}")
    process = node.start("pass")
    (node.folder / "boot-of-0.json").rename(node.folder / "boot-of-8.json")
    process.end()
    (notice,) = node.run_pass()
    assert isinstance(notice, RankEnded)
    assert notice.identity.boot_id == BootId("boot-of-0")


# -- ranks that do not answer -----------------------------------------------------------------------------------------


def test_frozen_rank_is_reported_with_kernel_state(node: Node) -> None:
    process = node.start("pass")
    process.stop()
    begin_ns = node.clock.now_ns
    assert node.pass_time(10) == []
    (notice,) = node.run_pass(500 * MS)
    assert isinstance(notice, RankUnresponsive)
    assert (notice.since_host_ns, notice.last_step, notice.state) == (begin_ns, 41, "T")
    assert notice.threads[0].thread == process.pid
    assert notice.absent == {"pending": "torch's worker server does not run in the rank: it has not been started yet"}


def test_frozen_rank_is_reported_every_ten_seconds(node: Node) -> None:
    node.start("pass")
    told = node.pass_time(31)
    # From 10.5 s on every 10 s, before the collector takes the rank for silent.
    assert len(told) == 3
    assert REPEAT_NS == 10 * S


def test_no_heartbeat_is_due_after_the_goodbye(node: Node) -> None:
    node.start("pass", heartbeat=Heartbeat(node.clock.now_ns, state=GOODBYE_ACKNOWLEDGED))
    node.start("pass", rank=1, heartbeat=Heartbeat(node.clock.now_ns, state=AGENT_ENDED))
    assert node.pass_time(60) == []


def test_suspended_sidecar_gives_ranks_time_for_a_heartbeat(node: Node) -> None:
    node.start("pass")
    assert node.run_pass(3_600 * S) == []
    assert node.pass_time(10) == []
    assert len(node.run_pass(500 * MS)) == 1


@pytest.mark.parametrize("question", ["fr_trace_json", "dump_nccl_trace_json"])  # an older torch knows only the latter
def test_frozen_report_has_data_of_the_worker_server(node: Node, question: str) -> None:
    path = str(node.folder / "boot-of-0.sock")
    dump = dump_of(entry_of(0, 7), g0=status_of(7))
    waits = {"pytorch.wait_counter.TCPStore__wait": {"active_count": 1}, "pytorch.wait_counter.x": {"active_count": 0}}
    with worker_server(path, {question: dump, "wait_counter_values": waits}):
        node.start("pass", socket_path=path, group_labels={"0": "default_pg"})
        (notice,) = [notice for notice in node.pass_time(11) if isinstance(notice, RankUnresponsive)]
    assert [(one.group, one.op, one.sequence, one.sizes) for one in notice.pending] == [
        ("default_pg", "all_reduce", 7, ((777,),))
    ]
    assert [(status.group, status.enqueued) for status in notice.progress] == [("default_pg", 7)]
    assert (notice.waits, notice.absent) == ({"TCPStore__wait": 1}, {})


def test_worker_server_without_a_recorder_has_a_reason(node: Node) -> None:
    path = str(node.folder / "boot-of-0.sock")
    with worker_server(path, {}):
        node.start("pass", socket_path=path)
        (notice,) = [notice for notice in node.pass_time(11) if isinstance(notice, RankUnresponsive)]
    assert list(notice.absent) == ["pending"]
    assert "404" in notice.absent["pending"]


def test_unresponsive_worker_server_has_a_reason(node: Node) -> None:
    node.start("pass", socket_path=str(node.folder / "nobody.sock"))
    (notice,) = [notice for notice in node.pass_time(11) if isinstance(notice, RankUnresponsive)]
    assert list(notice.absent) == ["pending"]
    assert "FileNotFoundError" in notice.absent["pending"]
    assert notice.threads


# -- its own end ------------------------------------------------------------------------------------------------------


def test_a_rank_that_ends_before_it_is_found_is_not_waited_for(node: Node) -> None:
    process = node.prepare("raise SystemExit(3)")
    node.write_beacon(process, rank=0)
    process.end()
    process.reap()
    node.watch.run()  # returns
    assert [notice.reason for _, notice in node.posted if isinstance(notice, RankEnded)] == ["exit_unknown"]


def test_the_sidecar_ends_with_the_last_rank(node: Node) -> None:
    processes = [node.start("raise SystemExit(3)", rank) for rank in (0, 1)]
    running = threading.Thread(target=node.watch.run)
    running.start()
    processes[0].end()
    processes[1].end()
    running.join(60)
    assert not running.is_alive()
    assert len(node.posted) == 2
    assert list(node.folder.iterdir()) == []


@contextlib.contextmanager
def worker_server(path: str, answers: dict[str, object]) -> Iterator[None]:
    """A worker server as torch's: HTTP over a unix socket, one request per connection."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                head = connection.recv(4096).decode()
                question = head.split(" ")[1].removeprefix("/handler/").partition("?")[0]
                status, body = ("200 OK", answers[question]) if question in answers else ("404 Not Found", "no such")
                text = json.dumps(body)
                connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        os.unlink(path)  # noqa: PTH108


# -- dumps of the flight recorder -------------------------------------------------------------------------------------


def test_dump_of_a_rank_is_reduced_in_the_next_pass(node: Node) -> None:
    node.start("pass")
    write_dump(str(node.folder), "boot-of-0", dump(nccl_entry(0, 1_000)), taken_wall_ns=2_000, since_wall_ns=0)
    node.run_pass()
    found = pop_reading(str(node.folder), "boot-of-0")
    assert found is not None
    assert ([one.sequence for one in found.entries], found.taken_wall_ns) == ([1], 2_000)


def test_only_so_many_dumps_are_reduced_in_a_pass(node: Node) -> None:
    ranks = range(DUMPS_MAX + 1)
    for rank in ranks:
        node.start("pass", rank)
    for rank in ranks:
        write_dump(str(node.folder), f"boot-of-{rank}", dump(), taken_wall_ns=2_000, since_wall_ns=0)
    for reduced in (DUMPS_MAX, DUMPS_MAX + 1):
        node.run_pass()
        assert len(list(node.folder.glob("*.timed"))) == reduced


def test_dump_that_cannot_be_read_does_not_end_the_watch(node: Node) -> None:
    process = node.start("raise SystemExit(3)")
    (node.folder / "boot-of-0.dump").mkdir()
    assert node.run_pass() == []
    assert "collectives failed (IsADirectoryError" in read_faults(str(node.folder))
    process.end()
    (notice,) = node.run_pass()
    assert isinstance(notice, RankEnded)


# -- stalled ----------------------------------------------------------------------------------------------------------


def test_stalled_rank_0_has_nccl_asked_for_the_whole_job(node: Node) -> None:
    process = node.prepare("pass")
    server = Nccl(
        json=to_json(communicator([present(0, {"AllReduce": 1}, process.pid), present(1, {}, pid=2**22 + 1)]))
    )
    with ras(server) as service:
        node.write_beacon(
            process, 0, Heartbeat(node.clock.now_ns, 41, stalled_since_host_ns=5), ras_address=service.address
        )
        (notice,) = node.run_pass()
    assert isinstance(notice, RasAnswered)
    assert (notice.identity.rank, notice.stalled_since_host_ns, notice.is_own) == (0, 5, True)
    assert [one.communicator_rank for one in notice.communicators[0].ranks] == [1]


@pytest.mark.parametrize(
    ("rank", "heartbeat"),
    [
        (0, Heartbeat(0, 41)),
        (1, Heartbeat(0, 41, stalled_since_host_ns=5)),
        (0, Heartbeat(0, 41, stalled_since_host_ns=5, state=AGENT_ENDED)),
    ],
)
def test_nccl_is_not_asked_without_a_stall_or_rank_0(node: Node, rank: int, heartbeat: Heartbeat) -> None:
    with ras(Nccl()) as service:
        heartbeat = heartbeat._replace(written_host_ns=node.clock.now_ns)
        node.start("pass", rank, heartbeat, ras_address=service.address)
        assert node.pass_time(5) == []
        assert service.connections == 0


def test_frozen_rank_0_counts_as_stalled(node: Node) -> None:
    with ras(Nccl(json=to_json())) as service:
        process = node.start("pass", ras_address=service.address)
        process.stop()
        notices = node.pass_time(11)
    assert [type(notice) for notice in notices] == [RankUnresponsive, RasAnswered]


def test_service_that_never_answers_holds_nothing_up(tmp_path: Path) -> None:
    asked = threading.Event()

    def serve(connected: socket.socket) -> None:
        asked.set()
        while connected.recv(1024):
            pass

    node = Node(tmp_path)
    node.watch = Watch(str(tmp_path), node.clock, make_sender=lambda to: RecordingSender(to, node.posted))
    with ras(serve) as service, contextlib.closing(node):
        stalled = Heartbeat(node.clock.now_ns, 41, stalled_since_host_ns=5)
        process = node.start("raise SystemExit(3)", heartbeat=stalled, ras_address=service.address)
        assert asked.wait(60)
        process.end()
        # While the question is open, in the thread of the test.
        assert [type(notice) for notice in node.run_pass()] == [RankEnded]
