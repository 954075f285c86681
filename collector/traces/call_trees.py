"""Record the calls of each step as a tree: operators and ranges of the user, on the thread that runs the steps.

Calls of autograd's threads are in the tree of the thread that waits for them. Calls of other threads (loaders, writers)
come in another order in each run, and are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.user_ranges import find_threads_of_calls, find_user_ranges, nest_ranges
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView

CALLS_MAX = 1_000_000
"""Calls of all steps of a rank that are kept: 40 MB. Steps behind these are left out."""


class StepCalls(NamedTuple):
    """The calls of one step by start, in columns; `parent` counts within them, OUTSIDE for those right in the step.
    `host_ns` and `device_ns` are of the call alone, without the calls inside it: the host's time, and the time of the
    work that it launched.
    """

    number: int
    length_ns: int
    name: Ints
    parent: Ints
    host_ns: Ints
    device_ns: Ints


class CallTrees(NamedTuple):
    """The steps of one rank, with the names that their calls count in; `left_out` steps are not among them."""

    names: Sequence[str]
    steps: Sequence[StepCalls]
    left_out: int


def record_calls(view: RankView) -> CallTrees:
    """Return the calls of all steps; no steps where several threads run them."""
    threads = find_threads_of_calls(view)
    runners = np.unique(view.events.thread[view.host.step_rows])
    if len(runners) != 1:
        return CallTrees((), (), len(view.steps))
    rows = np.unique(np.concatenate([view.host.operator_rows, find_user_ranges(view)]))
    rows = rows[threads[rows] == runners[0]]
    nesting = nest_ranges(view, rows, threads)
    device_ns = np.zeros(len(rows), dtype=np.int64)
    launched = np.flatnonzero(view.launch != NONE) if view.has_device else rows[:0]
    if len(launched):
        call = view.launch[launched]
        inside = nesting.find_innermost(threads[call], view.events.start_ns[call])
        known = inside != OUTSIDE
        np.add.at(device_ns, inside[known], (view.work.end_ns - view.work.start_ns)[launched[known]])
    order, host_ns = nesting.order.astype(np.int64), nesting.self_ns()
    starts_ns = view.events.start_ns[rows][order]
    place_of = np.append(np.argsort(order), OUTSIDE)  # that of OUTSIDE, -1, is the last
    steps: list[StepCalls] = []
    kept = 0
    for step in view.steps:
        first, end = np.searchsorted(starts_ns, [step.start_ns, step.next_start_ns]).tolist()
        kept += end - first
        if kept > CALLS_MAX:
            break
        mine = order[first:end]
        steps.append(
            StepCalls(
                step.number,
                step.next_start_ns - step.start_ns,
                view.events.name[rows[mine]].astype(np.int64),
                np.maximum(place_of[nesting.parent[mine]] - first, OUTSIDE),  # what began before the step is none
                host_ns[mine],
                device_ns[mine],
            )
        )
    return CallTrees(view.trace.names, steps, len(view.steps) - len(steps))
