"""RecorderReader and the sidecar's part: a dump of the worker server becomes a reading of the rank."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankscope.agent.captures.timed_entries import RecorderReading
from rankscope.agent.sidecar.beacon import RecorderPlace
from rankscope.agent.sidecar.recorder_files import reduce_dump
from rankscope.agent.sidecar.recorder_reader import (
    ASK_S,
    FAILURES_MAX,
    HELD_S,
    SIDECAR_AGAIN_NS,
    SIDECAR_NS,
    RecorderReader,
)
from rankscope.agent.sidecar.worker_questions import ANSWER_BYTES_MAX
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.units import NS_PER_S
from tests.unit.agent.sidecar.fake_worker_server import Answer, FakeWorkerServer, dump, nccl_entry
from tests.unit.agent.sidecar.watched_node import Clock

NAME = "b00d"
SINCE = 1_000
THREE = dump(*(nccl_entry(number, 1_000 + number) for number in range(3)))
OF_NCCL, OF_ALL = "dump_nccl_trace_json", "fr_trace_json"


@dataclass
class Rank:
    """A rank with a worker server that has these handlers, beside the folder of its sidecar."""

    folder: Path
    handlers: dict[str, Answer | None] = field(default_factory=lambda: {OF_NCCL: lambda _: THREE})
    captures: GraphCaptures = field(default_factory=GraphCaptures)
    here: str | None = None
    clock: Clock = field(default_factory=Clock)
    dumps_here: int = 0

    def __post_init__(self) -> None:
        self.socket_path = str(self.folder / "sock")
        self.server = FakeWorkerServer(self.socket_path, self.handlers)
        self.place: RecorderPlace | None = RecorderPlace(str(self.folder), NAME, self.socket_path)
        self.reader = RecorderReader(self.captures, lambda: self.place, self._dump_here, self.clock)

    def _dump_here(self) -> str | None:
        self.dumps_here += 1
        return self.here

    def read(self, *, sidecar: bool = True) -> RecorderReading | None:
        """Request a reading, have the sidecar do its part, and collect it."""
        self.reader.request(SINCE)
        if sidecar:
            reduce_dump(str(self.folder), NAME)
        return self.reader.collect()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name != "sock")


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made: list[Rank] = []
    yield made
    for rank in made:
        rank.server.close()


@pytest.fixture
def rank(tmp_path: Path, ranks: list[Rank]) -> Rank:
    ranks.append(Rank(tmp_path))
    return ranks[0]


def sequences(reading: RecorderReading | None) -> list[int]:
    return [] if reading is None else [entry.sequence for entry in reading.entries]


def test_the_dump_goes_through_the_sidecar_and_leaves_no_file(rank: Rank) -> None:
    rank.reader.request(SINCE)
    assert (rank.files(), rank.reader.collect()) == ([f"{NAME}.dump"], None)
    assert reduce_dump(str(rank.folder), NAME)
    assert rank.files() == [f"{NAME}.timed"]
    found = rank.reader.collect()
    assert found is not None
    assert (sequences(found), found.taken_wall_ns, found.recorded) == ([1, 2, 3], rank.clock.wall_ns(), 3)
    assert found.cpu_ns > 0
    assert (rank.files(), rank.reader.collect(), rank.dumps_here) == ([], None, 0)


def test_a_reading_is_asked_for_once_at_a_time(rank: Rank) -> None:
    rank.reader.request(SINCE)
    rank.reader.request(SINCE)
    assert rank.server.asked == [OF_NCCL]


def test_nothing_to_reduce_is_no_dump(tmp_path: Path) -> None:
    assert not reduce_dump(str(tmp_path), NAME)


def test_torch_with_one_recorder_is_asked_for_it(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(Rank(tmp_path, {OF_ALL: lambda _: THREE}))
    assert [sequences(ranks[0].read()) for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]
    assert ranks[0].server.asked == [OF_NCCL, OF_ALL, OF_ALL], "what it lacks is asked once"


def test_without_a_handler_the_rank_dumps_itself(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(Rank(tmp_path, {}, here=THREE.decode()))
    assert sequences(ranks[0].read(sidecar=False)) == [1, 2, 3]
    assert ranks[0].dumps_here == 1


def test_without_a_sidecar_the_rank_dumps_itself(rank: Rank) -> None:
    rank.place, rank.here = None, THREE.decode()
    assert sequences(rank.read(sidecar=False)) == [1, 2, 3]
    assert rank.server.asked == []


def test_without_a_worker_server_the_rank_dumps_itself(rank: Rank) -> None:
    rank.place, rank.here = RecorderPlace(str(rank.folder), NAME, ""), THREE.decode()
    assert (sequences(rank.read(sidecar=False)), rank.files()) == ([1, 2, 3], [])


def test_with_a_stale_socket_the_rank_dumps_itself(rank: Rank) -> None:
    rank.place = RecorderPlace(str(rank.folder), NAME, str(rank.folder / "gone"))
    rank.here = THREE.decode()
    assert [sequences(rank.read(sidecar=False)) for _ in range(FAILURES_MAX + 1)] == [[], [], [1, 2, 3], [1, 2, 3]]
    assert (rank.reader.is_off, rank.reader.skipped) == (False, {"timed_not_read": 2})
    assert FAILURES_MAX == 3


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), ValueError("the response was 503")])
def test_one_failure_costs_one_reading(tmp_path: Path, error: Exception) -> None:
    answers: list[bytes | Exception] = [error, error, THREE, error, error, THREE]

    def ask(_path: str, _question: str, _seconds: float) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    dumped_here: list[int] = []
    place = RecorderPlace(str(tmp_path / "absent"), NAME, "sock")  # so that the reading is there at once
    reader = RecorderReader(GraphCaptures(), lambda: place, lambda: dumped_here.append(1), Clock(), ask=ask)
    found = []
    for _ in range(6):
        assert reader.request(SINCE), "a failed reading was begun, and has its cost"
        found.append(sequences(reader.collect()))
    assert found == [[], [], [1, 2, 3], [], [], [1, 2, 3]]
    assert (dumped_here, reader.skipped) == ([], {"timed_not_read": 4})


def test_server_is_given_up_after_failures_in_a_row(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(Rank(tmp_path, {OF_NCCL: None}, here=THREE.decode()))
    assert [sequences(ranks[0].read(sidecar=False)) for _ in range(4)] == [[], [], [1, 2, 3], [1, 2, 3]]
    assert ranks[0].server.asked == [OF_NCCL] * FAILURES_MAX


def test_nobody_is_asked_while_a_graph_is_being_captured(rank: Rank) -> None:
    begin, end = rank.captures.wrap_begin(lambda: None), rank.captures.wrap_end(lambda: None)
    begin()
    assert rank.read() is None
    assert (rank.server.asked, rank.reader.skipped) == ([], {"timed_not_read": 1})
    assert (rank.reader.request(SINCE), rank.dumps_here) == (False, 0), "nothing was begun"
    end()
    assert sequences(rank.read()) == [1, 2, 3]


def test_no_capture_begins_before_the_answer(tmp_path: Path) -> None:
    """Another thread begins a capture while the server works on its answer."""
    captures = GraphCaptures()
    begun, in_order = threading.Event(), []
    original = captures.wrap_begin(lambda: None)

    def capture() -> None:
        begun.set()
        original()
        in_order.append("capture")

    other = threading.Thread(target=capture)

    def ask(_path: str, _question: str, seconds: float) -> bytes:
        assert seconds == HELD_S
        other.start()
        begun.wait(60)
        other.join(0.05)  # it has this long to begin wrongly; it cannot before this returns
        in_order.append("answer")
        return THREE

    place = RecorderPlace(str(tmp_path), NAME, "sock")
    RecorderReader(captures, lambda: place, lambda: None, Clock(), ask=ask).request(SINCE)
    other.join(60)
    assert in_order == ["answer", "capture"]


@pytest.mark.parametrize(("took_s", "expected"), [(ASK_S, False), (ASK_S + 0.1, True)])
def test_late_answer_is_used_and_the_last(tmp_path: Path, took_s: float, expected: bool) -> None:
    clock = Clock()

    def ask(_path: str, _question: str, _seconds: float) -> bytes:
        clock.now_ns += round(took_s * NS_PER_S)
        return THREE

    place = RecorderPlace(str(tmp_path / "absent"), NAME, "sock")
    reader = RecorderReader(GraphCaptures(), lambda: place, lambda: None, clock, ask=ask)
    assert reader.request(SINCE)
    assert (sequences(reader.collect()), reader.is_off) == ([1, 2, 3], expected)
    assert reader.request(SINCE) is not expected


def test_server_that_does_not_answer_in_time_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    def ask(_path: str, question: str, _seconds: float) -> bytes:
        asked.append(question)
        raise TimeoutError

    place = RecorderPlace(str(tmp_path), NAME, "sock")
    reader = RecorderReader(GraphCaptures(), lambda: place, THREE.decode, Clock(), ask=ask)
    for _ in range(2):
        reader.request(SINCE)
    assert (reader.collect(), len(asked), reader.is_off, reader.skipped) == (None, 1, True, {"timed_not_read": 1})


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"no json", b"[]", b'{"entries": 5}', b'{"entries": [{}]}', b"\xff\xfe",
        b'{"entries": [{"record_id": 1' + b"0" * 30 + b"}]}",
        dump(nccl_entry(0, 1_000, process_group=[])), b'{"entries": ' + b"[" * 100_000,
        dump(nccl_entry(2**63, 1_000)), dump(nccl_entry(0, 1_000, duration_ms=1e300)),
        dump(nccl_entry(0, -1)),
    ],
)  # fmt: skip
def test_malformed_dump_is_counted_by_sidecar_and_rank(tmp_path: Path, ranks: list[Rank], answer: bytes) -> None:
    ranks.append(Rank(tmp_path, {OF_NCCL: lambda _: answer}))
    assert ranks[0].read() is None
    assert (ranks[0].reader.skipped, ranks[0].files()) == ({"timed_unreadable": 1}, [])


def test_too_large_an_answer_is_refused(tmp_path: Path, ranks: list[Rank]) -> None:
    large = b" " * (ANSWER_BYTES_MAX + 1)
    ranks.append(Rank(tmp_path, {OF_NCCL: lambda _: large}, here=THREE.decode()))
    assert ranks[0].read() is None
    assert (ranks[0].reader.skipped, ranks[0].files()) == ({"timed_not_read": 1}, [])
    assert (ranks[0].reader.is_off, ranks[0].dumps_here) == (True, 0), "which would take as long with the GIL held"


def test_a_server_that_hangs_up_is_refused(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(Rank(tmp_path, {OF_NCCL: None, OF_ALL: None}))
    assert ranks[0].read() is None
    assert ranks[0].reader.skipped == {"timed_not_read": 1}


def test_rank_parses_the_dump_that_no_sidecar_has_taken(rank: Rank) -> None:
    assert rank.read(sidecar=False) is None
    rank.clock.now_ns += SIDECAR_NS
    assert (sequences(rank.reader.collect()), rank.files()) == ([1, 2, 3], [])
    assert sequences(rank.read(sidecar=False)) == [1, 2, 3], "from now on at once"
    rank.clock.now_ns += SIDECAR_AGAIN_NS
    assert (rank.read(sidecar=False), rank.files()) == (None, [f"{NAME}.dump"]), "and to the sidecar again later"


def test_dump_that_the_sidecar_has_lost_is_counted(rank: Rank) -> None:
    rank.reader.request(SINCE)
    (rank.folder / f"{NAME}.dump").unlink()
    rank.clock.now_ns += SIDECAR_NS
    assert (rank.reader.collect(), rank.reader.skipped) == (None, {"timed_lost": 1})
    assert sequences(rank.read(sidecar=False)) == [1, 2, 3]


def test_damaged_reading_is_counted(rank: Rank) -> None:
    rank.reader.request(SINCE)
    (rank.folder / f"{NAME}.timed").write_bytes(b"\x91")
    assert (rank.reader.collect(), rank.reader.skipped) == (None, {"timed_lost": 1})


def test_dump_cut_off_at_its_header_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.dump").write_bytes(b"short")
    assert not reduce_dump(str(tmp_path), NAME)
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_the_file_the_rank_parses_it(rank: Rank) -> None:
    (rank.folder / f"{NAME}.dump.new").mkdir()  # opening it for writing fails
    assert sequences(rank.read(sidecar=False)) == [1, 2, 3]


def test_the_time_of_the_server_is_counted(tmp_path: Path) -> None:
    clock = Clock()

    def ask(_path: str, _question: str, _seconds: float) -> bytes:
        clock.now_ns += 60_000_000
        return THREE

    place = RecorderPlace(str(tmp_path), NAME, "sock")
    reader = RecorderReader(GraphCaptures(), lambda: place, lambda: None, clock, ask=ask)
    reader.request(SINCE)
    assert reader.server_ns == 60_000_000
