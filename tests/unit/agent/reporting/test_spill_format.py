"""Tests of encoding and decoding spill files, with damage."""

import pytest

from rankscope.agent.reporting.spill_format import (
    HEAD_BYTES,
    HELLO,
    RELEASED,
    REPORT,
    decode_record,
    decode_records,
    encode_record,
)

LOG = [(HELLO, 0, b"who", 0), (REPORT, 7, b"frame seven", 3), (RELEASED, 7, b"", 0), (REPORT, 8, b"", 1)]


def log() -> bytes:
    return b"".join(encode_record(kind, sequence, body, steps) for kind, sequence, body, steps in LOG)


def test_records_come_back_as_they_were_written() -> None:
    assert [(r.kind, r.sequence, r.body, r.step_count) for r in decode_records(log())] == LOG


def test_each_record_begins_where_the_one_before_ends() -> None:
    records = list(decode_records(log()))
    assert [record.offset for record in records] == [0, *(record.end for record in records[:-1])]
    assert records[-1].end == len(log())


def test_a_record_without_a_body_takes_21_bytes() -> None:
    assert HEAD_BYTES == len(encode_record(RELEASED, 2**63)) == 1 + 8 + 4 + 4 + 4


@pytest.mark.parametrize("length", range(len(log())))
def test_truncated_log_keeps_records_before_the_cut(length: int) -> None:
    whole = [record for record in decode_records(log()) if record.end <= length]
    assert list(decode_records(log()[:length])) == whole


@pytest.mark.parametrize("at", range(len(log())))
@pytest.mark.parametrize("flipped", [0x01, 0x40, 0xFF])
def test_a_byte_that_changed_costs_its_own_record_only(at: int, flipped: int) -> None:
    block = bytearray(log())
    block[at] ^= flipped
    whole = [record for record in decode_records(log()) if not record.offset <= at < record.end]
    assert list(decode_records(bytes(block))) == whole


@pytest.mark.parametrize("at", range(len(log())))
def test_bytes_that_are_gone_cost_their_own_record_only(at: int) -> None:
    block = log()[:at] + log()[at + 1 :]
    whole = [record.sequence for record in decode_records(log()) if not record.offset <= at < record.end]
    assert [record.sequence for record in decode_records(block)] == whole


def test_a_damaged_length_does_not_hide_the_records_behind_it() -> None:
    """The length says that the record goes on for 4 GiB, or over the one that follows."""
    first, second, third = (encode_record(REPORT, number, b"frame") for number in (1, 2, 3))
    for length in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x20"):
        damaged = second[:13] + length + second[17:]
        assert [record.sequence for record in decode_records(first + damaged + third)] == [1, 3]


def test_an_unknown_kind_is_no_record_even_with_its_checksum() -> None:
    assert decode_record(encode_record(9, 1, b"x"), 0) is None


def test_zeros_are_no_record() -> None:
    """What a file system may leave at the end of a file after the loss of power."""
    assert list(decode_records(bytes(100))) == []
