"""The mechanism CURVE (RFC 25 and 26), the server's side. Pure, but for chance.

    client                                                server
    HELLO     C', Box[64 zeros](C'->S)               -->
                                                     <--  WELCOME   Box[S', cookie](S->C')
    INITIATE  cookie, Box[C, vouch, properties](C'->S') ->
              vouch = Box[C', S](C->S')              <--  READY     Box[properties](S'->C')
    MESSAGE   Box[flags, message](C'->S')            <->  MESSAGE   Box[flags, message](S'->C')

C and S are the keys that both sides know each other by, C' and S' such as each connection has anew: who finds out the
former one day cannot read what was said before. Box[x](A->B) is crypto_box of NaCl with the keys of A and B:
Curve25519, XSalsa20 and Poly1305, done by libsodium (PyNaCl). Its nonce is a prefix that says what it is for and a
number or chance, and is never used twice: within a connection each side counts, and a number that is not above the last
one is refused.

The cookie is there for servers that remember nothing between HELLO and INITIATE. This one does; its cookie is chance
that has to be said again.
"""

import secrets
from collections.abc import Callable
from hmac import compare_digest
from typing import Final, NamedTuple

from nacl.bindings import crypto_box_afternm, crypto_box_beforenm, crypto_box_keypair, crypto_box_open_afternm
from nacl.exceptions import CryptoError
from zmq.utils import z85

from rankscope.collector.zmtp.commands import OWN_PROPERTIES, READY, build_error, read_routing_id
from rankscope.collector.zmtp.frames import COMMAND, MORE, Frame, build_frame
from rankscope.collector.zmtp.mechanism import Acquaintance, Mechanism
from rankscope.collector.zmtp.rejection import (
    BROKEN_HANDSHAKE,
    BROKEN_PROTOCOL,
    KEY_NOT_ALLOWED,
    NO_KEYS,
    WRONG_COLLECTOR_KEY,
    Rejected,
)

_KEY_BYTES, _NONCE_BYTES, _LONG_NONCE_BYTES, _MAC_BYTES, _COOKIE_BYTES = 32, 8, 16, 16, 96
_SIGNED_ZEROS: Final = bytes(64)

_HELLO: Final = b"\x05HELLO\x01\x00" + bytes(72)
"""Its name, the version of CURVE, and zeros that make it larger than what answers it."""
_WELCOME: Final = b"\x07WELCOME"
_INITIATE: Final = b"\x08INITIATE"
_MESSAGE: Final = b"\x07MESSAGE"
_MESSAGE_NONCE: Final = slice(len(_MESSAGE), len(_MESSAGE) + _NONCE_BYTES)
_MESSAGE_BOX_AT: Final = len(_MESSAGE) + _NONCE_BYTES

_HELLO_BYTES: Final = len(_HELLO) + _KEY_BYTES + _NONCE_BYTES + len(_SIGNED_ZEROS) + _MAC_BYTES
_MORE, _COMMAND = 0x01, 0x02
"""Flags within a MESSAGE, which are not those of a frame."""
OVERHEAD_BYTES: Final = _MESSAGE_BOX_AT + _MAC_BYTES + 1
"""What a message takes more than by itself."""

_NOT_ALLOWED: Final = b"400"


class ServerKeys(NamedTuple):
    """The server's long-term pair, 32 bytes each."""

    public: bytes
    secret: bytes


def make_curve(keys: ServerKeys, is_allowed: Callable[[str], bool]) -> Mechanism:
    """CURVE for whoever knows the public one of these keys, and whose own public key, as text (Z85, RFC 32), is
    allowed.
    """
    return Mechanism(b"CURVE", NO_KEYS, as_server=True, begin_handshake=lambda: CurveHandshake(keys, is_allowed))


class CurveChannel:
    """Everything is said in boxes of the two keys that this connection has made."""

    __slots__ = ("_key", "_peer_nonce", "_sealed")

    def __init__(self, key: bytes, peer_nonce: bytes) -> None:
        self._key = key
        self._peer_nonce = peer_nonce
        self._sealed = 1  # READY is the first box of this side

    def open(self, _flags: int, body: bytes) -> Frame:
        """What is in the box; its flags are in there too, and those outside mean nothing."""
        nonce = body[_MESSAGE_NONCE]
        # Numbers of one length and most significant byte first are in the order of their bytes.
        if not body.startswith(_MESSAGE) or len(body) < OVERHEAD_BYTES or nonce <= self._peer_nonce:
            raise Rejected(BROKEN_PROTOCOL)
        said = _open_box(body[_MESSAGE_BOX_AT:], b"CurveZMQMESSAGEC" + nonce, self._key, BROKEN_PROTOCOL)
        self._peer_nonce = nonce
        inner = said[0]
        return (MORE if inner & _MORE else 0) | (COMMAND if inner & _COMMAND else 0), said[1:]

    def seal(self, body: bytes, flags: int = 0) -> bytes:
        """A frame with the next box of this side."""
        self._sealed += 1
        nonce = self._sealed.to_bytes(_NONCE_BYTES, "big")
        inner = (_MORE if flags & MORE else 0) | (_COMMAND if flags & COMMAND else 0)
        box = crypto_box_afternm(bytes((inner,)) + body, b"CurveZMQMESSAGES" + nonce, self._key)
        return build_frame(_MESSAGE + nonce + box)


