"""Encode messages as frames and decode them. A frame is

    magic `RSCP` | protocol: u16 | kind: u8 | body: msgpack array of the message's fields

all big-endian. Sizes are checked before anything is decoded, and any malformed frame raises DecodeError, nothing else.
"""

import struct
import sys
from collections.abc import Sequence

import msgspec

from rankscope.measure.enqueues import Enqueues
from rankscope.measure.errors import DecodeError, DecodeReason
from rankscope.measure.messages import AGENT_MESSAGES, Message, Report
from rankscope.measure.table import Table

NODE_MESSAGES = "rankscope.measure.node_messages"
MAGIC = b"RSCP"
PROTOCOL = 1
PROTOCOL_MIN = 1
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Largest frame. The largest one that an agent sends, 4,096 steps with 16 collectives each, is under 4 MiB."""

_HEADER = struct.Struct(">4sHB")
_ENCODER = msgspec.msgpack.Encoder()
_decoders: dict[bytes, msgspec.msgpack.Decoder[Message]] = {}
"""Decoders by frame header, built on first use: building one takes up to 1 ms, and agents decode no reports."""


def encode(message: Message) -> bytes:
    """Return one message as one frame."""
    return _HEADER.pack(MAGIC, PROTOCOL, message.KIND) + _ENCODER.encode(message)


def decode(frame: bytes) -> Message:
    """Return one frame as its message, of the types that this process has imported: a rank knows none of
    `node_messages.py`. Raises DecodeError, and nothing else, for any other bytes.
    """
    if len(frame) > FRAME_BYTES_MAX:
        raise DecodeError(DecodeReason.TOO_LARGE, f"{len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
    header = frame[: _HEADER.size]
    decoder = _decoders.get(header) or _make_decoder(header)
    try:
        message = decoder.decode(find_body(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DecodeError(DecodeReason.BAD_BODY, f"kind {header[-1]}: {error}") from error
    if isinstance(message, Report):
        _check_report(message)
    return message


def find_body(frame: bytes) -> memoryview:
    """Return the body of a frame that has been decoded before: the msgpack array of its fields."""
    return memoryview(frame)[_HEADER.size :]


def _make_decoder(header: bytes) -> "msgspec.msgpack.Decoder[Message]":
    if len(header) < _HEADER.size:
        raise DecodeError(DecodeReason.TOO_SHORT, f"{len(header)} bytes, a header has {_HEADER.size}")
    magic, protocol, kind = _HEADER.unpack(header)
    _check_header(magic, protocol)
    others = sys.modules.get(NODE_MESSAGES)
    types = {message.KIND: message for message in getattr(others, "MESSAGE_TYPES", AGENT_MESSAGES)}
    message_type = types.get(kind)
    if message_type is None:
        raise DecodeError(DecodeReason.UNKNOWN_KIND, f"kind {kind}; known here are {sorted(types)}")
    decoder = _decoders[header] = msgspec.msgpack.Decoder(message_type)
    return decoder


def _check_header(magic: bytes, protocol: int) -> None:
    if magic != MAGIC:
        raise DecodeError(DecodeReason.BAD_MAGIC, f"starts with {magic!r}, a frame starts with {MAGIC!r}")
    if protocol < PROTOCOL_MIN:
        text = f"protocol {protocol}, this side speaks {PROTOCOL_MIN} to {PROTOCOL}; upgrade rankscope in the sender"
        raise DecodeError(DecodeReason.PROTOCOL_TOO_OLD, text)
    if protocol > PROTOCOL:
        text = f"protocol {protocol}, this side speaks {PROTOCOL_MIN} to {PROTOCOL}; upgrade rankscope on this side"
        raise DecodeError(DecodeReason.PROTOCOL_TOO_NEW, text)


def _check_report(report: Report) -> None:
    report.steps.check()
    if report.enqueues is not None:
        _check_enqueues(report.enqueues)
    collectives = report.collectives
    collectives.table.check()
    if not collectives.table.row_count:  # numpy on zero rows costs more than the decoding, and most reports have none
        return
    for name, labels in (("group", collectives.groups), ("op", collectives.ops)):
        _check_names(collectives.table, name, labels)


def _check_enqueues(enqueues: Enqueues) -> None:
    enqueues.table.check()
    if enqueues.table.row_count:
        _check_names(enqueues.table, "group", enqueues.groups)


def _check_names(table: Table, name: str, labels: Sequence[str]) -> None:
    index = table.column(name)
    if index.size and (int(index.min()) < 0 or int(index.max()) >= len(labels)):
        raise DecodeError(DecodeReason.BAD_TABLE, f"a collective's {name} is outside its list of {len(labels)}")
