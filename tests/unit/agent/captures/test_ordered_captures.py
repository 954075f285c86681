"""A rank takes the captures that the collector orders, tells their state, and sends their files."""

import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.agent.capture_settings import ACTIVE_MAX, CaptureSteps
from rankscope.agent.captures import trace_files
from rankscope.agent.captures.ordered_captures import (
    HELD_NS_MAX,
    KNOWN_MAX,
    NOT_HELD,
    SWITCHED_OFF,
    OrderedCaptures,
)
from rankscope.agent.captures.trace_captures import Outcome, TraceCaptures
from rankscope.agent.captures.trace_recording import (
    ANOTHER,
    CALLED_OFF,
    GRAPH_CAPTURE,
    PART,
    PAUSED,
    SCRIPT_PROFILER,
    TOO_LATE,
    ProfilerSession,
)
from rankscope.agent.config import read_config
from rankscope.agent.guard import Guard
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.messages import CaptureOrder, CapturePart, CapturePartWanted, CaptureState
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

TEXT = json.dumps({"traceEvents": [{"name": f"event {number}"} for number in range(1000)]})


class Session:
    """A session of torch's profiler that records nothing, and writes TEXT once `before_writing` has returned."""

    def __init__(self, before_writing: Callable[[], object] = lambda: None) -> None:
        self.before_writing = before_writing

    def start(self) -> None: ...
    def step(self) -> None: ...
    def stop(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None:
        self.before_writing()
        Path(path).write_text(TEXT)


class Rank:
    """A rank in step 10, at whose boundaries captures begin and end."""

    def __init__(self, *, is_allowed: bool = True, **settings: str) -> None:
        config = read_config({f"RANKSCOPE_{name.upper()}": value for name, value in settings.items()})
        self.step, self.now_ns, self.made = 10, 0, list[CaptureSteps]()
        self.guard = Guard(error_budget=2)
        self.graph_is_captured = False
        self.before_writing: Callable[[], object] = lambda: None
        self.traces = TraceCaptures(
            config,
            identity_of(3, pid=1),
            {},
            self.guard,
            GraphCaptures(lambda: self.graph_is_captured),
            make_session=self._make,
        )
        self.orders = OrderedCaptures(
            self.traces,
            self.guard,
            is_allowed=is_allowed,
            find_step=lambda: self.step,
            monotonic_ns=lambda: self.now_ns,
        )

    def _make(self, steps: CaptureSteps) -> ProfilerSession:
        self.made.append(steps)
        return Session(lambda: self.before_writing())  # noqa: PLW0108 - a test changes it later

    def order(self, first_step: int = 20, last_step: int = 22, **more: Any) -> CaptureState:
        answer = self.ask(CaptureOrder(**{"id": "c1", "first_step": first_step, "last_step": last_step, **more}))
        assert isinstance(answer, CaptureState)
        return answer

    def ask(self, message: CaptureOrder | CapturePartWanted) -> CaptureState | CapturePart | None:
        return self.orders.handle(message)

    def train_to(self, step: int) -> list[CaptureState]:
        """Train to the begin of this step, and report; return the states that are sent."""
        while self.step < step:
            self.step += 1
            self.traces.recording.on_boundary(self.step)
        self.traces.write()
        return self.orders.collect()

    def read(self, offset: int, length: int, order_id: str = "c1") -> CapturePart:
        part = self.ask(CapturePartWanted(id=order_id, offset=offset, length=length))
        assert isinstance(part, CapturePart)
        return part


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of captures without a folder; it is empty again at the end of each test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(trace_files, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


def test_ordered_steps_are_captured_and_the_file_sent_in_parts() -> None:
    rank = Rank()
    accepted = rank.order()
    assert (accepted.state, accepted.reason, accepted.next_step) == ("accepted", "", 11)
    assert rank.train_to(20) == []
    assert rank.order().state == "recording"
    (state,) = rank.train_to(23)
    assert rank.made == [CaptureSteps(19, 20, 22, "c1")], "prepared in the step before"
    assert (state.state, state.first_step, state.last_step, state.reason) == ("written", 20, 22, "")
    assert state.pause_ns is not None
    assert state.size_bytes is not None
    parts = [rank.read(offset, 100).data for offset in range(0, state.size_bytes, 100)]
    assert gzip.decompress(b"".join(parts)).decode() == TEXT
    assert state.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
    assert rank.read(state.size_bytes, 100) == CapturePart(id="c1", offset=state.size_bytes)
    assert rank.order() == state, "a repeated order is answered by the state"


def test_file_is_gone_once_the_collector_has_it() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(23)
    before = count_open_files()
    assert rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True)) is None
    assert count_open_files() == before - 1
    assert rank.read(0, 10).problem == NOT_HELD
    assert rank.order().state == "written", "it is not captured again"


def test_file_is_whole_while_another_rank_removes_its_own() -> None:
    ranks = [Rank(), Rank()]
    for rank in ranks:
        rank.order()
    ranks[1].before_writing = lambda: ranks[0].train_to(23)  # it writes its file, and removes its name
    (state,) = ranks[1].train_to(23)
    assert (state.state, state.reason) == ("written", "")
    for rank in ranks:
        rank.orders.close()


