"""Tests of sending notices, over a strict stand-in for a ZeroMQ socket."""

from collections import deque

import pytest
import zmq

from rankscope.agent.sidecar.notice_sender import ATTEMPTS, NOTICES_MAX, RESEND_NS, NoticeSender
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Ack, Message
from rankscope.measure.node_messages import RankEnded
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of


class Dealer:
    """A DEALER with IMMEDIATE: takes messages only while there is a connection, and never waits."""

    def __init__(self) -> None:
        self.connected = True
        self.sent: list[Message] = []
        self.inbox: deque[bytes] = deque()
        self.closed = False

    def send(self, frame: bytes, flags: int) -> None:
        assert (flags, self.closed) == (zmq.NOBLOCK, False)
        if not self.connected:
            raise zmq.Again
        self.sent.append(decode(frame))

    def recv(self, flags: int) -> bytes:
        assert (flags, self.closed) == (zmq.NOBLOCK, False)
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def close(self, linger: int) -> None:
        assert linger == 0
        self.closed = True


@pytest.fixture
def dealer() -> Dealer:
    return Dealer()


@pytest.fixture
def sender(dealer: Dealer) -> NoticeSender:
    return NoticeSender("tcp://collector:1", lambda _endpoint: dealer)


def notice(rank: int = 0) -> RankEnded:
    return RankEnded(sequence=1, identity=identity_of(rank, 1), host_ns=0, wall_ns=0, reason="crashed")


def numbers(dealer: Dealer) -> list[int]:
    return [message.sequence for message in dealer.sent if isinstance(message, RankEnded)]


def test_each_notice_has_its_own_number_and_is_sent_at_once(sender: NoticeSender, dealer: Dealer) -> None:
    sender.enqueue(notice(0))
    sender.enqueue(notice(1))
    sender.run_once(0)
    assert numbers(dealer) == [1, 2]


def test_unacknowledged_notice_is_sent_again_after_a_pause(sender: NoticeSender, dealer: Dealer) -> None:
    sender.enqueue(notice(0))
    sender.enqueue(notice(1))
    sender.run_once(0)
    dealer.inbox.append(encode(Ack(through=2)))
    sender.run_once(RESEND_NS - 1)
    assert (numbers(dealer), sender.is_idle) == ([1, 2], False)
    sender.run_once(RESEND_NS)
    assert numbers(dealer) == [1, 2, 1]
    dealer.inbox.append(encode(Ack(through=1)))
    sender.run_once(RESEND_NS + 1)
    assert (sender.is_idle, sender.dropped) == (True, 0)


def test_notice_without_acknowledgement_is_dropped_and_counted(sender: NoticeSender, dealer: Dealer) -> None:
    sender.enqueue(notice())
    for attempt in range(ATTEMPTS + 1):
        sender.run_once(attempt * RESEND_NS)
    assert (len(dealer.sent), sender.is_idle, sender.dropped) == (ATTEMPTS, True, 1)


def test_unreachable_collector_is_given_up(sender: NoticeSender, dealer: Dealer) -> None:
    dealer.connected = False
    sender.enqueue(notice())
    for attempt in range(ATTEMPTS + 1):
        sender.run_once(attempt * RESEND_NS)
    assert (dealer.sent, sender.is_idle, sender.dropped) == ([], True, 1)


def test_garbage_and_other_messages_are_ignored(sender: NoticeSender, dealer: Dealer) -> None:
    sender.enqueue(notice())
    dealer.inbox.extend([b"", b"RSCP garbage", encode(notice()), encode(Ack(through=99))])
    sender.run_once(0)
    assert (numbers(dealer), sender.is_idle) == ([1], False)


def test_oldest_notice_is_dropped_and_counted_when_full(sender: NoticeSender, dealer: Dealer) -> None:
    for _ in range(NOTICES_MAX + 2):
        sender.enqueue(notice())
    sender.run_once(0)
    assert (len(dealer.sent), numbers(dealer)[0], sender.dropped) == (NOTICES_MAX, 3, 2)


def test_without_a_notice_no_socket_is_opened() -> None:
    def open_socket(_endpoint: str) -> Dealer:
        raise AssertionError("there is no notice to send")

    sender = NoticeSender("tcp://collector:1", open_socket)
    sender.run_once(0)
    sender.close()
    assert sender.is_idle
