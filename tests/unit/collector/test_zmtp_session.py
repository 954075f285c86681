"""A connection without its socket: handshakes that go well, and every way in which one can be false."""

from collections.abc import Callable

import pytest

from rankscope.collector.zmtp.curve import CurveHandshake, ServerKeys, make_curve
from rankscope.collector.zmtp.frames import COMMAND, MORE, build_frame
from rankscope.collector.zmtp.null import NULL
from rankscope.collector.zmtp.rejection import (
    BROKEN_HANDSHAKE,
    BROKEN_PROTOCOL,
    KEY_NOT_ALLOWED,
    NO_KEYS,
    TOO_LARGE,
    UNEXPECTED_KEYS,
    WRONG_COLLECTOR_KEY,
    Rejected,
)
from rankscope.collector.zmtp.session import COMMAND_BYTES_MAX, PONGS_BYTES_MAX, Session
from tests.zmtp_peer import CurvePeer, NullPeer, acquaint, build_properties, make_keys, read_frames, say, take_outgoing

PART_BYTES_MAX = 10_000
INNER_MORE, INNER_COMMAND = 1, 2
PING = b"\x04PING\x00\x0acontext"

SERVER = make_keys()


def serve(is_allowed: Callable[[str], bool] = lambda _key: True) -> Session:
    """A session of a server with keys."""
    return Session(make_curve(SERVER, is_allowed), PART_BYTES_MAX)


def acquainted(session: Session | None = None) -> tuple[Session, CurvePeer]:
    """A session and a peer that know each other."""
    session, peer = session or serve(), CurvePeer(SERVER.public)
    acquaint(session, peer)
    take_outgoing(session)
    return session, peer


# -- without keys -----------------------------------------------------------------------------------------------------


def test_a_session_says_its_greeting_in_two_pieces_and_then_ready() -> None:
    session = Session(NULL, PART_BYTES_MAX)
    first = take_outgoing(session)
    say(session, NullPeer().introduction[0])
    rest = take_outgoing(session)
    assert (first + rest)[:64] == b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + bytes(32)
    assert rest[64 - len(first) :] == (
        b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
    )


def test_messages_come_with_the_number_of_their_parts_and_only_a_single_one_with_its_body() -> None:
    session, peer = Session(NULL, PART_BYTES_MAX), NullPeer(b"me")
    told = say(session, *peer.introduction, peer.seal(b"one"), peer.seal(b"", MORE), peer.seal(b"two"), peer.seal(b""))
    assert told == [(b"one", 1), (b"", 2), (b"", 1)]
    assert session.acquaintance is not None
    assert (session.acquaintance.routing_id, session.acquaintance.key) == (b"me", "")


def test_who_comes_with_keys_where_there_are_none_is_shown_that() -> None:
    session = Session(NULL, PART_BYTES_MAX)
    with pytest.raises(Rejected, match=UNEXPECTED_KEYS) as raised:
        say(session, CurvePeer(SERVER.public).greeting)
    assert (session.outgoing + raised.value.farewell)[12:16] == b"NULL"


def test_before_an_acquaintance_only_commands_are_taken_and_only_ready() -> None:
    for frame in (build_frame(b"hello"), build_frame(b"\x05ERROR\x00", COMMAND), build_frame(b"", COMMAND)):
        with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
            say(Session(NULL, PART_BYTES_MAX), NullPeer().introduction[0], frame)


def test_a_handshake_has_no_room_for_a_message() -> None:
    too_large = build_frame(b"\x05READY" + bytes(COMMAND_BYTES_MAX), COMMAND)
    with pytest.raises(Rejected, match=TOO_LARGE):
        say(Session(NULL, PART_BYTES_MAX), NullPeer().introduction[0], too_large[:9])


def test_nothing_is_said_before_an_acquaintance() -> None:
    with pytest.raises(ValueError, match="before both sides know each other"):
        Session(NULL, PART_BYTES_MAX).seal(b"early")


def test_a_ping_is_answered_with_its_context_and_other_commands_are_not() -> None:
    session = Session(NULL, PART_BYTES_MAX)
    say(session, *NullPeer().introduction)
    take_outgoing(session)
    told = say(session, build_frame(PING, COMMAND), build_frame(b"\x09SUBSCRIBEx", COMMAND), build_frame(b"", COMMAND))
    assert told == []
    assert take_outgoing(session) == build_frame(b"\x04PONGcontext", COMMAND)


