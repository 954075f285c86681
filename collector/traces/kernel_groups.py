"""Sum the device work by class of kernel, or by groups of one's own: patterns for the names of kernels, the first that
is found decides.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import KernelGroupRow
from rankscope.measure import kernel_classes
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.kineto import Ints
from rankscope.measure.rank_view import RankView

Patterns = Mapping[str, str | Sequence[str]]
"""Regular expressions by the name of their group, in the order in which they are tried."""


class KernelGroup(NamedTuple):
    """A group, and the patterns of which one must be found in a kernel's name."""

    name: str
    patterns: tuple[re.Pattern[str], ...]


def compile_groups(groups: Patterns, source: str = "kernel_groups") -> tuple[KernelGroup, ...]:
    """Return the groups in their order. Raises SettingError, naming the `source`, for what is no pattern.

    >>> [group.name for group in compile_groups({"gemm": ["gemm", "cutlass"], "attention": "flash_"})]
    ['gemm', 'attention']
    """
    return tuple(
        KernelGroup(name, tuple(_compile(name, pattern, source) for pattern in _as_list(name, given, source)))
        for name, given in groups.items()
    )


def _as_list(name: str, given: object, source: str) -> list[str]:
    patterns = [given] if isinstance(given, str) else given
    if isinstance(patterns, list | tuple) and patterns and all(isinstance(one, str) for one in patterns):
        return list(patterns)
    raise SettingError(f"{source}: {name} is {given!r}; it must be a regular expression, or a list of them")


def _compile(name: str, pattern: str, source: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise SettingError(
            f"{source}: {name} is {pattern!r}, which is not a valid regular expression: {error}"
        ) from None


def read_groups(path: Path) -> Patterns:
    """Return the groups of a TOML file, `name = "pattern"` or `name = ["pattern", "pattern"]` on its lines. Raises
    SettingError and UnavailableError.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - only who has such a file pays for the parser
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(f"{path} (from --kernel-groups) cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(
            f"{path} (from --kernel-groups) is not a TOML file: {error}. One group stands on a line: "
            "gemm = ['gemm', 'cutlass']"
        ) from error


def sum_groups(view: RankView, groups: Sequence[KernelGroup]) -> list[KernelGroupRow]:
    """Return the device work by group in their order, and last what is in none: their times sum to all device work.
    Empty without a device.
    """
    place = _place_names(view, lambda name: _find_group(name, groups))
    return _sum_places(view, place, [*(group.name for group in groups), None])


def sum_classes(view: RankView) -> list[KernelGroupRow]:
    """Return the device work by class, those without work left out, what is of no class last. Copies and communication
    are what the breakdown takes for them.
    """
    work, classes = view.work, kernel_classes.CLASSES
    place = _place_names(view, lambda name: classes.index(kernel_classes.find_class(name)))
    place = np.where(work.is_kernel, place, classes.index(kernel_classes.COPY))
    place[work.is_communication] = classes.index(kernel_classes.COMMUNICATION)
    rows = _sum_places(view, place, [name if name != kernel_classes.OTHER else None for name in classes])
    return [row for row in rows if row.count]


def _place_names(view: RankView, find: Callable[[str], int]) -> Ints:
    """Return for each piece of work what is found for its name, of which each is asked for once."""
    codes, of_work = np.unique(view.work.name, return_inverse=True)
    found: Ints = np.array([find(view.trace.names[code]) for code in codes.tolist()], dtype=np.int64)
    return found[of_work] if len(codes) else np.empty(0, dtype=np.int64)


def _sum_places(view: RankView, place: Ints, names: Sequence[str | None]) -> list[KernelGroupRow]:
    """Return a row for each name, from the place among them that each piece of work has; none without a device."""
    if not view.has_device:
        return []
    length_ns = view.work.end_ns - view.work.start_ns
    rows = []
    for number, name in enumerate(names):
        mine = place == number
        rows.append(
            KernelGroupRow(
                group=name,
                count=int(mine.sum()),
                name_count=len(np.unique(view.work.name[mine])),
                total_ns=int(length_ns[mine].sum()),
            )
        )
    return rows


def _find_group(name: str, groups: Sequence[KernelGroup]) -> int:
    """Return the place of the first group with a pattern that is found in the name, else the place behind all."""
    found = (place for place, group in enumerate(groups) if any(pattern.search(name) for pattern in group.patterns))
    return next(found, len(groups))
