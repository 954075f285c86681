"""Runs scripts, each in a fork of this process, made when torch is imported and what its optimizers import: a script
then begins at once, where on its own it imports for over three seconds of a core.

A request is a line of JSON on stdin: the script with its arguments, its environment, its working directory, the files
for its output, and the file that gets its exit code (or the negative number of a signal) at the end. The answer is the
number of its process, which leads a session of its own.
"""

import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import quick_end  # type: ignore[import-not-found]  # beside this file; before torch
import torch._dynamo

assert torch.__version__

ZOMBIE_S = 1.0


def run_script(request: dict[str, Any]) -> None:
    """Run the script or module as `__main__`; what it raises goes on to the interpreter, as without us."""
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY),
        (2, request["stderr"], os.O_WRONLY),
    ):
        os.dup2(os.open(path, flags), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = request["words"]
    if words[0] == "-m":
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # it is over: the agent starts at once, as in forked_ranks.py
        sys.path[0] = str(Path.cwd())
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def write_status(process: int, path: Path) -> None:
    """Wait for the script's process and write how it ended. It stays a zombie for a while: a launcher that polls reaps
    some time after the end, and until then others can read the exit status.
    """
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    part = path.with_suffix(".part")
    part.write_text(str(exit_code))
    part.rename(path)
    time.sleep(ZOMBIE_S)
    os.waitpid(process, 0)


def main() -> None:
    """Serve until stdin ends."""
    quick_end.keep_modules()
    gc.freeze()  # at its end a script would visit every object of torch, copy its page, and take a second for that
    for line in sys.stdin:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request = json.loads(line)
        reads, writes = os.pipe()
        if os.fork():
            os.close(writes)
            with os.fdopen(reads) as pipe:
                sys.stdout.write(f"{pipe.read()}\n")
            sys.stdout.flush()
            continue
        process = os.fork()
        if process:
            os.close(writes)
            with contextlib.suppress(FileNotFoundError):  # nobody waits for it any more
                write_status(process, Path(request["status"]))
            os._exit(0)
        os.setsid()
        os.write(writes, str(os.getpid()).encode())
        os.close(writes)
        os.close(reads)
        run_script(request)
        return


if __name__ == "__main__":
    main()
