"""The server of ZeroMQ's protocol with real sockets: peers of libzmq, and some that send what those never would."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rankscope.collector.zmtp.commands import PONG
from rankscope.collector.zmtp.curve import make_curve
from rankscope.collector.zmtp.frames import build_frame
from rankscope.collector.zmtp.listening import Listening
from rankscope.collector.zmtp.null import NULL
from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, BROKEN_PROTOCOL, OPEN_FILES, TOO_LARGE
from rankscope.collector.zmtp.server import (
    ACCEPT_AGAIN_NS,
    ACCEPTS_PER_TURN_MAX,
    FULL,
    HANDSHAKES_PER_TURN_MAX,
    SENDS_WAITING_MAX,
    UNROUTABLE,
    Heard,
)
from rankscope.collector.zmtp.session import Session
from rankscope.measure.units import ns_to_s
from tests.integration.zmtp_serving import (
    DEADLINE_S,
    HANDSHAKE_NS,
    PART_BYTES_MAX,
    Serving,
    closing,
    read_to_the_end,
    shake_hands,
)
from tests.zmtp_peer import CurvePeer, NullPeer, make_keys, take_outgoing

KEYS = make_keys()


@pytest.fixture
def serving() -> Iterator[Serving]:
    """One without keys."""
    found = Serving()
    yield found
    found.close()


# -- who is who -------------------------------------------------------------------------------------------------------


def test_a_peer_is_called_what_it_calls_itself_and_one_without_a_name_gets_one(serving: Serving) -> None:
    serving.dial(b"me").send(b"named")
    anonymous = serving.dial()
    anonymous.send(b"unnamed")
    names = {heard.body: heard.name for heard in serving.hear(2)}
    assert names == {b"named": b"me", b"unnamed": b"\0" + (1).to_bytes(8, "big")}
    assert serving.server.send(names[b"unnamed"], b"you") is None
    assert anonymous.recv() == b"you"


def test_nobody_takes_a_name_that_begins_with_a_zero_byte(serving: Serving) -> None:
    caller = serving.call()
    caller.sendall(b"".join(NullPeer(b"\0\x08relay-n1boot-one").introduction) + build_frame(b"hello"))
    ((name, *_),) = serving.hear(1)
    assert name == b"\0" + (1).to_bytes(8, "big")
    assert serving.server.send(b"\0\x08relay-n1boot-one", b"for somebody else") == UNROUTABLE


def test_who_comes_back_takes_his_place_and_the_old_connection_ends(serving: Serving) -> None:
    old = serving.introduce(b"me")
    new = serving.introduce(b"me")
    read_to_the_end(old, serving)
    assert serving.server.peers == 1
    serving.server.send(b"me", b"still there?")
    assert new.recv(65536).endswith(b"still there?")


def test_who_has_another_key_does_not_take_the_place_of_one_who_is_there() -> None:
    with closing(Serving(make_curve(KEYS, lambda _key: True))) as serving:
        answers = []
        for peer in (CurvePeer(KEYS.public, routing_id=b"me"), CurvePeer(KEYS.public, routing_id=b"me")):
            shake_hands(serving, peer).sendall(peer.seal(b"mine"))
            answers += [(heard.name, heard.key == peer.name) for heard in serving.hear(1)]
        assert answers == [(b"me", True), (b"\0" + (1).to_bytes(8, "big"), True)]
        assert serving.server.peers == 2


def test_the_same_key_does() -> None:
    with closing(Serving(make_curve(KEYS, lambda _key: True))) as serving:
        keys = make_keys()
        first, second = (CurvePeer(KEYS.public, keys, routing_id=b"me") for _ in range(2))
        old, new = shake_hands(serving, first), shake_hands(serving, second)
        read_to_the_end(old, serving)
        new.sendall(second.seal(b"mine"))
        assert serving.hear(1) == [Heard(b"me", b"mine", 1, second.name)]


# -- what is said -----------------------------------------------------------------------------------------------------


def test_a_turn_takes_as_many_messages_as_it_may_and_the_next_one_goes_on(serving: Serving) -> None:
    me, other = serving.introduce(b"me"), serving.introduce(b"other")
    me.sendall(b"".join(build_frame(b"%d" % number) for number in range(10)))
    other.sendall(build_frame(b"last"))
    came: list[Heard] = []
    while len(came) < 11:
        turn = serving.turn(messages_max=4)
        assert len(turn) <= 4
        came += turn
        assert serving.server.is_amid == (len(turn) == 4)
    assert [heard.body for heard in came if heard.name == b"me"] == [b"%d" % number for number in range(10)]


def test_a_message_that_comes_byte_by_byte_is_heard_once_it_is_whole(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    for byte in build_frame(b"x" * 300):
        assert serving.heard == []
        caller.sendall(bytes((byte,)))
        serving.turn()
    assert serving.hear(1) == [Heard(b"me", b"x" * 300, 1, "")]


def test_large_messages_of_two_at_once_come_whole(serving: Serving) -> None:
    bodies = {b"one": os.urandom(PART_BYTES_MAX), b"two": os.urandom(PART_BYTES_MAX // 2)}
    for name, body in bodies.items():
        serving.dial(name).send(body)
    assert {heard.name: heard.body for heard in serving.hear(2)} == bodies


def test_what_came_before_a_peer_went_is_heard(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    caller.sendall(build_frame(b"my last word"))
    caller.close()
    assert [heard.body for heard in serving.hear(1)] == [b"my last word"]
    serving.until(lambda: serving.server.peers == 0)
    assert serving.server.refused == {}


def test_libzmq_s_heartbeats_are_answered_and_it_stays() -> None:
    session, pongs = Session(NULL, PART_BYTES_MAX), 0
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.setsockopt(zmq.HEARTBEAT_IVL, 20)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(1000 * DEADLINE_S))
        dealer.connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        accepted, _ = listening.accept()
        with accepted:
            while pongs < 5:
                accepted.sendall(take_outgoing(session))
                data = accepted.recv(65536)
                assert data, f"it has gone after {pongs} answers"
                assert list(session.take(data)) == []
                pongs += session.outgoing.count(PONG)


@pytest.mark.parametrize(
    ("said", "reason"),
    [(b"\x02" + (PART_BYTES_MAX + 1).to_bytes(8, "big"), TOO_LARGE), (b"\xff\xff", BROKEN_PROTOCOL)],
)
def test_who_says_what_is_no_frame_or_too_large_is_cut_off(serving: Serving, said: bytes, reason: str) -> None:
    caller = serving.introduce(b"me")
    caller.sendall(build_frame(b"good") + said)
    read_to_the_end(caller, serving)
    assert [heard.body for heard in serving.heard] == [b"good"]
    assert (serving.server.cut_off, serving.server.refused, serving.server.peers) == ({reason: 1}, {}, 0)
    assert serving.server.send(b"me", b"gone") == UNROUTABLE


# -- what is answered -------------------------------------------------------------------------------------------------


def test_what_a_slow_reader_has_waiting_comes_in_order_when_it_reads(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    sizes = [200_000 + number for number in range(200)]
    sent = 0
    while serving.server.send(b"me", bytes(sizes[sent])) is None:
        sent += 1
    assert sent >= SENDS_WAITING_MAX
    assert serving.server.send(b"me", b"more") == FULL
    caller.setblocking(False)
    received = bytearray()

    def has_all() -> bool:
        with contextlib.suppress(BlockingIOError):
            received.extend(caller.recv(2**20))
        return len(received) >= len(head) + sum(9 + size for size in sizes[:sent])

    head = b"".join(NullPeer(b"").introduction).replace(b"DEALER", b"ROUTER")
    serving.until(has_all)
    frames = read_frames_of(bytes(received)[len(head) :])
    assert [len(body) for body in frames] == sizes[:sent]
    assert serving.server.send(b"me", b"there is room again") is None


def read_frames_of(data: bytes) -> list[bytes]:
    """The bodies of large frames."""
    bodies = []
    while data:
        size = int.from_bytes(data[1:9], "big")
        bodies.append(data[9 : 9 + size])
        data = data[9 + size :]
    return bodies


def test_an_answer_to_one_who_has_gone_finds_nobody(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # it ends with a reset
    caller.close()
    outcomes = set()
    end_s = time.monotonic() + DEADLINE_S
    while UNROUTABLE not in outcomes and time.monotonic() < end_s:
        outcomes.add(serving.server.send(b"me", b"anybody?"))
    assert outcomes <= {None, UNROUTABLE}
    assert serving.server.peers == 0


def test_one_who_goes_while_he_is_answered_ends_quietly(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    caller.sendall(build_frame(b"one") + build_frame(b"two"))
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    bodies: list[bytes] = []
    end_s = time.monotonic() + DEADLINE_S
    while not bodies and time.monotonic() < end_s:
        for heard in serving.server.take(serving.server.wait(5), 100):
            bodies.append(heard.body)
            caller.close()
            while serving.server.send(b"me", b"answer") is None and time.monotonic() < end_s:
                pass
    assert bodies == [b"one", b"two"]  # what has come has come
    assert (serving.server.peers, serving.server.refused, serving.server.cut_off) == (0, {}, {})


# -- who is not let in ------------------------------------------------------------------------------------------------


def test_who_does_not_say_who_he_is_in_time_is_cut_off_and_others_stay(serving: Serving) -> None:
    known = serving.introduce(b"me")
    silent, slow = serving.call(), serving.call()
    slow.sendall(b"\xff")
    serving.until(lambda: serving.server.peers == 3)
    serving.clock.now_s += ns_to_s(HANDSHAKE_NS) - 0.001
    serving.turn()
    assert serving.server.peers == 3
    serving.clock.now_s += 0.002
    for caller in (silent, slow):
        read_to_the_end(caller, serving)
    assert (serving.server.peers, serving.server.refused) == (1, {BROKEN_HANDSHAKE: 2})
    known.sendall(build_frame(b"still here"))
    assert [heard.body for heard in serving.hear(1)] == [b"still here"]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"", b"\xff" + bytes(30)])
def test_who_speaks_something_else_or_goes_again_is_counted(serving: Serving, said: bytes) -> None:
    caller = serving.call()
    caller.sendall(said)
    serving.until(lambda: serving.server.peers == 1)
    caller.close()
    serving.until(lambda: serving.server.refused == {BROKEN_HANDSHAKE: 1})
    assert serving.server.peers == 0


def test_one_more_than_there_is_room_for_is_turned_away_at_once_and_told_by_the_counts() -> None:
    with closing(Serving(peers_max=2)) as serving:
        first, _second = serving.introduce(b"one"), serving.introduce(b"two")
        assert read_to_the_end(serving.call(), serving) == b""
        assert (serving.server.peers, serving.server.refused) == (2, {OPEN_FILES: 1})
        first.close()
        serving.until(lambda: serving.server.peers == 1)
        serving.introduce(b"three")


def test_who_says_nothing_makes_place_for_who_does_when_there_is_no_room_left() -> None:
    with closing(Serving(peers_max=3)) as serving:
        serving.introduce(b"one")
        silent = [serving.call(), serving.call()]
        serving.until(lambda: serving.server.peers == 3)
        serving.introduce(b"two")
        assert read_to_the_end(silent[0], serving) == b"\xff" + bytes(8) + b"\x7f\x03"
        assert (serving.server.peers, serving.server.refused) == (3, {BROKEN_HANDSHAKE: 1})


def test_where_the_kernel_has_no_file_left_it_is_not_asked_again_for_a_second(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    class Full:
        def accept(self) -> None:
            nonlocal asked
            asked += 1
            raise OSError(errno.EMFILE, "Too many open files")

    known = serving.introduce(b"me")
    serving.call()
    with monkeypatch.context() as full:
        full.setattr(serving.listening, "socket", Full())
        serving.until(lambda: asked)
        known.sendall(build_frame(b"heard meanwhile"))
        assert [heard.body for heard in serving.hear(1)] == [b"heard meanwhile"]
        serving.clock.now_s += ns_to_s(ACCEPT_AGAIN_NS) - 0.001
        serving.turn()
        assert (asked, serving.server.refused) == (1, {OPEN_FILES: 1})
    serving.clock.now_s += 0.002
    serving.until(lambda: serving.server.peers == 2)


def test_a_storm_is_let_in_some_at_a_time_and_who_is_in_is_heard_between(serving: Serving) -> None:
    known = serving.introduce(b"me")
    crowd = max(ACCEPTS_PER_TURN_MAX, HANDSHAKES_PER_TURN_MAX) + 50
    callers = [serving.call() for _ in range(crowd)]
    for number, caller in enumerate(callers):
        caller.sendall(b"".join(NullPeer(b"peer-%d" % number).introduction) + build_frame(b"hello"))
    known.sendall(build_frame(b"heard"))
    serving.until(lambda: len(serving.heard) > crowd, messages_max=10_000)
    bodies = [heard.body for heard in serving.heard]
    assert bodies.count(b"hello") == crowd
    assert bodies.index(b"heard") <= HANDSHAKES_PER_TURN_MAX
    assert len({heard.name for heard in serving.heard}) == crowd + 1


# -- where it listens -------------------------------------------------------------------------------------------------


def test_a_path_that_was_left_behind_is_taken_over_and_one_in_use_is_not(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/wire"
    left = Listening(endpoint, 1)
    left.socket.close()  # as when it is killed
    with closing(Serving(endpoint=endpoint)) as serving:
        with pytest.raises(OSError, match="Address already in use"):
            Listening(endpoint, 1)
        serving.dial(b"me").send(b"by path")
        assert [heard.body for heard in serving.hear(1)] == [b"by path"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "wire").write_text("mine")
    with pytest.raises(OSError, match="Address already in use"):
        Listening(f"ipc://{tmp_path}/wire", 1)
    assert (tmp_path / "wire").read_text() == "mine"


def test_a_name_is_looked_up_for_ipv4_as_agents_do() -> None:
    with contextlib.closing(Listening("tcp://localhost:0", 1)) as listening:
        assert listening.endpoint.startswith("tcp://127.0.0.1:")
    with pytest.raises(OSError, match=r"not known|resolution"):
        Listening("tcp://no-such-host.invalid:0", 1)


def test_close_ends_everything_and_may_be_called_twice(serving: Serving) -> None:
    caller = serving.introduce(b"me")
    serving.server.close()
    serving.server.close()
    assert caller.recv(65536).startswith(b"\xff")
    assert caller.recv(65536) == b""
