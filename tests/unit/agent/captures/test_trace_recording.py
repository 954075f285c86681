"""Captures begin and end at the boundaries of their steps, and never stand in the way of a profiler of the script."""

import threading
from collections.abc import Callable

import pytest

from rankscope.agent.capture_settings import ACTIVE_MAX, CaptureSteps, parse_schedule
from rankscope.agent.captures.trace_recording import (
    CAPTURE_NS_MAX,
    GRAPH_CAPTURE,
    PART,
    PAUSED,
    SCRIPT_PROFILER,
    TOO_LATE,
    TOO_LONG,
    RawCapture,
    TraceRecording,
)
from rankscope.agent.guard import Guard


class Sessions:
    """torch's profiler: notes each call, and tells the recording of its begin and end, as the hooks do."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.recording: TraceRecording
        self.fails_at = ""

    def make(self, steps: CaptureSteps) -> "Sessions":
        self.calls.append(f"make {steps.begin_step}, {steps.first_step} to {steps.last_step}")
        return self

    def start(self) -> None:
        self._note("start")
        self.recording.on_script_profiler(begins=True)

    def step(self) -> None:
        self._note("step")

    def stop(self) -> None:
        self.recording.on_script_profiler(begins=False)
        self._note("stop")

    def export_chrome_trace(self, path: str) -> None:
        raise AssertionError(path)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails_at:
            raise RuntimeError("torch has changed")


class Rank:
    """The captures of a rank, with what stands in their way."""

    def __init__(self, schedule: str = "", *, obstacle: str | None = None, wait_s: float = 0.0) -> None:
        self.sessions, self.finished, self.now_ns = Sessions(), list[RawCapture](), 0
        self.refused: list[tuple[int, int, str]] = []
        self.graph_is_captured = False
        self.is_settled = True
        self.running: list[str] = []
        self.guard = Guard(error_budget=2)
        self.recording = TraceRecording(
            self.sessions.make,
            parse_schedule(schedule),
            self.guard,
            on_finished=self.finished.append,
            on_refused=lambda steps, why: self.refused.append((steps.first_step, steps.last_step, why)),
            find_obstacle=lambda steps: obstacle and obstacle.format(steps.step_count),
            on_running=lambda steps: self.running.append("" if steps is None else str(steps)),
            is_capturing_graph=lambda: self.graph_is_captured,
            settle=lambda limit_s: self.is_settled and limit_s >= 0,
            monotonic_ns=lambda: self.now_ns,
            script_profiler_wait_s=wait_s,
        )
        self.sessions.recording = self.recording

    def run(self, first_step: int, last_step: int) -> None:
        """Pass the boundaries that the recording wants of those of these steps."""
        step = first_step
        while step <= last_step:
            self.recording.on_boundary(step)
            found = self.recording.find_next(step)
            step = last_step + 1 if found is None else found

    @property
    def steps(self) -> list[tuple[int, int, str]]:
        return [(one.steps.first_step, one.steps.last_step, one.cut) for one in self.finished]


def test_scheduled_steps_are_captured_and_no_others() -> None:
    rank = Rank("skip_first=5, wait=3, warmup=1, active=2, repeat=2")
    rank.run(0, 40)
    # 5 + 3 = 8 prepares, 9 and 10 are recorded, 11 ends it; the next cycle of 3 + 1 + 2 steps prepares at 14.
    assert rank.steps == [(9, 10, ""), (15, 16, "")]
    assert rank.sessions.calls == [
        "make 8, 9 to 10", "start", "step", "step", "stop", "make 14, 15 to 16", "start", "step", "step", "stop",
    ]  # fmt: skip
    assert [step for step in range(20) if rank.recording.is_captured(step)] == [8, 9, 10, 11, 14, 15, 16, 17]


def test_capture_with_open_collectives_ends_later_with_its_steps() -> None:
    rank = Rank("wait=3, warmup=0, active=2")
    rank.run(0, 4)
    rank.is_settled = False
    rank.run(5, 8)
    assert (rank.steps, rank.sessions.calls) == ([], ["make 3, 3 to 4", "start", "step"])
    rank.is_settled = True
    rank.run(9, 9)
    assert rank.steps == [(3, 4, "")]
    assert [step for step in range(12) if rank.recording.is_captured(step)] == [3, 4, 5]


@pytest.mark.parametrize("ends_by_boundary", [False, True])
def test_capture_closed_amid_a_collective_ends_later(ends_by_boundary: bool) -> None:
    rank = Rank("wait=3, warmup=0, active=8")
    rank.run(0, 5)
    rank.is_settled = False
    rank.recording.close()
    assert rank.steps == []
    rank.is_settled = True
    if ends_by_boundary:
        rank.run(6, 6)
    else:
        rank.recording.close()
    assert rank.steps == [(3, 4, PAUSED)]


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        (lambda recording: recording.close(must_end=True), PAUSED),
        (lambda recording: recording.on_script_profiler(begins=True), SCRIPT_PROFILER),
    ],
    ids=["end of the process", "profiler of the script"],
)
def test_capture_that_must_end_does_whatever_collectives_do(end: Callable[[TraceRecording], None], cut: str) -> None:
    rank = Rank("wait=3, warmup=0, active=8")
    rank.run(0, 5)
    rank.is_settled = False
    end(rank.recording)
    assert rank.steps == [(3, 4, cut)]


@pytest.mark.parametrize(
    ("fails_at", "told"), [("", ["steps 4 to 5", ""]), ("start", [""]), ("step", ["steps 4 to 5", ""])]
)
def test_end_of_a_capture_is_told_before_the_profiler_stops(fails_at: str, told: list[str]) -> None:
    rank = Rank("wait=3, warmup=1, active=2")
    rank.sessions.fails_at = fails_at
    rank.run(0, 10)
    assert rank.running == told


def test_pause_is_the_time_of_begin_steps_and_end() -> None:
    rank = Rank("wait=3, warmup=0, active=2")

    def take_1_ms(original: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            rank.now_ns += 1_000_000
            original()

        return call

    for name in ("start", "step", "stop"):
        setattr(rank.sessions, name, take_1_ms(getattr(rank.sessions, name)))
    rank.run(0, 9)
    assert [one.pause_ns for one in rank.finished] == [3_000_000], "start, one step, stop"


def test_asked_capture_begins_next_step_and_a_second_is_refused() -> None:
    rank = Rank()
    assert rank.recording.find_next(6) is None
    assert rank.recording.ask(2)
    assert not rank.recording.ask(2)
    assert rank.recording.find_next(6) == 7
    rank.run(7, 20)
    assert rank.steps == [(7, 8, "")]
    assert rank.recording.ask(1), "the first has ended"


@pytest.mark.parametrize(("asked", "taken"), [(0, 1), (-3, 1), (ACTIVE_MAX + 1, ACTIVE_MAX)])
def test_asked_steps_are_bounded(asked: int, taken: int) -> None:
    rank = Rank()
    rank.recording.ask(asked)
    rank.run(1, 500)
    assert rank.steps == [(1, taken, "")]


def test_asked_capture_replaces_a_scheduled_one_begun_meanwhile() -> None:
    rank = Rank("wait=5, warmup=0, active=2, repeat=2")
    rank.run(0, 4)
    rank.recording.ask(3)
    rank.run(4, 30)
    # The first scheduled one was due at 5, within 4 to 6; the second is due at 12.
    assert rank.steps == [(4, 6, ""), (12, 13, "")]
    assert rank.refused == [(5, 6, TOO_LATE)]


def test_obstacle_refuses_a_capture_naming_its_steps() -> None:
    rank = Rank("wait=5, warmup=1, active=2", obstacle="{} steps are too many")
    rank.run(0, 30)
    assert (rank.refused, rank.sessions.calls) == ([(6, 7, "2 steps are too many")], [])


def test_no_capture_begins_amid_script_profiler_or_graph_capture() -> None:
    rank = Rank("wait=5, warmup=0, active=2, repeat=3")
    rank.recording.on_script_profiler(begins=True)
    rank.run(0, 6)
    rank.recording.on_script_profiler(begins=False)
    rank.graph_is_captured = True
    rank.run(7, 13)
    rank.graph_is_captured = False
    rank.run(14, 30)
    assert rank.refused == [(5, 6, SCRIPT_PROFILER), (12, 13, GRAPH_CAPTURE)]
    assert rank.steps == [(19, 20, "")]


def test_script_profiler_ends_a_capture_before_it_begins() -> None:
    rank = Rank("wait=5, warmup=0, active=9")
    rank.run(0, 7)
    rank.recording.on_script_profiler(begins=True)
    assert rank.sessions.calls[-1] == "stop"
    assert rank.steps == [(5, 6, SCRIPT_PROFILER)], "step 7 was not over"


def test_profiler_on_another_thread_waits_for_the_captures_end() -> None:
    rank = Rank("wait=5, warmup=0, active=9", wait_s=60.0)
    rank.run(0, 7)
    begins = threading.Thread(target=lambda: rank.recording.on_script_profiler(begins=True))
    begins.start()
    while not rank.recording._script_profilers:
        pass
    assert rank.sessions.calls[-1] == "step", "a session is ended by its own thread only"
    rank.run(8, 8)
    begins.join()
    assert rank.steps == [(5, 7, SCRIPT_PROFILER)]


def test_evaluation_ends_a_capture_or_refuses_one_with_no_step() -> None:
    rank = Rank("wait=5, warmup=0, active=9, repeat=2")
    rank.run(0, 5)
    rank.recording.close()
    rank.run(6, 22)
    rank.recording.close()
    rank.recording.close()
    assert rank.refused == [(5, 13, PAUSED)], "step 5 was not over"
    assert rank.steps == [(19, 21, PAUSED)]


def test_capture_is_ended_on_its_own_thread_only() -> None:
    rank = Rank("wait=5, warmup=0, active=9")
    rank.run(0, 5)
    other = threading.Thread(target=rank.recording.close)
    other.start()
    other.join()
    assert rank.recording.find_next(5) == 6


def test_capture_of_long_steps_ends_early() -> None:
    rank = Rank("wait=1, warmup=0, active=9")
    rank.run(0, 3)
    rank.now_ns += CAPTURE_NS_MAX + 1
    rank.run(4, 4)
    assert rank.steps == [(1, 3, TOO_LONG)]


def test_capture_ending_amid_a_graph_capture_waits_for_its_end() -> None:
    rank = Rank("wait=1, warmup=0, active=2")
    rank.run(0, 2)
    rank.graph_is_captured = True
    rank.run(3, 4)
    rank.recording.close()
    assert not rank.finished
    rank.graph_is_captured = False
    rank.run(5, 5)
    assert rank.steps == [(1, 4, "")], "it has the steps that went by"


@pytest.mark.parametrize("call", ["start", "step", "stop"])
def test_error_of_torch_costs_the_capture_only(call: str) -> None:
    rank = Rank("wait=1, warmup=0, active=2, repeat=2")
    rank.sessions.fails_at = call
    rank.run(0, 3)
    assert rank.guard.errors == {PART: 1}
    assert rank.recording.find_next(3) == 4, "the next one of the schedule; this one is over"
    assert rank.finished == []
    rank.sessions.fails_at = ""
    rank.run(4, 9)
    assert rank.steps == [(4, 5, "")]


def test_captures_that_are_switched_off_end_and_none_begins() -> None:
    rank = Rank("wait=1, warmup=0, active=5, repeat=0")
    rank.run(0, 2)
    rank.guard.record(PART, RuntimeError())
    rank.guard.record(PART, RuntimeError())
    rank.run(3, 3)
    assert rank.steps == [(1, 2, "captures were switched off")]
    assert rank.recording.find_next(3) is None


def test_only_the_last_captures_are_remembered() -> None:
    rank = Rank("wait=1, warmup=0, active=1, repeat=0")
    rank.run(0, 400)
    assert not rank.recording.is_captured(1)
    assert rank.recording.is_captured(399)


def test_boundary_of_another_part_begins_no_switched_off_capture() -> None:
    rank = Rank("wait=1, warmup=0, active=5")
    rank.guard.record(PART, RuntimeError())
    rank.guard.record(PART, RuntimeError())
    rank.recording.on_boundary(1)
    assert rank.sessions.calls == []
