"""The encrypted wire: real senders and a real receiver on loopback, with the right keys, wrong ones and none."""

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from rankscope.agent.reporting.sender import Sender
from rankscope.collector.ingest.curve import AllowedKeys, CurveServer
from rankscope.collector.ingest.receiver import Received, Receiver
from rankscope.collector.keys import make_key_pair, make_keys
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.key_files import ClientKeys, KeyPair, read_key_pair, read_public_key
from rankscope.measure.messages import Hello, Report, Welcome
from rankscope.measure.units import s_to_ns
from rankscope.uplink.delivery import Delivery
from rankscope.uplink.resend_buffer import ResendBuffer

DEADLINE_S = 300.0
"""Far beyond what anything here takes: a test that fails waits for it, a test that passes does not."""

BOOT_ID = "boot-00000001"
IDENTITY = RankIdentity(
    run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id=BOOT_ID, pid=1
)  # fmt: skip


class Folder:
    """A folder that `rankscope keys` has made."""

    def __init__(self, path: Path) -> None:
        make_keys(path, [], force=False)
        self.path = path
        self.collector = read_key_pair(str(path / "collector.key"), "key_file")
        self.agent = read_key_pair(str(path / "agent.key"), "key_file")

    def serve(self) -> Receiver:
        """A receiver with these keys."""
        allowed = AllowedKeys(str(self.path / "allowed"), SystemClock())
        return Receiver("tcp://127.0.0.1:0", curve=CurveServer(self.collector, allowed.is_allowed))

    def for_agent(self, own: KeyPair | None = None) -> ClientKeys:
        """What an agent has that knows this collector."""
        return ClientKeys(read_public_key(str(self.path / "collector.pub"), "collector_key_file"), own or self.agent)


