"""Laws of the codec: decoding inverts encoding, and any input gives a message or a DecodeError."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from rankscope.measure.codec import decode, encode
from rankscope.measure.enqueues import Enqueues
from rankscope.measure.messages import Message
from rankscope.measure.node_messages import MESSAGE_TYPES
from rankscope.measure.records import Collectives
from rankscope.measure.table import Table
from tests.received import decode_or_refuse, read_wholly

HEADER = b"RSCP\x00\x01"
GOLDEN_FRAMES = [
    bytes.fromhex(file.read_text())
    for file in sorted((Path(__file__).parents[1] / "contract" / "golden" / "wire").glob("*.hex"))
]
KINDS = [message.KIND for message in MESSAGE_TYPES]

INT64_MAX = 2**63 - 1
measured = st.none() | st.integers(-INT64_MAX, INT64_MAX)
column_names = st.text(max_size=8)


@st.composite
def tables(draw: st.DrawFn, names: tuple[str, ...] | None = None, index_max: int = INT64_MAX) -> Table:
    """Any table that passes its check; given names, the values are indexes up to `index_max`."""
    columns = names or tuple(draw(st.lists(column_names, max_size=4, unique=True)))
    values = measured if names is None else st.integers(0, index_max)
    rows = draw(st.lists(st.tuples(*(values for _ in columns)), max_size=4 if columns else 0))
    return Table.from_rows(columns, rows)


@st.composite
def collectives(draw: st.DrawFn) -> Collectives:
    """Any collectives whose indexes have names."""
    labels = tuple(draw(st.lists(st.text(max_size=4), min_size=1, max_size=3)))
    return Collectives(labels, labels, draw(tables(("group", "op"), len(labels) - 1)))


@st.composite
def enqueues(draw: st.DrawFn) -> Enqueues:
    """Any enqueues whose groups have names."""
    labels = tuple(draw(st.lists(st.text(max_size=4), min_size=1, max_size=3)))
    return Enqueues(labels, draw(tables(("group",), len(labels) - 1)))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, within the limits the type sets."""
    return BUILDERS[type(kind)](kind)


def integers(kind: inspect.IntType) -> st.SearchStrategy[int]:
    most = INT64_MAX if kind.lt is None else kind.lt - 1
    return st.integers(-INT64_MAX if kind.ge is None else kind.ge, most if kind.le is None else kind.le)


BUILDERS: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.StructType: lambda kind: messages_of(kind.cls),
    inspect.UnionType: lambda kind: st.one_of(*map(values_of, kind.types)),
    inspect.IntType: integers,
    inspect.FloatType: lambda _: st.floats(allow_nan=False),  # NaN differs from itself
    inspect.StrType: lambda kind: st.text(min_size=kind.min_length or 0, max_size=12),
    inspect.BytesType: lambda kind: st.binary(min_size=kind.min_length or 0, max_size=12),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.VarTupleType: lambda kind: st.lists(values_of(kind.item_type), max_size=3).map(tuple),
    inspect.TupleType: lambda kind: st.tuples(*map(values_of, kind.item_types)),
    inspect.DictType: lambda kind: st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=3),
    inspect.NoneType: lambda _: st.none(),
}


def messages_of(struct: type) -> st.SearchStrategy[Any]:
    """Any value of a structure."""
    if struct is Table:
        return tables()
    if struct is Collectives:
        return collectives()
    if struct is Enqueues:
        return enqueues()
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return st.builds(struct, **{field.name: values_of(field.type) for field in described.fields})


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=24)
)
plain = st.recursive(
    scalars,
    lambda values: st.lists(values, max_size=6) | st.dictionaries(st.text(max_size=4), values, max_size=3),
    max_leaves=24,
)


@given(st.one_of(*map(messages_of, MESSAGE_TYPES)))
def test_what_is_encoded_is_decoded_to_the_same(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    decode_or_refuse(frame)


@given(st.sampled_from(KINDS), st.binary(max_size=128))
def test_any_bytes_after_a_good_header_are_a_message_or_refused(kind: int, body: bytes) -> None:
    message = decode_or_refuse(HEADER + bytes([kind]) + body)
    if message is not None:
        read_wholly(message)


@given(st.sampled_from(KINDS), st.lists(plain, max_size=14))
def test_any_fields_after_a_good_header_are_a_message_or_refused(kind: int, fields: list[object]) -> None:
    message = decode_or_refuse(HEADER + bytes([kind]) + msgspec.msgpack.encode(fields))
    if message is not None:
        read_wholly(message)


@given(st.data())
def test_a_good_frame_with_bytes_changed_is_a_message_or_refused(data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from(GOLDEN_FRAMES)))
    places = st.integers(0, len(frame) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        frame[place] = byte
    message = decode_or_refuse(bytes(frame))
    if message is not None:
        read_wholly(message)


@given(st.data())
def test_damaged_frame_is_a_message_or_refused(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(GOLDEN_FRAMES))
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(frame))] * 2)))
    message = decode_or_refuse(frame[:start] + data.draw(st.binary(max_size=16)) + frame[end:])
    if message is not None:
        read_wholly(message)


@given(st.data())
def test_no_beginning_of_a_frame_is_taken_for_the_whole(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(GOLDEN_FRAMES))
    size = data.draw(st.integers(0, len(frame) - 1))
    assert decode_or_refuse(frame[:size]) is None
