"""Finds at which line a frame is, and what it is calling there, `time.sleep`, from its bytecode: a function in C has no
frame of its own.

From CPython 3.11 on each instruction has its place in the source. A call and what it calls begin at the same place, so
the name is that of the loads there. Sources are not read: they may have been changed since.
"""

import dis
import sys
from types import CodeType
from typing import Final

HAS_POSITIONS: Final = sys.version_info >= (3, 11)
NAMES: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF"})
ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})


def find_called_name(code: CodeType, last_instruction: int) -> str:
    """Return the dotted name that the instruction at this offset calls, `load` of what is no plain name as `.load`.
    Empty where it is no call, or cannot be told.
    """
    if not HAS_POSITIONS:
        return ""
    # A frame that waits for one of Python is at the inline cache behind its call.
    instructions = [one for one in dis.get_instructions(code) if one.offset <= last_instruction]
    if not instructions:
        return ""
    call = instructions.pop()
    if not call.opname.startswith(("CALL", "PRECALL")) or call.positions is None:
        return ""
    begin = call.positions.lineno, call.positions.col_offset
    end = call.positions.end_lineno, call.positions.end_col_offset
    names: list[str] = []
    is_plain = True
    for one in instructions:
        at = one.positions
        if at is None or (at.lineno, at.col_offset) != begin or (at.end_lineno, at.end_col_offset) == end:
            continue
        if one.opname in NAMES or one.opname.startswith("LOAD_FAST"):
            names, is_plain = [str(one.argval)], True
        elif one.opname in ATTRIBUTES:
            names.append(str(one.argval))
        elif one.opname.startswith(("CALL", "BINARY")) or (one.opname == "LOAD_CONST" and not names):
            names, is_plain = [], False  # else the constants are the names of arguments
    name = ".".join(names)
    return name if is_plain or not name else f".{name.rpartition('.')[2]}"


def find_line(code: CodeType, instruction: int) -> int:
    """Return the line of the instruction at this offset; that of the `def` where it has none."""
    spans = code.co_lines()
    return next((line for begin, end, line in spans if begin <= instruction < end and line), code.co_firstlineno)
