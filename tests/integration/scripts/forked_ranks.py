"""Ranks on this machine that share one import of torch: python forked_ranks.py COUNT [-m MODULE | SCRIPT] ARGUMENTS...

Each rank is a fork of this process, made when torch is imported and what every optimizer of torch imports in its first
step: over two seconds of a core, which torchrun and each of its ranks take for themselves. A rank is told what torchrun
tells it, and when one fails the others are terminated; none is started again. SIGTERM is passed on, and who has not
ended KILL_S later is killed. `import torch` in a rank comes after
torch's autoload, so the agent is told that there is none and starts at once.
"""

import contextlib
import gc
import os
import runpy
import signal
import sys
from pathlib import Path

import quick_end  # type: ignore[import-not-found]  # beside this file; before torch
import torch._dynamo

KILL_S = 10
"""torchrun gives ranks 30 s to end."""


def run_as_rank(rank: int, count: int, words: list[str]) -> None:
    """Run the script or module as `__main__`; what it raises goes on to the interpreter, as without us."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    sys.path[0] = str(Path.cwd())
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def wait_for(ranks: set[int]) -> int:
    """Wait for all of them and return how the first of them failed: its exit code or signal; 0 if none did."""
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status and not failed:
            failed = abs(os.waitstatus_to_exitcode(status))
            send(ranks, signal.SIGTERM)
    return failed


def send(ranks: set[int], number: signal.Signals) -> None:
    """Send the signal to all of them that are still there."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)


def pass_on(ranks: set[int]) -> None:
    """Pass SIGTERM on to the ranks from now on."""

    def end(number: int, _: object) -> None:
        signal.alarm(KILL_S)
        send(ranks, signal.Signals(number))

    signal.signal(signal.SIGALRM, lambda *_: send(ranks, signal.SIGKILL))
    signal.signal(signal.SIGTERM, end)


def main() -> None:
    """Fork, and wait."""
    count, ranks = int(sys.argv[1]), set[int]()
    assert os.environ.get("RANKSCOPE", "") in ("", "0"), "the autoload of torch is over: launch with -m rankscope.agent"
    assert torch.__version__
    quick_end.keep_modules()
    gc.freeze()  # as fork_server.py
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            run_as_rank(rank, count, sys.argv[2:])
            return
        ranks.add(pid)
    pass_on(ranks)
    os._exit(wait_for(ranks))  # it has nothing to flush, and to clear torch away takes a while


if __name__ == "__main__":
    main()
