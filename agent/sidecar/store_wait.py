"""Finds whether the main thread waits in torch's store (TCPStore) for what another rank sets there.

The call is a method in C without a frame of torch. Which waits of the process are active, torch counts itself, and its
worker server says (`agent/sidecar/worker_server.py`); that it is the main thread's, the name of the method shows.
"""

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name
from rankscope.agent.captures.stacks import find_main_frame, read_frames
from rankscope.agent.sidecar.worker_questions import ask_waits

ASK_S: Final = 1.0
METHODS: Final = frozenset({"wait", "get", "multi_get", "barrier", "TCPStore"})
"""What blocks until others have done something: the last waits for workers when it is made."""
WAITS: Final = frozenset({"TCPStore__wait", "TCPStore__get", "TCPStore__multiGet", "TCPStore__waitForWorkers"})
"""Names of torch's counters of these waits."""


def waits_in_store(socket_path: str, read_frames: Callable[[], Mapping[int, FrameType]] = read_frames) -> bool:
    """Return whether the main thread waits in the store, by the worker server at this socket. It takes 0.5 ms, at most
    ASK_S.
    """
    frame = find_main_frame(read_frames())
    if frame is None:
        return False
    # Before CPython 3.11 what a frame calls cannot be told.
    called = find_called_name(frame.f_code, frame.f_lasti).rpartition(".")[2]
    return (called in METHODS or not HAS_POSITIONS) and not WAITS.isdisjoint(ask_waits(socket_path, ASK_S))
