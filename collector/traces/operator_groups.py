"""Sum the operators of a trace with the kernels that they launched, by thread, and by the frames around them."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import LaunchedKernel, OperatorGroupRow
from rankscope.collector.traces.sources import find_frames_around
from rankscope.collector.traces.tables import sum_calls
from rankscope.measure.errors import SettingError
from rankscope.measure.kineto import NONE, Codes
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
    kernels = _sum_launched(view, codes) if asked.nests else {}
    found = [
        OperatorGroupRow(
            name=view.trace.names[of_code[code][0]],
            thread=_name_thread(view, of_code[code][1]),
            frames=list(of_code[code][2]),
            kernels=kernels.get(code, []),
            **sums,
        )
        for code, sums in sum_calls(view, codes)
    ]
    found.sort(key=lambda row: (-row.device_self_ns, -row.host_self_ns, row.name, row.thread or "", row.frames))
    return found[:GROUPS_MAX]


def _name_thread(view: RankView, code: int) -> str | None:
    return view.trace.threads[code][1] if code != NONE else None


def _sum_launched(view: RankView, codes: Codes) -> Mapping[int, list[LaunchedKernel]]:
    """Return by group the kernels and copies that its operators launched themselves, the most first."""
    if not view.has_device:
        return {}
    launched = np.flatnonzero(view.launch != NONE)
    call = view.launch[launched]
    inside = view.host.operators.find_innermost(view.events.thread[call], view.events.start_ns[call])
    launched, inside = launched[inside != OUTSIDE], inside[inside != OUTSIDE]
    length_ns = (view.work.end_ns - view.work.start_ns)[launched].tolist()
    sums: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    groups = codes[inside].tolist()
    for group, name, ns in zip(groups, view.work.name[launched].tolist(), length_ns, strict=True):
        sums[group][name].append(ns)
    return {
        group: sorted(
            (
                LaunchedKernel(name=view.trace.names[name], count=len(mine), total_ns=sum(mine))
                for name, mine in of_group.items()
            ),
            key=lambda one: (-one.total_ns, one.name),
        )[:KERNELS_OF_A_ROW_MAX]
        for group, of_group in sums.items()
    }
