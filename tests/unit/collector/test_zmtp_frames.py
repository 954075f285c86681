"""Frames, greetings and commands of ZMTP, byte by byte; each expectation is written down from the RFCs."""

import pytest

from rankscope.collector.zmtp.commands import build_error, parse_properties, read_routing_id
from rankscope.collector.zmtp.frames import COMMAND, MORE, FrameReader, build_frame
from rankscope.collector.zmtp.greeting import FIRST_BYTES, build_greeting, read_mechanism
from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, BROKEN_PROTOCOL, TOO_LARGE, Rejected
from tests.zmtp_peer import build_properties


def test_a_short_frame_has_its_length_in_a_byte_and_a_longer_one_in_eight() -> None:
    assert build_frame(b"x" * 255, MORE) == b"\x01\xff" + b"x" * 255
    assert build_frame(b"x" * 256, COMMAND) == b"\x06\x00\x00\x00\x00\x00\x00\x01\x00" + b"x" * 256


def test_frames_come_out_as_they_went_in() -> None:
    frames = [(0, b""), (MORE, b"a"), (COMMAND, b"b" * 255), (0, b"c" * 256), (0, b"d" * 70_000)]
    data = b"".join(build_frame(body, flags) for flags, body in frames)
    assert [(flags & ~2, body) for flags, body in FrameReader(70_000).feed(data)] == frames


def test_a_frame_comes_when_its_last_byte_has_come_and_not_before() -> None:
    reader = FrameReader(1000)
    frame = build_frame(b"x" * 300)
    assert [list(reader.feed(frame[at : at + 1])) for at in range(len(frame) - 1)] == [[]] * (len(frame) - 1)
    assert list(reader.feed(frame[-1:] + b"\x00\x01y")) == [(2, b"x" * 300), (0, b"y")]


def test_a_frame_larger_than_allowed_is_rejected_by_its_head_after_what_came_before() -> None:
    feed = FrameReader(1000).feed(build_frame(b"good") + build_frame(bytes(1001))[:9])
    assert next(feed) == (0, b"good")
    with pytest.raises(Rejected, match=TOO_LARGE):
        next(feed)


def test_the_limit_may_be_raised_between_two_frames() -> None:
    reader = FrameReader(2)
    feed = reader.feed(build_frame(b"ab") + build_frame(b"abc"))
    next(feed)
    reader.body_bytes_max = 3
    assert next(feed) == (0, b"abc")


@pytest.mark.parametrize("flags", [0x08, 0x80, 0xFF])
def test_flags_that_nobody_knows_are_no_frame(flags: int) -> None:
    with pytest.raises(Rejected, match=BROKEN_PROTOCOL):
        list(FrameReader(1000).feed(bytes((flags, 0))))


def test_a_greeting_has_64_bytes_with_everything_in_its_place() -> None:
    greeting = build_greeting(b"CURVE", as_server=True)
    assert greeting == b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x01" + bytes(31)
    assert greeting[:FIRST_BYTES] == b"\xff" + bytes(8) + b"\x7f\x03"


def test_a_mechanism_is_read_once_the_greeting_is_whole() -> None:
    greeting = build_greeting(b"NULL", as_server=False)
    assert [read_mechanism(greeting[:size]) for size in range(64)] == [None] * 64
    assert read_mechanism(greeting + b"more") == b"NULL"


@pytest.mark.parametrize(
    "beginning",
    [
        b"G",  # HTTP
        b"\x16\x03\x01",  # TLS
        b"\x01\x00",  # ZMTP 1: the frame of a routing id
        b"\xff" + bytes(8) + b"\x7e",  # ZMTP 1 with a long routing id
        b"\xff" + bytes(8) + b"\x7f\x01",  # ZMTP 2
    ],
)
def test_what_cannot_become_a_greeting_is_rejected_by_its_first_bytes(beginning: bytes) -> None:
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        read_mechanism(beginning)


def test_names_of_properties_are_the_same_in_small_letters_and_in_large_ones() -> None:
    assert parse_properties(b"\x03KeY\x00\x00\x00\x02ab\x03key\x00\x00\x00\x00") == {b"key": b""}
    assert parse_properties(b"") == {}


@pytest.mark.parametrize(
    "data", [b"\x03ab", b"\x03abc", b"\x03abc\x00\x00\x00", b"\x03abc\x00\x00\x00\x03xy", b"\x01a\xff\xff\xff\xff"]
)
def test_properties_that_end_too_early_are_none(data: bytes) -> None:
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        parse_properties(data)


@pytest.mark.parametrize("kind", [b"DEALER", b"REQ", b"ROUTER"])
def test_whoever_goes_with_a_router_may_have_a_name_of_up_to_255_bytes(kind: bytes) -> None:
    assert read_routing_id(build_properties(b"n" * 255, kind)) == b"n" * 255
    with pytest.raises(Rejected):
        read_routing_id(build_properties(b"n" * 256, kind))


@pytest.mark.parametrize("kind", [b"SUB", b"PULL", b"PEER", b"", b"dealer"])
def test_other_sockets_do_not_go_with_a_router(kind: bytes) -> None:
    with pytest.raises(Rejected, match=BROKEN_HANDSHAKE):
        read_routing_id(build_properties(b"name", kind))


def test_an_error_has_its_status_behind_its_length() -> None:
    assert build_error(b"400") == b"\x05ERROR\x03400"
