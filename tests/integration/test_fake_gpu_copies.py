"""Copies from the host on the fake GPU, from its own list of work to the report."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from rankscope.measure.records import HostCopies, WindowBreakdown
from tests.fake_gpu import BLOCKING_CALL, KERNEL, MEMCPY, STREAM, Work, read_work
from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import ALONE, run_forked

SCRIPT = "fake_gpu_copies.py"
STEPS = 60
BYTES = {7: 30_000_000, 13: 4_000_000}
"""Of the copies on each stream, as the script says."""


class Job(NamedTuple):
    """What the rank has reported, and the device's work in the order of its begin."""

    life: Life
    work: list[Work]

    @property
    def windows(self) -> list[WindowBreakdown]:
        return [window for report in self.life.reports for window in report.breakdowns]

    def count_copies(self, window: WindowBreakdown) -> HostCopies:
        """Return the copies from the first work on the training's stream that the step called to the first of the next,
        as the device knows them: what is exposed is found edge by edge.
        """
        begin, end = (self._find_begin(step) for step in (window.first_step, window.first_step + 1))
        copies = [one for one in self.work if one.kind == MEMCPY]
        inside = [one for one in copies if begin <= one.begin_ns < end]
        pageable = [one for one in inside if "Pageable" in one.name]
        return HostCopies(
            count=len(inside),
            duration_ns=self._sweep(copies, begin, end, is_exposed=False),
            exposed_ns=self._sweep(copies, begin, end, is_exposed=True),
            bytes=sum(BYTES[one.stream] for one in inside),
            pageable_ns=self._sweep([one for one in copies if "Pageable" in one.name], begin, end, is_exposed=False),
            pageable_exposed_ns=self._sweep(
                [one for one in copies if "Pageable" in one.name], begin, end, is_exposed=True
            ),
            pageable_bytes=sum(BYTES[one.stream] for one in pageable),
        )

    def _find_begin(self, step: int) -> int:
        record = next(one for one in self.life.steps if one.step == step)
        return min(
            one.begin_ns
            for one in self.work
            if one.stream == STREAM
            and one.kind != BLOCKING_CALL
            and record.start_host_ns <= one.called_ns < record.end_host_ns
        )

    def _sweep(self, copies: list[Work], begin: int, end: int, *, is_exposed: bool) -> int:
        """Return for how long one of the copies ran within these times, with `is_exposed` without a kernel beside."""
        copies = [one for one in copies if one.begin_ns < end and begin < one.end_ns]
        kernels = [one for one in self.work if one.kind == KERNEL and one.begin_ns < end and begin < one.end_ns]
        edges = sorted({begin, end, *(at for one in (*copies, *kernels) for at in (one.begin_ns, one.end_ns))})
        found = 0
        for first, following in pairwise(edges):
            runs = any(one.begin_ns <= first < one.end_ns for one in copies)
            computes = any(one.begin_ns <= first < one.end_ns for one in kernels)
            if begin <= first < end and runs and not (is_exposed and computes):
                found += following - first
        return found


def train(folder: Path, memory: str) -> Job:
    file = folder / "work.txt"
    words = (SCRIPT, find_library(), str(file), "--steps", str(STEPS), "--memory", memory)
    with listening() as collector:
        ended = run_forked(*words, environment={**ALONE, **settings(collector.endpoint)})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    assert life.losses.errors == {}
    return Job(life, sorted(read_work(file), key=lambda one: one.begin_ns))


@pytest.mark.parametrize("memory", ["Pageable", "Pinned"])
def test_copies_of_each_step_are_those_of_the_device(tmp_path: Path, memory: str) -> None:
    job = train(tmp_path, memory)
    assert job.windows
    for window in job.windows:
        copies = window.host_copies
        assert copies is not None
        assert copies == job.count_copies(window)
        assert copies.exposed_ns <= window.copy_ns
        assert copies.exposed_ns >= 3_000_000, "no kernel runs on the stream while the batch is copied"
        assert getattr(copies, "pageable_bytes" if memory == "Pageable" else "bytes") >= BYTES[STREAM]
    told = job.life.reports[-1].totals.host_copies
    assert told is not None
    assert told.bytes == sum(one.host_copies.bytes for one in job.windows if one.host_copies is not None)
