"""Answer libzmq's authentication requests by ZAP (RFC 27 of ZeroMQ), one in each handshake.

Each accepted connection is given a number, which libzmq then attaches to its messages. With keys only a client whose
key is allowed may connect, without keys every client.

The socket belongs to the thread of the receiver, which polls it. libzmq continues with other connections until it has
the answer, and a connection without an answer is refused.
"""

import struct
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85

from rankscope.collector.ingest.refusal_reasons import KEY_NOT_ALLOWED, Refuse

ZAP_DOMAIN: Final = b"rankscope"
ANSWERS_PER_PASS_MAX: Final = 256
"""Answers between two passes over the messages: about 7 ms while many clients connect."""

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_CURVE_FRAMES: Final = 7
_NULL_FRAMES: Final = 6

NUMBER: Final = "X-Number"
"""The property of a message that holds the number of its connection."""


class ZapHandler:
    """The ZAP server of a socket. Create it before that socket is bound."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        is_allowed: Callable[[str], bool] | None,
        refused: Refuse,
        number_connection: Callable[[], int],
    ) -> None:
        """`is_allowed` is None where there are no keys."""
        self._is_allowed = is_allowed
        self._refused = refused
        self._number_connection = number_connection
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)

    def answer(self) -> None:
        """Answer the requests that wait. The client's key becomes the user id of its connection.

        Raises what `is_allowed` and the other callbacks raise; that client is refused then.
        """
        for _ in range(ANSWERS_PER_PASS_MAX):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            answer = [b"500", b"the collector could not decide", b"", b""]
            try:
                answer = self._decide(request)
            finally:  # a REP socket that owes an answer receives no other request: every later client would be refused
                self.socket.send_multipart([_VERSION, request[1] if len(request) > 1 else b"", *answer])

    def close(self) -> None:
        """Stop answering."""
        self.socket.close(linger=0)

    def _decide(self, request: list[bytes]) -> list[bytes]:
        """Return the status of an answer, its text, the user id and the properties of the connection."""
        key = _find_key(request)
        number = str(self._number_connection())
        if self._may_connect(request, key):
            return [b"200", b"OK", key.encode(), _encode_property(NUMBER, number)]
        self._refused(KEY_NOT_ALLOWED, _find_address(request), key)
        return [b"400", b"this key is not allowed", b"", b""]

    def _may_connect(self, request: list[bytes], key: str) -> bool:
        if self._is_allowed is None:
            return len(request) == _NULL_FRAMES and request[5] == b"NULL"
        return bool(key) and self._is_allowed(key)


def _encode_property(name: str, value: str) -> bytes:
    """Return a property as ZMTP writes it: each text after its length."""
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">I", len(value)) + value.encode()


def _find_key(request: list[bytes]) -> str:
    """Return the client's public key in a request: version, id, domain, address, routing id, mechanism, key."""
    is_ours = len(request) == _CURVE_FRAMES and request[0] == _VERSION
    if not is_ours or request[2] != ZAP_DOMAIN or request[5] != b"CURVE":
        return ""
    return z85.encode(request[6]).decode()


def _find_address(request: list[bytes]) -> str:
    """Return the peer's address, without a port; empty where the request is incomplete."""
    return request[3].decode(errors="replace") if len(request) == _CURVE_FRAMES else ""
