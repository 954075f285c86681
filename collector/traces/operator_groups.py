"""Sum the operators of a trace with the kernels that they launched, by thread, and by the frames around them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import LaunchedKernel, OperatorGroupRow
from rankscope.collector.traces.sources import find_frames_around
from rankscope.collector.traces.tables import sum_calls
from rankscope.measure.errors import SettingError
from rankscope.measure.kineto import NONE, Codes, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

FRAMES_MAX = 64
GROUPS_MAX = 10_000
"""Rows of one trace, those with the most time."""
KERNELS_OF_A_ROW_MAX = 20


class GroupsAsked(NamedTuple):
    """How to group operators: with their kernels, by thread, by so many innermost frames around them (0: by none)."""

    nests: bool = False
    by_thread: bool = False
    frames: int = 0


def choose_operator_groups(*, nests: bool, by_thread: bool, frames: int | None) -> GroupsAsked | None:
    """Return how to group operators, None where it is not asked for. Raises SettingError."""
    if frames is not None and not 1 <= frames <= FRAMES_MAX:
        raise SettingError(f"--by-frames is {frames}; it is a number of frames from 1 to {FRAMES_MAX}")
    found = GroupsAsked(nests, by_thread, frames or 0)
    return found if any(found) else None


def sum_operator_groups(view: RankView, asked: GroupsAsked) -> list[OperatorGroupRow]:
    """Return the operators in groups, sorted as the table of operators; at most GROUPS_MAX."""
    rows = view.host.operator_rows
    frames = find_frames_around(view, rows, asked.frames) if asked.frames else [()] * len(rows)
    threads = view.events.thread[rows].tolist() if asked.by_thread else [NONE] * len(rows)
    keys: dict[tuple[int, int, tuple[str, ...]], int] = {}
    names = view.events.name[rows].tolist()
    codes = np.array(
        [keys.setdefault(key, len(keys)) for key in zip(names, threads, frames, strict=True)], dtype=np.int32
    )
    of_code = list(keys)
    launches = _find_launches(view) if asked.nests else _NO_LAUNCHES
    kernels, delays_ns = _sum_launched(view, codes, launches), _sum_delays(view, codes, launches)
    found = [
        OperatorGroupRow(
            name=view.trace.names[of_code[code][0]],
            thread=_name_thread(view, of_code[code][1]),
            frames=list(of_code[code][2]),
            kernels=kernels.get(code, []),
            launch_delay_ns=delays_ns.get(code),
            **sums,
        )
        for code, sums in sum_calls(view, codes)
    ]
    found.sort(key=lambda row: (-row.device_self_ns, -row.host_self_ns, row.name, row.thread or "", row.frames))
    return found[:GROUPS_MAX]


def _name_thread(view: RankView, code: int) -> str | None:
    return view.trace.threads[code][1] if code != NONE else None


class _Launches(NamedTuple):
    """Pieces of work whose launching call is inside an operator: the work, the row of the call, and the operator."""

    work: Ints
    call: Ints
    operator: Ints


_NO_LAUNCHES = _Launches(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def _find_launches(view: RankView) -> _Launches:
    if not view.has_device:
        return _NO_LAUNCHES
    launched = np.flatnonzero(view.launch != NONE)
    call = view.launch[launched]
    inside = view.host.operators.find_innermost(view.events.thread[call], view.events.start_ns[call])
    known = inside != OUTSIDE
    return _Launches(launched[known], call[known], inside[known])


def _sum_delays(view: RankView, codes: Codes, launches: _Launches) -> Mapping[int, int]:
    """Return by group the mean time in ns from the start of an operator to the first call in it that launched work."""
    first_ns = np.full(len(codes), np.iinfo(np.int64).max)
    np.minimum.at(first_ns, launches.operator, view.events.start_ns[launches.call])
    operators = np.unique(launches.operator)
    delay_ns = first_ns[operators] - view.events.start_ns[view.host.operator_rows[operators]]
    found: dict[int, list[int]] = defaultdict(list)
    for group, ns in zip(codes[operators].tolist(), delay_ns.tolist(), strict=True):
        found[group].append(ns)
    return {group: round(mean(of_group)) for group, of_group in found.items()}


def _sum_launched(view: RankView, codes: Codes, launches: _Launches) -> Mapping[int, list[LaunchedKernel]]:
    """Return by group the kernels and copies that its operators launched themselves, the most first."""
    work = view.work
    length_ns = (work.end_ns - work.start_ns)[launches.work].tolist()
    delay_ns = (work.start_ns[launches.work] - view.events.start_ns[launches.call]).tolist()
    sums: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    groups, names = codes[launches.operator].tolist(), work.name[launches.work].tolist()
    for group, name, *times in zip(groups, names, length_ns, delay_ns, strict=True):
        sums[group][name].append((times[0], times[1]))
    return {
        group: sorted(
            (_sum_kernel(view.trace.names[name], mine) for name, mine in of_group.items()),
            key=lambda one: (-one.total_ns, one.name),
        )[:KERNELS_OF_A_ROW_MAX]
        for group, of_group in sums.items()
    }


def _sum_kernel(name: str, times: Sequence[tuple[int, int]]) -> LaunchedKernel:
    """Return the row of a kernel with these lengths and delays in ns. A clock may let work begin before its call."""
    return LaunchedKernel(
        name=name,
        count=len(times),
        total_ns=sum(length_ns for length_ns, _ in times),
        delay_ns=round(mean(max(0, delay_ns) for _, delay_ns in times)),
    )
