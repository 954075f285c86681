"""ZAP (RFC 27 of ZeroMQ): libzmq's own thread asks here, for each CURVE handshake, whether a client's key may connect.

The socket belongs to the thread of the receiver, which polls it. libzmq goes on with other connections until it has the
answer, and a connection without an answer is not let in.
"""

from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85

from rankscope.collector.ingest.refusal_reasons import KEY_NOT_ALLOWED, Refuse

ZAP_DOMAIN: Final = b"rankscope"
ANSWERS_PER_PASS_MAX: Final = 256
"""Answers between two passes over the messages: some 7 ms of a storm of connections."""

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_CURVE_FRAMES: Final = 7


class ZapHandler:
    """Answers whether a client may connect. Make it before the socket that it guards is bound."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", is_allowed: Callable[[str], bool], refused: Refuse
    ) -> None:
        self._is_allowed = is_allowed
        self._refused = refused
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)

    def answer(self) -> None:
        """Answer what has been asked. The client's key becomes the user id of its connection."""
        for _ in range(ANSWERS_PER_PASS_MAX):
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            key = _find_key(question)
            request_id = question[1] if len(question) > 1 else b""
            if key and self._is_allowed(key):
                answer = [_VERSION, request_id, b"200", b"OK", key.encode(), b""]
            else:
                self._refused(KEY_NOT_ALLOWED, _find_address(question), key)
                answer = [_VERSION, request_id, b"400", b"this key is not allowed", b"", b""]
            self.socket.send_multipart(answer)

    def close(self) -> None:
        """Answer no more."""
        self.socket.close(linger=0)


def _find_key(question: list[bytes]) -> str:
    """Return the client's public key in a question: version, id, domain, address, routing id, mechanism, key."""
    is_ours = len(question) == _CURVE_FRAMES and question[0] == _VERSION
    if not is_ours or question[2] != ZAP_DOMAIN or question[5] != b"CURVE":
        return ""
    return z85.encode(question[6]).decode()


def _find_address(question: list[bytes]) -> str:
    """Return the peer's address, without a port; empty where the question is not whole."""
    return question[3].decode(errors="replace") if len(question) == _CURVE_FRAMES else ""
