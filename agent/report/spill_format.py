"""The bytes of a spill file: records one behind the other, each with a checksum, so that a torn one is seen. Pure.

    kind: u8 | sequence: u64 | step_count: u32 | length: u32 | crc32: u32 | body: `length` bytes        all big-endian

    HELLO      first in every file; the body is the frame of the life's Hello, by which others can speak for it
    REPORT     a numbered message as it goes over the wire
    RELEASED   everything up to `sequence` was acknowledged; no body

The checksum is over everything before it and the body. Behind a record that is not whole, because a disk has lost or
changed some of it, reading goes on with the next one that is: bytes that look like the head of a record and have the
right checksum. What a process was writing when it was killed has no such record behind it.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

HELLO: Final = 1
REPORT: Final = 2
RELEASED: Final = 3
_KINDS: Final = frozenset({HELLO, REPORT, RELEASED})

_FIELDS: Final = struct.Struct(">BQII")
_CHECKSUM: Final = struct.Struct(">I")
_SEEMS_TO_BEGIN: Final = re.compile(rb"[\x01-\x03]\x00\x00\x00")
"""A kind, and the first bytes of a number below 2**40, which no life gets to."""

HEAD_BYTES: Final = _FIELDS.size + _CHECKSUM.size
"""Bytes of a record without its body."""


class Record(NamedTuple):
    """One record. `offset` is where it begins in its file."""

    kind: int
    sequence: int
    step_count: int
    body: bytes
    offset: int = 0

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + HEAD_BYTES + len(self.body)


def encode_record(kind: int, sequence: int, body: bytes = b"", step_count: int = 0) -> bytes:
    """One record as bytes."""
    fields = _FIELDS.pack(kind, sequence, step_count, len(body))
    return fields + _CHECKSUM.pack(_checksum(fields, body)) + body


def decode_record(block: bytes, offset: int) -> Record | None:
    """The record that begins there; None when there is no whole one.

    >>> block = encode_record(REPORT, 7, b"frame", step_count=3)
    >>> decode_record(block, 0)
    Record(kind=2, sequence=7, step_count=3, body=b'frame', offset=0)
    >>> decode_record(block[:-1], 0) is None
    True
    """
    body_at = offset + HEAD_BYTES
    if body_at > len(block):
        return None
    fields = block[offset : offset + _FIELDS.size]
    kind, sequence, step_count, length = _FIELDS.unpack(fields)
    if kind not in _KINDS or body_at + length > len(block):
        return None
    body = block[body_at : body_at + length]
    (checksum,) = _CHECKSUM.unpack_from(block, offset + _FIELDS.size)
    if checksum != _checksum(fields, body):
        return None
    return Record(kind, sequence, step_count, body, offset)


def decode_records(block: bytes) -> Iterator[Record]:
    """Return the whole records in order. Damage lies between two of them where one ends before the next begins.

    >>> first, second, third = (encode_record(REPORT, sequence, b"frame") for sequence in (7, 8, 9))
    >>> [record.sequence for record in decode_records(first + second[1:] + third)]
    [7, 9]
    """
    record = decode_record(block, 0) or _find_record(block, 0)
    while record is not None:
        yield record
        record = decode_record(block, record.end) or _find_record(block, record.end)


def _find_record(block: bytes, offset: int) -> Record | None:
    """Return the first whole record that begins there or later; None when there is none."""
    starts = _SEEMS_TO_BEGIN.finditer(block, offset)
    return next((record for start in starts if (record := decode_record(block, start.start())) is not None), None)


def _checksum(fields: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(fields))
