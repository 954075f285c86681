"""Answer the collector's orders of captures: accept or refuse them, tell their state, send their files part by part.

The collector repeats an order until it has ended, and asks again for parts that do not arrive, so nothing is resent
from here. Everything runs on the agent thread. Files stay open, and those in a temporary folder have no name any more:
they are gone with the process, however it ends.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.capture_settings import ACTIVE_MAX, CaptureSteps, choose_options
from rankscope.agent.captures.trace_captures import Order, Outcome, TraceCaptures
from rankscope.agent.captures.trace_recording import CALLED_OFF, PART, TOO_LATE
from rankscope.agent.guard import Guard, describe
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.measure.messages import CaptureOrder, CapturePart, CapturePartWanted, CaptureState
from rankscope.measure.units import NS_PER_S

KNOWN_MAX: Final = 16
"""Orders whose state is remembered: the one that is on, and the latest others."""
HELD_NS_MAX: Final = 900 * NS_PER_S
"""A file that the collector has not fetched by then is closed."""
SWITCHED_OFF: Final = "capture_orders is off on this rank"
NOT_HELD: Final = "this rank does not have the file any more"
NOT_FETCHED: Final = (
    "the process has ended before the collector said that it has the file. It waits for that until drain_s has passed; "
    "capture_folder keeps files"
)
HASH_BYTES: Final = 1 << 20


class HeldFile(NamedTuple):
    """A written file, open for reading, and since when, by the host's monotonic clock."""

    fd: int
    since_ns: int