def test_who_asks_for_ever_is_not_answered_for_ever() -> None:
    session = Session(NULL, PART_BYTES_MAX)
    say(session, *NullPeer().introduction)
    take_outgoing(session)
    say(session, build_frame(PING, COMMAND) * 10_000)
    assert len(take_outgoing(session)) < PONGS_BYTES_MAX + 32


# -- with keys --------------------------------------------------------------------------------------------------------


def test_who_has_an_allowed_key_gets_in_under_his_name_and_his_key() -> None:
    peer = CurvePeer(SERVER.public, routing_id=b"me")
    session = serve(peer.name.__eq__)
    acquaint(session, peer)
    ((flags, ready),) = read_frames(take_outgoing(session))
    assert (flags, peer.open_ready(ready)) == (COMMAND, build_properties(b"", b"ROUTER"))
    assert session.acquaintance is not None
    assert (session.acquaintance.routing_id, session.acquaintance.key) == (b"me", peer.name)


def test_messages_and_answers_are_read_in_boxes_only() -> None:
    session, peer = acquainted()
    assert say(session, peer.seal(b"secret")) == [(b"secret", 1)]
    said = session.seal(b"answer") + session.seal(b"x" * 300)
    assert b"answer" not in said
    assert [peer.open(body) for _, body in read_frames(said)] == [(0, b"answer"), (0, b"x" * 300)]


def test_flags_are_those_in_the_box() -> None:
    session, peer = acquainted()
    assert say(session, peer.seal(b"a", INNER_MORE), peer.seal(b"b")) == [(b"", 2)]
    assert say(session, peer.seal(PING, INNER_COMMAND)) == []
    ((_, body),) = read_frames(take_outgoing(session))
    assert peer.open(body) == (INNER_COMMAND, b"\x04PONGcontext")


def test_what_is_said_together_with_initiate_is_taken_too() -> None:
    session, peer = serve(), CurvePeer(SERVER.public)

    def add_messages(initiate: bytes) -> bytes:
        return initiate + peer.seal(b"one") + peer.seal(b"two")

    assert acquaint(session, peer, add_messages) == [(b"one", 1), (b"two", 1)]


def test_two_connections_have_no_key_in_common() -> None:
    (first, peer), (second, _) = acquainted(), acquainted()
    message = peer.seal(b"mine")
    with pytest.raises(Rejected, match=BROKEN_PROTOCOL):
        say(second, message)
    assert say(first, message) == [(b"mine", 1)]


def test_who_has_no_keys_is_shown_that_they_are_wanted() -> None:
    session = serve()
    with pytest.raises(Rejected, match=NO_KEYS) as raised:
        say(session, *NullPeer().introduction)
    assert (session.outgoing + raised.value.farewell)[12:17] == b"CURVE"


def test_who_is_not_allowed_is_told_so_and_not_let_in() -> None:
    session = serve(lambda _key: False)
    with pytest.raises(Rejected, match=KEY_NOT_ALLOWED) as raised:
        acquaint(session, CurvePeer(SERVER.public))
    assert raised.value.farewell == b"\x04\x0a\x05ERROR\x03400"
    assert session.acquaintance is None


def test_who_knows_another_collector_s_key_is_not_answered() -> None:
    session, peer = serve(), CurvePeer(make_keys().public)
    say(session, peer.greeting)
    take_outgoing(session)
    with pytest.raises(Rejected, match=WRONG_COLLECTOR_KEY):
        say(session, peer.hello())
    assert session.outgoing == b""


# -- who lies ---------------------------------------------------------------------------------------------------------

LOW_ORDER = bytes(32)
"""A public key with which everybody agrees on the same secret."""


def welcome(session: Session, peer: CurvePeer) -> bytes:
    """Lead a peer up to its INITIATE; the cookie."""
    say(session, peer.greeting)
    take_outgoing(session)
    say(session, peer.hello())
    ((_, body),) = read_frames(take_outgoing(session))
    return peer.take_welcome(body)


@pytest.mark.parametrize(
    "make_hello",
    [
        lambda peer: peer.hello(public=LOW_ORDER),
        lambda peer: peer.hello(zeros=b"x" * 64),
        lambda peer: peer.hello(zeros=b""),
        lambda _peer: build_frame(b"\x05HELLO", COMMAND),
        lambda peer: build_frame(b"\x05HELLO\x02\x00" + peer.hello()[10:], COMMAND),  # of CURVE 2
        lambda peer: build_frame(peer.hello()[2:] + b"x", COMMAND),
        lambda peer: build_frame(peer.hello()[2:]),  # no command
        lambda peer: peer.hello()[:2] + b"\x08INITIATE" + bytes(191),
    ],
)
def test_a_false_hello_ends_it(make_hello: Callable[[CurvePeer], bytes]) -> None:
    session, peer = serve(), CurvePeer(SERVER.public)
    say(session, peer.greeting)
    take_outgoing(session)
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        say(session, make_hello(peer))
    assert session.outgoing == b""


