"""WorkerSamples: how workers learn of an order, and what comes back. Workers are real, frames of stages made up."""

import os
import queue
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

from rankscope.agent.captures.loader_queues import LoaderQueues
from rankscope.agent.captures.sampling import Sampling
from rankscope.agent.captures.worker_page import EARLY_NS, WorkerPage
from rankscope.agent.captures.worker_samples import PART_OF, WorkerSamples, find_stage, find_worker
from rankscope.agent.guard import Guard
from rankscope.measure.line_samples import COLLATE, FETCH, HAND_OVER, IDLE, SampledLoader
from rankscope.measure.stalls import describe_frame
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

TORCH_FOLDER = Path(torch.__file__).parent


class Slow(Dataset[torch.Tensor]):
    """Samples that take 20 ms each."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.read(index)

    def read(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.tensor(index)


class SimpleLoader(SimpleNamespace):
    """What torch's loaders have, as far as it is read. It can be referred to weakly."""

    _rcvd_idx = 0
    _task_info: Any = {}  # noqa: RUF012 - as above
    _workers = ()


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerSamples]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    page = WorkerPage(Sampling({}, Guard(1), is_wanted=True))
    monkeypatch.setenv("RANKSCOPE_PID", str(os.getpid()))
    page.install()
    yield WorkerSamples(page)
    page.remove()


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_say_where_they_were(samples: WorkerSamples, tmp_path: Path, context: str) -> None:
    batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2, multiprocessing_context=context))
    for _ in range(4):  # of both workers
        next(batches)
    end_ns = time.monotonic_ns() + NS_PER_S + EARLY_NS
    samples.order(10 * NS_PER_MS, end_ns)
    while not samples.is_awaited(time.monotonic_ns()):
        next(batches)
    while samples.is_awaited(time.monotonic_ns()):
        next(batches)
    found = samples.collect()
    assert [(one.number, one.count) for one in found] == [(0, 2), (1, 2)]
    for one in found:
        place, _ = max(one.step.stack_ns, key=lambda pair: pair[1])
        stack = one.stacks[place]
        line = Slow.read.__code__.co_firstlineno + 1
        assert (describe_frame(stack.frames[-1]), stack.stage) == (f"test_worker_samples.py:{line} (read)", FETCH)
        assert one.fetches > 2
    assert list(tmp_path.glob("rankscope-workers-*")) == []


class SlowOnOneWorker(Slow):
    """Every other batch takes 0.2 s."""

    def read(self, index: int) -> torch.Tensor:
        time.sleep(0.2 if index % 2 else 0.0)
        return torch.tensor(index)


def test_queues_show_batches_that_wait_for_the_one_that_is_next(samples: WorkerSamples) -> None:
    batches = iter(DataLoader(SlowOnOneWorker(), num_workers=2, prefetch_factor=4, multiprocessing_context="fork"))
    samples.order(10 * NS_PER_MS, time.monotonic_ns())
    samples.look()
    for number in range(4):
        assert next(batches).item() == number
        samples.look()
    found = samples.read_loader()
    assert found is not None
    assert (found.workers, found.start_method, found.looks, found.unpinned) == (2, "fork", 5, None)
    assert found.ready >= found.early > 0
    samples.collect()


def test_queue_of_the_thread_that_pins_memory_is_its_own() -> None:
    queues = LoaderQueues()
    unpinned, pinned = queue.Queue[int](), queue.Queue[int]()
    loader = SimpleLoader(_data_queue=pinned, _worker_result_queue=unpinned, _pin_memory_thread=object())
    queues._loaders = [weakref.ref(loader)]
    for number in range(3):
        unpinned.put(number)
    queues.look()
    assert queues.read() == SampledLoader(workers=0, looks=1, ready=0, early=0, unpinned=3)
    loader._task_info = None  # another torch
    queues.begin()
    queues.look()
    assert queues.read() is None


def test_rank_without_workers_has_no_queues(samples: WorkerSamples) -> None:
    samples.order(10 * NS_PER_MS, time.monotonic_ns())
    next(iter(DataLoader(Slow())))
    samples.look()
    assert samples.read_loader() is None
    samples.collect()


def test_rank_without_workers_waits_for_none(samples: WorkerSamples) -> None:
    samples.order(10 * NS_PER_MS, time.monotonic_ns() + 300 * NS_PER_S)
    next(iter(DataLoader(Slow())))
    assert (samples.is_awaited(time.monotonic_ns()), samples.collect()) == (False, ())


def test_file_of_another_form_is_left_out(samples: WorkerSamples) -> None:
    samples.order(10 * NS_PER_MS, time.monotonic_ns())
    (Path(samples._folder) / "7").write_bytes(b"no worker")
    assert samples.collect() == ()


def test_worker_that_does_not_end_is_awaited_until_the_end(samples: WorkerSamples) -> None:
    samples.order(10 * NS_PER_MS, 1_000)
    (Path(samples._folder) / f"7{PART_OF}").touch()
    assert [samples.is_awaited(999), samples.is_awaited(1_000)] == [True, False]
    assert samples.collect() == ()


def test_torch_is_restored() -> None:
    page = WorkerPage(Sampling({}, Guard(1), is_wanted=True))
    page.install()
    assert hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__")
    page.remove()
    assert not hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__")


def test_process_that_is_no_worker_is_none() -> None:
    assert find_worker() is None


@pytest.mark.parametrize(
    ("files", "function", "stage"),
    [
        (("/usr/lib/python3.11/multiprocessing/queues.py",), "get", IDLE),
        (("/usr/lib/python3.11/multiprocessing/queues.py",), "put", HAND_OVER),
        ((f"{TORCH_FOLDER}/utils/data/_utils/collate.py",), "collate", COLLATE),
        ((f"{TORCH_FOLDER}/utils/data/_utils/fetch.py", SCRIPT), "fetch", FETCH),
        ((SCRIPT,), "fetch", ""),
    ],
)
def test_stage_is_that_of_the_frames(files: tuple[str, ...], function: str, stage: str) -> None:
    assert find_stage(frame_in(*files, function=function)) == stage
