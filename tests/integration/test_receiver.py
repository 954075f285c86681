"""The receiver, with real ZeroMQ peers on this machine."""

import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import psutil
import pytest
import zmq

from rankscope.collector.ingest import connections
from rankscope.collector.ingest.connections import FRAMES_PER_PASS_MAX
from rankscope.collector.ingest.held_bytes import HELD_BYTES_MAX
from rankscope.collector.ingest.receiver import Receiver, raise_open_files_limit
from rankscope.collector.ingest.router import RECEIVE_HWM
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Ack, ClockPong, Hello, HelloWanted, Message, Refused, Report
from rankscope.measure.table import Table
from tests.connections import list_connections
from tests.driven_clock import DrivenClock
from tests.integration.serving import wait_for

DEADLINE_MS = 20_000
"""Far beyond what anything here takes: a test that fails waits for it, a test that passes does not."""

Dealer: TypeAlias = "zmq.Socket[bytes]"
Connect: TypeAlias = Callable[..., Dealer]

PONG = ClockPong(collector_ns=1, host_ns=2)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver at a free port."""
    receiver = Receiver("tcp://127.0.0.1:0")
    yield receiver
    receiver.close()


@pytest.fixture
def connect(receiver: Receiver) -> Iterator[Connect]:
    """Connects peers to the receiver, or to another address."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers = []

    def connect_peer(peer: bytes, endpoint: str = "", **options: int) -> Dealer:
        dealer = context.socket(zmq.DEALER)
        dealers.append(dealer)
        dealer.setsockopt(zmq.IDENTITY, peer)
        for name, value in {"RCVTIMEO": DEADLINE_MS, "SNDTIMEO": DEADLINE_MS, "LINGER": 0, **options}.items():
            dealer.setsockopt(getattr(zmq, name), value)
        dealer.connect(endpoint or receiver.endpoint)
        return dealer

    yield connect_peer
    for dealer in dealers:
        dealer.close()
    context.term()


@pytest.fixture
def dealer(connect: Connect) -> Dealer:
    """A peer named boot-one."""
    return connect(b"boot-one")


def receive(receiver: Receiver, count: int, batch_max: int = 100) -> list[tuple[bytes, Message]]:
    """The next `count` messages; fails when they do not come in time."""
    received: list[tuple[bytes, Message]] = []
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while len(received) < count:
        assert time.monotonic() < deadline_s, f"{len(received)} of {count} messages came, refused {receiver.refused}"
        received += [(one.peer, one.message) for one in receiver.poll(1000, batch_max)]
    return received


def send_then_pong(dealer: Dealer, *parts: bytes) -> None:
    """Send parts as one message, and a good one behind it, whose arrival shows that the first has been dealt with."""
    dealer.send_multipart(parts)
    dealer.send(encode(PONG))


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_with_its_sender_s_routing_id(receiver: Receiver, dealer: Dealer) -> None:
    hello = Hello(
        identity=RankIdentity(
            run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-one", pid=1
        ),
        first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=0,
    )  # fmt: skip
    dealer.send(encode(hello))
    assert receive(receiver, 1) == [(b"boot-one", hello)]


def test_an_answer_reaches_the_peer(receiver: Receiver, dealer: Dealer) -> None:
    dealer.send(encode(PONG))
    receive(receiver, 1)
    receiver.send(b"boot-one", Ack(through=7))
    assert decode(dealer.recv()) == Ack(through=7)
    assert receiver.send_failures == {}


def test_a_poll_takes_no_more_than_its_batch(receiver: Receiver, dealer: Dealer) -> None:
    for _ in range(5):
        dealer.send(encode(PONG))
    assert len(receive(receiver, 1, batch_max=1)) == 1
    assert len(receive(receiver, 4)) == 4
    assert receiver.frames_received == 5


def test_a_poll_without_messages_returns_empty(receiver: Receiver) -> None:
    assert receiver.poll(0, 10) == []


