"""Reduce a full window to the breakdown of its steps and the device's collectives, in a process of its own.

The input is packed columns, or the trace file of a device's window where torch has its data only there.

    training process                                    python -I -S -c BOOT: nice, no torch, no site packages but two
    packed columns of the window --- stdin (memfd) ---> to_trace -> RankView -> break_down     (as for trace files)
    WindowAnswer <------------------ stdout (memfd) --- msgpack

How a step is bounded
---------------------
On the CPU a step lasts from its start to its end by the host clock. A GPU runs behind the host: when the host begins a
step, the device may still have the one before in its queue, and work that was queued before the window began is not
recorded at all. By the host clock the first step would seem idle, and the last one would lack the work that runs when
the window ends. So the step is bounded by the device's clock: it begins with the first work that calls of the step
launched, and lasts until the first work of the next step. Such steps hold the work in the order of the queue, sum to
the device's time without a gap, and are on average as long as the host's. Work of streams without a kernel bounds no
step: a batch that is copied ahead of its step runs beside kernels of the one before, of which the first are not
recorded. The last step of a window only bounds the one
before, so windows of a GPU have one step more than is reported. A step with a kernel that was launched and did not run
within the window (still in the queue, captured into a graph, or lost by the profiler) is cut: not reported.
A small window of a CPU is reduced in the training process itself, so what only the others need is imported in the
functions that use it: trace files, FLOPs, calls that wait for a device.
"""

import gzip
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from rankscope.agent.profiler.line_samples import LineSamples
from rankscope.measure.breakdown import break_down
from rankscope.measure.intervals import Intervals, covered_before, touching
from rankscope.measure.kineto import LAUNCHES, NO_OPTIONS, NONE, Ints, KinetoTrace
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.records import WindowBreakdown, WindowFlops, WindowSynchronizations
from rankscope.measure.units import NS_PER_S
from rankscope.measure.window_columns import WindowColumns, to_trace

if TYPE_CHECKING:
    from rankscope.measure.traced_collectives import Collective

NICENESS = 10
"""A tenth of the weight of training, so that idle cores are used first. With nice 19, a 70th, a reduction of 0.13 s
would take 9 s on a machine with all cores busy."""
TIME_LIMIT_S = 60
"""A window with the most events allowed, 200,000, takes about a second of CPU."""

LATEST_END_NS = 60 * NS_PER_S
"""Work of a window cannot end so long after its last step: the wait for the device before the window's end is at most
half as long."""

GZIP_BEGIN = b"\x1f\x8b"
"""The first bytes of a file that gzip has compressed (RFC 1952, section 2.3.1)."""
_GRAPH_LAUNCH = "GraphLaunch"
_LAUNCHES_A_KERNEL = re.compile(rf"Launch\w*Kernel|KernelLaunch|{_GRAPH_LAUNCH}")
"""Calls that run a kernel. Copies and sets are not among them: those of zero bytes run none."""


class StepBounds(msgspec.Struct, frozen=True, array_like=True):
    """The bounds of a step by the host clock."""

    step: int
    start_host_ns: int
    end_host_ns: int


class WindowRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A full window of at least one step: its events in columns, or in the trace file that torch `saved`, which may be
    compressed by gzip. Their times are `wall_minus_host_ns` ahead of the host clock. Kernels in whose names the pattern
    `communication_kernels` is found communicate too; empty: none. With `counts_flops` it was recorded with shapes. With
    `host_only` a device did work in it that was not recorded, so that its operators only have FLOPs.
    """

    columns: WindowColumns
    saved: bytes = b""
    steps: tuple[StepBounds, ...]
    wall_minus_host_ns: int
    on_device: bool
    lines: LineSamples = LineSamples()
    communication_kernels: str = ""
    counts_flops: bool = False
    host_only: bool = False


class DeviceCollective(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A collective by the time of its kernels, in the step that launched it; no kernel computed during `exposed_ns`.
    None: not in the window's data.
    """

    step: int
    op: str
    group_name: str | None
    sequence: int | None
    bytes: int | None
    start_host_ns: int
    duration_ns: int
    exposed_ns: int


