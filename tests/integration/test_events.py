"""Following a collector by server-sent events, over real sockets: what is told, and what a reader cannot do to it."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from rankscope.collector.captures.capture import Capture, RankCapture
from rankscope.collector.publish.api import event_stream
from rankscope.collector.publish.api.event_stream import (
    EVENTS_PATH,
    SLOW_READER,
    SNAPSHOT_SKIPPED,
    STREAMS_BUSY,
)
from rankscope.collector.publish.api.live_captures import LIVE_CAPTURES_MAX
from rankscope.collector.publish.api.live_snapshot import LiveSnapshot
from rankscope.collector.publish.http_auth import HttpAuth
from rankscope.collector.publish.http_connections import HttpLimits
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from tests.integration.live_worlds import LiveWorld, finding_of, slow_story
from tests.integration.serving import read_url, wait_for
from tests.lazy_runs import LazyRun

DEADLINE_S = 300.0
"""Far beyond what anything here takes: a test that fails waits for it, a test that passes does not."""
SHORT_TIMEOUT_S = 1.0
"""For tests in which it has to pass; an honest request must never need so long, also on busy cores."""
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this test only
RUNS_OF_A_LARGE_PICTURE = 2_000
"""Runs whose summaries make an event of half a megabyte: more than the system holds for who does not read."""


class Reader:
    """Somebody who follows."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer

    def read_event(self) -> tuple[int, LiveSnapshot]:
        """The next event: its id, and the picture."""
        fields: dict[str, str] = {}
        while "data" not in fields or self._line:
            self._line = self.answer.readline().decode().rstrip("\n")
            name, _, value = self._line.partition(": ")
            if name:
                fields[name] = value
        assert fields["event"] == "snapshot"
        return int(fields["id"]), msgspec.json.decode(fields["data"], type=LiveSnapshot)

    _line = ""

    def wait_for(self, latest_step: int) -> LiveSnapshot:
        """The first picture with that step."""
        while True:
            _, picture = self.read_event()
            if picture.run is not None and picture.run.latest_step == latest_step:
                return picture


