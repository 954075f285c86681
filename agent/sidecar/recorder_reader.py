"""Reads the collectives of this rank from torch's flight recorder: the dump is made without the GIL by torch's worker
server, and parsed by the sidecar (`recorder_files.py`). Where one of them is missing the rank does its part itself.

A dump queries CUDA events, which invalidates a CUDA graph that another thread is capturing. So this process asks for
it, and holds off captures until the answer is there (50 to 63 ms for 2,000 entries, at most HELD_S); nobody else can.
A server that needs longer than HELD_S may still query events when a capture begins: nothing is known about its work.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from rankscope.agent.captures.timed_entries import RecorderReading
from rankscope.agent.sidecar.beacon import RecorderPlace
from rankscope.agent.sidecar.recorder_files import parse_safely, pop_dump, pop_reading, write_dump
from rankscope.agent.sidecar.worker_questions import AnswerTooLargeError, NoHandlerError, ask_text
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

ASK_S: Final = 2.0
"""Time of the worker server after which it is not asked again, 30 times what it needs."""
HELD_S: Final = 2 * ASK_S
"""Longest time that captures are held off for an answer."""
FAILURES_MAX: Final = 3
"""Failures of the server in a row after which it is not asked again, and the rank makes its dumps itself."""
SIDECAR_AGAIN_NS: Final = 60 * NS_PER_S
"""Time after which a sidecar that has left a dump lying is tried again."""
SIDECAR_NS: Final = 10 * NS_PER_S
"""Longest wait for the sidecar, whose tick is half a second. Then the rank parses its dumps itself, for
SIDECAR_AGAIN_NS."""
QUESTIONS: Final = ("dump_nccl_trace_json?includecollectives=true&onlyactive=false", "fr_trace_json")
"""The recorder of NCCL, and that of all backends, which newer versions of torch have instead."""


class RecorderReader:
    """The readings of one rank, for its agent thread. `dump_here` returns a dump made with the GIL held; None while a
    graph is being captured. No method raises for what server, sidecar or files do: that is counted in `skipped`.
    """

    def __init__(
        self,
        captures: GraphCaptures,
        find_place: Callable[[], RecorderPlace | None],
        dump_here: Callable[[], str | None],
        clock: Clock,
        *,
        ask: Callable[[str, str, float], bytes] = ask_text,
    ) -> None:
        self._captures = captures
        self._find_place = find_place
        self._dump_here = dump_here
        self._clock = clock
        self._ask = ask
        self._questions: tuple[str, ...] = QUESTIONS
        self._waits_since_ns: int | None = None
        self._sidecar_lost_ns: int | None = None
        self._failures = 0
        self._found: RecorderReading | None = None
        self.is_off = False
        """Whether nothing is read any more, since the server did not answer in time, or with too much: a dump made here
        would block training for as long.
        """
        self.server_ns = 0
        """Time that the server has needed so far: the CPU time of its thread is not known, and not longer."""
        self.skipped: dict[str, int] = {}
        """Readings without a result, by reason."""

    def request(self, since_wall_ns: int) -> bool:
        """Begin to read the collectives since then; return whether anything was begun, also if it failed. The reading
        comes from `collect`, at once or some reports later.
        """
        if self.is_off or self._waits_since_ns is not None:
            return False
        if self._captures.is_open():
            self._skip("timed_not_read")
            return False
        place = self._find_place()
        taken_wall_ns = self._clock.wall_ns()
        text: bytes | str | None = None
        if place is not None and place.socket_path and self._questions:
            text = self._captures.run_between(lambda: self._ask_server(place.socket_path))
        has_server = place is not None and bool(place.socket_path and self._questions)
        if text is None and not has_server and not self.is_off:
            text = self._dump_here()
        if text is None:
            self._skip("timed_not_read")
        elif place is None or isinstance(text, str) or not self._pass_on(place, text, taken_wall_ns, since_wall_ns):
            self._found = parse_safely(text, taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)
        return True

    def collect(self) -> RecorderReading | None:
        """Return a finished reading, once."""
        if self._waits_since_ns is not None:
            self._find_answer(self._waits_since_ns)
        found, self._found = self._found, None
        if found is not None and found.problem:
            self._skip("timed_unreadable")
            return None
        return found

    def _ask_server(self, path: str) -> bytes | None:
        """Return the server's dump; None if there is none this time. A handler that this torch lacks is not asked
        again, and after FAILURES_MAX failures in a row none is.
        """
        begin_ns = self._clock.monotonic_ns()
        text = None
        try:
            while self._questions and text is None:
                try:
                    text = self._ask(path, self._questions[0], HELD_S)
                except NoHandlerError:
                    self._questions = self._questions[1:]
        except (TimeoutError, AnswerTooLargeError):
            self.is_off = True
        except (OSError, ValueError):
            self._failures += 1
            self._questions = self._questions if self._failures < FAILURES_MAX else ()
        took_ns = self._clock.monotonic_ns() - begin_ns
        self.server_ns += took_ns
        if text is not None:
            self._failures = 0
            self.is_off = took_ns > ASK_S * NS_PER_S
        return text

    def _pass_on(self, place: RecorderPlace, text: bytes, taken_wall_ns: int, since_wall_ns: int) -> bool:
        """Leave the dump to the sidecar; return whether that was possible."""
        now_ns = self._clock.monotonic_ns()
        if self._sidecar_lost_ns is not None and now_ns - self._sidecar_lost_ns < SIDECAR_AGAIN_NS:
            return False
        self._sidecar_lost_ns = None
        try:
            write_dump(place.folder, place.name, text, taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)
        except OSError:  # the file system is full
            return False
        self._waits_since_ns = now_ns
        return True

    def _find_answer(self, since_ns: int) -> None:
        place = self._find_place()
        is_late = self._clock.monotonic_ns() - since_ns >= SIDECAR_NS
        try:
            self._found = None if place is None else pop_reading(place.folder, place.name)
            if self._found is None and place is not None and is_late:
                self._sidecar_lost_ns = self._clock.monotonic_ns()
                self._found = pop_dump(place.folder, place.name)
        except (OSError, msgspec.MsgspecError):
            is_late = True
        if self._found is not None or is_late:
            self._waits_since_ns = None
            if self._found is None:
                self._skip("timed_lost")

    def _skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
