"""A real collector, a good rank, and somebody beside it who sends what no agent would: each is refused by reason and
counted, the good rank's reports are still acknowledged, and the collector's memory stays where it was.

There is no decompression bomb: nothing on the wire is compressed, and what is compressed is no message.
"""

import bz2
import contextlib
import gzip
import itertools
import lzma
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.ingest.receiver import Receiver
from rankscope.collector.ingest.refusal_log import LINES_MAX
from rankscope.collector.keys import make_keys
from rankscope.measure.codec import FRAME_BYTES_MAX, MAGIC, PROTOCOL, encode
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.messages import Goodbye, HelloWanted, Refused, Report
from rankscope.measure.table import Table
from tests.integration.fault_figures import InputFigure, name_command, note, read_resident_bytes
from tests.integration.serving import Served, serving, wait_for
from tests.integration.wire_peer import DeafPeer, Peer, connected, hello_of, identity_of, read_counts

FRAMES = "rankscope_frames_refused_total"
PEERS = "rankscope_peers_refused_total"
ANSWERS = "rankscope_replies_failed_total"

GROWTH_BYTES_MAX = 96 * 1024 * 1024
"""What the allocator may keep after a storm. One world of 2**24 ranks alone would be 170 GB."""

LIVES = itertools.count()
FAKES = 100_000
ROOM = 8
"""Runs, and ranks, that a collector has room for while it is flooded."""

HEARTBEATS = {"HEARTBEAT_IVL": 200, "HEARTBEAT_TIMEOUT": 500}
"""They show a peer that its connection has been taken over, and it makes a new one. An agent goes by silence."""

WORLD_MAX = 2**24

ZEROS = bytes(64 * 1024 * 1024)
BOMBS = {
    "gzip": gzip.compress(ZEROS, 1), "zlib": zlib.compress(ZEROS, 1), "bzip2": bz2.compress(ZEROS, 1),
    "xz": lzma.compress(ZEROS, preset=0),
}  # fmt: skip
"""Some KB each that would become 64 MiB, if anybody blew them up."""

GOOD_REPORT = encode(Report(sequence=1, host_ns=0))
HEADER = struct.Struct(">4sHB")


def frame_of(body: object, protocol: int = PROTOCOL, kind: int = Report.KIND) -> bytes:
    """A frame whose body is any msgpack."""
    return HEADER.pack(MAGIC, protocol, kind) + msgspec.msgpack.encode(body)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A collector with room for few runs."""
    with serving("--runs-max", "8", "--ranks-max", "64") as served:
        yield served


@contextlib.contextmanager
def good_rank(served: Served) -> Iterator[Peer]:
    """A rank that has joined, whose reports must be acknowledged to the very end."""
    with connected(served.endpoint, f"boot-good-{next(LIVES)}") as peer:
        peer.join().report(3)
        yield peer
        peer.report(3)


@pytest.fixture
def good(served: Served) -> Iterator[Peer]:
    """A good rank beside each test."""
    with good_rank(served) as peer:
        yield peer


@pytest.fixture
def bad(served: Served) -> Iterator[Peer]:
    """Somebody else."""
    with connected(served.endpoint, "boot-bad") as peer:
        yield peer


class BadInput:
    """What is sent in a test, for the table of bad input: refused as what, and how often, is known in the end."""

    def __init__(self, sent: str, refused: str, count: int = 0) -> None:
        self.sent = sent
        self.refused = refused
        self.count = count


@contextlib.contextmanager
def staying_small(served: Served, good: Peer, bad_input: BadInput) -> Iterator[None]:
    """Whatever happens inside, the collector's memory does not grow by more than a little."""
    before = read_resident_bytes(served.pid)
    good.longest_answer_s = 0.0
    yield
    grown = read_resident_bytes(served.pid) - before
    note(
        InputFigure(
            sent=bad_input.sent, refused=bad_input.refused, command=name_command(), count=bad_input.count,
            grown_bytes=grown, answer_s=good.longest_answer_s,
        )
    )  # fmt: skip
    assert grown < GROWTH_BYTES_MAX, f"the collector has grown by {grown / 2**20:.0f} MiB"


