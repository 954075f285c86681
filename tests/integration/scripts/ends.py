"""Imports torch and ends, in one of the ways a training script ends."""

import os
import signal
import sys
import threading
from collections.abc import Callable

import torch


def fail() -> None:
    raise ValueError("the loss is not a number")


def fail_with_a_hook_of_its_own() -> None:
    sys.excepthook = lambda kind, _error, _trace: print(f"shown in its own way: {kind.__name__}")
    fail()


ENDS: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "raise": fail,
    "raise-hooked": fail_with_a_hook_of_its_own,
    "exit-2": lambda: sys.exit(2),
    "exit-text": lambda: sys.exit("no readings"),
    "wait": lambda: threading.Event().wait(),
    "os-exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

print("torch", torch.__version__, flush=True)
ENDS[sys.argv[1]]()
