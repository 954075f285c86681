"""The demo, for as long as a picture of it takes."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Final

SAYS_WHERE: Final = "live page: "
STEPS: Final = 600
"""Far more than a picture waits for: the job is ended with it."""
RANKS: Final = 2
"""As many as a small machine has cores: more would queue for them, which is a finding of its own."""
SLOW_RANK: Final = 1


@contextlib.contextmanager
def running_demo() -> Iterator[str]:
    """Start it, with one slow rank; gives the HTTP address of its collector."""
    command = [sys.executable, "-m", "rankscope.collector", "demo", "--ranks", str(RANKS)]
    demo = subprocess.Popen(
        [*command, "--steps", str(STEPS), "--slow-rank", str(SLOW_RANK)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _read_address(demo.stdout)
    finally:
        demo.send_signal(signal.SIGINT)  # as Ctrl-C: it ends its job and its collector
        demo.communicate()


def _read_address(stdout: IO[str] | None) -> str:
    """Where the demo says that its page is. Raises RuntimeError when it ends without a word of it."""
    for line in stdout or ():
        if line.startswith(SAYS_WHERE):
            return line.removeprefix(SAYS_WHERE).strip()
    raise RuntimeError("the demo ended before it said where its page is")