class WindowAnswer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The results of a full window that began with `first_step`. `steps_cut` counts the steps with work missing.
    `launches_graphs` is whether a CUDA graph was launched within it; None if no work of a device was recorded. Nor are
    there `synchronizations` then, or without a whole step. `flops` are there only if they were to be counted. With
    `has_impossible_times` none of the window is used.
    """

    first_step: int
    breakdowns: tuple[WindowBreakdown, ...] = ()
    collectives: tuple[DeviceCollective, ...] = ()
    steps_cut: int = 0
    on_device: bool = False
    launches_graphs: bool | None = None
    has_impossible_times: bool = False
    synchronizations: WindowSynchronizations | None = None
    flops: WindowFlops | None = None


class _Window(NamedTuple):
    """A step with the bounds of its breakdown."""

    step: int
    start_ns: int
    end_ns: int


def reduce_window(request: WindowRequest) -> WindowAnswer:
    """Return the breakdown of each whole step and the collectives of a device, by the host clock."""
    own = re.compile(request.communication_kernels) if request.communication_kernels else None
    view = RankView(read_events(request), communication_kernels=own)
    first_step = request.steps[0].step
    if request.host_only:
        from rankscope.measure.window_flops import count_window_flops  # noqa: PLC0415 - see above

        steps = [(one.step, one.start_host_ns, one.end_host_ns) for one in request.steps]
        return WindowAnswer(first_step=first_step, flops=count_window_flops(view, steps, host_only=True))
    if not request.on_device:
        windows: Sequence[_Window] = [_Window(s.step, s.start_host_ns, s.end_host_ns) for s in request.steps]
        flops = _count_flops(view, windows) if request.counts_flops else None
        return WindowAnswer(first_step=first_step, breakdowns=_break_down(view, windows), flops=flops)
    if not view.has_device:
        return WindowAnswer(first_step=first_step, steps_cut=len(request.steps) - 1, on_device=True)
    if _has_impossible_times(view, request):
        return WindowAnswer(first_step=first_step, on_device=True, has_impossible_times=True)
    from rankscope.agent.profiler.synchronizations import sum_synchronizations  # noqa: PLC0415 - see above
    from rankscope.measure.host_copies import sum_host_copies  # noqa: PLC0415 - see above

    windows = _find_device_windows(view, request.steps)
    copies = sum_host_copies(view, [(start_ns, end_ns) for _, start_ns, end_ns in windows])
    whole = {window.step for window in windows}
    of_host = [(one.step, one.start_host_ns, one.end_host_ns) for one in request.steps if one.step in whole]
    return WindowAnswer(
        first_step=first_step,
        breakdowns=tuple(
            msgspec.structs.replace(one, host_copies=copied)
            for one, copied in zip(_break_down(view, windows), copies, strict=True)
        ),
        # A kernel of the user's own has no group, and one collective without a group would lose all of the window.
        collectives=_find_device_collectives(
            view if own is None else RankView(view.trace), request.steps, whole, view.sets[0]
        ),
        steps_cut=len(request.steps) - 1 - len(windows),
        on_device=True,
        launches_graphs=bool(len(_find_calls(view, lambda name: _GRAPH_LAUNCH in name))),
        synchronizations=sum_synchronizations(view, of_host, request.lines) if of_host else None,
        flops=_count_flops(view, of_host) if request.counts_flops else None,
    )


def read_events(request: WindowRequest) -> KinetoTrace:
    """Return the window's events by the host clock. Raises TraceError if the saved file is no trace."""
    if not request.saved:
        return to_trace(request.columns, ahead_ns=request.wall_minus_host_ns)
    from rankscope.measure.kineto_columns import read_trace  # noqa: PLC0415 - see above

    is_packed = request.saved.startswith(GZIP_BEGIN)
    options = NO_OPTIONS
    if request.counts_flops:
        from rankscope.measure.window_flops import READ_OPTIONS as options  # noqa: N811, PLC0415 - see above
    trace = read_trace([gzip.decompress(request.saved) if is_packed else request.saved], options)
    start_ns = trace.events.start_ns  # counted from a base of the file's own
    start_ns += trace.head.get("baseTimeNanoseconds", 0) - request.wall_minus_host_ns
    return trace


def _count_flops(view: RankView, steps: Sequence[tuple[int, int, int]]) -> WindowFlops | None:
    from rankscope.measure.window_flops import count_window_flops  # noqa: PLC0415 - see above

    return count_window_flops(view, steps)


def _break_down(view: RankView, windows: Sequence[_Window]) -> tuple[WindowBreakdown, ...]:
    starts_ns = view.unit_starts_ns
    found = []
    for step, start_ns, end_ns in windows:
        compute, communication, copies = (touching(part, start_ns, end_ns) for part in view.sets)
        first, last = np.searchsorted(starts_ns, [start_ns, end_ns], side="left")
        found.append(
            break_down(
                compute,
                communication,
                copies,
                start_ns=start_ns,
                end_ns=end_ns,
                first_step=step,
                step_count=1,
                operator_count=int(last - first),
            )
        )
    return tuple(found)


# -- on a device ------------------------------------------------------------------------------------------------------


def _has_impossible_times(view: RankView, request: WindowRequest) -> bool:
    """Return whether any work ends before it begins, or long after the window: then no time of the window is certain.

    In a saved file a negative duration is 0 already.
    """
    durations_ns = np.frombuffer(request.columns.duration_ns, dtype=np.int64)
    latest_ns = request.steps[-1].end_host_ns + LATEST_END_NS
    start_ns, end_ns = view.work.start_ns, view.work.end_ns  # an end beyond 64 bits is before its start
    return bool((durations_ns < 0).any() or ((end_ns > latest_ns) | (end_ns < start_ns)).any())