class Pair:
    """A rank's sender and a receiver, driven by turns."""

    def __init__(self, receiver: Receiver, keys: ClientKeys | None) -> None:
        self.receiver = receiver
        self.clock = SystemClock()
        self.sender = Sender(
            Delivery(ResendBuffer(100, 10**6), random.Random(1)),
            self.clock, BOOT_ID, hello_from, redial_ns=s_to_ns(0.05),
        )  # fmt: skip
        self.received: list[Received] = []
        self.sender.open(receiver.endpoint, keys)

    def turn(self) -> None:
        """A moment for each side."""
        self.sender.exchange(self.clock.monotonic_ns() + s_to_ns(0.005))
        self.received += self.receiver.poll(5, 100)

    def wait_for_message(self) -> Received:
        """The next message; fails when none comes."""
        self.wait_until(lambda: bool(self.received), "no message came")
        return self.received.pop(0)

    def wait_for_refusal(self) -> tuple[str, Mapping[str, int]]:
        """The reason that the sender tells, and what the receiver has counted."""
        self.wait_until(
            lambda: self.sender.refused is not None and bool(self.receiver.connections_refused), "nothing was refused"
        )
        assert self.sender.refused is not None
        return self.sender.refused.reason, self.receiver.connections_refused

    def wait_until(self, is_there: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not is_there():
            assert time.monotonic() < end_s, f"{what}; refused {self.receiver.connections_refused}"
            self.turn()


def hello_from(first_sequence: int) -> Hello:
    """The Hello of the only rank there is."""
    return Hello(identity=IDENTITY, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=1)


def is_cut_off(stranger: socket.socket) -> bool:
    """Whether the other side has ended this connection; what it says is read."""
    try:
        return not stranger.recv(1024)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@contextlib.contextmanager
def joined(receiver: Receiver, keys: ClientKeys | None) -> Iterator[Pair]:
    """A sender to that receiver; both are closed at the end."""
    pair = Pair(receiver, keys)
    try:
        yield pair
    finally:
        pair.sender.close()
        receiver.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Keys for both sides."""
    return Folder(tmp_path / "keys")


def test_an_allowed_agent_is_heard_with_its_key_and_answered(folder: Folder) -> None:
    with joined(folder.serve(), folder.for_agent()) as pair:
        received = pair.wait_for_message()
        hello = received.message
        assert isinstance(hello, Hello)
        assert hello.hello_number >= 1  # one that was made before there was a connection is made anew
        known = msgspec.structs.replace(hello, hello_number=0)
        assert (received.peer, known, received.key) == (BOOT_ID.encode(), hello_from(1), folder.agent.public)
        pair.receiver.send(BOOT_ID.encode(), Welcome(admitted_through=0))
        pair.sender.push(1, encode(Report(sequence=1, host_ns=0)), 0)
        while not isinstance(pair.wait_for_message().message, Report):
            pass
        assert pair.sender.connected
        assert pair.sender.refused is None


def test_agent_without_keys_is_refused_naming_missing_settings(folder: Folder) -> None:
    with joined(folder.serve(), None) as pair:
        reason, counts = pair.wait_for_refusal()
        assert reason == "keys_wanted"
        assert set(counts) <= {"no_keys", "broken_handshake"}  # whoever notices first closes
        assert pair.sender.refused is not None
        assert pair.sender.refused.detail == (
            f"{pair.receiver.endpoint} admits only agents with keys, and this one has none. Set key_file "
            "(RANKSCOPE_KEY_FILE) and collector_key_file (RANKSCOPE_COLLECTOR_KEY_FILE); `rankscope keys` has made "
            "them where the collector was set up."
        )
        assert pair.received == []


def test_an_agent_with_keys_does_not_talk_to_a_collector_without(folder: Folder) -> None:
    with joined(Receiver("tcp://127.0.0.1:0"), folder.for_agent()) as pair:
        reason, counts = pair.wait_for_refusal()
        # A collector that hangs up before the agent has read its greeting shows only that it has not that key.
        assert reason in {"keys_unwanted", "wrong_collector_key"}
        assert set(counts) <= {"unexpected_keys", "broken_handshake"}
        assert pair.received == []


def test_key_lookup_that_failed_once_keeps_nobody_out_for_good(folder: Folder) -> None:
    asked: list[str] = []

    def is_allowed(key: str) -> bool:
        asked.append(key)
        if len(asked) == 1:
            raise PermissionError
        return True

    receiver = Receiver("tcp://127.0.0.1:0", curve=CurveServer(folder.collector, is_allowed))
    with joined(receiver, folder.for_agent()) as pair:
        with pytest.raises(PermissionError):
            pair.wait_for_message()
        assert pair.wait_for_message().key == folder.agent.public
    assert asked == [folder.agent.public] * 2


def test_agent_whose_key_is_not_allowed_is_shown_its_key(folder: Folder) -> None:
    stranger = make_key_pair()
    with joined(folder.serve(), folder.for_agent(stranger)) as pair:
        reason, counts = pair.wait_for_refusal()
        assert (reason, set(counts)) == ("key_not_allowed", {"key_not_allowed"})
        assert pair.sender.refused is not None
        assert stranger.public in pair.sender.refused.detail
        assert pair.received == []


def test_agent_with_the_key_of_another_collector_says_nothing(folder: Folder) -> None:
    keys = ClientKeys(make_key_pair().public, folder.agent)
    with joined(folder.serve(), keys) as pair:
        reason, counts = pair.wait_for_refusal()
        assert (reason, set(counts)) == ("wrong_collector_key", {"wrong_collector_key"})
        assert pair.received == []


def test_key_allowed_later_gets_in_without_a_restart(folder: Folder) -> None:
    # After a refusal ZeroMQ itself would never try again.
    late = folder.path.parent / "late"
    make_keys(late, [], force=False)
    pair_of_keys = read_key_pair(str(late / "agent.key"), "key_file")
    with joined(folder.serve(), folder.for_agent(pair_of_keys)) as pair:
        pair.wait_for_refusal()
        (folder.path / "allowed" / "late.pub").write_text((late / "allowed" / "agent.pub").read_text())
        assert pair.wait_for_message().key == pair_of_keys.public


def test_a_peer_of_a_protocol_without_handshake_is_not_heard(folder: Folder) -> None:
    # ZMTP 1.0 knows no mechanisms: its first frame is the routing id, its second one would be a message.
    receiver = folder.serve()
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    frame = encode(hello_from(1))
    with joined(receiver, folder.for_agent()) as pair, socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"\x01\x00" + bytes([len(frame) + 1, 0]) + frame)
        stranger.setblocking(False)
        pair.wait_until(lambda: is_cut_off(stranger), "the stranger is still connected")
        assert {pair.wait_for_message().key} == {folder.agent.public}
        assert {received.key for received in pair.received} <= {folder.agent.public}


def test_what_is_sent_cannot_be_read_on_the_way(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tap, joined(folder.serve(), folder.for_agent()) as pair:
        tapped = Sender(Delivery(ResendBuffer(100, 10**6), random.Random(1)), pair.clock, "boot-tapped", hello_from)
        port = int(pair.receiver.endpoint.rpartition(":")[2])
        tapped.open(f"tcp://127.0.0.1:{tap.getsockname()[1]}", folder.for_agent())
        seen = _relay_until_hello(tap, port, tapped, pair)
        tapped.close()
    assert len(seen) > 200  # the greeting alone has 64 bytes
    assert encode(hello_from(1))[:4] not in seen
    assert BOOT_ID.encode() not in seen


def _relay_until_hello(tap: socket.socket, port: int, tapped: Sender, pair: Pair) -> bytes:
    """Pass bytes on between a sender and the receiver until its Hello has come; what went to the receiver."""
    tap.settimeout(DEADLINE_S)
    client, _ = tap.accept()
    seen = b""
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        client.settimeout(0)
        server.settimeout(0)
        end_s = time.monotonic() + DEADLINE_S
        while not any(one.peer == b"boot-tapped" for one in pair.received):
            assert time.monotonic() < end_s, "the tapped Hello has not come"
            tapped.exchange(pair.clock.monotonic_ns() + s_to_ns(0.005))
            pair.turn()
            for source, target in ((client, server), (server, client)):
                with contextlib.suppress(BlockingIOError):
                    data = source.recv(65536)
                    target.sendall(data)
                    seen += data if source is client else b""
    return seen
