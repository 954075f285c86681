"""Reads the Python stacks of a process that has crashed.

When a signal ends a process, Python's faulthandler writes its stacks; the thread that received the signal comes first:

    Fatal Python error: Segmentation fault

    Current thread 0x00007f8f4c5b7740 (most recent call first):
      File "/home/me/train.py", line 24 in main
"""

import re
import signal
from typing import Final

from rankscope.agent.captures.stacks import FRAMES_MAX, THREADS_MAX, shorten_frame
from rankscope.measure.own_files import is_own_file
from rankscope.measure.stalls import StackFrame, ThreadStack

CAUGHT: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
"""Signals that faulthandler catches. It writes the stacks and passes the signal on."""
# Since Python 3.13 a thread's name may be between its number and the parenthesis.
_THREAD: Final = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+).*\(most recent call first\):$")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def parse_crash(text: str, torch_folder: str = "") -> tuple[ThreadStack, ...]:
    r"""Return the stacks in the text, empty if there are none. `torch_folder` is that of the process's torch.

    >>> parse_crash('Current thread 0x0a (most recent call first):\n  File "train.py", line 24 in main\n')[0].frames
    (StackFrame(file='train.py', line=24, function='main'),)
    """
    names: list[str] = []
    frames: list[list[StackFrame]] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread is not None:
            names.append("current thread" if thread[1] == "Current thread" else f"thread {thread[2]}")
            frames.append([])
        elif frame is not None and frames and not is_own_file(frame[1]):
            number = int(frame[2]) if frame[2].isdecimal() else 0
            frames[-1].append(shorten_frame(StackFrame(frame[1], number, frame[3]), torch_folder))
    stacks = [
        ThreadStack(name=name, frames=tuple(found[:FRAMES_MAX]), frames_left_out=max(0, len(found) - FRAMES_MAX))
        for name, found in zip(names, frames, strict=True)
    ]
    # faulthandler writes the current thread first or last, depending on its version.
    return tuple(sorted(stacks, key=lambda stack: stack.name != "current thread")[:THREADS_MAX])