def _find_device_windows(view: RankView, steps: Sequence[StepBounds]) -> list[_Window]:
    """Return the steps without the last, bounded by the device's clock; those that are cut are left out."""
    runs_kernels = np.isin(view.work.stream, view.work.stream[view.work.is_kernel])
    begins_ns = [_find_first_work(view, step, runs_kernels) for step in steps]
    lost_ns = _find_lost_launches(view)
    found = []
    for step, start_ns, end_ns in zip(steps, begins_ns, begins_ns[1:], strict=False):
        first, last = np.searchsorted(lost_ns, [step.start_host_ns, step.end_host_ns], side="left")
        if start_ns is not None and end_ns is not None and start_ns < end_ns and first == last:
            found.append(_Window(step.step, start_ns, end_ns))
    return found


def _find_first_work(view: RankView, step: StepBounds, runs_kernels: Bools) -> int | None:
    """Return when the device began the work that the step launched on streams with kernels; None when there is none."""
    places, call_ns = view.work_by_call
    first, last = np.searchsorted(call_ns, [step.start_host_ns, step.end_host_ns], side="left")
    mine = places[first:last][runs_kernels[places[first:last]]]
    return int(view.work.start_ns[mine].min()) if len(mine) else None


def _find_calls(view: RankView, matches: Callable[[str], object]) -> Ints:
    """Return the calls of the device's runtime and driver whose name matches, ascending."""
    return view.trace.rows_named(view.trace.rows(*LAUNCHES), matches)


def _find_lost_launches(view: RankView) -> Ints:
    """Return the begins of calls whose kernel did not run, ascending."""
    calls = _find_calls(view, _LAUNCHES_A_KERNEL.search)
    lost = ~np.isin(view.events.correlation[calls], view.events.correlation[view.work.row])
    return view.events.start_ns[calls[lost]]


def _find_device_collectives(
    view: RankView, steps: Sequence[StepBounds], whole: set[int], compute: Intervals
) -> tuple[DeviceCollective, ...]:
    """Return the collectives launched by whole steps, exposed where nothing of `compute` runs. One of several kernels
    lasts from the first to the last.
    """
    mine = view.work.is_communication
    call = view.launch[mine]
    # A kernel without its call belongs to the step during which it ran.
    call_ns = np.where(call != NONE, view.events.start_ns[call], view.work.start_ns[mine])
    from rankscope.measure.traced_collectives import find_collectives  # noqa: PLC0415 - see above

    found: dict[tuple[object, ...], DeviceCollective] = {}
    for index, (one, launched_ns) in enumerate(zip(find_collectives(view), call_ns.tolist(), strict=True)):
        step = next((s.step for s in steps if s.start_host_ns <= launched_ns < s.end_host_ns), None)
        if step not in whole or step is None:
            continue
        numbered = one.group_name is not None and one.sequence is not None
        key = (one.group_name, one.sequence, one.op) if numbered else (index,)
        found[key] = _join(found.get(key), step, one, compute)
    return tuple(found.values())


def _join(before: DeviceCollective | None, step: int, one: "Collective", compute: Intervals) -> DeviceCollective:
    start_ns = one.start_ns if before is None else min(before.start_host_ns, one.start_ns)
    end_ns = one.start_ns + one.duration_ns
    if before is not None:
        end_ns = max(end_ns, before.start_host_ns + before.duration_ns)
    hidden_ns = int(np.diff(covered_before(compute, np.array([start_ns, end_ns])))[0])
    return DeviceCollective(
        step=step if before is None else before.step,
        op=one.op,
        group_name=one.group_name,
        sequence=one.sequence,
        bytes=one.bytes,
        start_host_ns=start_ns,
        duration_ns=end_ns - start_ns,
        exposed_ns=end_ns - start_ns - hidden_ns,
    )


# -- the process ------------------------------------------------------------------------------------------------------

BOOT = (
    "import sys, types; home = types.ModuleType('rankscope'); home.__path__ = [sys.argv[1]]; "
    "sys.modules['rankscope'] = home; sys.path += sys.argv[2:]; "
    "from rankscope.agent.profiler.reduce_window import main; main()"
)
"""The package `rankscope` is made by hand, without its own file: without `site`, which takes two thirds of the
interpreter's start, an editable install is not found. Its folders have the same names in a wheel and in the sources."""
ENVIRONMENT: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""No thread pools: nothing here multiplies matrices, and making them takes a third of the whole CPU time."""


def command_line() -> list[str]:
    """Return the command that starts this file's `main` in a new interpreter, quickly."""
    packages = _folder_of(_folder_of(_folder_of(os.path.abspath(__file__))))
    beside = {_folder_of(_folder_of(str(module.__file__))) for module in (msgspec, np)}
    return [sys.executable, "-I", "-S", "-c", BOOT, packages, *sorted(beside)]


def _folder_of(path: str) -> str:
    return os.path.dirname(path)


def main() -> None:
    """Read a request from stdin and write the answer to stdout. A time limit ends the process."""
    os.nice(NICENESS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that has started it may block all
    signal.alarm(TIME_LIMIT_S)  # its parent may be gone
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WindowRequest)
    sys.stdout.buffer.write(msgspec.msgpack.encode(reduce_window(request)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