class OrderedCaptures:
    """The captures that the collector orders of one rank.

    `find_step` returns the number of the step that the rank is in.
    """

    def __init__(
        self,
        traces: TraceCaptures,
        guard: Guard,
        *,
        is_allowed: bool,
        find_step: Callable[[], int],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._traces = traces
        self._guard = guard
        self._is_allowed = is_allowed
        self._find_step = find_step
        self._monotonic_ns = monotonic_ns
        self._states: dict[str, CaptureState] = {}
        self._files: dict[str, HeldFile] = {}

    def handle(self, message: CaptureOrder | CapturePartWanted) -> CaptureState | CapturePart | None:
        """Return the answer to a message of the collector. Never raises."""
        try:
            if isinstance(message, CapturePartWanted):
                return self._read_part(message)
            return self._answer(message)
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the reports
            self._guard.record(PART, error)
            return None

    def collect(self) -> list[CaptureState]:
        """Return the states that have become final since the last call, and close files that were held for too long."""
        outcomes, self._traces.outcomes = self._traces.outcomes, []
        changed = [self._finish(outcome) for outcome in outcomes]
        now_ns = self._monotonic_ns()
        for order_id in [key for key, held in self._files.items() if now_ns - held.since_ns >= HELD_NS_MAX]:
            self._close(order_id)
        return changed

    @property
    def has_files(self) -> bool:
        """Whether there is a file that the collector has not fetched yet."""
        return bool(self._files)

    def close(self) -> None:
        """Close all files, and log those that may be lost by that. Idempotent."""
        for order_id in self._files:
            state = self._states.get(order_id)
            if state is not None and not self._traces.keeps_files:
                text = f"the capture of steps {state.first_step} to {state.last_step} for the collector may be lost"
                log_once_per_node(f"{text}: {NOT_FETCHED}", os.environ, topic=f"not fetched {order_id}")
        for order_id in list(self._files):
            self._close(order_id)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _answer(self, order: CaptureOrder) -> CaptureState | None:
        if order.is_over:
            self._end(order.id)
            return None
        if order.id not in self._states:
            self._remember(self._begin(order))
        state = self._states[order.id]
        if state.state == "accepted" and self._traces.recording.is_on(order.id):
            state = msgspec.structs.replace(state, state="recording")
        return msgspec.structs.replace(state, next_step=self._find_step() + 1)

    def _begin(self, order: CaptureOrder) -> CaptureState:
        step_count = order.last_step - order.first_step + 1
        try:
            options = choose_options(order.options)
        except ValueError as error:
            return CaptureState(id=order.id, state="refused", reason=str(error))
        expected_ns = self._traces.expect_pause_ns(step_count, options)
        refusal = self._find_refusal(order, step_count)
        if not refusal:
            steps = CaptureSteps(max(0, order.first_step - 1), order.first_step, order.last_step, order.id)
            refusal = self._traces.order(steps, Order(options, order.pause_ns_max, order.bytes_max))
        return CaptureState(
            id=order.id,
            state="refused" if refusal else "accepted",
            reason=refusal,
            expected_pause_ns=None if expected_ns is None else round(expected_ns),
        )

    def _find_refusal(self, order: CaptureOrder, step_count: int) -> str:
        if not self._is_allowed:
            return SWITCHED_OFF
        if not 1 <= step_count <= ACTIVE_MAX:
            return f"it has {step_count} steps; a capture has 1 to {ACTIVE_MAX}"
        return TOO_LATE if order.first_step <= self._find_step() + 1 else ""

    def _end(self, order_id: str) -> None:
        """Handle that the collector has what it wants: an order that comes late is not accepted again."""
        self._close(order_id)
        known = self._states.get(order_id)
        if known is None or known.state == "accepted":
            self._traces.call_off(order_id)
            self._remember(CaptureState(id=order_id, state="refused", reason=CALLED_OFF))

    def _remember(self, state: CaptureState) -> None:
        self._states[state.id] = state
        if len(self._states) > KNOWN_MAX:
            oldest = next(key for key, one in self._states.items() if one.state != "accepted")  # that is one at most
            self._close(oldest)
            del self._states[oldest]

    # -- files --------------------------------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> CaptureState:
        order_id = outcome.steps.order_id
        known = self._states.get(order_id) or CaptureState(id=order_id, state="accepted")
        state = msgspec.structs.replace(
            known, state="failed" if outcome.pause_ns is not None else "refused", reason=outcome.problem or outcome.cut,
            next_step=self._find_step() + 1, pause_ns=outcome.pause_ns,
        )  # fmt: skip
        if outcome.path:
            state = self._hold(outcome, state)
        self._remember(state)
        if known.reason == CALLED_OFF:
            self._close(order_id)
        return state

    def _hold(self, outcome: Outcome, state: CaptureState) -> CaptureState:
        """Return the state of a written file, and open that; one in the temporary folder loses its name."""
        try:
            fd = os.open(outcome.path, os.O_RDONLY | os.O_CLOEXEC)
            self._files[state.id] = HeldFile(fd, self._monotonic_ns())
            sha256 = hash_file(fd)
        except OSError as error:
            self._close(state.id)
            return msgspec.structs.replace(state, reason=describe(error))
        finally:
            if not self._traces.keeps_files:
                _remove(outcome.path)
        return msgspec.structs.replace(
            state,
            state="written",
            first_step=outcome.steps.first_step,
            last_step=outcome.steps.last_step,
            size_bytes=outcome.size_bytes,
            sha256=sha256,
        )

    def _read_part(self, wanted: CapturePartWanted) -> CapturePart:
        held = self._files.get(wanted.id)
        if held is None:
            return CapturePart(id=wanted.id, offset=wanted.offset, problem=NOT_HELD)
        begin_ns = time.thread_time_ns()
        try:
            data, problem = os.pread(held.fd, wanted.length, wanted.offset), ""
        except OSError as error:
            data, problem = b"", describe(error)
        self._traces.written_ns += time.thread_time_ns() - begin_ns
        return CapturePart(id=wanted.id, offset=wanted.offset, data=data, problem=problem)

    def _close(self, order_id: str) -> None:
        held = self._files.pop(order_id, None)
        if held is not None:
            os.close(held.fd)


def _remove(path: str) -> None:
    """Remove a file and its temporary folder."""
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def hash_file(fd: int) -> str:
    """Return the SHA-256 of an open file, hexadecimal. Raises OSError."""
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(fd, HASH_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()