def test_a_peer_that_comes_back_under_its_name_is_heard(receiver: Receiver, connect: Connect, dealer: Dealer) -> None:
    dealer.send(encode(PONG))
    receive(receiver, 1)
    again = connect(b"boot-one")  # while the first connection is still open, as after a broken link
    again.send(encode(PONG))
    receive(receiver, 1)
    receiver.send(b"boot-one", HelloWanted())
    assert decode(again.recv()) == HelloWanted()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b"RS"], "too_short"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "bad_magic"),
        ([b"RSCP\x00\x01\xff"], "unknown_kind"),
        ([b"RSCP\x00\x01\x01\xc1"], "bad_body"),
        ([b"", encode(PONG)], "bad_body"),  # what a REQ socket sends
    ],
)
def test_what_is_no_message_is_counted_by_reason(
    receiver: Receiver, dealer: Dealer, parts: list[bytes], reason: str
) -> None:
    send_then_pong(dealer, *parts)
    assert receive(receiver, 1) == [(b"boot-one", PONG)]
    assert receiver.refused == {reason: 1}


def test_a_frame_above_the_limit_is_counted_and_its_sender_stays(connect: Connect) -> None:
    receiver = Receiver("tcp://127.0.0.1:0", message_bytes_max=1000)
    send_then_pong(connect(b"boot-one", receiver.endpoint), b"x" * 1001)
    assert receive(receiver, 1) == [(b"boot-one", PONG)]
    assert receiver.refused == {"too_large": 1}
    receiver.close()


@pytest.mark.parametrize(
    ("protocol", "reason", "cure"),
    [
        (0, "protocol_too_old", "upgrade rankscope in the sender"),
        (2, "protocol_too_new", "upgrade rankscope on this side"),
    ],
)
def test_agent_of_another_protocol_is_told_which_side_to_upgrade(
    receiver: Receiver, dealer: Dealer, protocol: int, reason: str, cure: str
) -> None:
    send_then_pong(dealer, b"RSCP\x00%c\x01" % protocol)
    receive(receiver, 1)
    detail = f"the collector answers: {reason}: protocol {protocol}, this side speaks 1 to 1; {cure}"
    assert decode(dealer.recv()) == Refused(reason=reason, detail=detail)
    assert receiver.refused == {reason: 1}


def test_bytes_that_are_not_zeromq_s_do_no_harm(receiver: Receiver, dealer: Dealer) -> None:
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET /metrics HTTP/1.1\r\nHost: collector\r\n\r\n" + bytes(range(256)))
        dealer.send(encode(PONG))
        assert receive(receiver, 1) == [(b"boot-one", PONG)]


@pytest.mark.parametrize(
    "sent",
    [b"GET /metrics HTTP/1.1\r\nHost: collector\r\n\r\n", b"\x16\x03\x01\x02\0" + bytes(512)],
    ids=["http", "tls"],
)
def test_peer_of_another_protocol_counts_as_broken_handshake(receiver: Receiver, sent: bytes) -> None:
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(sent)
        deadline_s = time.monotonic() + DEADLINE_MS / 1000
        while not receiver.connections_refused and time.monotonic() < deadline_s:
            receiver.poll(10, 1)
        assert receiver.connections_refused == {"broken_handshake": 1}


# -- what cannot be sent ----------------------------------------------------------------------------------------------


def test_an_answer_to_nobody_is_counted(receiver: Receiver) -> None:
    receiver.send(b"nobody", HelloWanted())
    assert receiver.send_failures == {"unroutable": 1}


def test_answers_to_a_peer_that_does_not_read_are_counted(receiver: Receiver, connect: Connect) -> None:
    dealer = connect(b"boot-one", RCVHWM=1, RCVBUF=4096)
    dealer.send(encode(PONG))
    receive(receiver, 1)
    long = Refused(reason="x" * 1024, detail="x" * 1024)
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while not receiver.send_failures and time.monotonic() < deadline_s:
        receiver.send(b"boot-one", long)
    assert set(receiver.send_failures) == {"full"}


