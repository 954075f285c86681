"""Tests of the gate around calls into torch while the interpreter exits."""

import subprocess
import sys
import textwrap
import threading

import pytest

from rankscope.agent.shutdown.torch_call_gate import TorchCallGate

SECONDS = 60.0


def test_shut_waits_for_the_present_call() -> None:
    gate, within, leaves = TorchCallGate(), threading.Event(), threading.Event()

    def pass_through() -> None:
        with gate:
            within.set()
            leaves.wait(SECONDS)

    passing = threading.Thread(target=pass_through)
    passing.start()
    assert within.wait(SECONDS)
    assert not gate.shut(0.0)
    leaves.set()
    assert gate.shut(SECONDS)
    passing.join(SECONDS)


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
        from rankscope.agent.shutdown.torch_call_gate import TorchCallGate
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