@pytest.mark.parametrize(
    "make_initiate",
    [
        lambda peer, _cookie: peer.initiate(bytes(96)),  # of no WELCOME
        lambda peer, cookie: peer.initiate(cookie, client=make_keys().public),  # the key of somebody else
        lambda peer, cookie: peer.initiate(cookie, client=LOW_ORDER),
        lambda peer, cookie: peer.initiate(
            cookie, vouched=make_keys().public + SERVER.public
        ),  # for another connection
        lambda peer, cookie: peer.initiate(cookie, vouched=peer.public + make_keys().public),  # for another server
        lambda peer, cookie: peer.initiate(cookie, nonce=(1).to_bytes(8, "big")),  # that of HELLO
        lambda peer, cookie: peer.initiate(cookie, properties=b"\x08Identity"),
        lambda peer, cookie: peer.initiate(cookie, properties=b""),
        lambda _peer, cookie: build_frame(b"\x08INITIATE" + cookie, COMMAND),
        lambda _peer, cookie: build_frame(b"\x08INITIATE" + cookie + bytes(8 + 144), COMMAND),
        lambda peer, cookie: peer.initiate(cookie)[:-1] + b"x",
        lambda peer, _cookie: peer.hello(),  # a second time
    ],
)
def test_a_false_initiate_ends_it(make_initiate: Callable[[CurvePeer, bytes], bytes]) -> None:
    session, peer = serve(), CurvePeer(SERVER.public)
    cookie = welcome(session, peer)
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        say(session, make_initiate(peer, cookie))
    assert session.acquaintance is None
    assert session.outgoing == b""


def test_an_initiate_that_was_heard_on_one_connection_is_of_no_use_on_another() -> None:
    heard, peer = [], CurvePeer(SERVER.public)
    first, second = serve(), serve()

    def listen(initiate: bytes) -> bytes:
        heard.append(initiate)
        return initiate

    acquaint(first, peer, listen)
    replayed = CurvePeer(SERVER.public)
    say(second, replayed.greeting, replayed.hello())
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        say(second, heard[0])


@pytest.mark.parametrize(
    "make_message",
    [
        lambda peer: peer.seal(b"again", nonce=(3).to_bytes(8, "big")),  # the one before
        lambda peer: peer.seal(b"back", nonce=(1).to_bytes(8, "big")),
        lambda peer: peer.seal(b"changed on the way")[:-1] + b"x",
        lambda _peer: build_frame(b"in the clear"),
        lambda _peer: build_frame(b"\x07MESSAGE" + b"\xff" * 8 + bytes(16)),  # no flags in it
        lambda _peer: build_frame(b""),
        lambda peer: peer.hello(),
    ],
)
def test_a_false_message_ends_it_after_those_before(make_message: Callable[[CurvePeer], bytes]) -> None:
    session, peer = acquainted()
    take = session.take(peer.seal(b"good") + make_message(peer))
    assert next(take) == (b"good", 1)
    with pytest.raises(Rejected, match=BROKEN_PROTOCOL):
        next(take)


def test_a_number_may_be_left_out_but_never_comes_twice() -> None:
    session, peer = acquainted()
    assert say(session, peer.seal(b"later", nonce=(1000).to_bytes(8, "big"))) == [(b"later", 1)]
    with pytest.raises(Rejected, match=BROKEN_PROTOCOL):
        say(session, peer.seal(b"earlier", nonce=(999).to_bytes(8, "big")))


def test_answers_are_numbered_and_no_number_comes_twice() -> None:
    session, _ = acquainted()
    numbers = [body[8:16] for _, body in read_frames(session.seal(b"a") + session.seal(b"a") + session.seal(b"a"))]
    assert numbers == [number.to_bytes(8, "big") for number in (2, 3, 4)]  # READY had the first one


def test_a_handshake_makes_keys_and_cookies_of_its_own_each_time() -> None:
    cookies = {welcome(serve(), CurvePeer(SERVER.public)) for _ in range(5)}
    assert len(cookies) == 5
    assert CurveHandshake(ServerKeys(b"", b""), lambda _key: True).begin() == b""
