"""CURVE on the collector's side: who may connect (ZAP), and which connections did not come about, and why.

Both are sockets inside the process that ZeroMQ's own thread talks to, and both belong to the thread of the receiver,
which polls them. ZAP is RFC 27 of ZeroMQ: for each CURVE handshake that thread asks about the client's key, and goes on
with other connections until it is answered.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from rankscope.collector.ingest.relays import Relays
from rankscope.measure.clock import Clock
from rankscope.measure.key_files import KeyPair
from rankscope.measure.units import NS_PER_S

ZAP_DOMAIN: Final = b"rankscope"
ANSWERS_PER_TURN_MAX: Final = 256
"""Of a storm of connections so many are answered between two looks at the messages: 7 ms."""
EVENTS_PER_TURN_MAX: Final = 1024
CROWD: Final = 256
"""So many connections have 1.5 MiB of queues for nothing."""
CALM_NS: Final = 2 * NS_PER_S
"""Nobody has asked for so long: nobody is likely to be just asking."""
CALM_AWAITED_NS: Final = 60 * NS_PER_S
RETIRED_NS: Final = NS_PER_S
"""So long a socket that is to be closed still answers who has asked it: ZeroMQ's thread may have been about to."""

NO_KEYS: Final = "no_keys"
UNEXPECTED_KEYS: Final = "unexpected_keys"
KEY_NOT_ALLOWED: Final = "key_not_allowed"
WRONG_COLLECTOR_KEY: Final = "wrong_collector_key"
BROKEN_HANDSHAKE: Final = "broken_handshake"

_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_ZAP_CURVE_FRAMES: Final = 7
_EVENTS_ENDPOINT: Final = "inproc://rankscope-handshakes"
_EVENT: Final = struct.Struct("=HI")
_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def is_nobody(_key: str) -> bool:
    """Whether a key is a relay's, where there are no relays."""
    return False


class CurveServer(NamedTuple):
    """The collector's own pair of keys, whether a client's public key may connect, and whether it is a relay's, which
    may speak for many ranks.
    """

    pair: KeyPair
    is_allowed: Callable[[str], bool]
    may_relay: Callable[[str], bool] = is_nobody

    def guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Have it let in only whom a ZapHandler allows; before it is bound."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        # Where nobody answers nobody is let in; without it everybody would be.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def make_relays(self) -> Relays:
        """The relays that these keys let in."""
        return Relays(has_keys=True, may_relay=self.may_relay, is_allowed=self.is_allowed)


class ZapHandler:
    """Answers ZeroMQ's question whether a client may connect. To be made before the socket it guards is bound.

    Every connection that has asked stays connected to the socket that has answered, by two queues of 16 KiB, and never
    asks again. So when a crowd has been let in another socket takes the place of that one, and their queues go with it:
    6 KiB of resident memory each.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        poller: zmq.Poller,
        is_allowed: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._context = context
        self._poller = poller
        self._is_allowed = is_allowed
        self._clock = clock
        self._socket = self._make()
        self._socket.bind(_ZAP_ENDPOINT)
        self._retired: zmq.Socket[bytes] | None = None
        self._asked = 0
        self._first_asked_ns = self._last_asked_ns = self._retired_ns = 0

    @property
    def answered(self) -> int:
        """How many connections are still connected to the socket that has answered them; after `tend`."""
        return self._asked

    def answer(self, ready: Mapping[object, int]) -> None:
        """Answer what has been asked, as far as a poll has found something."""
        for socket in (self._socket, self._retired):
            if socket is not None and socket in ready:
                self._answer(socket)

    def tend(self) -> None:
        """Once in a while: let another socket take the place of one that has answered a crowd."""
        now_ns = self._clock.monotonic_ns()
        if self._retired is not None:
            if now_ns >= self._retired_ns + RETIRED_NS:
                self._close(self._retired)
                self._retired = None
        elif self._asked >= CROWD:
            is_calm = now_ns >= self._last_asked_ns + CALM_NS
            if is_calm or now_ns >= self._first_asked_ns + CALM_AWAITED_NS:
                self._asked = 0  # also where it fails: once for a crowd, and not in every turn
                self._replace(now_ns)

    def close(self) -> None:
        """Answer no more."""
        for socket in (self._socket, self._retired):
            if socket is not None:
                self._close(socket)
        self._retired = None

    def _replace(self, now_ns: int) -> None:
        socket = self._make()
        # Who connects between these two lines is refused (ZAP_ENFORCE_DOMAIN), and tries again.
        self._socket.unbind(_ZAP_ENDPOINT)
        socket.bind(_ZAP_ENDPOINT)
        self._retired, self._socket, self._retired_ns = self._socket, socket, now_ns

    def _make(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _close(self, socket: "zmq.Socket[bytes]") -> None:
        if not socket.closed:
            self._poller.unregister(socket)
            socket.close(linger=0)

    def _answer(self, socket: "zmq.Socket[bytes]") -> None:
        """The client's key becomes the user id of its connection."""
        self._last_asked_ns = self._clock.monotonic_ns()
        for _ in range(ANSWERS_PER_TURN_MAX):
            try:
                question = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not self._asked:
                self._first_asked_ns = self._last_asked_ns
            self._asked += socket is self._socket
            key = _find_key(question)
            request_id = question[1] if len(question) > 1 else b""
            if key and self._is_allowed(key):
                answer = [_ZAP_VERSION, request_id, b"200", b"OK", key.encode(), b""]
            else:
                answer = [_ZAP_VERSION, request_id, b"400", b"this key is not allowed", b"", b""]
            socket.send_multipart(answer)


class FailedHandshakes:
    """Counts connections to a socket that ended before the first message, by reason. To be made before it is bound.

    That one side has keys and the other has none both sides see, and whoever sees it first closes: where that was the
    agent, it counts here as BROKEN_HANDSHAKE.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", guarded: "zmq.Socket[bytes]", *, has_keys: bool
    ) -> None:
        self._guarded = guarded
        self._mismatch = NO_KEYS if has_keys else UNEXPECTED_KEYS
        self.counts: dict[str, int] = {}
        self.socket = context.socket(zmq.PAIR)
        # Without a limit: at one ZeroMQ's thread would wait for us, and we may be waiting for it.
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        guarded.monitor(_EVENTS_ENDPOINT, _FAILURES)
        self.socket.connect(_EVENTS_ENDPOINT)

    def count(self) -> None:
        """Count what has happened."""
        for _ in range(EVENTS_PER_TURN_MAX):
            try:
                event, _endpoint = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reason = self._find_reason(*_EVENT.unpack(event))
            self.counts[reason] = self.counts.get(reason, 0) + 1

    def close(self) -> None:
        """Stop; to be called before the guarded socket is closed."""
        self._guarded.disable_monitor()
        self.socket.close(linger=0)

    def _find_reason(self, event: int, value: int) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return KEY_NOT_ALLOWED
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return self._mismatch
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return WRONG_COLLECTOR_KEY
        return BROKEN_HANDSHAKE


def _find_key(question: list[bytes]) -> str:
    """The client's public key in a question of ZAP: version, id, domain, address, routing id, mechanism, key."""
    is_ours = len(question) == _ZAP_CURVE_FRAMES and question[0] == _ZAP_VERSION
    if not is_ours or question[2] != ZAP_DOMAIN or question[5] != b"CURVE":
        return ""
    return z85.encode(question[6]).decode()
