"""Windows of a device written by hand, drawn in microseconds, and their reduction."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rankscope.agent.profiler.line_samples import LineSamples
from rankscope.agent.profiler.reduce_window import StepBounds, WindowAnswer, WindowRequest, reduce_window
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.window_columns import WindowColumns
from tests.unit.agent.traced_activities import PARAM_COMMS, TracedActivity

WALL_AHEAD_NS = 7_000_000
MAIN, STREAM, COMMUNICATION_STREAM = 100, 7, 20


def read_columns(activities: Sequence[TracedActivity], *, on_device: bool) -> WindowColumns:
    window = RawWindow(True, (), None, 0, {}, {}, 0, on_device)
    columns = read_window(window, list(activities), lambda: None).columns
    assert columns is not None
    return columns


def reduce(
    activities: Sequence[TracedActivity],
    bounds_us: Sequence[int],
    *,
    on_device: bool = True,
    lines: LineSamples | None = None,
    communication_kernels: str = "",
) -> WindowAnswer:
    """Steps number 10 and up, whose bounds are on the host clock; the activities are on the wall clock."""
    steps = [StepBounds(10 + i, begin * 1000, end * 1000) for i, (begin, end) in enumerate(pairwise(bounds_us))]
    return reduce_window(
        WindowRequest(
            columns=read_columns(activities, on_device=on_device),
            steps=tuple(steps),
            wall_minus_host_ns=WALL_AHEAD_NS,
            on_device=on_device,
            lines=lines or LineSamples(),
            communication_kernels=communication_kernels,
        )
    )


def at(kind: str, name: str, start_us: int, length_us: int, lane: int, **more: Any) -> TracedActivity:
    return TracedActivity(name, kind, start_us * 1000 + WALL_AHEAD_NS, length_us * 1000, lane, **more)


_numbers = iter(range(1, 1_000_000))


def ran(
    called_us: int,
    start_us: int,
    length_us: int,
    name: str = "gemm",
    *,
    kind: str = "kernel",
    call: str = "cudaLaunchKernel",
    metadata: str | None = None,
    thread: int = MAIN,
    own: str = "",
) -> list[TracedActivity]:
    """Return a call and the work that it launched; `metadata` is of the operator that launched it, `own` its own."""
    number = next(_numbers)
    operator = None if metadata is None else at("cpu_op", PARAM_COMMS, called_us, 1, MAIN, metadata=metadata)
    stream = STREAM if metadata is None else COMMUNICATION_STREAM
    return [
        at("cuda_runtime", call, called_us, 1, thread, correlation=number),
        at(kind, name, start_us, length_us, stream, correlation=number, linked=operator, metadata=own),
    ]


def metadata_of(sequence: int, group: str = "0") -> str:
    """Return torch's metadata of an all-reduce of 1,000 floats."""
    return (
        f'"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 2, '
        f'"dtype": "Float", "Process Group Name": "{group}", "Process Group Description": "default_pg", '
        f'"Process Group Ranks": "[0, 1]", "Seq": {sequence}'
    )
