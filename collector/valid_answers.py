"""Encode what is answered as JSON without numbers that cannot be: a time, amount or ratio below 0, a share above 1.

A wrong number that is told is worse than none. What a number is its name says: it ends with its unit, or is one of
SHARES. One that cannot be is None, or left out of a mapping; where the form of the answer wants a number it stays. All
are counted (`rankscope_impossible_numbers_total`, kind "answer"), and the first of each name is logged with what it
belongs to.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

LOG = logging.getLogger("rankscope.collector")

Answer = TypeVar("Answer")

Range = tuple[float | None, float | None]
"""The smallest and the largest number that is possible; None: no limit."""
_NOT_NEGATIVE: Final[Range] = (0, None)
_SHARE: Final[Range] = (0, 1)
ROUNDING: Final = 1e-9
"""A share that is a quotient of sums may be above 1 by the last digits of a float."""

SHARES: Final = frozenset({"goodput_ratio", "utilization_ratio", "long_time_ratio", "share", "ratios"})
"""Fields of a share, 0 to 1; `ratios` are the parts of windows."""
SIGNED: Final = re.compile(r"^difference_|^[ab]_ns$|_(wall_s|host_ns|collector_ns)$")
"""Fields that may be below 0: differences, the rest of a step that is no part of it in a comparison, points in time."""
AMOUNTS: Final = re.compile(
    r"_(ratio|ratios|ns|s|bytes|seconds|hours|watts|hertz)(_median|_min|_max)?$|^(ratio|ns|bytes)$"
)
NAMED: Final = ("run_id", "run", "rank", "node", "step", "kind")
"""Fields that say in the log what a number belongs to."""

_LOGGED: Final[set[str]] = set()
"""Names of which this process has logged a number."""


class LeftOut:
    """How many numbers were left out of the answers of this process, or stand in one whose form wants them."""

    count = 0

    @classmethod
    def read(cls) -> dict[str, int]:
        """Return the count by kind, as a metric has it; empty where there is none."""
        return {"answer": cls.count} if cls.count else {}


class _Field(NamedTuple):
    """A field of an answer that may have numbers. `valid_range`: of its own; None: those of what is inside."""

    name: str
    valid_range: Range | None
    may_be_absent: bool


def encode_valid(found: Any) -> bytes:
    """Return the JSON of a struct, or of a mapping or sequence of them."""
    return msgspec.json.encode(without_impossible(found))


def without_impossible(found: Answer) -> Answer:
    """Return the same without numbers that cannot be; itself where there is none. Any thread.

    >>> class Answer(msgspec.Struct):
    ...     goodput_ratio: float | None
    ...     phases_ns: dict[str, int]
    ...     difference_ns: float
    >>> without_impossible([Answer(1.5, {"data": -7, "other": 7}, -3.0)])
    [Answer(goodput_ratio=None, phases_ns={'other': 7}, difference_ns=-3.0)]
    """
    valid: Any = found
    if isinstance(found, msgspec.Struct):
        valid = _check_struct(found)
    elif isinstance(found, Mapping):
        valid = _rebuild(found, {key: without_impossible(value) for key, value in found.items()})
    elif isinstance(found, tuple | list) and found and isinstance(found[0], msgspec.Struct | Mapping | tuple | list):
        valid = _rebuild(found, type(found)(map(without_impossible, found)))
    return cast("Answer", valid)


def find_range(name: str) -> Range | None:
    """Return the range of the field of this name; None: any number is possible.

    >>> find_range("goodput_ratio"), find_range("step_ns_median"), find_range("difference_ns"), find_range("step")
    ((0, 1), (0, None), None, None)
    """
    if name in SHARES:
        return _SHARE
    return _NOT_NEGATIVE if AMOUNTS.search(name) and not SIGNED.match(name) else None


def describe_range(valid_range: Range) -> str:
    """Return a range in words.

    >>> describe_range((0, 1)), describe_range((0, None)), describe_range((1, 1))
    ('0 to 1', 'from 0', '1')
    """
    smallest, largest = valid_range
    if smallest is None:
        return "any" if largest is None else f"to {largest:g}"
    if largest is None:
        return f"from {smallest:g}"
    return f"{smallest:g}" if smallest == largest else f"{smallest:g} to {largest:g}"


def _rebuild(before: Any, after: Any) -> Any:
    """Return the first where the second has the same objects."""
    values = before.values() if isinstance(before, Mapping) else before
    others = after.values() if isinstance(after, Mapping) else after
    return before if all(one is other for one, other in zip(values, others, strict=True)) else after


def _check_struct(found: msgspec.Struct) -> msgspec.Struct:
    changes: dict[str, Any] = {}
    for name, valid_range, may_be_absent in _list_fields(type(found)):
        value = getattr(found, name)
        if value is None:
            continue
        if valid_range is None:
            kept = without_impossible(value)
        elif isinstance(value, Mapping):
            kept = _check_mapping(found, name, value, valid_range)
        elif isinstance(value, int | float) and not _is_possible(value, valid_range):
            _note(found, name, value, valid_range)
            kept = None if may_be_absent else value
        else:
            continue
        if kept is not value:
            changes[name] = kept
    return msgspec.structs.replace(found, **changes) if changes else found


def _check_mapping(found: msgspec.Struct, name: str, value: Mapping[Any, Any], valid_range: Range) -> Mapping[Any, Any]:
    wrong = [key for key, one in value.items() if isinstance(one, int | float) and not _is_possible(one, valid_range)]
    for key in wrong:
        _note(found, f"{name}[{key!r}]", value[key], valid_range)
    return {key: one for key, one in value.items() if key not in wrong} if wrong else value


def _is_possible(value: float, valid_range: Range) -> bool:
    smallest, largest = valid_range
    return (smallest is None or value >= smallest - ROUNDING) and (largest is None or value <= largest + ROUNDING)


def _note(found: msgspec.Struct, name: str, value: float, valid_range: Range) -> None:
    LeftOut.count += 1
    full = f"{type(found).__name__}.{name}"
    if full not in _LOGGED:
        _LOGGED.add(full)
        owner = {one: getattr(found, one) for one in NAMED if isinstance(getattr(found, one, None), str | int)}
        inputs = {
            one: other
            for one in found.__struct_fields__
            if isinstance(other := getattr(found, one), int | float) and one not in owner
        }
        text = (
            "%s cannot be %r (%s; its range is %s): left out of answers; further ones are only counted; beside it: %s"
        )
        LOG.warning(text, full, value, owner, describe_range(valid_range), inputs)


@cache
def _list_fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """Return the fields that may have a number with a range, or something with such numbers inside."""
    info = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(kind))
    found = (
        _Field(field.name, find_range(field.name), _may_be_none(field.type))
        for field in info.fields
        if find_range(field.name) is not None or _has_inside(field.type)
    )
    return tuple(found)


def _may_be_none(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.UnionType) and kind.includes_none


def _has_inside(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_has_inside, kind.types))
    return isinstance(
        kind,
        msgspec.inspect.StructType
        | msgspec.inspect.CollectionType
        | msgspec.inspect.TupleType
        | msgspec.inspect.DictType
        | msgspec.inspect.AnyType
        | msgspec.inspect.CustomType,
    )
