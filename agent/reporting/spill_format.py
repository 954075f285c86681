"""Encodes and decodes spill files: a sequence of records with checksums, which reveal torn ones. Pure.

    kind: u8 | sequence: u64 | step_count: u32 | length: u32 | crc32: u32 | body: `length` bytes        all big-endian

    HELLO      first in every file; the body is the Hello frame of the rank process, with which others deliver for it
    REPORT     a numbered message as it is sent
    RELEASED   everything up to `sequence` was acknowledged; no body

The checksum is over everything before it and the body. After a damaged record reading continues at the next bytes that
look like the head of a record and have the right checksum. A record torn by the end of its process is the last one.
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
"""A kind and the first bytes of a number below 2**40, which no rank process reaches."""

HEAD_BYTES: Final = _FIELDS.size + _CHECKSUM.size
"""Bytes of a record without its body."""


class Record(NamedTuple):
    """One record. `offset` is its position in the file."""

    kind: int
    sequence: int
    step_count: int
    body: bytes
    offset: int = 0

    @property
    def end(self) -> int:
        """Position of the next record."""
        return self.offset + HEAD_BYTES + len(self.body)


def encode_record(kind: int, sequence: int, body: bytes = b"", step_count: int = 0) -> bytes:
    """Return a record as bytes."""
    fields = _FIELDS.pack(kind, sequence, step_count, len(body))
    return fields + _CHECKSUM.pack(_checksum(fields, body)) + body


def decode_record(block: bytes, offset: int) -> Record | None:
    """Return the record that begins at `offset`; None if there is no intact one.

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
    """Yield the intact records in order. A gap between two of them is damaged.

    >>> first, second, third = (encode_record(REPORT, sequence, b"frame") for sequence in (7, 8, 9))
    >>> [record.sequence for record in decode_records(first + second[1:] + third)]
    [7, 9]
    """
    record = decode_record(block, 0) or _find_record(block, 0)
    while record is not None:
        yield record
        record = decode_record(block, record.end) or _find_record(block, record.end)


def _find_record(block: bytes, offset: int) -> Record | None:
    """Return the first intact record at or after `offset`; None if there is none."""
    starts = _SEEMS_TO_BEGIN.finditer(block, offset)
    return next((record for start in starts if (record := decode_record(block, start.start())) is not None), None)


def _checksum(fields: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(fields))