def test_file_in_the_capture_folder_stays(tmp_path: Path) -> None:
    rank = Rank(capture_folder=str(tmp_path / "kept"))
    rank.order()
    (state,) = rank.train_to(23)
    rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True))
    (path,) = (tmp_path / "kept").rglob("*.gz")
    assert path.name == "rank-3.pt.trace.json.gz"
    assert path.stat().st_size == state.size_bytes


def test_file_that_cannot_be_read_is_told_and_not_held(tmp_path: Path) -> None:
    rank = Rank()
    rank.order()
    folder = str(tmp_path)  # it can be opened, and reading it is an error
    rank.traces.outcomes.append(Outcome(CaptureSteps(19, 20, 22, "c1"), folder, size_bytes=10, pause_ns=5))
    (state,) = rank.orders.collect()
    assert (state.state, state.pause_ns, state.size_bytes) == ("failed", 5, None)
    assert "Is a directory" in state.reason
    assert rank.read(0, 10).problem == NOT_HELD


def test_file_that_nobody_fetches_is_closed() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(23)
    rank.now_ns = HELD_NS_MAX - 1
    rank.orders.collect()
    assert rank.read(0, 10).data
    rank.now_ns = HELD_NS_MAX
    rank.orders.collect()
    assert rank.read(0, 10).problem == NOT_HELD


def test_files_are_closed_at_the_end() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(23)
    rank.orders.close()
    rank.orders.close()
    assert rank.read(0, 10).problem == NOT_HELD


def test_file_unfetched_at_the_end_is_told_as_maybe_lost(capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank()
    rank.order(id="said once for each")
    rank.train_to(23)
    waits = rank.orders.has_files
    capsys.readouterr()
    rank.orders.close()
    assert waits
    assert not rank.orders.has_files
    assert (
        "the capture of steps 20 to 22 for the collector may be lost: the process has ended" in capsys.readouterr().err
    )


def test_file_in_a_folder_is_not_lost_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = Rank(capture_folder=str(tmp_path / "kept"))
    rank.order()
    rank.train_to(23)
    capsys.readouterr()
    rank.orders.close()
    assert capsys.readouterr().err == ""


def test_no_file_is_waited_for_once_the_collector_has_it() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(23)
    rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True))
    assert not rank.orders.has_files


@pytest.mark.parametrize(("first_step", "state"), [(12, "accepted"), (11, "refused")])
def test_order_for_steps_that_have_begun_is_too_late(first_step: int, state: str) -> None:
    # The rank is in step 10; the next to begin is 11, and the step before the first prepares.
    answer = Rank().order(first_step, first_step)
    assert (answer.state, answer.reason, answer.next_step) == (state, "" if state == "accepted" else TOO_LATE, 11)


def test_order_met_too_late_by_the_training_thread_is_refused() -> None:
    rank = Rank()
    rank.order(12, 13)
    rank.step = 14  # no boundary has been asked about meanwhile
    (state,) = rank.train_to(15)
    assert (state.state, state.reason, state.next_step) == ("refused", TOO_LATE, 16)


@pytest.mark.parametrize(
    ("last_step", "is_taken"), [(20 + ACTIVE_MAX - 1, True), (20 + ACTIVE_MAX, False), (19, False)]
)
def test_number_of_steps_is_bounded(last_step: int, is_taken: bool) -> None:
    state = Rank().order(20, last_step)
    assert (state.state == "accepted") == is_taken
    assert is_taken or "a capture has 1 to 100" in state.reason


def test_options_of_an_order_are_its_own() -> None:
    rank = Rank(capture_options="memory", capture_pause_s_max="1")
    rank.traces.events_a_step = 10_000
    state = rank.order(options=("shapes",), last_step=20)
    assert state.expected_pause_ns == 10_000 * (8_100 + 2_800)
    assert rank.order(id="c2", options=("colors",)).reason == "colors is not one of shapes, stacks, memory, modules"


@pytest.mark.parametrize(
    ("pause_ns_max", "reason"),
    [
        (10**9, "it would stop training for about 0.38 s, and capture_pause_s_max of the agent is 0.3 s"),
        (10**8, "it would stop training for about 0.38 s, and capture_pause_s_max of the collector is 0.1 s"),
        (None, ""),
    ],
)
def test_price_above_the_limit_is_refused_unless_forced(pause_ns_max: int | None, reason: str) -> None:
    rank = Rank(capture_pause_s_max="0.3")
    rank.traces.events_a_step, rank.traces.window_ns_an_event = 10_000, 7_500  # 3 steps at 3 x 4.2 us an event
    state = rank.order(pause_ns_max=pause_ns_max)
    assert (state.reason, state.expected_pause_ns) == (reason, 378_000_000)
    rank.train_to(24)
    assert len(rank.made) == (0 if reason else 1)


def test_second_order_is_refused_while_one_is_planned_or_on() -> None:
    rank = Rank()
    rank.order()
    assert rank.order(id="c2", first_step=40, last_step=41).reason == ANOTHER
    rank.train_to(21)
    assert rank.order(id="c3", first_step=40, last_step=41).reason == ANOTHER
    rank.train_to(23)
    assert rank.order(id="c4", first_step=40, last_step=41).state == "accepted"


