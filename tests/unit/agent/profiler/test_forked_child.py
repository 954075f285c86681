"""A forked child of a measured process exits, with its status and all it has written."""

import subprocess
import sys
import textwrap

PROGRAM = """
    import atexit, ctypes, os, sys
    from rankscope.agent.profiler.forked_child import find_early_exit

    libc = ctypes.CDLL(None)
    {of_parent}
    os.register_at_fork(after_in_child=find_early_exit())
    child = os.fork()
    if child == 0:
        atexit.register(print, "handler of the child")
        libc.printf(b"text of the C library\\n")
        sys.exit(6)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
PROFILED = """
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(3)
"""


def run(of_parent: str) -> str:
    program = textwrap.dedent(PROGRAM).replace("{of_parent}", textwrap.dedent(of_parent))
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_child_ends_with_its_status_and_all_it_has_written() -> None:
    lines = run("").splitlines()
    assert sorted(lines) == ["child 6", "handler of the child", "text of the C library"]


def test_child_of_a_process_with_kineto_s_thread_ends() -> None:
    assert run(PROFILED).splitlines()[-1] == "child 6"