# -- listening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["0", "*"])
def test_a_free_port_is_found_and_told(port: str) -> None:
    receiver = Receiver(f"tcp://127.0.0.1:{port}")
    assert int(receiver.endpoint.removeprefix("tcp://127.0.0.1:")) > 0
    receiver.close()


def test_a_taken_port_is_told_with_the_cure(receiver: Receiver) -> None:
    with pytest.raises(UnavailableError) as raised:
        Receiver(receiver.endpoint)
    assert str(raised.value) == (
        f"the collector cannot listen at {receiver.endpoint}: Address already in use. Another program listens there: "
        "stop it, or choose another port."
    )


def test_an_address_of_another_machine_is_told_with_the_cure() -> None:
    with pytest.raises(UnavailableError, match=r"tcp://192\.0\.2\.1:0: .* give one of its own, or \* for all"):
        Receiver("tcp://192.0.2.1:0")  # kept free for documentation: no machine has it


def test_an_endpoint_that_is_no_address_is_the_user_s_mistake() -> None:
    # ZeroMQ would take the port modulo 65,536.
    with pytest.raises(SettingError, match=r"the collector's endpoint is 'tcp://\*:99999'; its port must be"):
        Receiver("tcp://*:99999")


def test_kernel_is_told_to_close_connections_of_gone_machines(receiver: Receiver, dealer: Dealer) -> None:
    """Otherwise one to which something was sent last stays for a quarter of an hour."""
    dealer.send(encode(PONG))
    receive(receiver, 1)
    port = int(receiver.endpoint.rpartition(":")[2])
    (accepted,) = (one.fd for one in list_connections(psutil.Process()) if one.raddr and one.laddr.port == port)
    with socket.socket(fileno=os.dup(accepted)) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


@pytest.mark.parametrize(("endpoint", "host"), [("tcp://*:0", "127.0.0.1"), ("tcp://[::]:0", "[::1]")])
def test_whoever_connects_gets_in(connect: Connect, endpoint: str, host: str) -> None:
    with contextlib.closing(Receiver(endpoint)) as receiver:
        peers = {b"boot-%d" % number for number in range(80)}
        address = f"tcp://{host}:{receiver.endpoint.rpartition(':')[2]}"
        for peer in peers:
            connect(peer, address, IPV6=1).send(encode(PONG))
        assert {peer for peer, _ in receive(receiver, len(peers))} == peers


