"""Saves on the real torch, torch.distributed.checkpoint and safetensors: line, bytes, and the phases of the step."""

import io
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint.state_dict_saver as dcp

from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.guard import Guard
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.saves import PART, SAVE_NS, Saves
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import CHECKPOINT, CHECKPOINT_WAIT, PHASES, SAVE_LINES_MAX, SavedLine, StepRecord

FLOATS = torch.zeros(1000)
BYTES = 4000
CONTAINER_BYTES_MAX = 4000
"""What a file has beside the numbers."""


class Process:
    """A process whose saves are counted, in one open step."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.records: list[StepRecord] = []
        self.guard = Guard(error_budget=100)
        self.timer = StepTimer(self.records.append)
        self.buffer = HookEventBuffer(self.timer, self.guard)
        self.saves = Saves(self.guard, self.buffer, self.timer.user, ScriptFiles({}).is_user, self.tick_ns)

    def tick_ns(self) -> int:
        """Each event comes 1 ms after the one before."""
        self.now_ns += 1_000_000
        return self.now_ns

    def read(self) -> tuple[SavedLine, ...]:
        found = self.saves.read()
        assert found is not None
        assert self.guard.errors == {}
        return found

    def phases_ms(self) -> dict[str, int]:
        """The user's phases of the step."""
        with self.buffer.flushed():
            self.timer.user.end_step(self.tick_ns())
        phases_ns = self.records[-1].phases_ns
        return {name: spent // 1_000_000 for name, spent in phases_ns.items() if name not in PHASES}


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    with made.buffer.flushed():
        made.timer.data_begin(made.tick_ns())
        made.timer.data_end(made.tick_ns())
    made.saves.install()
    yield made
    made.saves.remove()


def test_save_to_a_path_has_its_line_and_bytes(process: Process, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for _ in range(2):
        torch.save(FLOATS, path)
    (found,) = process.read()
    assert (found.call, found.count, found.in_background) == ("torch.save", 2, False)
    assert found.line.endswith("(test_save_to_a_path_has_its_line_and_bytes)")
    assert found.bytes == 2 * path.stat().st_size
    assert found.last_bytes == path.stat().st_size
    assert found.longest_ns >= found.last_ns > 0
    assert found.duration_ns >= found.longest_ns
    assert process.phases_ms() == {CHECKPOINT: 2}
    assert process.saves.spent_ns == 2 * SAVE_NS


def test_save_to_an_open_file_counts_what_it_adds(process: Process, tmp_path: Path) -> None:
    with (tmp_path / "model.pt").open("wb") as file:
        file.write(b"head")
        torch.save(FLOATS, file)
        size = file.tell()
    assert process.read()[0].bytes == size - 4


def test_save_in_memory_is_none(process: Process) -> None:
    torch.save(FLOATS, io.BytesIO())
    assert process.read() == ()
    assert process.phases_ms() == {}


def test_timeout_of_the_script_amid_a_size_reaches_it_once(process: Process) -> None:
    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError

    class Slow:
        """A file whose place takes so long that the script's timer ends."""

        def write(self, data: bytes) -> int:
            return len(data)

        def flush(self) -> None:
            pass

        def tell(self) -> int:
            signal.raise_signal(signal.SIGUSR1)
            return 0

    before = signal.signal(signal.SIGUSR1, give_up)
    try:
        with pytest.raises(TimeoutError):
            torch.save(FLOATS, Slow())  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGUSR1, before)
    torch.save(FLOATS, io.BytesIO())
    assert process.read() == ()


def test_file_that_tells_no_place_leaves_the_bytes_unknown(process: Process) -> None:
    class Remote:
        """A file of another storage."""

        def write(self, data: bytes) -> int:
            return len(data)

        def flush(self) -> None:
            pass

    torch.save(FLOATS, Remote())  # type: ignore[arg-type]
    (found,) = process.read()
    assert (found.count, found.bytes, found.last_bytes) == (1, None, None)


def test_failed_save_raises_its_own_error_and_is_not_counted(process: Process, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save(FLOATS, tmp_path / "nowhere" / "model.pt")
    assert process.read() == ()
    torch.save(FLOATS, tmp_path / "model.pt")
    assert process.read()[0].count == 1
    assert process.phases_ms() == {CHECKPOINT: 2}  # both took time of the step


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_distributed_save_is_own_writing_and_the_rest(process: Process, tmp_path: Path) -> None:
    dcp.save({"floats": FLOATS}, checkpoint_id=tmp_path)
    (found,) = process.read()
    assert (found.call, found.count) == ("torch.distributed.checkpoint.save", 1)
    assert found.line.endswith("(test_distributed_save_is_own_writing_and_the_rest)")
    assert found.bytes is not None
    assert BYTES <= found.bytes <= BYTES + CONTAINER_BYTES_MAX
    assert process.phases_ms() == {CHECKPOINT: 1, CHECKPOINT_WAIT: 2}


def test_save_by_safetensors_counts_under_whatever_name(process: Process, tmp_path: Path) -> None:
    save_under_another_name = safetensors.torch.save_file  # as of an import before the agent's
    save_under_another_name({"floats": FLOATS}, tmp_path / "model.safetensors")
    (found,) = process.read()
    assert (found.call, found.bytes) == (
        "safetensors.torch.save_file",
        (tmp_path / "model.safetensors").stat().st_size,
    )


def test_save_on_another_thread_makes_no_step_longer(process: Process, tmp_path: Path) -> None:
    thread = threading.Thread(target=torch.save, args=(FLOATS, tmp_path / "model.pt"))
    thread.start()
    thread.join()
    (found,) = process.read()
    assert (found.in_background, found.count, found.line) == (True, 1, "")
    assert process.phases_ms() == {}


def test_phase_of_the_user_keeps_its_time(process: Process, tmp_path: Path) -> None:
    with process.buffer.flushed():
        process.timer.user.begin_phase(process.tick_ns(), "export")
    torch.save(FLOATS, tmp_path / "model.pt")
    with process.buffer.flushed():
        process.timer.user.end_phase(process.tick_ns())
    assert process.phases_ms() == {"export": 3}
    assert process.read()[0].count == 1


def test_save_begins_no_step(tmp_path: Path) -> None:
    process = Process()
    process.saves.install()
    try:
        torch.save(FLOATS, tmp_path / "initial.pt")
        with process.buffer.flushed():
            assert process.timer.recorder.open is None
    finally:
        process.saves.remove()


def test_lines_beyond_the_limit_are_told_as_one(process: Process, tmp_path: Path) -> None:
    for number in range(SAVE_LINES_MAX + 4):
        exec(  # noqa: S102 - a line of its own for each
            compile("\n" * number + "torch.save(FLOATS, path)", "/home/me/train.py", "exec"),
            {"torch": torch, "FLOATS": FLOATS, "path": tmp_path / "model.pt"},
        )
    found = process.read()
    assert len(found) == SAVE_LINES_MAX
    assert found[0].line == "train.py:1 (<module>)"
    assert (found[-1].call, found[-1].count) == ("other", 5)


def test_wrapped_save_can_be_pickled_and_is_restored(process: Process) -> None:
    wrapper: Any = torch.save
    assert pickle.dumps(wrapper)  # it is found by its name
    process.saves.remove()
    assert torch.save is wrapper.__wrapped__
    assert torch.serialization.save is wrapper.__wrapped__
    assert process.read() == ()


def test_error_of_the_agent_saves_all_the_same(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise KeyError("our own mistake")

    monkeypatch.setattr(process.saves, "_find_line", fail)
    torch.save(FLOATS, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size > BYTES
    assert process.guard.errors == {PART: 1}
