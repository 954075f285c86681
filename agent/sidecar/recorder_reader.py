"""Reads the collectives of this rank from torch's flight recorder: the dump is made without the GIL by torch's worker
server, and parsed by the sidecar (`recorder_files.py`). Where one of them is missing the rank does its part itself.

A dump queries CUDA events, which invalidates a CUDA graph that another thread is capturing. So this process asks for
it, and holds off captures until the answer is there (50 to 63 ms for 2,000 entries, at most ASK_S); nobody else can.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.capture.timed_entries import Reading
from rankscope.agent.sidecar.recorder_files import parse_safely, pop_dump, pop_reading, write_dump
from rankscope.agent.sidecar.worker_server import AnswerTooLargeError, ask_text
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

ASK_S: Final = 2.0
"""Timeout of the worker server, 30 times what it needs. After one timeout it is not asked again: it may still work on
the answer, and captures are no longer held off."""
SIDECAR_NS: Final = 10 * NS_PER_S
"""Longest wait for the sidecar, whose tick is half a second. After that the rank parses its dumps itself."""
QUESTIONS: Final = ("dump_nccl_trace_json?includecollectives=true&onlyactive=false", "fr_trace_json")
"""The recorder of NCCL, and that of all backends, which newer versions of torch have instead."""


class RecorderPlace(NamedTuple):
    """Where the files of a rank are: `socket_path` is that of its worker server, empty if there is none."""

    folder: str
    name: str
    socket_path: str


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
        self._has_sidecar = True
        self._found: Reading | None = None
        self.is_off = False
        """Whether nothing is read any more, since the server did not answer in time, or with too much: a dump made here
        would block training for as long.
        """
        self.server_ns = 0
        """Time that the server has needed so far: the CPU time of its thread is not known, and not longer."""
        self.skipped: dict[str, int] = {}
        """Readings without a result, by reason."""

    def request(self, since_wall_ns: int) -> None:
        """Begin to read the collectives since then. The reading comes from `collect`, at once or some reports later."""
        if self.is_off or self._waits_since_ns is not None:
            return
        place = self._find_place()
        taken_wall_ns = self._clock.wall_ns()
        text: bytes | str | None = None
        if place is not None and place.socket_path:
            text = self._captures.run_between(lambda: self._ask_server(place.socket_path))
        if text is None and not self.is_off:
            text = self._dump_here()
        if text is None:
            self._skip("timed_not_read")
        elif place is None or isinstance(text, str) or not self._pass_on(place, text, taken_wall_ns, since_wall_ns):
            self._found = parse_safely(text, taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)

    def collect(self) -> Reading | None:
        """Return a finished reading, once."""
        if self._waits_since_ns is not None:
            self._find_answer(self._waits_since_ns)
        found, self._found = self._found, None
        if found is not None and found.problem:
            self._skip("timed_unreadable")
            return None
        return found

    def _ask_server(self, path: str) -> bytes | None:
        """Return the server's dump; None if it has none."""
        begin_ns = self._clock.monotonic_ns()
        try:
            while self._questions:
                try:
                    return self._ask(path, self._questions[0], ASK_S)
                except AnswerTooLargeError:
                    raise
                except ValueError:  # this torch has no such handler
                    self._questions = self._questions[1:]
        except (TimeoutError, AnswerTooLargeError):
            self.is_off = True
        except OSError:  # the socket is gone
            self._questions = ()
        finally:
            self.server_ns += self._clock.monotonic_ns() - begin_ns
        return None

    def _pass_on(self, place: RecorderPlace, text: bytes, taken_wall_ns: int, since_wall_ns: int) -> bool:
        """Leave the dump to the sidecar; return whether that was possible."""
        if not self._has_sidecar:
            return False
        try:
            write_dump(place.folder, place.name, text, taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)
        except OSError:  # the file system is full
            return False
        self._waits_since_ns = self._clock.monotonic_ns()
        return True

    def _find_answer(self, since_ns: int) -> None:
        place = self._find_place()
        is_late = self._clock.monotonic_ns() - since_ns >= SIDECAR_NS
        try:
            self._found = None if place is None else pop_reading(place.folder, place.name)
            if self._found is None and place is not None and is_late:
                self._has_sidecar = False
                self._found = pop_dump(place.folder, place.name)
        except (OSError, msgspec.MsgspecError):
            is_late = True
        if self._found is not None or is_late:
            self._waits_since_ns = None
            if self._found is None:
                self._skip("timed_lost")

    def _skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