@pytest.mark.parametrize(("first_step", "state"), [(27, "refused"), (30, "accepted")])
def test_schedule_goes_before_an_order(first_step: int, state: str) -> None:
    # The schedule prepares in step 25 and records 26 to 28; an order for 30 is prepared in 29.
    rank = Rank(capture_folder="/nowhere", capture_schedule="wait=25, active=3")
    assert rank.order(first_step, first_step + 1).state == state


def test_switched_off_orders_are_refused() -> None:
    rank = Rank(is_allowed=False)
    assert rank.order().reason == SWITCHED_OFF
    assert rank.train_to(25) == []


def test_captures_that_are_off_after_errors_are_refused() -> None:
    rank = Rank()
    for _ in range(3):
        rank.guard.record(PART, RuntimeError("torch has changed"))
    assert "switched off on this rank" in rank.order().reason


def test_order_that_is_called_off_before_its_steps_is_forgotten() -> None:
    rank = Rank()
    rank.order()
    assert rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True)) is None
    assert rank.train_to(25) == []
    assert rank.made == []
    assert (rank.order().state, rank.order().reason) == ("refused", CALLED_OFF)
    assert rank.order(id="c2", first_step=40, last_step=41).state == "accepted"


def test_order_that_is_called_off_amid_its_steps_leaves_nothing() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(21)
    rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True))
    rank.train_to(25)
    assert rank.read(0, 10).problem == NOT_HELD


def test_order_is_taken_while_a_called_off_one_is_recorded() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(21)
    rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22, is_over=True))
    assert rank.order(id="c1-2", first_step=30, last_step=32).state == "accepted"
    (over, state) = (*rank.train_to(23), *rank.train_to(33))
    assert (over.state, over.reason) == ("written", CALLED_OFF)
    assert (state.state, state.first_step, state.last_step) == ("written", 30, 32)
    rank.orders.close()


def test_order_of_another_is_not_called_off() -> None:
    rank = Rank()
    rank.order()
    rank.ask(CaptureOrder(id="c0", first_step=20, last_step=22, is_over=True))
    assert [state.state for state in rank.train_to(25)] == ["written"]


def test_capture_that_ends_early_says_so() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(22)
    rank.traces.recording.close()
    (state,) = rank.train_to(22)
    assert (state.state, state.first_step, state.last_step, state.reason) == ("written", 20, 21, PAUSED)


def test_order_is_refused_if_the_script_profiles_its_first_step() -> None:
    rank = Rank()
    assert rank.order().state == "accepted"
    rank.traces.recording.on_script_profiler(begins=True)
    (state,) = rank.train_to(23)
    assert (state.state, state.reason, rank.made) == ("refused", SCRIPT_PROFILER, [])
    rank.traces.recording.on_script_profiler(begins=False)
    assert rank.order(30, 32, id="c2").state == "accepted"


def test_profiler_of_the_script_ends_an_ordered_capture() -> None:
    rank = Rank()
    rank.order()
    rank.train_to(22)
    rank.traces.recording.on_script_profiler(begins=True)
    (state,) = rank.train_to(23)
    assert (state.state, state.first_step, state.last_step, state.reason) == ("written", 20, 21, SCRIPT_PROFILER)


def test_order_is_refused_if_a_graph_is_captured_at_first_step() -> None:
    rank = Rank()
    rank.order()
    rank.graph_is_captured = True
    (state,) = rank.train_to(23)
    assert (state.state, state.reason, rank.made) == ("refused", GRAPH_CAPTURE, [])


def test_file_above_the_orders_limit_is_lost_and_the_next_taken() -> None:
    rank = Rank()
    rank.order(bytes_max=100)
    (state,) = rank.train_to(23)
    assert (state.state, state.reason, state.size_bytes) == (
        "failed",
        "its file exceeds the 100 bytes of the order: order fewer steps or ranks",
        None,
    )
    rank.order(id="c2", first_step=30, last_step=30)
    assert [one.state for one in rank.train_to(33)] == ["written"]


def test_place_that_cannot_be_written_to_loses_the_capture(temporary: Path) -> None:
    rank = Rank()
    temporary.rmdir()
    rank.order()
    (state,) = rank.train_to(23)
    assert state.state == "failed"
    assert "No such file or directory" in state.reason
    temporary.mkdir()


def test_states_are_bounded() -> None:
    rank = Rank()
    rank.order()
    for number in range(KNOWN_MAX):
        rank.order(id=f"later {number}")
    assert rank.order().state == "accepted", "the one that is on is not forgotten"
    rank.train_to(23)
    assert rank.order(id="later 0", first_step=22).reason == TOO_LATE, "it was refused because of another before"


def test_error_in_an_answer_is_recorded() -> None:
    rank = Rank()
    rank.traces.expect_pause_ns = None  # type: ignore[assignment, method-assign]
    assert rank.ask(CaptureOrder(id="c1", first_step=20, last_step=22)) is None
    assert rank.guard.errors == {PART: 1}
