"""Reads the Python stacks of threads of this process, and of a raised exception.

The stacks of this process are captured from another of its threads, with the activity of the main one. It takes about
10 us per thread with the GIL held; the threads continue undisturbed. Agent threads are omitted, and so are agent frames
(hooks) in other threads. Threads without Python frames (gloo, NCCL) are not included; the sidecar reads those.
"""

import contextlib
import gc
import importlib.machinery
import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Final, NamedTuple

from rankscope.measure.own_files import is_own_file
from rankscope.measure.stalls import StackFrame, ThreadStack, describe_frame, find_script_frame, is_library_file
from rankscope.measure.text import to_unicode

FRAMES_MAX: Final = 48
"""Largest number of frames kept of a thread, the innermost ones. A step in Lightning is 40 deep."""
THREADS_MAX: Final = 24
TEXT_LENGTH_MAX: Final = 160
OUR_THREADS: Final = "rankscope-"

_DISTRIBUTED: Final = "torch/distributed/"
_GROUP_MAKERS: Final = frozenset(
    {"init_process_group", "new_group", "_new_group_with_tag", "rendezvous", "split_group"}
)
_IMPORT: Final = "importlib._bootstrap"
_SIGNS: Final = (
    ("torch/_dynamo/convert_frame.py", "compile"),
    ("torch/utils/data/", "data"),
    ("torch/serialization.py", "checkpoint"),
    ("torch/distributed/checkpoint/", "checkpoint"),
    ("safetensors/", "checkpoint"),
    ("torch/distributed/rendezvous.py", "process_group"),
    ("torch/optim/", "optimizer"),
    ("torch/cuda/streams.py", "synchronize"),
    (_IMPORT, "import"),
)
"""Part of a frame's file name, and the activity of a thread in it."""
_FUNCTION_SIGNS: Final = {
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("torch/autograd/__init__.py", "backward"): "backward",
    ("torch/cuda/__init__.py", "synchronize"): "synchronize",
}


class Stacks(NamedTuple):
    """The threads, the main one first, and its activity. `left_out` is the number of threads above THREADS_MAX."""

    threads: tuple[ThreadStack, ...]
    left_out: int
    activity: str


def read_frames() -> Mapping[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier.

    The garbage collector is off meanwhile: before Python 3.12 the interpreter allocates here while it holds the lock of
    its list of threads, and a collection that runs code of the script might wait for that lock (python/cpython#106883).
    """
    collects = gc.isenabled()
    if collects:
        gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 - documented, and the only way
    finally:
        if collects:
            gc.enable()


def find_main_frame(frames: Mapping[int, FrameType]) -> FrameType | None:
    """Return the innermost frame of the main thread; None where it runs no Python."""
    return frames.get(threading.main_thread().ident or 0)


def capture_stacks(read_frames: Callable[[], Mapping[int, FrameType]] = read_frames) -> Stacks:
    """Capture the present stacks of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = read_frames()
    wanted = [number for number in frames if not names.get(number, "").startswith(OUR_THREADS)]
    wanted.sort(key=lambda number: (number != main, number))
    threads = [to_stack(names.get(number, f"thread {number}"), frames[number]) for number in wanted[:THREADS_MAX]]
    of_main = threads[0].frames if wanted and wanted[0] == main else ()
    return Stacks(tuple(threads), max(0, len(wanted) - THREADS_MAX), find_activity(of_main))


def find_activity(frames: Sequence[StackFrame]) -> str:
    """Return the activity (one of ACTIVITIES) of a thread with these frames, from the innermost frame that has one.

    >>> find_activity([StackFrame("mine.py", 3, "collate"), StackFrame("torch/utils/data/dataloader.py", 9, "next")])
    'data'
    """
    for place, frame in enumerate(frames):
        found = _find_sign(frame)
        if found is not None:
            return "import" if _is_imported(frames[place:]) else found
    return "other"


def find_raised_line(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback, `train.py:24 (main)`; empty if there is none."""
    line, trace, torch_folder = "", error.__traceback__, find_torch_folder()
    while trace is not None:
        frame = shorten_frame(_to_raised_frame(trace), torch_folder)
        if find_script_frame((frame,)) is not None:
            line = describe_frame(frame)
        trace = trace.tb_next
    return line


def _to_raised_frame(trace: TracebackType) -> StackFrame:
    code = trace.tb_frame.f_code
    return StackFrame(code.co_filename, trace.tb_lineno or 0, code.co_name)


def shorten_frame(frame: StackFrame, torch_folder: str) -> StackFrame:
    """Return the frame with a shortened file name for a report.

    A file in `torch_folder`, unless that is where libraries are installed, is named from `torch/` on.
    """
    file = frame.file
    if torch_folder and file.startswith(torch_folder) and not is_library_file(file):
        file = f"torch/{file.removeprefix(torch_folder)}"
    return StackFrame(to_unicode(file[-TEXT_LENGTH_MAX:]), frame.line, to_unicode(frame.function[:TEXT_LENGTH_MAX]))


def find_torch_folder() -> str:
    """Return the folder of the torch package with a trailing slash; empty if there is none. Import nothing."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    if file is None:
        with contextlib.suppress(Exception):  # a custom importer may fail in any way
            file = getattr(importlib.machinery.PathFinder.find_spec("torch"), "origin", None)
    return f"{os.path.dirname(file)}/" if file else ""


def _is_imported(frames: Sequence[StackFrame]) -> bool:
    """Return whether a library's module is being imported, and its own code has called the innermost of these frames:
    importing torch.distributed is no collective.
    """
    for frame, caller in itertools.pairwise(frames):
        if not is_library_file(frame.file):
            return False
        if frame.function == "<module>" and _IMPORT in caller.file:
            return True
    return False


def _find_sign(frame: StackFrame) -> str | None:
    for part, activity in _SIGNS:
        if part in frame.file:
            return activity
    for (part, function), activity in _FUNCTION_SIGNS.items():
        if frame.file.endswith(part) and frame.function == function:
            return activity
    if _DISTRIBUTED in frame.file:
        return "process_group" if frame.function in _GROUP_MAKERS else _find_distributed(frame)
    return None


def _find_distributed(frame: StackFrame) -> str | None:
    """Return "collective" unless the frame belongs to a launcher or wrapper around the whole script."""
    outside = ("torch/distributed/elastic/", "torch/distributed/run.py", "torch/distributed/launch")
    return None if any(part in frame.file for part in outside) else "collective"


def to_stack(name: str, frame: FrameType | None) -> ThreadStack:
    """Return the stack of a thread that is in this frame, without frames of the agent."""
    frames: list[StackFrame] = []
    left_out, torch_folder = 0, find_torch_folder()
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno or 0
        frame = frame.f_back
        if is_own_file(code.co_filename):
            continue
        if len(frames) < FRAMES_MAX:
            frames.append(shorten_frame(StackFrame(code.co_filename, line, code.co_name), torch_folder))
        else:
            left_out += 1
    return ThreadStack(name=to_unicode(name[:TEXT_LENGTH_MAX]), frames=tuple(frames), frames_left_out=left_out)
