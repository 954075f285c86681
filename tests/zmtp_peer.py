"""The other side of ZMTP, byte by byte, as libzmq's own clients do it: for what those cannot be made to say."""

import secrets
from collections.abc import Callable
from typing import Final

from nacl.bindings import crypto_box_afternm, crypto_box_beforenm, crypto_box_keypair, crypto_box_open_afternm
from zmq.utils import z85

from rankscope.collector.zmtp.commands import READY
from rankscope.collector.zmtp.curve import ServerKeys
from rankscope.collector.zmtp.frames import COMMAND, FrameReader, build_frame
from rankscope.collector.zmtp.greeting import GREETING_BYTES, build_greeting
from rankscope.collector.zmtp.session import Session, Told

FRAME_BYTES_MAX: Final = 10_000


def build_properties(routing_id: bytes, kind: bytes = b"DEALER") -> bytes:
    """What a socket of that kind says of itself."""
    pairs = [(b"Socket-Type", kind), (b"Identity", routing_id)]
    return b"".join(bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in pairs)


class NullPeer:
    """One that has no keys."""

    def __init__(self, routing_id: bytes = b"boot-one") -> None:
        self.introduction = [
            build_greeting(b"NULL", as_server=False),
            build_frame(READY + build_properties(routing_id), COMMAND),
        ]

    def seal(self, body: bytes, flags: int = 0) -> bytes:
        """The bytes of a message."""
        return build_frame(body, flags)


def make_keys() -> ServerKeys:
    """Anybody's."""
    return ServerKeys(*crypto_box_keypair())


class CurvePeer:
    """One with keys; each of its three steps can be made to go wrong by a change of what it would have said."""

    def __init__(self, server_public: bytes, keys: ServerKeys | None = None, routing_id: bytes = b"boot-one") -> None:
        self.keys = keys or make_keys()
        self.name = z85.encode(self.keys.public).decode()
        self._server_public = server_public
        self._routing_id = routing_id
        self.public, self._secret = crypto_box_keypair()
        self._nonce = 0
        self._key = b""
        self.greeting = build_greeting(b"CURVE", as_server=False)

    def hello(self, public: bytes | None = None, zeros: bytes = bytes(64)) -> bytes:
        """HELLO, with its own key of this connection or with another one."""
        nonce = self._next_nonce()
        key = crypto_box_beforenm(self._server_public, self._secret)
        box = crypto_box_afternm(zeros, b"CurveZMQHELLO---" + nonce, key)
        return build_frame(b"\x05HELLO\x01\x00" + bytes(72) + (public or self.public) + nonce + box, COMMAND)

    def take_welcome(self, body: bytes) -> bytes:
        """Agree on a key; the cookie."""
        assert body.startswith(b"\x07WELCOME")
        key = crypto_box_beforenm(self._server_public, self._secret)
        said = crypto_box_open_afternm(body[24:], b"WELCOME-" + body[8:24], key)
        self._server_short = said[:32]
        self._key = crypto_box_beforenm(self._server_short, self._secret)
        return said[32:]

    def initiate(
        self,
        cookie: bytes,
        *,
        properties: bytes | None = None,
        vouched: bytes | None = None,
        client: bytes | None = None,
        nonce: bytes | None = None,
    ) -> bytes:
        """INITIATE. `vouched` is what the key that it is known by vouches for, `client` the one it says to have."""
        nonce = nonce or self._next_nonce()
        vouch_nonce = secrets.token_bytes(16)
        vouch = crypto_box_afternm(
            vouched or self.public + self._server_public,
            b"VOUCH---" + vouch_nonce,
            crypto_box_beforenm(self._server_short, self.keys.secret),
        )
        said = (client or self.keys.public) + vouch_nonce + vouch
        said += build_properties(self._routing_id) if properties is None else properties
        box = crypto_box_afternm(said, b"CurveZMQINITIATE" + nonce, self._key)
        return build_frame(b"\x08INITIATE" + cookie + nonce + box, COMMAND)

    def open_ready(self, body: bytes) -> bytes:
        """What a server says of itself."""
        assert body.startswith(READY)
        return crypto_box_open_afternm(body[14:], b"CurveZMQREADY---" + body[6:14], self._key)

    def open(self, body: bytes) -> tuple[int, bytes]:
        """The flags and the body of a message of the server."""
        said = crypto_box_open_afternm(body[16:], b"CurveZMQMESSAGES" + body[8:16], self._key)
        return said[0], said[1:]

    def seal(self, body: bytes, flags: int = 0, nonce: bytes | None = None) -> bytes:
        """The bytes of a message, or of a command; flags are those within."""
        nonce = nonce or self._next_nonce()
        box = crypto_box_afternm(bytes((flags,)) + body, b"CurveZMQMESSAGEC" + nonce, self._key)
        return build_frame(b"\x07MESSAGE" + nonce + box)

    def _next_nonce(self) -> bytes:
        self._nonce += 1
        return self._nonce.to_bytes(8, "big")


def take_outgoing(session: Session) -> bytes:
    """What a session wants to have sent, which is sent now."""
    outgoing, session.outgoing = session.outgoing, b""
    return outgoing


def read_frames(data: bytes) -> list[tuple[int, bytes]]:
    """All frames in these bytes."""
    return list(FrameReader(FRAME_BYTES_MAX).feed(data))


def say(session: Session, *data: bytes) -> list[Told]:
    """What a session takes from these bytes, one piece after the other."""
    return [told for piece in data for told in session.take(piece)]


def acquaint(
    session: Session, peer: CurvePeer, change: Callable[[bytes], bytes] = bytes, then: bytes = b""
) -> list[Told]:
    """Lead a peer with keys through the handshake, its INITIATE by way of `change`; what comes of what it says with
    that.
    """
    say(session, peer.greeting)
    assert len(take_outgoing(session)) == GREETING_BYTES
    say(session, peer.hello())
    ((_, welcome),) = read_frames(take_outgoing(session))
    return say(session, change(peer.initiate(peer.take_welcome(welcome))) + then)