class CurveHandshake:
    """Of one connection: HELLO to WELCOME, INITIATE to READY."""

    def __init__(self, keys: ServerKeys, is_allowed: Callable[[str], bool]) -> None:
        self.acquaintance: Acquaintance | None = None
        self._keys = keys
        self._is_allowed = is_allowed
        self._cookie = b""
        self._client = self._hello_nonce = self._own_secret = b""

    def begin(self) -> bytes:
        """The client speaks first."""
        return b""

    def take(self, command: bytes) -> bytes:
        """HELLO, and then INITIATE."""
        return self._take_initiate(command) if self._cookie else self._take_hello(command)

    def _take_hello(self, command: bytes) -> bytes:
        if len(command) != _HELLO_BYTES or not command.startswith(_HELLO):
            raise Rejected(BROKEN_HANDSHAKE)
        self._client, self._hello_nonce, box = _cut(command[len(_HELLO) :], _KEY_BYTES, _NONCE_BYTES)
        key = _agree(self._client, self._keys.secret)
        if _open_box(box, b"CurveZMQHELLO---" + self._hello_nonce, key, WRONG_COLLECTOR_KEY) != _SIGNED_ZEROS:
            raise Rejected(BROKEN_HANDSHAKE)
        own, self._own_secret = crypto_box_keypair()
        self._cookie = secrets.token_bytes(_COOKIE_BYTES)
        nonce = secrets.token_bytes(_LONG_NONCE_BYTES)
        answer = crypto_box_afternm(own + self._cookie, b"WELCOME-" + nonce, key)
        return build_frame(_WELCOME + nonce + answer, COMMAND)

    def _take_initiate(self, command: bytes) -> bytes:
        if not command.startswith(_INITIATE):
            raise Rejected(BROKEN_HANDSHAKE)
        cookie, nonce, box = _cut(command[len(_INITIATE) :], _COOKIE_BYTES, _NONCE_BYTES)
        if not compare_digest(cookie, self._cookie) or nonce <= self._hello_nonce:
            raise Rejected(BROKEN_HANDSHAKE)
        key = _agree(self._client, self._own_secret)
        said = _open_box(box, b"CurveZMQINITIATE" + nonce, key, BROKEN_HANDSHAKE)
        client = self._find_client(said)
        name = z85.encode(client).decode()
        if not self._is_allowed(name):
            raise Rejected(KEY_NOT_ALLOWED, build_frame(build_error(_NOT_ALLOWED), COMMAND))
        routing_id = read_routing_id(said[_VOUCHED_BYTES:])
        self.acquaintance = Acquaintance(CurveChannel(key, nonce), routing_id, name)
        own_nonce = (1).to_bytes(_NONCE_BYTES, "big")
        answer = crypto_box_afternm(OWN_PROPERTIES, b"CurveZMQREADY---" + own_nonce, key)
        return build_frame(READY + own_nonce + answer, COMMAND)

    def _find_client(self, said: bytes) -> bytes:
        """The key that the client is known by, which has vouched for the one of this connection."""
        client, nonce, vouch, _ = _cut(said, _KEY_BYTES, _LONG_NONCE_BYTES, _VOUCH_BYTES)
        vouched = _open_box(vouch, b"VOUCH---" + nonce, _agree(client, self._own_secret), BROKEN_HANDSHAKE)
        if not compare_digest(vouched, self._client + self._keys.public):
            raise Rejected(BROKEN_HANDSHAKE)
        return client


_VOUCH_BYTES: Final = 2 * _KEY_BYTES + _MAC_BYTES
_VOUCHED_BYTES: Final = _KEY_BYTES + _LONG_NONCE_BYTES + _VOUCH_BYTES


def _cut(data: bytes, *sizes: int) -> list[bytes]:
    """Pieces of these sizes, and what is left. Raises Rejected where that is less than a box has."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    if len(data) < at:
        raise Rejected(BROKEN_HANDSHAKE)
    return [*pieces, data[at:]]


def _agree(public: bytes, secret: bytes) -> bytes:
    """The key of boxes between two sides, from one's public and the other's secret one."""
    try:
        return crypto_box_beforenm(public, secret)
    except CryptoError as error:  # a public key with which everybody would agree on the same
        raise Rejected(BROKEN_HANDSHAKE) from error


def _open_box(box: bytes, nonce: bytes, key: bytes, reason: str) -> bytes:
    try:
        return crypto_box_open_afternm(box, nonce, key)
    except CryptoError as error:
        raise Rejected(reason) from error
