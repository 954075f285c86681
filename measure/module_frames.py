"""Name the modules of torch.nn in whose code a stack is, from its Python frames. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

MODULES_KEY: Final = "rankscope_modules"
"""Key that the agent adds to a snapshot of torch's memory: the code of modules, as rows of ModuleCode."""


class ModuleCode(NamedTuple):
    """A function of a module's class: its file, name and lines, the class, and whether it is torch's own."""

    file: str
    function: str
    first_line: int
    last_line: int
    module: str
    is_torch: bool


ModuleCodes = Mapping[tuple[str, str], Sequence[ModuleCode]]
"""By file and function."""


def group_codes(codes: Iterable[ModuleCode]) -> dict[tuple[str, str], list[ModuleCode]]:
    """Return the code of modules by file and function."""
    found: dict[tuple[str, str], list[ModuleCode]] = {}
    for one in codes:
        found.setdefault((one.file, one.function), []).append(one)
    return found


def name_module(frames: Iterable[tuple[str, int, str]], codes: ModuleCodes) -> str:
    """Return the innermost module that is not torch's own, and that of torch within it; empty where there is none.
    `frames` are file, line and function, the innermost first.

    >>> codes = group_codes([ModuleCode("t.py", "forward", 1, 9, "Linear", True),
    ...     ModuleCode("m.py", "forward", 20, 30, "Attention", False)])
    >>> name_module([("t.py", 5, "forward"), ("m.py", 24, "forward")], codes)
    'Linear in Attention'
    >>> name_module([("m.py", 24, "forward")], codes), name_module([("m.py", 40, "forward")], codes)
    ('Attention', '')
    """
    inner = ""
    for file, line, function in frames:
        found = next((one for one in codes.get((file, function), ()) if one.first_line <= line <= one.last_line), None)
        if found is None:
            continue
        if not found.is_torch:
            return f"{inner} in {found.module}" if inner else found.module
        inner = inner or found.module
    return inner
