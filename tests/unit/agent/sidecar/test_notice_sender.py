"""How notices are carried, over a socket that stands for ZeroMQ's and is as strict."""

from collections import deque

import pytest
import zmq

from rankscope.agent.sidecar.notice_sender import ATTEMPTS, NOTICES_MAX, RESEND_NS, NoticeSender
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Ack, Message, RankEnded
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
def courier(dealer: Dealer) -> NoticeSender:
    return NoticeSender("tcp://collector:1", lambda _endpoint: dealer)


def notice(rank: int = 0) -> RankEnded:
    return RankEnded(sequence=1, identity=identity_of(rank, 1), host_ns=0, wall_ns=0, reason="crashed")


def numbers(dealer: Dealer) -> list[int]:
    return [message.sequence for message in dealer.sent if isinstance(message, RankEnded)]


def test_each_notice_has_its_own_number_and_is_sent_at_once(courier: NoticeSender, dealer: Dealer) -> None:
    courier.post(notice(0))
    courier.post(notice(1))
    courier.take_turn(0)
    assert numbers(dealer) == [1, 2]


def test_what_is_acknowledged_is_done_and_the_rest_is_sent_again_after_a_while(
    courier: NoticeSender, dealer: Dealer
) -> None:
    courier.post(notice(0))
    courier.post(notice(1))
    courier.take_turn(0)
    dealer.inbox.append(encode(Ack(through=2)))
    courier.take_turn(RESEND_NS - 1)
    assert (numbers(dealer), courier.is_idle) == ([1, 2], False)
    courier.take_turn(RESEND_NS)
    assert numbers(dealer) == [1, 2, 1]
    dealer.inbox.append(encode(Ack(through=1)))
    courier.take_turn(RESEND_NS + 1)
    assert (courier.is_idle, courier.dropped) == (True, 0)


def test_a_notice_that_nobody_acknowledges_is_given_up_and_counted(courier: NoticeSender, dealer: Dealer) -> None:
    courier.post(notice())
    for turn in range(ATTEMPTS + 1):
        courier.take_turn(turn * RESEND_NS)
    assert (len(dealer.sent), courier.is_idle, courier.dropped) == (ATTEMPTS, True, 1)


def test_a_collector_that_is_not_there_is_not_tried_for_ever(courier: NoticeSender, dealer: Dealer) -> None:
    dealer.connected = False
    courier.post(notice())
    for turn in range(ATTEMPTS + 1):
        courier.take_turn(turn * RESEND_NS)
    assert (dealer.sent, courier.is_idle, courier.dropped) == ([], True, 1)


def test_garbage_and_other_messages_do_no_harm(courier: NoticeSender, dealer: Dealer) -> None:
    courier.post(notice())
    dealer.inbox.extend([b"", b"RSCP garbage", encode(notice()), encode(Ack(through=99))])
    courier.take_turn(0)
    assert (numbers(dealer), courier.is_idle) == ([1], False)


def test_the_oldest_makes_room_and_is_counted(courier: NoticeSender, dealer: Dealer) -> None:
    for _ in range(NOTICES_MAX + 2):
        courier.post(notice())
    courier.take_turn(0)
    assert (len(dealer.sent), numbers(dealer)[0], courier.dropped) == (NOTICES_MAX, 3, 2)


def test_without_a_notice_no_socket_is_opened() -> None:
    def open_socket(_endpoint: str) -> Dealer:
        raise AssertionError("nothing is to be sent")

    courier = NoticeSender("tcp://collector:1", open_socket)
    courier.take_turn(0)
    courier.close()
    assert courier.is_idle
