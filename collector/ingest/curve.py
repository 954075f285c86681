"""CURVE on the collector's side: who may connect (ZAP), and which connections did not come about, and why.

Both are sockets inside the process that ZeroMQ's own thread talks to, and both belong to the thread of the receiver,
which polls them. ZAP is RFC 27 of ZeroMQ: for each CURVE handshake that thread asks about the client's key, and goes on
with other connections until it is answered.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from rankscope.collector.ingest.relays import Relays
from rankscope.measure.key_files import KeyPair

ZAP_DOMAIN: Final = b"rankscope"
ANSWERS_PER_TURN_MAX: Final = 256
"""Of a storm of connections so many are answered between two looks at the messages: 7 ms."""
EVENTS_PER_TURN_MAX: Final = 1024

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

    def make_relays(self) -> Relays:
        """The relays that these keys let in."""
        return Relays(has_keys=True, may_relay=self.may_relay, is_allowed=self.is_allowed)


class ZapHandler:
    """Answers ZeroMQ's question whether a client may connect. To be made before the socket it guards is bound."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer what has been asked. The client's key becomes the user id of its connection."""
        for _ in range(ANSWERS_PER_TURN_MAX):
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            key = _find_key(question)
            request_id = question[1] if len(question) > 1 else b""
            if key and self._is_allowed(key):
                answer = [_ZAP_VERSION, request_id, b"200", b"OK", key.encode(), b""]
            else:
                answer = [_ZAP_VERSION, request_id, b"400", b"this key is not allowed", b"", b""]
            self.socket.send_multipart(answer)


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
