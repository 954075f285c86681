"""WorkerSamples: how workers learn of an order, and what comes back. Workers are real, frames of stages made up."""

import os
import queue
import signal
import tempfile
import time
import weakref
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

from rankscope.agent.captures.loader_queues import LoaderQueues
from rankscope.agent.captures.sampling import Sampling
from rankscope.agent.captures.worker_page import (
    EARLY_NS,
    LENGTH,
    NUMBER,
    PAGE_BYTES,
    PAGE_VARIABLE,
    PLACE_BYTES,
    PLACES,
    WHOLE_BYTES,
    WorkerOrder,
    WorkerPage,
    join_rank,
)
from rankscope.agent.captures.worker_samples import WorkerSamples, find_stage, find_worker
from rankscope.agent.guard import Guard
from rankscope.measure.line_samples import COLLATE, FETCH, HAND_OVER, IDLE, SampledLoader, SampledWorker
from rankscope.measure.stalls import describe_frame
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

TORCH_FOLDER = Path(torch.__file__).parent


ORDERS_MAX = 20
"""On a busy machine an order may be over before a worker has imported what it needs for its first one."""


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
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPage]:
    page = WorkerPage(Sampling({}, Guard(1), is_wanted=True))
    monkeypatch.setenv("RANKSCOPE_PID", str(os.getpid()))
    page.install()
    yield page
    page.remove()


@pytest.fixture
def samples(page: WorkerPage) -> WorkerSamples:
    return WorkerSamples(page)


def answer(page: WorkerPage, *answers: bytes) -> list[int]:
    """Answer as workers do, in this process; return the places."""
    page._seen = page._orders
    places = []
    for one in answers:
        place = page.take_place()
        assert place is not None
        places.append(place)
        page.write(place, one)
    return places


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_say_where_they_were_and_leave_no_file(
    samples: WorkerSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one of an earlier test does not know of this page
    batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2, multiprocessing_context=context))
    for _ in range(4):  # of both workers
        next(batches)
    found: tuple[SampledWorker, ...] = ()
    for _ in range(ORDERS_MAX):
        end_ns = time.monotonic_ns() + NS_PER_S + EARLY_NS
        samples.order(10 * NS_PER_MS, end_ns)
        while time.monotonic_ns() < end_ns:
            next(batches)
        found = samples.collect()
        if len(found) == 2:
            break
    assert [(one.number, one.count) for one in found] == [(0, 2), (1, 2)]
    for one in found:
        place, _ = max(one.step.stack_ns, key=lambda pair: pair[1])
        stack = one.stacks[place]
        line = Slow.read.__code__.co_firstlineno + 1
        assert (describe_frame(stack.frames[-1]), stack.stage) == (f"test_worker_samples.py:{line} (read)", FETCH)
        assert one.fetches > 2
    assert list(tmp_path.glob("*rankscope*")) == []


@pytest.mark.parametrize("arguments", [["python", "-c", "from multiprocessing.spawn import spawn_main"], ["python"]])
def test_another_file_of_a_rank_is_no_memory_of_its_workers(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "of_the_script"
    path.write_bytes(bytes([1]) * WHOLE_BYTES)
    with path.open("r+b") as file:
        child = os.fork()
        if not child:  # its parent stands for a rank whose agent has ended, and that has opened a file of its own
            environment = {PAGE_VARIABLE: f"{os.getppid()}:{file.fileno()}"}
            os._exit(join_rank(environment, arguments) is not None)
        assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == bytes([1]) * WHOLE_BYTES


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


def test_answer_of_another_form_or_too_long_is_left_out(samples: WorkerSamples, page: WorkerPage) -> None:
    samples.order(10 * NS_PER_MS, 1_000)
    answer(page, b"no worker", b"", bytes(PLACE_BYTES))
    assert sorted(len(one) for one in page.read()) == [1, 1, 9]  # in any places
    assert (samples.is_awaited(0), samples.collect()) == (False, ())


def test_worker_that_does_not_end_is_awaited_until_the_end(samples: WorkerSamples, page: WorkerPage) -> None:
    samples.order(10 * NS_PER_MS, 1_000)
    page._seen = page._orders
    page.take_place()
    assert [samples.is_awaited(999), samples.is_awaited(1_000)] == [True, False]
    assert samples.collect() == ()
    samples.order(10 * NS_PER_MS, 1_000)
    assert not samples.is_awaited(999)  # it has not begun for this one


def test_workers_take_a_place_each_and_new_orders_free_places(page: WorkerPage) -> None:
    for _ in range(2):
        page.order(WorkerOrder(1, 2))
        assert len({*answer(page, *[b"x"] * PLACES)}) == PLACES
        assert page.take_place() is None


def test_place_taken_by_another_worker_meanwhile_is_left_to_it(page: WorkerPage) -> None:
    page.order(WorkerOrder(1, 2))
    (place,) = answer(page, b"mine")
    NUMBER.pack_into(page._page, place + NUMBER.size, os.getpid() + 1)
    page.write(place, b"mine too")
    assert page.read() == [b"mine"]


def test_length_that_cannot_be_is_cut(page: WorkerPage) -> None:
    page.order(WorkerOrder(1, 2))
    (place,) = answer(page, b"x")
    LENGTH.pack_into(page._page, place + 2 * LENGTH.size, 1 << 60)
    assert place >= PAGE_BYTES
    assert len(page.read()[0]) == PLACE_BYTES - 3 * LENGTH.size


class InterruptError(Exception):
    """What a signal handler of the script raises."""


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise InterruptError


def test_fetch_passes_on_signal_handler_errors_and_none_of_ours(
    page: WorkerPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("ours")

    monkeypatch.setattr(page, "note_fetch", fail)
    next(iter(DataLoader(Slow())))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        monkeypatch.setattr(page, "note_fetch", lambda: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(InterruptError):
            next(iter(DataLoader(Slow())))
    finally:
        signal.signal(signal.SIGALRM, before)


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
