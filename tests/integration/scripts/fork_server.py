"""Runs scripts, each in a fork of this process, made when torch is imported and what its optimizers import: a script
then begins at once, where on its own it imports for over two seconds of a core.

A request is a line of JSON on stdin: the script with its arguments, its environment, and a folder. Its output is
written there to `stdout` and `stderr`, and at the end its exit code (or the negative number of a signal) to `status`.
The answer is the process group of the script.
"""

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

import torch._dynamo

assert torch.__version__


def run_script(words: list[str], environment: Mapping[str, str], folder: Path) -> None:
    """Run the script as `__main__`; what it raises goes on to the interpreter, as without us."""
    for number, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, folder / "stdout", os.O_WRONLY | os.O_CREAT),
        (2, folder / "stderr", os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, flags), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def write_status(process: int, folder: Path) -> None:
    """Wait for the script's process and write how it ended."""
    _, status = os.waitpid(process, 0)
    part = folder / "status.part"
    part.write_text(str(os.waitstatus_to_exitcode(status)))
    part.rename(folder / "status")


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request = json.loads(line)
        folder = Path(request["folder"])
        watcher = os.fork()
        if watcher:
            sys.stdout.write(f"{watcher}\n")
            sys.stdout.flush()
            continue
        os.setsid()
        process = os.fork()
        if process:
            write_status(process, folder)
            os._exit(0)
        run_script(request["words"], request["environment"], folder)
        return


if __name__ == "__main__":
    main()
