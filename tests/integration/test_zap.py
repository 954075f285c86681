"""Who may connect is asked of a socket that now and then makes place for another: real connections, a clock by hand."""

import errno
from collections.abc import Iterator

import pytest
import zmq

from rankscope.collector.ingest.curve import (
    CALM_AWAITED_NS,
    CALM_NS,
    CROWD,
    RETIRED_NS,
    CurveServer,
    ZapHandler,
)
from rankscope.collector.keys import make_key_pair
from rankscope.measure.units import NS_PER_MS, ns_to_s
from tests.driven_clock import DrivenClock

DEADLINE_MS = 30_000
"""Far beyond what anything here takes."""
QUIET_MS = 300
"""Long enough for a connection on loopback that is let in."""


class Guarded:
    """A socket that lets in whom a handler allows, and clients of it."""

    def __init__(self) -> None:
        self.clock, self.poller = DrivenClock(), zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pair = make_key_pair()
        self._public = pair.public.encode()
        self.allowed: set[str] = set()
        self.handler = ZapHandler(self._context, self.poller, self.allowed.__contains__, self.clock)
        self._router = self._context.socket(zmq.ROUTER)
        CurveServer(pair, self.allowed.__contains__).guard(self._router)
        self._port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.poller.register(self._router, zmq.POLLIN)
        self._clients: list[zmq.Socket[bytes]] = []

    def connect(self, *, allowed: bool = True) -> "zmq.Socket[bytes]":
        """A client that has said its number."""
        client = self._context.socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        if allowed:
            self.allowed.add(public.decode())
        client.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        client.setsockopt(zmq.CURVE_PUBLICKEY, public)
        client.setsockopt(zmq.CURVE_SECRETKEY, secret)
        client.connect(f"tcp://127.0.0.1:{self._port}")
        client.send(b"%d" % len(self._clients))
        self._clients.append(client)
        return client

    def hear(self, count: int, timeout_ms: int = DEADLINE_MS) -> set[bytes]:
        """So many messages, or those that come within the time."""
        heard: set[bytes] = set()
        while len(heard) < count and (ready := dict(self.poller.poll(timeout_ms))):
            self.handler.answer(ready)
            self.handler.tend()
            if self._router in ready:
                heard.add(self._router.recv_multipart()[-1])
        return heard

    def pass_time(self, ns: int) -> None:
        """So much later the handler is looked after."""
        self.clock.now_s += ns_to_s(ns)
        self.handler.tend()

    def close(self) -> None:
        for client in self._clients:
            client.close(linger=0)
        self._router.close(linger=0)
        self.handler.close()
        self._context.term()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    found = Guarded()
    yield found
    found.close()


def let_in_a_crowd(guarded: Guarded) -> "list[zmq.Socket[bytes]]":
    """As many as it takes, one after the other; each is heard."""
    clients = [guarded.connect() for _ in range(CROWD)]
    assert len(guarded.hear(CROWD)) == CROWD
    return clients


def test_after_a_crowd_another_socket_answers_and_all_who_are_in_stay(guarded: Guarded) -> None:
    clients = let_in_a_crowd(guarded)
    assert guarded.handler.answered == CROWD
    guarded.pass_time(CALM_NS - 1)
    assert guarded.handler.answered == CROWD
    guarded.pass_time(1)
    assert guarded.handler.answered == 0
    for retired_for_ns in (0, RETIRED_NS):  # beside the one that is to be closed, and when it is
        guarded.pass_time(retired_for_ns)
        guarded.connect()
        guarded.connect(allowed=False)
        assert len(guarded.hear(1)) == 1
        assert guarded.hear(1, QUIET_MS) == set()
    assert guarded.handler.answered == 4
    for number, client in enumerate(clients):
        client.send(b"again %d" % number)
    assert guarded.hear(CROWD) == {b"again %d" % number for number in range(CROWD)}


def test_one_less_than_a_crowd_leaves_it_alone(guarded: Guarded) -> None:
    for _ in range(CROWD - 1):
        guarded.connect()
    guarded.hear(CROWD - 1)
    guarded.pass_time(CALM_AWAITED_NS)
    assert guarded.handler.answered == CROWD - 1


@pytest.mark.parametrize(
    ("awaited_ns", "answered"), [(CALM_AWAITED_NS - 2 * NS_PER_MS, CROWD + 1), (CALM_AWAITED_NS, 0)]
)
def test_where_somebody_asks_all_the_time_calm_is_not_awaited_for_ever(
    guarded: Guarded, awaited_ns: int, answered: int
) -> None:
    let_in_a_crowd(guarded)
    guarded.clock.now_s += ns_to_s(awaited_ns - NS_PER_MS)
    guarded.connect()
    guarded.hear(1)
    guarded.pass_time(NS_PER_MS)
    assert guarded.handler.answered == answered


def test_where_no_other_socket_can_be_had_the_first_goes_on_and_it_is_not_tried_again_at_once(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    let_in_a_crowd(guarded)
    with monkeypatch.context() as full:
        full.setattr(zmq.Context, "socket", refuse)
        with pytest.raises(zmq.ZMQError):
            guarded.pass_time(CALM_NS)
    guarded.pass_time(CALM_NS)
    guarded.connect()
    assert len(guarded.hear(1)) == 1
    assert guarded.handler.answered == 1


def test_where_nobody_answers_nobody_is_let_in(guarded: Guarded) -> None:
    guarded.handler.close()
    guarded.connect()
    assert guarded.hear(1, QUIET_MS) == set()