def counted(served: Served, metric: str, reason: str, at_least: int) -> int:
    """The count, once it has come to that."""

    seen: list[Mapping[str, int]] = [{}]

    def look() -> int | None:
        seen[0] = read_counts(served, metric)
        count = seen[0].get(reason, 0)
        return count if count >= at_least else None

    return wait_for(look, lambda: f"{metric} {reason} is not {at_least}: {seen[0]}")


@pytest.mark.parametrize(
    "no_message",
    [
        ("an empty frame", "too_short", b""),
        ("a frame cut in its head", "too_short", GOOD_REPORT[:6]),
        ("an HTTP request in a frame", "bad_magic", b"GET / HTTP/1.1\r\nHost: collector\r\n\r\n"),
        ("4,096 zeros", "bad_magic", b"\x00" * 4096),
        ("a version from the past", "protocol_too_old", frame_of([1, 2], protocol=0)),
        ("the next version", "protocol_too_new", frame_of([1, 2], protocol=PROTOCOL + 1)),
        ("the last version there can be", "protocol_too_new", frame_of([1, 2], protocol=2**16 - 1)),
        ("a kind that nobody knows", "unknown_kind", frame_of([1, 2], kind=255)),
        ("a report without its last byte", "bad_body", GOOD_REPORT[:-1]),
        ("a report with a byte more", "bad_body", GOOD_REPORT + b"\x00"),
        ("a body of another shape", "bad_body", frame_of({"sequence": 1})),
        ("number 0", "bad_body", frame_of([0, 1])),
        ("number -1", "bad_body", frame_of([-1, 1])),
        ("a number beyond 63 bits", "bad_body", frame_of([2**63, 1])),
        (
            "an array that claims four billion fields",
            "bad_body",
            HEADER.pack(MAGIC, PROTOCOL, Report.KIND) + b"\xdd\xff\xff\xff\xff",
        ),
        (
            "arrays nested 100,000 deep", "bad_body", HEADER.pack(MAGIC, PROTOCOL, Report.KIND) + b"\x91" * 100_000
        ),
        # To take this in would cost the collector's only thread 6 s.
        (
            "300,000 ranges of steps",
            "bad_body",
            encode(Report(sequence=1, host_ns=0, covered_steps=((0, 2),) * 300_000)),
        ),
        (
            "a table that claims 2**40 rows",
            "bad_table",
            encode(Report(sequence=1, host_ns=0, steps=Table(("step",), 2**40, b""))),
        ),
        (
            "a table of 2**62 rows without columns",
            "bad_table",
            encode(Report(sequence=1, host_ns=0, steps=Table((), 2**62, b""))),
        ),
        (
            "a table of 65 columns",
            "bad_table",
            encode(Report(sequence=1, host_ns=0, steps=Table(tuple(map(str, range(65))), 0, b""))),
        ),
        ("a frame a byte too large", "too_large", b"x" * (FRAME_BYTES_MAX + 1)),
        *((f"a {name} bomb of 64 MiB", "bad_magic", bomb) for name, bomb in BOMBS.items()),
        *(
            (f"a report whose body is a {name} bomb", "bad_body", HEADER.pack(MAGIC, PROTOCOL, Report.KIND) + bomb)
            for name, bomb in BOMBS.items()
        ),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_by_reason(
    served: Served, good: Peer, bad: Peer, no_message: tuple[str, str, bytes]
) -> None:
    sent, reason, frame = no_message
    before = read_counts(served, FRAMES).get(reason, 0)
    with staying_small(served, good, BadInput(sent, reason, 1)):
        bad.send_bytes(frame)
        assert counted(served, FRAMES, reason, before + 1) == before + 1
        good.report()


def test_oversized_frame_cuts_its_sender_off_before_it_is_read(served: Served, good: Peer) -> None:
    received = served.read_metrics().partition("rankscope_frames_received_total ")[2]
    assert received
    host, _, port = served.endpoint.removeprefix("tcp://").rpartition(":")
    sent = BadInput("a frame of twice the largest size", "its connection is closed", 1)
    with staying_small(served, good, sent), connected(served.endpoint, "boot-huge", RECONNECT_IVL=-1) as huge:
        huge.send_bytes(b"x" * (2 * FRAME_BYTES_MAX + 1))
        good.report(10)
    with socket.create_connection((host, int(port))):  # it still listens
        good.report()


def test_replayed_and_forged_numbers_are_not_taken_in(served: Served, good: Peer) -> None:
    with staying_small(served, good, BadInput("numbers replayed and forged", "duplicates, and not taken in", 6)):
        for sequence in (1, 2, 2, 3, 2**62, 10**6):
            good.send(Report(sequence=sequence, host_ns=0))
        good.await_answer(HelloWanted)  # for the first of the two jumps; the second one is not asked about again
        good.report(2)
    rank = served.wait_for_rank("good", 0, lambda rank: rank.last_sequence == good.sequence)
    assert rank.reports_admitted == good.sequence
    assert rank.report_gaps == 0


def test_numbers_of_somebody_who_said_no_hello_are_not_taken_in(served: Served, good: Peer, bad: Peer) -> None:
    with staying_small(served, good, BadInput("reports of somebody who said no Hello", "asked for a Hello", 6)):
        for sequence in (1, 2, 2**62):
            bad.send(Report(sequence=sequence, host_ns=0))
            bad.send(Goodbye(sequence=sequence, reason="finished"))
        bad.await_answer(HelloWanted)
        good.report()
    assert "good" in served.read_run_names()


def test_claim_on_another_life_is_refused_and_the_rank_goes_on(served: Served, good: Peer, bad: Peer) -> None:
    before = read_counts(served, PEERS).get("identity_taken", 0)
    with staying_small(served, good, BadInput("a Hello in the name of another rank's life", "identity_taken", 2)):
        for first_sequence in (1, 2**62):
            bad.send(hello_of(good.identity, first_sequence))
            assert bad.await_answer(Refused).reason == "identity_taken"
        bad.send(Goodbye(sequence=good.sequence + 1, reason="failed"))
        bad.await_answer(HelloWanted)
        good.report(2)
    assert counted(served, PEERS, "identity_taken", before + 2) == before + 2
    rank = served.wait_for_rank("good", 0, lambda rank: rank.last_sequence == good.sequence)
    assert rank.up


def test_world_beyond_all_room_is_refused_before_room_is_made(served: Served, good: Peer, bad: Peer) -> None:
    with staying_small(served, good, BadInput("worlds of 65 to 2**24 ranks, where 64 have room", "full", 3)):
        for world_size in (65, 2**20, WORLD_MAX):
            bad.send(hello_of(identity_of("boot-wide", run="wide", world_size=world_size)))
            assert bad.await_answer(Refused).reason == "full"
        good.report()
    assert "wide" not in served.read_run_names()


def read_bounded(served: Served) -> int:
    """How often the collector has bounded what a peer asks for that sends much and never reads."""
    peers = read_counts(served, PEERS)
    return peers.get("over_budget", 0) + peers.get("full", 0) + read_counts(served, ANSWERS).get("full", 0)


@pytest.mark.parametrize("what", ["runs", "ranks"])
def test_100000_fakes_from_peer_that_never_reads_cost_no_memory(what: str) -> None:
    """As many runs, or starts of the ranks of one run, as nobody has. Who sends too many in a pass is cut off, also
    when it is back; who is slower, as on a busy machine, is refused or loses its answers.
    """
    sent = BadInput(f"{FAKES:,} fake {what}, from a peer that never reads", "full, and it is cut off again and again")
    began_s = time.monotonic()
    with (
        serving("--runs-max", str(ROOM), "--ranks-max", str(ROOM)) as served,
        good_rank(served) as good,
        contextlib.closing(DeafPeer(served.endpoint, "boot-flood")) as flood,
        staying_small(served, good, sent),
    ):
        for number in range(FAKES):
            run, rank, world_size = ("fake", number % 4, 4) if what == "ranks" else (f"fake-{number}", 0, 1)
            flood.send(hello_of(identity_of(f"boot-{number:06}", run=run, rank=rank, world_size=world_size)))
            if number % 10_000 == 0:
                good.report()
        if what == "runs":  # lives of ranks of a run with room are let in by a collector that is in time
            wait_for(lambda: read_bounded(served) or None, lambda: f"not bounded: {read_counts(served, PEERS)}")
        sent.count = read_bounded(served)
        good.report(10)
        assert len(served.read_run_names()) <= ROOM
        minutes = (time.monotonic() - began_s) // 60 + 1  # a busy machine may need more than one for so many
        assert served.read_stderr().count("refused (full)") <= minutes * LINES_MAX


# -- half-open connections --------------------------------------------------------------------------------------------


def test_connections_that_say_nothing_keep_nobody_out(served: Served, good: Peer) -> None:
    host, _, port = served.endpoint.removeprefix("tcp://").rpartition(":")
    sent = BadInput("200 connections that say nothing", "closed after the 30 s of a handshake", 200)
    with staying_small(served, good, sent), contextlib.ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(socket.create_connection((host, int(port))))
        good.report(5)
        with connected(served.endpoint, "boot-late") as late:
            late.identity = identity_of("boot-late", run="late")
            late.join().report()


def test_a_connection_that_says_nothing_is_closed_and_counted() -> None:
    receiver = Receiver("tcp://127.0.0.1:0", handshake_ms=200)
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        silent.sendall(b"\xff\x00\x00")  # the beginning of a greeting
        wait_for(
            lambda: receiver.poll(10, 1) or receiver.connections_refused or None,
            lambda: str(receiver.connections_refused),
        )
        with contextlib.suppress(ConnectionError):
            while silent.recv(1024):  # until it is cut off
                pass
    assert receiver.connections_refused == {"broken_handshake": 1}
    receiver.close()


# -- somebody who may connect, and claims to be somebody else -----------------------------------------------------


class Keyed:
    """A collector that knows two teams."""

    def __init__(self, folder: Path) -> None:
        make_keys(folder, ["a", "b"], force=False)
        self.options = ("--key-file", str(folder / "collector.key"), "--allowed-keys", str(folder / "allowed"))
        collector = read_public_key(str(folder / "collector.pub"), "collector_key_file")
        self.a, self.b = (
            ClientKeys(collector, read_key_pair(str(folder / f"{name}.key"), "key_file")) for name in ("a", "b")
        )


def test_key_of_another_team_opens_no_run_or_rank_of_ours(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path / "keys")
    with serving(*keyed.options, listen="tcp://0.0.0.0:0") as served:  # with keys it may listen anywhere
        endpoint = f"tcp://127.0.0.1:{served.ports[0]}"
        with (
            connected(endpoint, "boot-ours", keyed.a, **HEARTBEATS) as ours,
            connected(endpoint, "boot-theirs", keyed.b) as theirs,
        ):
            ours.join().report(2)
            theirs.send(hello_of(identity_of("boot-theirs", rank=1, world_size=2)))
            assert theirs.await_answer(Refused).reason == "run_taken"
            theirs.send(hello_of(ours.identity))
            assert theirs.await_answer(Refused).reason == "identity_taken"
            with connected(endpoint, "boot-ours", keyed.b) as thief:  # the routing id too: it takes the connection over
                thief.send(Report(sequence=3, host_ns=0))
                thief.await_answer(HelloWanted)
                thief.send(hello_of(ours.identity))
                assert thief.await_answer(Refused).reason == "identity_taken"
            ours.rejoin().report(2)
        rank = served.wait_for_rank("good", 0, lambda rank: rank.last_sequence == 4)
        assert (rank.reports_admitted, rank.report_gaps) == (4, 0)
        assert set(read_counts(served, PEERS)) == {"run_taken", "identity_taken"}


def test_a_key_pair_nobody_knows_is_refused_by_zap(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path / "keys")
    known = keyed.a.own.public
    receiver = Receiver("tcp://127.0.0.1:0", curve=CurveServer(read_key_pair(keyed.options[1], "k"), known.__eq__))
    with connected(receiver.endpoint, "boot-b", keyed.b) as stranger:
        stranger.send(hello_of(identity_of("boot-b")))
        wait_for(
            lambda: receiver.poll(10, 1) or receiver.connections_refused or None,
            lambda: str(receiver.connections_refused),
        )
    assert receiver.connections_refused == {"key_not_allowed": 1}
    assert receiver.frames_received == 0
    receiver.close()
