"""What holds of ZMTP whatever comes, and in whatever pieces."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.collector.zmtp.curve import make_curve
from rankscope.collector.zmtp.frames import COMMAND, MORE, FrameReader, build_frame
from rankscope.collector.zmtp.mechanism import Mechanism
from rankscope.collector.zmtp.null import NULL
from rankscope.collector.zmtp.rejection import Rejected
from rankscope.collector.zmtp.session import Session, Told
from tests.zmtp_peer import CurvePeer, NullPeer, acquaint, make_keys

BYTES_MAX = 1000
SERVER = make_keys()
BODIES = st.binary(max_size=300)
CUTS = st.lists(st.integers(0, 2000), max_size=20)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    edges = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(edges)]


@given(st.lists(st.tuples(st.sampled_from([0, MORE, COMMAND]), BODIES), max_size=8), CUTS)
def test_frames_are_the_same_in_whatever_pieces_they_come(frames: list[tuple[int, bytes]], places: list[int]) -> None:
    reader = FrameReader(BYTES_MAX)
    data = b"".join(build_frame(body, flags) for flags, body in frames)
    came = [frame for piece in cut(data, places) for frame in reader.feed(piece)]
    assert [(flags & (MORE | COMMAND), body) for flags, body in came] == frames


@given(st.lists(BODIES, max_size=8), CUTS)
def test_messages_are_the_same_in_whatever_pieces_they_come(bodies: list[bytes], places: list[int]) -> None:
    session, peer = Session(NULL, BYTES_MAX), NullPeer()
    data = b"".join([*peer.introduction, *map(peer.seal, bodies)])
    assert [told for piece in cut(data, places) for told in session.take(piece)] == [(body, 1) for body in bodies]


@given(st.lists(BODIES, max_size=8), CUTS)
def test_encrypted_messages_are_too(bodies: list[bytes], places: list[int]) -> None:
    session, peer = Session(make_curve(SERVER, lambda _key: True), BYTES_MAX), CurvePeer(SERVER.public)
    acquaint(session, peer)
    data = b"".join(map(peer.seal, bodies))
    assert [told for piece in cut(data, places) for told in session.take(piece)] == [(body, 1) for body in bodies]


def take_all(session: Session, pieces: Sequence[bytes]) -> list[Told]:
    """What comes of these bytes until it is rejected, if it is: nothing else may come of them."""
    came: list[Told] = []
    try:
        for piece in pieces:
            came += session.take(piece)
    except Rejected:
        return came
    return came


@pytest.mark.parametrize("mechanism", [NULL, make_curve(SERVER, lambda _key: True)], ids=["NULL", "CURVE"])
@given(data=st.binary(max_size=400), places=CUTS)
@example(data=b"".join(NullPeer().introduction), places=[10, 11, 12])
def test_garbage_is_rejected_and_nothing_else(mechanism: Mechanism, data: bytes, places: list[int]) -> None:
    for beginning in (b"", NullPeer().introduction[0], CurvePeer(SERVER.public).greeting):
        take_all(Session(mechanism, BYTES_MAX), cut(beginning + data, places))


@given(st.binary(min_size=1, max_size=400), CUTS)
def test_among_those_with_keys_nothing_is_taken_that_is_not_in_a_box(data: bytes, places: list[int]) -> None:
    session, peer = Session(make_curve(SERVER, lambda _key: True), BYTES_MAX), CurvePeer(SERVER.public)
    acquaint(session, peer)
    assert take_all(session, cut(data, places)) == []


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(1, 255))
def test_a_box_of_which_a_bit_is_changed_is_no_message(body: bytes, place: int, change: int) -> None:
    session, peer = Session(make_curve(SERVER, lambda _key: True), BYTES_MAX), CurvePeer(SERVER.public)
    acquaint(session, peer)
    sealed = bytearray(peer.seal(body))
    sealed[place % len(sealed)] ^= change
    assert take_all(session, [bytes(sealed)]) in ([], [(body, 1)])  # the frame's own flags mean nothing
