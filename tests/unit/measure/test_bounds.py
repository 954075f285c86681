"""Every text, list and map of a message has a bound, and a frame beyond one is refused."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from msgspec import inspect

from rankscope.measure.bounds import NAME_LENGTH_MAX, NAMES_MAX, PORTS_MAX, SHORT_NAME_LENGTH_MAX, TEXT_LENGTH_MAX
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.messages import Message, Report
from rankscope.measure.node_messages import MESSAGE_TYPES
from rankscope.measure.records import DeviceSample, InterfaceSample, NodeSample, PortSample, Totals

BOUNDED_BY_THE_FRAME = {"data", "frame"}
"""Bytes need none: a column is checked against its number of rows, and no value is larger than its frame."""


SIZED = (inspect.StrType, inspect.BytesType, inspect.VarTupleType, inspect.ListType, inspect.DictType)


def find_unbounded(kind: inspect.Type, where: str) -> Iterator[str]:
    """Yield the fields below a type whose length has no bound."""
    if isinstance(kind, SIZED) and kind.max_length is None and where.rpartition(".")[2] not in BOUNDED_BY_THE_FRAME:
        yield where
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from find_unbounded(field.type, f"{kind.cls.__name__}.{field.name}")
    names = ("type", "item_type", "key_type", "value_type")
    within = [getattr(kind, name) for name in names if hasattr(kind, name)]
    for one in (*within, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from find_unbounded(one, where)


@pytest.mark.parametrize("message", MESSAGE_TYPES)
def test_every_field_of_a_message_has_a_bound(message: type[Message]) -> None:
    assert sorted(set(find_unbounded(inspect.type_info(message), message.__name__))) == []


def test_a_field_without_a_bound_is_found() -> None:
    class Loose(msgspec.Struct):
        names: tuple[str, ...]

    assert set(find_unbounded(inspect.type_info(Loose), "Loose")) == {"Loose.names"}


def report_of_phases(count: int, name_length: int = 8) -> Report:
    return Report(
        sequence=1, host_ns=0, totals=Totals(phases_ns={f"{number:0{name_length}}": 1 for number in range(count)})
    )


def report_of_ports(count: int, name_length: int = 8) -> Report:
    return Report(
        sequence=1, host_ns=0, node=NodeSample(host_ns=0, ports=(PortSample(name="x" * name_length),) * count)
    )


def report_of_interfaces(count: int, name_length: int = 8) -> Report:
    one = InterfaceSample(name="x" * name_length, bytes=0, errors=0, drops=0)
    return Report(sequence=1, host_ns=0, node=NodeSample(host_ns=0, interfaces=(one,) * count))


@pytest.mark.parametrize("report_of", [report_of_ports, report_of_interfaces])
def test_as_many_ports_as_there_may_be_are_read(report_of: Callable[[int, int], Report]) -> None:
    report = report_of(PORTS_MAX, SHORT_NAME_LENGTH_MAX)
    assert decode(encode(report)) == report
    for count, name_length in ((PORTS_MAX + 1, 8), (1, SHORT_NAME_LENGTH_MAX + 1)):
        with pytest.raises(DecodeError, match="bad_body"):
            decode(encode(report_of(count, name_length)))


def test_as_many_names_as_there_may_be_are_read() -> None:
    report = report_of_phases(NAMES_MAX, NAME_LENGTH_MAX)
    assert decode(encode(report)) == report


@pytest.mark.parametrize(
    "report",
    [
        report_of_phases(NAMES_MAX + 1),
        report_of_phases(1, NAME_LENGTH_MAX + 1),
        report_of_phases(100_000),  # 1.6 MB, which once made /metrics last 16 s
        Report(
            sequence=1,
            host_ns=0,
            devices=(DeviceSample(host_ns=0, uuid="u", absent={"power": "x" * (TEXT_LENGTH_MAX + 1)}),),
        ),
    ],
    ids=["one name more", "a longer name", "a hundred thousand names", "a longer sentence"],
)
def test_a_report_beyond_a_bound_is_refused(report: Report) -> None:
    with pytest.raises(DecodeError, match="bad_body"):
        decode(encode(report))
