"""Tests of keeping threads out of torch while the interpreter exits: gloo's, and the agent's own behind the gate."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from rankscope.agent.shutdown.torch_threads import TorchCallGate, drain_gloo_threads
from rankscope.agent.steps.open_collectives import THREAD_NAME

LONG_S = 60.0


def put(tasks: Path, thread: int, name: str, state: str) -> None:
    """A thread, as /proc shows it."""
    folder = tasks / str(thread)
    folder.mkdir(exist_ok=True)
    written = folder / "new"
    written.write_text(f"{thread} ({name}) {state} 1 1 1 0 -1\n")
    written.replace(folder / "stat")


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        (THREAD_NAME, "S", True), (THREAD_NAME, "R", False), ("python", "R", True), (f"x ({THREAD_NAME}", "S", True),
        (f") {THREAD_NAME}", "R", True),
    ],
)  # fmt: skip
def test_only_runnable_gloo_threads_are_awaited(tmp_path: Path, name: str, state: str, expected: bool) -> None:
    put(tmp_path, 7, "python", "R")
    put(tmp_path, 8, name, state)
    assert drain_gloo_threads(0.0, str(tmp_path)) is expected


def test_it_is_waited_for_until_it_has_nothing_to_do(tmp_path: Path) -> None:
    put(tmp_path, 8, THREAD_NAME, "R")
    threading.Timer(0.05, put, (tmp_path, 8, THREAD_NAME, "S")).start()
    assert drain_gloo_threads(LONG_S, str(tmp_path))


def test_vanished_thread_and_missing_proc_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    assert drain_gloo_threads(0.0, str(tmp_path))
    assert drain_gloo_threads(0.0, str(tmp_path / "nowhere"))
    assert drain_gloo_threads(LONG_S)


def test_shut_waits_for_the_present_call() -> None:
    gate, within, leaves = TorchCallGate(), threading.Event(), threading.Event()

    def pass_through() -> None:
        with gate:
            within.set()
            leaves.wait(LONG_S)

    passing = threading.Thread(target=pass_through)
    passing.start()
    assert within.wait(LONG_S)
    assert not gate.shut(0.0)
    leaves.set()
    assert gate.shut(LONG_S)
    passing.join(LONG_S)


def test_no_call_enters_a_shut_gate() -> None:
    gate, got_in = TorchCallGate(), threading.Event()

    def come() -> None:
        with gate:
            got_in.set()

    assert gate.shut(0.0)
    threading.Thread(target=come, daemon=True).start()
    assert not got_in.wait(0.05)


def test_an_error_within_leaves_the_gate_open() -> None:
    gate = TorchCallGate()
    with pytest.raises(ZeroDivisionError), gate:
        _ = 1 / 0
    assert gate.shut(0.0)


def test_process_exits_cleanly_during_the_rendezvous() -> None:
    """Without the gate each such process is aborted: its thread is within a call of the store all the time."""
    script = """
        import threading, time
        from torch._C._distributed_c10d import TCPStore
        from rankscope.agent import embedded
        from rankscope.agent.shutdown.torch_threads import TorchCallGate
        from rankscope.agent.identity import read_identity

        embedded.POLL_S = 0.0
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment = {
            "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        looks = threading.Event()

        class Gate(TorchCallGate):
            def __exit__(self, *how):
                super().__exit__(*how)
                looks.set()

        gate = Gate()
        meeting = embedded.Rendezvous(read_identity(environment, run="r"), environment, threading.Event(), gate)
        threading.Thread(target=meeting.find, daemon=True).start()
        assert looks.wait(60.0)
        assert gate.shut(60.0)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
