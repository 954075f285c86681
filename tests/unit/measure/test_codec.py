"""Check which frames are refused, for which reason, with which text."""

import msgspec
import pytest

from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.enqueues import ENQUEUE_COLUMNS, Enqueue, Enqueues, pack_enqueues
from rankscope.measure.errors import DecodeError, DecodeReason
from rankscope.measure.messages import Ack, Hello, Message, Report
from rankscope.measure.records import Collectives
from rankscope.measure.table import Table

HEADER = b"RSCP\x00\x01"


def frame(kind: int, *body: object) -> bytes:
    return HEADER + bytes([kind]) + msgspec.msgpack.encode(body)


def refusal(bytes_of_a_peer: bytes) -> tuple[DecodeReason, str]:
    with pytest.raises(DecodeError) as caught:
        decode(bytes_of_a_peer)
    return caught.value.reason, str(caught.value)


def collectives_of(group: int, op: int) -> Collectives:
    return Collectives(("world",), ("barrier",), Table.from_rows(("group", "op"), [(group, op)]))


def test_frame_is_magic_protocol_kind_and_fields_in_order() -> None:
    # 0x91: a list of one; 7: itself.
    assert encode(Ack(through=7)) == b"RSCP" + bytes([0, 1, 4, 0x91, 7])


def test_frame_over_the_limit_is_refused_before_decoding() -> None:
    reason, text = refusal(bytes(FRAME_BYTES_MAX + 1))
    assert reason is DecodeReason.TOO_LARGE
    assert text == "too_large: 8388609 bytes, the limit is 8388608"


@pytest.mark.parametrize("size", range(7))
def test_a_frame_shorter_than_a_header_is_refused(size: int) -> None:
    assert refusal(encode(Ack(through=7))[:size]) == (
        DecodeReason.TOO_SHORT,
        f"too_short: {size} bytes, a header has 7",
    )


def test_bytes_of_somebody_else_are_refused_by_their_start() -> None:
    assert refusal(b"GET / HTTP/1.1\r\n\r\n") == (
        DecodeReason.BAD_MAGIC,
        "bad_magic: starts with b'GET ', a frame starts with b'RSCP'",
    )


@pytest.mark.parametrize(
    ("protocol", "reason", "where"),
    [
        (0, DecodeReason.PROTOCOL_TOO_OLD, "in the sender"),
        (2, DecodeReason.PROTOCOL_TOO_NEW, "on this side"),
        (65535, DecodeReason.PROTOCOL_TOO_NEW, "on this side"),
    ],
)
def test_another_protocol_is_refused_with_who_has_to_upgrade(protocol: int, reason: DecodeReason, where: str) -> None:
    text = f"{reason.value}: protocol {protocol}, this side speaks 1 to 1; upgrade rankscope {where}"
    assert refusal(b"RSCP" + protocol.to_bytes(2, "big") + b"\x04\x91\x07") == (reason, text)


@pytest.mark.parametrize("kind", [0, 28, 255])
def test_unknown_kind_is_refused_with_the_known_ones(kind: int) -> None:
    reason, text = refusal(frame(kind))
    assert reason is DecodeReason.UNKNOWN_KIND
    assert text == f"unknown_kind: kind {kind}; known here are {list(range(1, 28))}"


@pytest.mark.parametrize(
    "bad",
    [
        HEADER + b"\x04",
        HEADER + b"\x04\xc1",
        frame(4),
        frame(4, "seven"),
        frame(4, -1),
        frame(4, 1) + b"\x00",
        frame(6, "x" * 1025, ""),
        HEADER + b"\x06\x92\xa1\xff\xa0",
        HEADER + b"\x03" + b"\x91" * 100_000,
    ],
    ids=["none", "no msgpack", "no field", "a text", "negative", "more after it", "long text", "no utf-8", "too deep"],
)
def test_a_body_that_is_no_such_message_is_refused(bad: bytes) -> None:
    assert refusal(bad)[0] is DecodeReason.BAD_BODY


def test_the_refusal_of_a_body_says_which_kind_and_which_field() -> None:
    assert "kind 4: " in refusal(frame(4, "seven"))[1]
    assert "$[0]" in refusal(frame(4, "seven"))[1]


def test_report_whose_steps_differ_from_their_count_is_refused() -> None:
    report = Report(sequence=1, host_ns=0, steps=Table(("step",), 2, bytes(8)))
    assert refusal(encode(report)) == (
        DecodeReason.BAD_TABLE,
        "bad_table: 8 bytes of data where 16 were announced",
    )


def test_report_whose_collectives_differ_from_count_is_refused() -> None:
    report = Report(sequence=1, host_ns=0, collectives=Collectives(table=Table(("step",), 2, bytes(8))))
    assert refusal(encode(report))[0] is DecodeReason.BAD_TABLE


@pytest.mark.parametrize(
    ("group", "op", "wrong"), [(1, 0, "group"), (-1, 0, "group"), (0, 1, "op"), (0, -(2**63), "op")]
)
def test_collective_without_a_group_or_operation_is_refused(group: int, op: int, wrong: str) -> None:
    report = Report(sequence=1, host_ns=0, collectives=collectives_of(group, op))
    assert refusal(encode(report)) == (
        DecodeReason.BAD_TABLE,
        f"bad_table: a collective's {wrong} is outside its list of 1",
    )


@pytest.mark.parametrize("names", [(), ("group-0",)])
def test_enqueue_without_a_group_is_refused(names: tuple[str, ...]) -> None:
    enqueues = Enqueues(names, Table.from_rows(ENQUEUE_COLUMNS, [(4, 1, 7, 1_000)]))
    assert refusal(encode(Report(sequence=1, host_ns=0, enqueues=enqueues))) == (
        DecodeReason.BAD_TABLE,
        f"bad_table: a collective's group is outside its list of {len(names)}",
    )


def test_enqueues_that_differ_from_their_count_are_refused() -> None:
    enqueues = Enqueues(table=Table(("step",), 2, bytes(8)))
    assert refusal(encode(Report(sequence=1, host_ns=0, enqueues=enqueues)))[0] is DecodeReason.BAD_TABLE


@pytest.mark.parametrize("enqueues", [Enqueues(steps=((4, 5),)), pack_enqueues([Enqueue(4, "g", 7, 1_000)], [(4, 4)])])
def test_enqueues_with_or_without_rows_are_accepted(enqueues: Enqueues) -> None:
    report = Report(sequence=1, host_ns=0, enqueues=enqueues)
    assert decode(encode(report)) == report


def test_collective_with_a_group_and_operation_is_accepted() -> None:
    report = Report(sequence=1, host_ns=0, collectives=collectives_of(0, 0))
    assert decode(encode(report)) == report


def test_a_message_of_no_fields_has_an_empty_body() -> None:
    assert isinstance(decode(frame(5)), Message)


def test_a_rank_that_cannot_be_is_refused_in_a_hello() -> None:
    identity = ("run", -1, 0, 1, "node", 0, "0123456789abcdef", 1)
    reason, text = refusal(frame(Hello.KIND, identity, 1, 0, 0, 0))
    assert reason is DecodeReason.BAD_BODY
    assert "$[0][1]" in text
