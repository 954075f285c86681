"""Read pickles of plain data, and refuse all others before anything of them is run or built.

A pickle is a program. The first pass reads its opcodes without running them (`pickletools.genops`) and accepts only
those of numbers, texts, lists, tuples and dicts: none imports a name, calls something, or asks for an object from
elsewhere. It also bounds what a few bytes could make large: memo numbers, whole numbers, the stack. Only then the
unpickler runs, and that one has no names to import either.
"""

import io
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from rankscope.measure.errors import TraceError

STACK_MAX: Final = 20_000
"""Values that wait to be put into their list or dict. Picklers put 1,000 values into a list at a time."""
MARKS_MAX: Final = 32
"""Lists and dicts being filled, one inside the other."""
WHOLE_NUMBER_BYTES_MAX: Final = 9
"""Bytes of a LONG1: an unsigned number of 64 bits needs nine with its sign."""
_KEEPS, _PUSHES, _MARKS, _FILLS, _TO_TUPLE = "keeps", "pushes", "marks", "fills", "to_tuple"
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "TUPLE1"), _KEEPS),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE"), _PUSHES),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _PUSHES),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINGET", "LONG_BINGET"), _PUSHES),
    "MARK": _MARKS,
    **dict.fromkeys(("APPENDS", "SETITEMS"), _FILLS),
    "TUPLE": _TO_TUPLE,
}
_POPS: Final[Mapping[str, int]] = {"APPEND": 1, "SETITEM": 2, "TUPLE2": 1, "TUPLE3": 2}


def load_plain(data: bytes) -> Any:
    """Return what a pickle of plain data holds. Raises TraceError with the reason and the byte for all others.

    Lists may stand in several places: whoever walks over the result must not follow them once for each.

    >>> load_plain(pickle.dumps({"segments": [1, 2.5, None]}))
    {'segments': [1, 2.5, None]}
    >>> load_plain(bytes([0x80, 2]) + b"cos" + bytes([10]) + b"system" + bytes([10]) + b".")
    Traceback (most recent call last):
    ...
    rankscope.measure.errors.TraceError: refused: opcode GLOBAL is not one of plain data (at byte 2)
    """
    _check_opcodes(data)
    try:
        return _NamelessUnpickler(io.BytesIO(data)).load()
    except MemoryError:
        raise
    except Exception as error:
        raise TraceError(f"it cannot be unpickled: {error}") from error


class _NamelessUnpickler(pickle.Unpickler):
    """An unpickler that knows no names."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: plain data has no classes."""
        raise TraceError(f"refused: it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 - the interface of pickle
        """Refuse: plain data is all in the file."""
        raise TraceError("refused: it refers to objects elsewhere")


def _check_opcodes(data: bytes) -> None:
    """Raise TraceError unless all opcodes are those of plain data, within the bounds of this file."""
    if data[:1] != b"\x80":
        raise TraceError("it is no pickle of protocol 2 or later", byte=0)
    stack = _StackDepth()
    count = 0
    try:
        for opcode, argument, position in pickletools.genops(io.BytesIO(data)):
            count += 1
            problem = stack.follow(opcode.name)
            if isinstance(argument, int) and problem is None:
                problem = _find_number_problem(opcode.name, argument, count)
            if problem is not None:
                raise TraceError(problem, byte=position)
    except ValueError as error:
        raise TraceError(f"it is cut off or damaged: {error}") from error


def _find_number_problem(opcode: str, argument: int, count: int) -> str | None:
    if opcode == "LONG1" and argument.bit_length() > 8 * WHOLE_NUMBER_BYTES_MAX:
        return "refused: a whole number of more than 64 bits"
    if opcode in {"BINPUT", "LONG_BINPUT"} and argument > count:
        return f"refused: memo number {argument} of {count} opcodes"
    return None


class _StackDepth:
    """Counts the values and marks on the stack of an unpickler, without the values."""

    def __init__(self) -> None:
        self._depth = 0
        self._marks: list[int] = []

    def follow(self, opcode: str) -> str | None:
        """Count one opcode; return what is wrong with it, None for a good one."""
        kind = _KINDS.get(opcode)
        if kind is _PUSHES:
            self._depth += 1
        elif kind is _MARKS:
            self._marks.append(self._depth)
        elif kind is _FILLS or kind is _TO_TUPLE:
            if not self._marks:
                return "it is damaged: a list ends that has not begun"
            self._depth = self._marks.pop() + (kind is _TO_TUPLE)
        elif kind is None:
            if opcode not in _POPS:
                return f"refused: opcode {opcode} is not one of plain data"
            self._depth -= _POPS[opcode]
        is_deep = self._depth > STACK_MAX or len(self._marks) > MARKS_MAX
        return "refused: it is nested deeper than a snapshot is" if is_deep else None