def test_close_frees_the_port_and_may_be_called_twice(receiver: Receiver) -> None:
    endpoint = receiver.endpoint
    receiver.close()
    receiver.close()
    Receiver(endpoint).close()


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    assert raise_open_files_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_who_sends_more_in_a_pass_than_an_agent_does_is_cut_off(
    receiver: Receiver, dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget below what libzmq reads ahead: whether a pass finds more than that depends on who is faster."""
    monkeypatch.setattr(connections, "FRAMES_PER_PASS_MAX", RECEIVE_HWM // 2)
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while not receiver.connections_refused and time.monotonic() < deadline_s:
        for _ in range(2 * RECEIVE_HWM):
            with contextlib.suppress(zmq.Again):
                dealer.send(encode(PONG), zmq.NOBLOCK)
        receiver.poll(100, 4 * RECEIVE_HWM)
    assert receiver.connections_refused == {"over_budget": 1}
    (refusal,) = [one for one in receiver.drain_refusals() if one.reason == "over_budget"][:1]
    assert refusal.address.startswith("127.0.0.1:")


def test_as_many_in_a_pass_as_the_budget_allows_are_taken(receiver: Receiver, dealer: Dealer) -> None:
    for _ in range(4):  # passes of half the budget each
        for _ in range(FRAMES_PER_PASS_MAX // 2):
            dealer.send(encode(PONG))
        receive(receiver, FRAMES_PER_PASS_MAX // 2, batch_max=FRAMES_PER_PASS_MAX // 2)
    assert receiver.connections_refused == {}


def count_bytes_received(receiver: Receiver) -> int:
    """Return how many bytes the kernel has received on all connections of a receiver."""
    port, count = int(receiver.endpoint.rpartition(":")[2]), 0
    for one in list_connections(psutil.Process()):
        if one.raddr and one.laddr.port == port:
            with socket.socket(fileno=os.dup(one.fd)) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                count += int.from_bytes(info[128:136], sys.byteorder)  # tcpi_bytes_received
    return count


def test_ranks_whose_reports_wait_to_be_read_are_not_cut_off(connect: Connect) -> None:
    """64 ranks send what they have kept, 30 MB, more than is allowed of frames that never end; it is read in pieces."""
    ranks, reports = 64, 24
    report = encode(Report(sequence=1, host_ns=0, steps=Table(("step",), 2_500, bytes(20_000))))
    clock = DrivenClock()
    with contextlib.closing(Receiver("tcp://127.0.0.1:0", clock=clock)) as receiver:
        dealers = [connect(b"boot-%02d" % rank, receiver.endpoint) for rank in range(ranks)]
        for dealer in dealers:
            dealer.send(encode(PONG))
        receive(receiver, ranks)
        for dealer in dealers:
            for _ in range(reports):
                dealer.send(report)
        wait_for(
            lambda: count_bytes_received(receiver) > HELD_BYTES_MAX or None, lambda: str(count_bytes_received(receiver))
        )
        received = 0
        while received < ranks * reports and not receiver.connections_refused:
            clock.now_s += 1  # what is held is measured each time
            received += len(receive(receiver, 1, batch_max=ranks))
        assert receiver.connections_refused == {}


# -- what an ended connection left unread -----------------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(body: bytes) -> bytes:
    """Return a message of ZMTP."""
    return bytes([0, len(body)]) + body


def shake_hands(receiver: Receiver, peer: socket.socket, name: bytes) -> None:
    """Connect a plain socket to a receiver, which reads no message meanwhile."""
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    peer.connect((host, int(port)))
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity" + len(name).to_bytes(4, "big") + name
    peer.sendall(GREETING + bytes([4, len(ready)]) + ready)
    heard = b""
    while b"READY" not in heard:
        receiver.poll(10, 0)
        with contextlib.suppress(BlockingIOError):
            heard += peer.recv(4096, socket.MSG_DONTWAIT)


@pytest.mark.parametrize("greeting", [b"\x01\0", b"\xff" + bytes(8) + b"\x7f\x01\x05\0\0"], ids=["1.0", "2.0"])
def test_a_peer_of_a_zeromq_before_3_0_is_not_let_in(receiver: Receiver, dealer: Dealer, greeting: bytes) -> None:
    host, _, port = receiver.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_MS / 1000) as old:
        old.sendall(greeting + frame(b"ab"))
        with contextlib.suppress(ConnectionResetError):
            while old.recv(4096):
                pass
    dealer.send(encode(PONG))
    assert receive(receiver, 1) == [(b"boot-one", PONG)]
    assert receiver.refused == {}


def test_a_rank_is_not_blamed_for_what_another_left_unread(receiver: Receiver) -> None:
    # Both sockets are there before the first connection ends: nothing but the second connection gets its file number.
    with socket.socket() as flooder, socket.socket() as rank:
        shake_hands(receiver, flooder, b"")
        flooder.sendall(10 * frame(b"ab"))
        flooder.shutdown(socket.SHUT_WR)
        flooder.settimeout(DEADLINE_MS / 1000)
        assert flooder.recv(1) == b""  # the collector's side is closed
        shake_hands(receiver, rank, b"boot-one")
        for _ in range(12):  # one at a time: whoever is cut off by mistake sends no more
            rank.sendall(frame(encode(PONG)))
            assert receive(receiver, 1) == [(b"boot-one", PONG)]
    assert (receiver.connections_refused, receiver.refused) == ({}, {"too_short": 10})
