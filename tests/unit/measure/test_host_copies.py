"""Copies from the host: by hand, and of real traces against a count over their JSON without the code under test."""

import gzip
import json
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankscope.agent.profiler.reduce_window import StepBounds, WindowRequest, reduce_window
from rankscope.collector.traces.files import read_chunks
from rankscope.measure.host_copies import sum_host_copies
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import HostCopies, add_host_copies
from tests.unit.agent.profiler.made_windows import MAIN, at, ran, read_columns, reduce
from tests.unit.agent.traced_activities import TRACES, TracedActivity, read_events, to_activities

RESNET = "v100dgxs_resnet50_workers0_a"
DLRM = "v100_dlrm_8ranks_r0"
MI250 = "mi250_minitoy"


def copied(
    called_us: int, start_us: int, length_us: int, memory: str = "Pageable", size: int | None = 1_000
) -> list[TracedActivity]:
    name = f"Memcpy HtoD ({memory} -> Device)"
    own = "" if size is None else f'"stream": 7, "correlation": 3, "bytes": {size}, "memory bandwidth (GB/s)": "N/A"'
    return ran(called_us, start_us, length_us, name, kind="gpu_memcpy", call="cudaMemcpyAsync", own=own)


# host    | step 10   0-100      | step 11  100-200 | step 12
# kernels         40-80                130-150           230
BOUNDS_US = (0, 100, 200, 300)
KERNELS = [*ran(10, 40, 40), *ran(110, 130, 20), *ran(210, 230, 10)]


def sum_by_step(*copies: list[TracedActivity]) -> list[HostCopies | None]:
    found = reduce([*KERNELS, *(one for of_copy in copies for one in of_copy)], BOUNDS_US)
    return [step.host_copies for step in found.breakdowns]


def test_copy_counts_as_exposed_where_no_kernel_runs() -> None:
    first, second = sum_by_step(copied(5, 20, 30))  # 20-50, the kernel from 40 on; so the step begins at 20
    assert first == HostCopies(
        count=1, duration_ns=30_000, exposed_ns=20_000, bytes=1_000,
        pageable_ns=30_000, pageable_exposed_ns=20_000, pageable_bytes=1_000,
    )  # fmt: skip
    assert second == HostCopies(), "none is a measurement"


def test_pinned_copy_counts_beside_those_from_pageable_memory() -> None:
    first, _ = sum_by_step(copied(5, 20, 10), copied(6, 25, 15, "Pinned", 500))
    assert first == HostCopies(
        count=2, duration_ns=20_000, exposed_ns=20_000, bytes=1_500,
        pageable_ns=10_000, pageable_exposed_ns=10_000, pageable_bytes=1_000,
    )  # fmt: skip


