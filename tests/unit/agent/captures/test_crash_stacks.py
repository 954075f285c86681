"""Tests of parsing faulthandler output, of a real crash and of several Python versions."""

import subprocess
import sys
from pathlib import Path

from rankscope import agent
from rankscope.agent.captures.crash_stacks import parse_crash
from rankscope.agent.captures.stacks import FRAMES_MAX, THREADS_MAX
from rankscope.measure.stalls import StackFrame, ThreadStack

SCRIPT = """
import ctypes, faulthandler, resource, sys, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable(open(sys.argv[1], "w"))
def wait_for_ever():
    threading.Event().wait()
def read_nowhere():
    ctypes.string_at(0)
threading.Thread(target=wait_for_ever, daemon=True).start()
read_nowhere()
"""


def test_the_thread_that_crashed_comes_first_with_its_line(tmp_path: Path) -> None:
    written = tmp_path / "crash"
    subprocess.run([sys.executable, "-c", SCRIPT, written], check=False, timeout=500)
    crashed, *others = parse_crash(written.read_text())
    assert crashed.name == "current thread"
    assert StackFrame("<string>", 8, "read_nowhere") in crashed.frames
    assert [frame.function for frame in crashed.frames][-1] == "<module>"
    assert any(frame.function == "wait_for_ever" for other in others for frame in other.frames)


def test_a_thread_with_a_name_and_one_without_python_frames() -> None:
    text = (
        "Fatal Python error: Aborted\n\n"
        "Thread 0x00007f01 [MainThread] (most recent call first):\n"
        '  File "/home/me/train.py", line 24 in main\n'
        '  File "/home/me/train.py", line ??? in <module>\n\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        "  <no Python frame>\n\n"
        "Extension modules: numpy.core._multiarray_umath (total: 1)\n"
    )
    assert parse_crash(text) == (
        ThreadStack(name="current thread"),
        ThreadStack(
            name="thread 0x00007f01",
            frames=(StackFrame("/home/me/train.py", 24, "main"), StackFrame("/home/me/train.py", 0, "<module>")),
        ),
    )


def test_too_much_is_cut_and_counted() -> None:
    deep = "Thread 0x0a (most recent call first):\n" + '  File "a.py", line 1 in f\n' * (FRAMES_MAX + 3)
    stacks = parse_crash(deep * (THREADS_MAX + 2))
    assert len(stacks) == THREADS_MAX
    assert (len(stacks[0].frames), stacks[0].frames_left_out) == (FRAMES_MAX, 3)


def test_agent_frames_are_omitted() -> None:
    lines = [
        f'  File "{agent.__path__[0]}/steps/torch_hooks.py", line 136 in backward',
        '  File "train.py", line 24 in main',
    ]
    (stack,) = parse_crash("\n".join(["Thread 0x0a (most recent call first):", *lines]))
    assert stack.frames == (StackFrame("train.py", 24, "main"),)


def test_other_text_has_no_stacks() -> None:
    assert parse_crash("") == ()
    assert parse_crash('  File "a.py", line 1 in f\nnonsense\x00') == ()


def test_files_of_a_source_build_of_torch_are_shortened() -> None:
    text = (
        'Current thread 0x0a (most recent call first):\n  File "/me/pytorch/torch/nn/functional.py", line 7 in linear\n'
    )
    (stack,) = parse_crash(text, "/me/pytorch/torch/")
    assert stack.frames == (StackFrame("torch/nn/functional.py", 7, "linear"),)
