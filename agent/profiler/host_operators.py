"""Record the operators of the host without CUPTI: for the FLOPs of a job on a device whose windows are off or over.

Every session of Kineto in a torch built for CUDA uses CUPTI, also one that asks for the activities of the CPU alone:

    kineto_shim.cpp, kCpuTypes                   has CUDA_RUNTIME, CUDA_DRIVER and EXTERNAL_CORRELATION
    profiler_kineto.cpp, prepareProfiler         passes cpuOnly = !at::hasCUDA(), not what is asked for
    libkineto's init.cpp, setupCuptiInitCallback subscribes to CUPTI in the first one (until 7a3ba363)
    CuptiActivityProfiler.cpp, enableGpuTracing  enables these activities in every session that is not cpuOnly

torch's legacy profiler (torch/csrc/autograd/profiler_legacy.cpp) is a pair of callbacks of at::RecordFunction that
append to lists. In the state CPU it calls neither Kineto nor CUDA. It has names, times, shapes of tensors and numbers
of autograd, but no types of numbers and no values of other arguments. torch's ExecutionTraceObserver has these and
does without Kineto as well, but ends torch 2.13 with a segmentation fault where a backward goes through what another
thread has computed before the observer began.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from rankscope.measure.units import NS_PER_US

PUSH, POP = "push", "pop"
"""Kinds of events: the begin and the end of a range."""
USER_SCOPE: Final = 7
"""The value of `RecordScope.USER_SCOPE` in events."""
_CALLS: Final = ("kind", "name", "handle", "start_us", "shapes", "sequence_nr", "fwd_thread_id", "thread_id", "scope")


class HostOperator:
    """A range of the host, with those methods of Kineto's activities that are used for operators."""

    __slots__ = ("_event", "end_ns", "start_ns")

    def __init__(self, event: Any, start_ns: int) -> None:
        self._event = event
        self.start_ns = self.end_ns = start_ns

    def type(self) -> str:
        """Return the kind of range, as Kineto spells it."""
        return "user_annotation" if self._event.scope() == USER_SCOPE else "cpu_op"

    def name(self) -> str:
        """Return the name of the operator or range."""
        name: str = self._event.name()
        return name

    def timestamp(self) -> int:
        """Return its start by the wall clock (ns)."""
        return self.start_ns

    def duration(self) -> int:
        """Return its duration (ns)."""
        return self.end_ns - self.start_ns

    def resource_id(self) -> int:
        """Return torch's number of its thread."""
        thread: int = self._event.thread_id()
        return thread

    def metadata_json(self) -> str:
        """Return the members of a JSON object as Kineto's: the shapes of the inputs, with empty types, and autograd's
        numbers where it has any.
        """
        shapes, sequence = self._event.shapes(), self._event.sequence_nr()
        numbers = f', "Sequence number": {sequence}, "Fwd thread id": {self._event.fwd_thread_id()}'
        text = f'"Input Dims": {json.dumps(shapes)}, "Input type": {json.dumps([""] * len(shapes))}'
        return text + (numbers if sequence >= 0 else "")


class HostOperators:
    """The result of a session: the events of each thread."""

    def __init__(self, threads: Sequence[Sequence[Any]]) -> None:
        self._threads = threads

    def trace_activities(self) -> list[HostOperator]:
        """Return the ranges that begun in the session. One without an end lasts until the last event of its thread."""
        found: list[HostOperator] = []
        for events in self._threads:
            found += _pair(events)
        return found


def _pair(events: Sequence[Any]) -> list[HostOperator]:
    """Return the ranges of one thread. Each event is at least 1 ns after the one before, so that ranges nest by their
    times: torch gives these in microseconds, as a float, which at the present date has steps of 0.25.
    """
    found, open_by_handle, last_ns = [], {}, 0
    for event in events:
        kind = event.kind()
        if kind not in {PUSH, POP}:
            continue
        last_ns = max(last_ns + 1, int(event.start_us() * NS_PER_US))
        if kind == PUSH:
            one = open_by_handle[event.handle()] = HostOperator(event, last_ns)
            found.append(one)
        elif (begun := open_by_handle.pop(event.handle(), None)) is not None:
            begun.end_ns = last_ns
    for one in open_by_handle.values():
        one.end_ns = last_ns
    return found


class OperatorSession:
    """Sessions of torch's legacy profiler, on the calling thread. Raises AttributeError or TypeError, naming what this
    torch lacks, when it is made.
    """

    def __init__(self, autograd: Any, c_profiler: Any) -> None:
        self._begin, self._end = autograd._enable_profiler_legacy, autograd._disable_profiler_legacy
        for name in _CALLS:
            getattr(autograd.ProfilerEvent, name)
        # Positional: state, record_shapes, profile_memory, with_stack, with_flops, with_modules, experimental
        state, experimental = c_profiler.ProfilerState.CPU, c_profiler._ExperimentalConfig()
        self._config = c_profiler.ProfilerConfig(state, True, False, False, False, False, experimental)

    def start(self) -> None:
        """Begin to record all operators that this thread calls, and those of its backward on any thread. Raises
        RuntimeError when a profiler is on in this thread.
        """
        self._begin(self._config)

    def stop(self) -> HostOperators:
        """End the session that this thread began."""
        return HostOperators(self._end())

    def may_begin(self) -> bool:
        """Return whether no nested tensors of the layout `torch.jagged` are in the way. They refuse to tell this
        profiler their sizes, and torch then writes the error with its stack to stderr, twice for each operator.
        """
        nested = sys.modules.get("torch.nested._internal.nested_tensor")
        return not getattr(nested, "_tensor_id_counter", 0)  # it numbers their offsets; private, and of torch 2.1 on
