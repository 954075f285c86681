"""Pass the trace of a capture on to the reduction of full windows: where a device has no windows of its own, its ratios
come from the steps that were captured (`device_windows = on_demand`). Everything runs on the agent thread.

The trace is read in the process that reduces windows, so that a capture costs the rank nothing more than reading its
compressed file. Only plain captures are passed on: recording shapes, stacks, memory or modules keeps the host busy for
so long that the device would seem idle.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankscope.agent.capture_settings import ACTIVE_MAX, CaptureSteps
from rankscope.measure.records import StepRecord

WAITING_MAX: Final = 2
"""Captures that wait for the records of their steps; one waits for a report at most."""
TRACE_BYTES_MAX: Final = 4 << 20
"""Largest compressed trace that is read: 40 to 80 MB of JSON, some 200,000 events."""
TOO_LARGE: Final = "capture_too_large"
STEPS_LOST: Final = "capture_steps_lost"
"""Why a capture has no ratios, in `windows_skipped`."""


class CapturedTrace(NamedTuple):
    """The compressed trace file of a plain capture, whose times are `wall_minus_host_ns` ahead of the host clock.
    Empty: the file has more than TRACE_BYTES_MAX.
    """

    steps: CaptureSteps
    data: bytes
    wall_minus_host_ns: int


class CapturedSteps:
    """Join traces with the records of their steps, which may be reported later.

    >>> from rankscope.measure.records import StepRecord
    >>> bounds = {"start_host_ns": 0, "duration_ns": 1, "phases_ns": {}}
    >>> records = [StepRecord(step=step, captured=True, **bounds) for step in (7, 8, 9)]
    >>> captured = CapturedSteps()
    >>> captured.add([CapturedTrace(CaptureSteps(7, 8, 9), b"...", 0)])
    >>> captured.join(records[:2])
    []
    >>> [[record.step for record in steps] for _, steps in captured.join(records[2:])]
    [[8, 9]]
    """

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=ACTIVE_MAX)
        self._waiting: deque[CapturedTrace] = deque(maxlen=WAITING_MAX)
        self._last_step = -1
        self.skipped: dict[str, int] = {}

    def add(self, traces: Sequence[CapturedTrace]) -> None:
        """Add the traces that have been written since the last call."""
        for trace in traces:
            if not trace.data:
                self._count(TOO_LARGE)
                continue
            if len(self._waiting) == WAITING_MAX:
                self._count(STEPS_LOST)
            self._waiting.append(trace)

    def join(self, steps: Sequence[StepRecord]) -> list[tuple[CapturedTrace, list[StepRecord]]]:
        """Return the traces whose steps are all known with `steps`, those that have ended since the last call.

        The first of them is the step after the one in which the session began, since that one contains its begin: for
        a capture without warm-up on NVIDIA the attaching of CUPTI.
        """
        self._records += [record for record in steps if record.captured]
        if steps:
            self._last_step = steps[-1].step
        found = []
        while self._waiting and self._waiting[0].steps.last_step <= self._last_step:
            trace = self._waiting.popleft()
            first, last = max(trace.steps.first_step, trace.steps.begin_step + 1), trace.steps.last_step
            records = [record for record in self._records if first <= record.step <= last]
            if len(records) == max(0, last - first + 1):
                found.append((trace, records))
            else:  # the training thread has overwritten them
                self._count(STEPS_LOST)
        return found

    def _count(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