@contextmanager
def following(server: HttpServer, query: str = "", method: str = "GET", **headers: str) -> Iterator[Reader]:
    """A reader, whose connection is closed at the end."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=DEADLINE_S)
    with closing(connection):
        connection.request(method, f"{EVENTS_PATH}{query}", headers=headers)
        with connection.getresponse() as answer:
            yield Reader(answer)


@pytest.fixture
def world() -> LiveWorld:
    """A world with a run, one of whose ranks is slow."""
    world = LiveWorld()
    world.tell(slow_story())
    return world


def run_of(name: str) -> RunSnapshot:
    return RunSnapshot(run=name, world_size=1, restart_count=0, ranks=())


def test_first_event_is_the_run_as_it_is(world: LiveWorld) -> None:
    with world.serve() as server, following(server, "?run=story") as reader:
        assert reader.answer.headers["Content-Type"] == "text/event-stream"
        _, picture = reader.read_event()
        assert [run.run for run in picture.runs] == ["story"]
        assert picture.run is not None
        assert (picture.run.ranks_up, picture.run.world_size, picture.run.latest_step) == (4, 4, 111)
        (finding,) = picture.run.open_findings
        assert finding.ranks == (2,)


def test_every_change_is_told_as_it_happens(world: LiveWorld) -> None:
    story = slow_story()
    with world.serve() as server, following(server, "?run=told") as reader:
        _, before = reader.read_event()
        assert before.run is None
        world.tell(story, "told")
        assert reader.wait_for(111).wall_s > before.wall_s
        world.tell(story.train(8), "told")
        assert reader.wait_for(119).wall_s > before.wall_s


def capture_of(run_id: str, number: int, *ranks: RankCapture, state: str = "recording") -> Capture:
    return Capture(
        id=f"c{number}", run="told", run_id=run_id, state=state, asked_wall_s=5.0, changed_wall_s=6.0,
        first_step=12, last_step=14, ranks=ranks,
    )  # fmt: skip


def test_capture_is_told_as_it_changes(world: LiveWorld) -> None:
    asked = [
        RankCapture(rank=1, expected_pause_s=0.25, fetched_bytes=10, size_bytes=40),
        RankCapture(rank=2, expected_pause_s=0.5, pause_s=0.75, size_bytes=60),
        RankCapture(rank=3),
    ]
    with world.serve(HttpAuth(control_token=TOKEN)) as server, following(server, "?run=story") as reader:
        number, before = reader.read_event()
        assert before.run is not None
        assert (before.takes_orders, before.run.captures, before.run.captures_kept) == (True, (), 0)
        world.captures = (capture_of("other", 1), capture_of("story", 0, *asked))
        told, picture = reader.read_event()
        assert told == number + 1
        assert picture.run is not None
        (found,) = picture.run.captures
        assert (found.id, found.state, found.first_step, found.ranks) == ("c0", "recording", 12, (1, 2, 3))
        # The longest pause of any rank counts; rank 3 has told nothing yet.
        assert (found.expected_pause_s, found.pause_s) == (0.5, 0.75)
        assert (found.fetched_bytes, found.size_bytes) == (10, 100)
        world.captures = (capture_of("story", 0, state="failed"),)
        _, picture = reader.read_event()
        assert picture.run is not None
        assert (picture.run.captures[0].state, picture.run.captures[0].pause_s) == ("failed", None)


def test_newest_captures_are_told_and_the_others_are_counted(world: LiveWorld) -> None:
    world.captures = tuple(capture_of("story", number) for number in range(LIVE_CAPTURES_MAX + 2))
    with world.serve() as server, following(server, "?run=story") as reader:
        _, picture = reader.read_event()
    assert picture.run is not None
    assert [one.id for one in picture.run.captures] == [f"c{number}" for number in range(10)]
    assert (picture.run.captures_kept, picture.takes_orders) == (12, False)


def test_hostile_name_and_sentence_come_as_they_are_in_one_event(world: LiveWorld) -> None:
    name, sentence = "a\n\ndata: {}\n<script>&", "Rank 2\r\nevent: x\n\n</script>"
    finding = finding_of(1, sentence)
    world.show(RunSnapshot(run=name, world_size=1, restart_count=0, ranks=(), open_findings=(finding,)))
    with world.serve() as server, following(server, f"?run={quote(name)}") as reader:
        _, picture = reader.read_event()
        assert picture.run is not None
        assert (picture.run.run, [one.sentence for one in picture.run.open_findings]) == (name, [sentence])


def test_stream_ends_after_as_many_events_as_were_asked_for(world: LiveWorld) -> None:
    with world.serve() as server, following(server, "?count=1") as reader:
        assert reader.answer.read().count(b"event: snapshot\n") == 1


def test_head_has_no_end_to_wait_for_and_takes_no_place(world: LiveWorld) -> None:
    with world.serve(limits=HttpLimits(answers_max=2)) as server:
        for _ in range(3):
            with following(server, method="HEAD") as reader:
                assert (reader.answer.status, reader.answer.read()) == (200, b"")
            wait_for(lambda: server.streams == 0 or None, lambda: f"{server.streams} follow")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("?run=a&limit=1", "'limit' is no parameter here; run and count are"),
        ("?count=0", "count is '0'; it must be a whole number from 1 to 1000000000"),
        ("?count=many", "count is 'many'; it must be a whole number from 1 to 1000000000"),
    ],
)
def test_question_that_means_nothing_is_refused(world: LiveWorld, query: str, error: str) -> None:
    with world.serve() as server, following(server, query) as reader:
        assert reader.answer.status == 400
        assert msgspec.json.decode(reader.answer.read()) == {"error": error}


def test_nobody_follows_without_the_token(world: LiveWorld) -> None:
    with world.serve(HttpAuth(TOKEN)) as server:
        with following(server) as reader:
            assert reader.answer.status == 401
        with following(server, Authorization=f"Bearer {TOKEN}") as reader:
            assert reader.read_event()[1].runs


def test_only_half_of_the_places_are_for_those_who_follow(world: LiveWorld) -> None:
    with world.serve(limits=HttpLimits(answers_max=4)) as server, ExitStack() as stack:
        readers = [stack.enter_context(following(server)) for _ in range(2)]
        assert [reader.read_event()[1].run for reader in readers] == [None, None]
        with following(server) as refused:
            assert (refused.answer.status, refused.answer.headers["Retry-After"]) == (503, "5")
        assert server.refused[STREAMS_BUSY] == 1
        with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=DEADLINE_S)) as other:
            other.request("GET", "/healthz")
            assert other.getresponse().status == 200


def test_place_of_a_reader_who_leaves_is_free_for_another(world: LiveWorld) -> None:
    with world.serve(limits=HttpLimits(answers_max=2)) as server:
        with following(server) as reader:
            reader.read_event()

        def follow_again() -> LiveSnapshot | None:
            world.show()  # the server notices that somebody has left when it has something to tell
            with following(server) as other:
                return other.read_event()[1] if other.answer.status == 200 else None

        assert wait_for(follow_again, lambda: f"{server.streams} follow").run is None


def test_reader_who_does_not_read_is_let_go_of_and_counted(world: LiveWorld) -> None:
    with world.serve(limits=HttpLimits(answer_s=SHORT_TIMEOUT_S)) as server, idle_reader(server):
        wait_for(lambda: server.streams or None, lambda: "nobody follows")

        def look() -> bool | None:
            show_large_picture(world)
            return True if server.refused.get(SLOW_READER) else None

        wait_for(look, lambda: f"{server.refused}")
        wait_for(lambda: server.streams == 0 or None, lambda: f"{server.streams} follow")
        assert server.errors_contained == 0


def test_slow_reader_gets_the_newest_picture_and_a_counted_gap(world: LiveWorld) -> None:
    show_large_picture(world)
    with (
        world.serve(limits=HttpLimits(answer_s=2 * DEADLINE_S)) as server,
        idle_reader(server, "?run=last") as connection,
    ):
        wait_for(lambda: server.streams or None, lambda: "nobody follows")
        shown: list[float] = []

        def look() -> bool | None:
            # A picture that the other reader has been told is one that this one was not.
            show_large_picture(world)
            with following(server, "?count=1") as reader:
                shown.append(reader.read_event()[1].wall_s)
            return True if len(set(shown)) > 5 else None

        wait_for(look, lambda: f"{shown}")
        world.show(run_of("last"))
        reader = Reader(http.client.HTTPResponse(connection))
        reader.answer.begin()
        ids = [reader.read_event()[0]]
        while True:
            number, picture = reader.read_event()
            ids.append(number)
            if picture.run is not None:
                break
        gaps = sum(after - before - 1 for before, after in pairwise(ids))
        assert gaps > 0
        assert server.refused[SNAPSHOT_SKIPPED] == gaps


def test_slow_reader_holds_up_nobody_else(world: LiveWorld) -> None:
    with world.serve() as server, idle_reader(server), following(server) as reader:
        last = 0
        for _ in range(5):
            show_large_picture(world)
            number, _ = reader.read_event()
            assert number > last
            last = number


def test_closing_ends_every_stream(world: LiveWorld) -> None:
    with world.serve() as server, following(server) as reader:
        reader.read_event()
        server.close()
        while reader.answer.readline():
            pass
        wait_for(lambda: server.streams == 0 or None, lambda: f"{server.streams} follow")


def test_mistake_of_ours_costs_one_look_and_is_counted(world: LiveWorld, caplog: pytest.LogCaptureFixture) -> None:
    broken: list[Exception] = []

    def read() -> Snapshot:
        if broken:
            raise broken.pop()
        return world.snapshot

    world.read = read
    with world.serve() as server, following(server, "?run=told") as reader:
        reader.read_event()
        broken.append(RuntimeError("of ours"))
        wait_for(lambda: server.errors_contained or None, lambda: "nothing was counted")
        world.show(run_of("told"))
        assert reader.read_event()[1].run is not None
        assert "the live feed could not be answered" in caplog.text


def test_no_snapshot_is_read_while_nobody_follows(world: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CHECK_S", 0.001)
    reads: list[Snapshot] = []
    lazy = LazyRun(lambda: run_of("counted"), run="counted")

    def read() -> Snapshot:
        """Return a new snapshot each time."""
        reads.append(Snapshot(wall_s=100.0, version="0", runs=[lazy]))
        return reads[-1]

    world.read = read
    with world.serve() as server:
        with following(server, "?run=counted&count=1") as reader:
            assert reader.read_event()[1].run is not None
        wait_for(lambda: server.streams == 0 or None, lambda: "the stream is open")
        before = len(reads), lazy.made
        for _ in range(20):
            read_url(f"{server.url}/healthz")
        assert (len(reads), lazy.made) == before


@contextmanager
def idle_reader(server: HttpServer, query: str = "") -> Iterator[socket.socket]:
    """Somebody who asks to follow, and then reads nothing."""
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(DEADLINE_S)
        where = urlsplit(server.url)
        connection.connect((where.hostname, where.port))
        connection.sendall(f"GET {EVENTS_PATH}{query} HTTP/1.0\r\n\r\n".encode())
        yield connection


def show_large_picture(world: LiveWorld) -> None:
    """A picture whose event is larger than what the system holds for a reader."""
    world.show(*[run_of(f"{'x' * 100}{number}") for number in range(RUNS_OF_A_LARGE_PICTURE)])
