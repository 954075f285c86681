"""Say which modules, or else kernels, are longer on one rank than on its peers that have launched them as often."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeVar

from rankscope.collector.traces.report import KernelRow, ModuleRow, RankReport
from rankscope.measure.units import format_duration

LONGER_RATIO: Final = 1.1
"""From where on something is longer: kernels of one name and shape differ by some percent between equal GPUs."""
SHARE_MIN: Final = 0.1
"""Of what is longer altogether, from which on a part of it is told."""
HOLDS_MIN: Final = 0.5
"""Of what is longer altogether, that a class of modules must hold to be named for it."""
TOLD_MAX: Final = 3
NAME_LENGTH_MAX: Final = 60
Row = TypeVar("Row", ModuleRow, KernelRow)
_INSTANCE: Final = re.compile(r"^(.*)_(\d+)$")


class Longer(NamedTuple):
    """What is longer: its name, how long it is on the rank and in the median of its peers, in ns of the whole trace."""

    name: str
    ns: int
    peers_ns: float

    @property
    def excess_ns(self) -> float:
        """By how much it is longer."""
        return self.ns - self.peers_ns


def describe_longer(report: RankReport, peers: Sequence[RankReport]) -> str:
    """Return what is longer on the rank than on its peers at as many launches, the most first; empty where nothing
    is.
    """
    kernels = _find_kernels(report, peers)
    whole_ns = sum(one.excess_ns for one in kernels)
    module = _find_module(report, peers, whole_ns)
    told = [module] if module else sorted(kernels, key=lambda one: -one.excess_ns)[:TOLD_MAX]
    texts = [
        f"{one.name} {one.ns / max(1.0, one.peers_ns):.2f}x ({format_duration(one.excess_ns)} more in the trace)"
        for one in told
        if one.excess_ns >= SHARE_MIN * whole_ns
    ]
    return f"longer at as many launches: {', '.join(texts)}" if texts else ""


def _find_module(report: RankReport, peers: Sequence[RankReport], whole_ns: float) -> Longer | None:
    """Return the class of modules that is longer by the largest ratio and holds at least half of what is longer
    altogether, with the numbers of the instances that are; None where no class does, or modules are not known.
    """
    by_class: dict[str, list[tuple[int | None, Longer]]] = defaultdict(list)
    for one in _compare(report.modules or (), [one.modules or () for one in peers], _read_module):
        *above, last = (_split_instance(part) for part in one.name.split("/"))
        if last[0] not in {name for name, _ in above}:  # else it is within one of its class
            by_class[last[0]].append((last[1], one))
    classes = [
        Longer(
            _name_instances(name, [number for number, _ in rows if number is not None]),
            sum(one.ns for _, one in rows),
            sum(one.peers_ns for _, one in rows),
        )
        for name, rows in by_class.items()
    ]
    holding = [one for one in classes if one.excess_ns >= HOLDS_MIN * whole_ns > 0]
    return max(holding, key=lambda one: one.ns / max(1.0, one.peers_ns), default=None)


def _split_instance(part: str) -> tuple[str, int | None]:
    """Return the class of a module in a path, and the number of the instance, None without one."""
    found = _INSTANCE.match(part)
    return (found[1], int(found[2])) if found else (part, None)


def _find_kernels(report: RankReport, peers: Sequence[RankReport]) -> list[Longer]:
    """Return the kernels that are longer, but those that wait for other ranks."""
    found = _compare(report.kernels, [one.kernels for one in peers], _read_kernel)
    return [one._replace(name=_shorten(one.name)) for one in found]


def _read_module(row: ModuleRow) -> tuple[str, int, int] | None:
    if row.path is None or row.count is None or row.device_total_ns is None:
        return None
    return row.path, row.count, row.device_total_ns + (row.backward_device_total_ns or 0)


def _read_kernel(row: KernelRow) -> tuple[str, int, int] | None:
    return None if row.is_communication else (row.name, row.count, row.total_ns)


def _compare(
    mine: Iterable[Row], theirs: Sequence[Iterable[Row]], read: Callable[[Row], tuple[str, int, int] | None]
) -> list[Longer]:
    """Return what is longer than on the peers with as many launches of it."""
    peers = [_index(rows, read) for rows in theirs]
    found = []
    for name, (count, ns) in _index(mine, read).items():
        alike = [peer[name][1] for peer in peers if name in peer and peer[name][0] == count]
        if alike and ns >= LONGER_RATIO * median(alike):
            found.append(Longer(name, ns, median(alike)))
    return found


def _index(rows: Iterable[Row], read: Callable[[Row], tuple[str, int, int] | None]) -> Mapping[str, tuple[int, int]]:
    found = (read(row) for row in rows)
    return {one[0]: one[1:] for one in found if one is not None}


def _name_instances(name: str, numbers: Sequence[int]) -> str:
    """Return a class with the numbers of its instances, those in a row as a range.

    >>> _name_instances("Attention", [8, 9, 10, 12]), _name_instances("Attention", [])
    ('Attention 8-10, 12', 'Attention')
    """
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"{name} {told}".rstrip()


def _shorten(name: str) -> str:
    return name if len(name) <= NAME_LENGTH_MAX else f"{name[: NAME_LENGTH_MAX - 3]}..."
