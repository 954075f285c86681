"""Find the lines of code that add to a container by a name: `kept.append(...)`, `self.seen[key] = ...`. Pure."""

import dis
import os
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final

from rankscope.agent.captures.called_name import find_line

CODES_MAX: Final = 512
"""Pieces of code that are read."""
LINES_MAX: Final = 8
_OF_DICTS: Final = frozenset({"setdefault", "update"})
_OF_ENDS: Final = frozenset({"append", "appendleft", "extend", "extendleft", "insert"})
ADDING: Final[Mapping[type, frozenset[str]]] = {
    list: frozenset({"append", "extend", "insert"}),
    deque: _OF_ENDS,
    set: frozenset({"add", "update"}),
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _OF_DICTS),
}
"""Methods by which a container grows."""
STORE: Final = "STORE_SUBSCR"


def find_codes(owners: Iterable[Any]) -> list[CodeType]:
    """Return the code of functions and of the functions of classes."""
    found = []
    for owner in owners:
        functions = list(type.__dict__["__dict__"].__get__(owner).values()) if isinstance(owner, type) else [owner]
        found += [one.__code__ for one in functions if type(one) is FunctionType]
    return found


def find_adding_lines(codes: Iterable[CodeType], name: str, kind: type) -> list[str]:
    """Return the lines that add to a container of this kind by the name, `train.py:33 (main)`; with an empty name those
    that add to any local variable, `kept, train.py:33 (main)`.

    >>> def train():
    ...     kept = []
    ...     kept.append(1)
    >>> find_adding_lines([train.__code__], "kept", list)[0].endswith(":3 (train)")
    True
    >>> find_adding_lines([train.__code__], "kept", dict), find_adding_lines([train.__code__], "other", list)
    ([], [])
    """
    found: dict[str, None] = {}
    for code in _unfold(codes):
        for variable, is_local, line in _find_additions(code, kind):
            where = f"{os.path.basename(code.co_filename)}:{line} ({code.co_name})"
            if variable == name:
                found[where] = None
            elif not name and is_local:
                found[f"{variable}, {where}"] = None
            if len(found) == LINES_MAX:
                return list(found)
    return list(found)


def _unfold(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    """Return each piece of code once, and those within it."""
    waiting, seen = list(codes), set[int]()
    while waiting and len(seen) < CODES_MAX:
        code = waiting.pop(0)
        if id(code) not in seen:
            seen.add(id(code))
            yield code
            waiting += [one for one in code.co_consts if isinstance(one, CodeType)]


def _find_additions(code: CodeType, kind: type) -> Iterator[tuple[str, bool, int]]:
    """Return the names that code adds to, whether each is a local variable, and the line."""
    methods = ADDING.get(kind, frozenset())
    is_dict = issubclass(kind, dict)
    before = list[tuple[str, Any]]()
    for one in dis.get_instructions(code):
        is_method = one.opname in {"LOAD_METHOD", "LOAD_ATTR"} and one.argval in methods
        place = -1 if is_method else -2
        if (is_method or (is_dict and one.opname == STORE)) and len(before) >= -place:
            opname, variable = before[place]
            if opname.startswith("LOAD_") and isinstance(variable, str):
                is_local = opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
                yield variable, is_local, find_line(code, one.offset)
        for value in (
            one.argval if isinstance(one.argval, tuple) and one.opname.startswith("LOAD_FAST") else (one.argval,)
        ):
            if one.opname not in {"CACHE", "PUSH_NULL", "EXTENDED_ARG"}:
                before.append((one.opname, value))