def test_copy_hidden_behind_a_collective_is_not_exposed() -> None:
    nccl = ran(30, 90, 20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    first, _ = sum_by_step(nccl, copied(31, 90, 20, "Pinned"))
    assert first is not None
    assert (first.duration_ns, first.exposed_ns) == (20_000, 0)


def test_copy_beyond_a_steps_end_has_its_bytes_where_it_begins() -> None:
    # Step 11 begins with its first work, at 120, amid a copy of step 10 on another stream.
    first, second = sum_by_step(copied(15, 110, 20), ran(101, 120, 5))
    assert first is not None
    assert second is not None
    assert (first.count, first.bytes, first.duration_ns) == (1, 1_000, 10_000)
    assert (second.count, second.bytes, second.duration_ns) == (0, 0, 10_000)


def test_batch_copied_ahead_on_its_own_stream_bounds_no_step() -> None:
    # The copy for step 10 runs from 20 to 30, beside kernels of the step before, which are not recorded; that for 11
    # from 60 to 70, beside one of step 10, which lasts from 40 to 80.
    ahead = [
        at("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start_us, 10, 13, correlation=number)
        for number, start_us in ((1_000_001, 20), (1_000_002, 60))
    ]
    calls = [
        at("cuda_runtime", "cudaMemcpyAsync", called_us, 1, MAIN, correlation=number)
        for number, called_us in ((1_000_001, 5), (1_000_002, 105))
    ]
    found = reduce([*KERNELS, *ahead, *calls], BOUNDS_US).breakdowns
    assert [one.window_ns for one in found] == [(130 - 40) * 1_000, (230 - 130) * 1_000]
    first, second = found[0].host_copies, found[1].host_copies
    assert first is not None
    assert (first.count, first.duration_ns, first.exposed_ns) == (1, 10_000, 0)
    assert second == HostCopies()


@pytest.mark.parametrize(
    ("name", "size"),
    [("Memcpy DtoH (Device -> Pageable)", 8), ("Memcpy DtoD (Device -> Device)", 8), ("Memset (Device)", 8)],
)
def test_other_copies_are_none_from_the_host(name: str, size: int) -> None:
    kind = "gpu_memset" if "Memset" in name else "gpu_memcpy"
    assert sum_by_step(ran(5, 20, 10, name, kind=kind, own=f'"bytes": {size}')) == [HostCopies()] * 2


def test_what_is_not_told_of_a_copy_is_counted() -> None:
    first, _ = sum_by_step(copied(5, 20, 10, "Host", None), copied(6, 32, 4, "Pinned", None))
    assert first == HostCopies(count=2, duration_ns=14_000, exposed_ns=14_000, unsized=2, untold=1)


@pytest.mark.parametrize("own", ["not JSON", '"bytes": -8', '"bytes": "8"', '"bytes": 9223372036854775808'])
def test_bytes_that_cannot_be_are_not_known(own: str) -> None:
    (first, _) = sum_by_step(ran(5, 20, 10, "Memcpy HtoD (Pinned -> Device)", kind="gpu_memcpy", own=own))
    assert first is not None
    assert (first.bytes, first.unsized) == (0, 1)


def test_window_of_a_cpu_has_no_copies() -> None:
    found = reduce([*KERNELS, *copied(5, 20, 10)], BOUNDS_US, on_device=False)
    assert [one.host_copies for one in found.breakdowns] == [None] * 3


def test_sum_is_of_what_is_known_and_can_be_encoded() -> None:
    one = HostCopies(count=1, duration_ns=2**62, exposed_ns=3)
    assert add_host_copies([None, one, one, one]) == HostCopies(count=3, duration_ns=2**63 - 1, exposed_ns=9)
    assert add_host_copies([None]) is None


# -- real traces ------------------------------------------------------------------------------------------------------


@cache
def read_json(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


class Counted:
    """Copies from the host within a time of a trace's JSON, microsecond by microsecond where a trace has whole ones,
    else nanosecond by nanosecond.
    """

    def __init__(self, path: Path, begin: Decimal, end: Decimal, tick: Decimal) -> None:
        events = read_json(path)
        copies = [event for event in events if event["name"].startswith("Memcpy HtoD")]
        kernels = [event for event in events if str(event.get("cat")).lower() == "kernel"]
        inside = [event for event in copies if begin <= event["ts"] < end]
        self.count = len(inside)
        self.bytes = sum(event["args"].get("bytes", 0) for event in inside)
        self.pageable_bytes = sum(event["args"].get("bytes", 0) for event in inside if "Pageable" in event["name"])
        of_all = self._ticks(copies, begin, end, tick)
        of_pageable = self._ticks([event for event in copies if "Pageable" in event["name"]], begin, end, tick)
        at_work = self._ticks(kernels, begin, end, tick)
        tick_ns = int(tick * 1_000)
        self.duration_ns, self.pageable_ns = tick_ns * len(of_all), tick_ns * len(of_pageable)
        self.exposed_ns = tick_ns * len(of_all - at_work)
        self.pageable_exposed_ns = tick_ns * len(of_pageable - at_work)

    @staticmethod
    def _ticks(events: Sequence[dict[str, Any]], begin: Decimal, end: Decimal, tick: Decimal) -> set[int]:
        found: set[int] = set()
        for event in events:
            first, last = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
            found.update(range(int((first - begin) / tick), int((last - begin) / tick)))
        return found


FIELDS = ("count", "bytes", "duration_ns", "exposed_ns", "pageable_ns", "pageable_exposed_ns", "pageable_bytes")


def fields_of(found: object) -> dict[str, int]:
    return {name: getattr(found, name) for name in FIELDS}


@pytest.mark.parametrize(
    ("name", "count", "size", "tick"),
    [
        (RESNET, 12, 6 * (19_267_584 + 256), Decimal(1)),
        (DLRM, 13, 832 + 13_696 + 1_664 + 3_336 + 64 + 4 * 2_808 + 3 * 64 + 96, Decimal(1)),
        (MI250, 2, 0, Decimal("0.001")),
    ],
)
def test_copies_of_a_trace_are_those_in_its_json(name: str, count: int, size: int, tick: Decimal) -> None:
    path = TRACES / f"{name}.json.gz"
    events = read_events(path)
    begin, end = min(Decimal(one["ts"]) for one in events), max(Decimal(one["ts"] + one["dur"]) for one in events)
    view = RankView(read_trace(read_chunks(str(path))))
    whole_ns = int(view.work.start_ns.min()) - 1, int(view.work.end_ns.max()) + 1
    (found,) = sum_host_copies(view, [whole_ns])
    assert (found.count, found.bytes) == (count, size)
    assert fields_of(found) == fields_of(Counted(path, begin, end, tick))


def test_amd_tells_neither_bytes_nor_memory_of_a_copy() -> None:
    view = RankView(read_trace(read_chunks(str(TRACES / f"{MI250}.json.gz"))))
    (found,) = sum_host_copies(view, [(0, int(view.work.end_ns.max()))])
    assert (found.count, found.unsized, found.untold) == (2, 2, 2)


def test_real_window_has_the_copies_of_each_step() -> None:
    path = TRACES / f"{RESNET}.json.gz"
    view = RankView(read_trace(read_chunks(str(path))))
    steps = tuple(StepBounds(step.number, step.start_ns, step.next_start_ns) for step in view.steps)
    columns = read_columns(to_activities(read_events(path)), on_device=True)
    answer = reduce_window(WindowRequest(columns=columns, steps=steps, wall_minus_host_ns=0, on_device=True))
    # The copy of the images is a step's first work: its steps begin with it, 1,940 us and more after the step before.
    begins = [
        1623142623529248,
        1623142623705467,
        1623142623884185,
        1623142624059168,
        1623142624239909,
        1623142624408196,
    ]
    found = [one.host_copies for one in answer.breakdowns]
    assert len(found) == 5
    for one, (begin, end) in zip(found, pairwise(begins), strict=True):
        assert one is not None
        assert fields_of(one) == fields_of(Counted(path, Decimal(begin), Decimal(end), Decimal(1)))
    first, whole = found[0], answer.breakdowns[0]
    assert first is not None
    assert (first.bytes, first.pageable_bytes, first.exposed_ns) == (19_267_840, 19_267_840, 1_941_000)
    assert first.exposed_ns / whole.window_ns == pytest.approx(1_941 / (1623142623705467 - 1623142623529248))
