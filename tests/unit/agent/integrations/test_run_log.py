"""What loggers are given of the report of a run, and what happens when they fail."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from rankscope.agent.integrations import run_log as module
from rankscope.agent.integrations.run_log import (
    FAILURES_MAX,
    NO_FINDINGS,
    LogEntry,
    RunLog,
    describe_findings,
    read_scalars,
)
from rankscope.agent.integrations.tensorboard import TensorBoardLog
from rankscope.agent.run_report import ReceivedSummary, RunReport, build_report
from rankscope.measure.messages import OpenFinding, RunSummary
from rankscope.measure.units import NS_PER_S

SLOW = OpenFinding(1, "straggler", "host_cpu", "rank 2", "Rank 2 is slow.", severity="warning")


class World:
    """The report of a run, and the time, both as a test sets them."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.received: ReceivedSummary | str = "the collector is not connected"
        self.lines: list[str] = []

    def receive(self, **known: Any) -> None:
        """A summary comes, half a second after now."""
        self.now_s += 0.5
        self.received = ReceivedSummary(RunSummary(**known), round(self.now_s * NS_PER_S))

    def report(self) -> RunReport:
        return build_report("bert", 0, self.received, round(self.now_s * NS_PER_S))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(module, "log_line", world.lines.append)
    return world


class Kept(RunLog):
    """A log that keeps its entries, with their steps."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda entry, step: self.entries.append((entry, step)), world.report, lambda: world.now_s)
        self.entries: list[tuple[LogEntry, int | None]] = []


def test_only_known_numbers_are_logged_each_by_its_name(world: World) -> None:
    world.receive(slowdown_ratio=1.5, data_wait_ratio=0.0)
    scalars = read_scalars(world.report())
    assert scalars == {
        "rankscope/slowdown_ratio": 1.5, "rankscope/data_wait_ratio": 0.0, "rankscope/open_findings": 0.0,
    }  # fmt: skip


def test_error_of_a_script_handler_amid_a_write_is_the_scripts(world: World) -> None:
    def handle(_number: int, _frame: object) -> None:
        raise TimeoutError("the script's")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        world.receive(slowdown_ratio=1.5)
        log = RunLog(lambda _entry, _step: signal.raise_signal(signal.SIGUSR1), world.report, lambda: world.now_s)
        with pytest.raises(TimeoutError, match="the script's"):
            log.update()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert world.lines == []


def test_number_of_findings_includes_those_left_out(world: World) -> None:
    world.receive(findings=(SLOW,), findings_left_out=4)
    report = world.report()
    assert read_scalars(report)["rankscope/open_findings"] == 5.0
    assert describe_findings(report) == "warning: Rank 2 is slow.\nand 4 more"


def test_each_summary_is_logged_once_at_the_step_of_the_call(world: World) -> None:
    log = Kept(world)
    log.update(1)
    assert log.entries == []  # nothing has come
    world.receive(mfu=0.5)
    world.now_s += 2.0
    log.update(7)
    world.now_s += 2.0
    log.update(8)
    assert [(entry.scalars["rankscope/mfu"], step) for entry, step in log.entries] == [(0.5, 7)]
    world.receive(mfu=0.25)
    world.now_s += 2.0
    log.update(9)
    assert [(entry.scalars["rankscope/mfu"], step) for entry, step in log.entries] == [(0.5, 7), (0.25, 9)]


def test_report_is_read_once_a_second_at_most(world: World) -> None:
    log = Kept(world)
    log.update()
    world.receive(mfu=0.5)
    log.update()
    assert log.entries == []
    world.now_s += 0.5
    log.update()
    assert len(log.entries) == 1


def test_findings_are_logged_where_they_have_changed(world: World) -> None:
    log = Kept(world)
    for findings in ((), (SLOW,), (SLOW,), ()):
        world.receive(findings=findings)
        world.now_s += 2.0
        log.update()
    assert [entry.findings for entry, _ in log.entries] == [None, "warning: Rank 2 is slow.", None, NO_FINDINGS]


def test_failing_logger_is_reported_once_and_switched_off(world: World) -> None:
    calls: list[int | None] = []

    def fail(_entry: LogEntry, step: int | None) -> None:
        calls.append(step)
        raise OSError("the disk is full")

    log = RunLog(fail, world.report, lambda: world.now_s)
    for step in range(FAILURES_MAX + 3):
        world.receive(mfu=0.5)
        world.now_s += 2.0
        log.update(step)
    assert calls == [0, 1, 2]
    assert len(world.lines) == 2
    assert "the run could not be logged (OSError: the disk is full" in world.lines[0]
    assert world.lines[1].startswith("the run is not logged any more, since that failed or was slow 3 times in a row; ")
    assert "the last time: OSError: the disk is full" in world.lines[1]


def test_always_slow_logger_is_told_once_and_switched_off(world: World) -> None:
    steps: list[int | None] = []

    def write(_entry: LogEntry, step: int | None) -> None:
        world.now_s += 12.25
        steps.append(step)

    log = RunLog(write, world.report, lambda: world.now_s)
    for step in range(FAILURES_MAX + 3):
        world.receive(mfu=0.5)
        world.now_s += 2.0
        log.update(step)
    assert steps == [0, 1, 2]
    (line,) = world.lines
    assert line.startswith(
        "the run is not logged any more, since that failed or was slow 3 times in a row; the last time: "
    )
    assert line.endswith("it took 12.2 s, in which training waited")


def test_logger_that_is_slow_now_and_then_stays_on(world: World) -> None:
    steps: list[int | None] = []

    def write(_entry: LogEntry, step: int | None) -> None:
        world.now_s += 12.25 if len(steps) % 3 else 0.5
        steps.append(step)

    log = RunLog(write, world.report, lambda: world.now_s)
    for step in range(9):
        world.receive(mfu=0.5)
        world.now_s += 2.0
        log.update(step)
    assert (steps, world.lines) == (list(range(9)), [])


def test_findings_of_a_failed_write_come_with_the_next(world: World) -> None:
    entries: list[LogEntry] = []

    def fail_first(entry: LogEntry, _step: int | None) -> None:
        entries.append(entry)
        if len(entries) == 1:
            raise OSError("the disk is full")

    log = RunLog(fail_first, world.report, lambda: world.now_s)
    for _ in range(3):
        world.receive(findings=(SLOW,))
        world.now_s += 2.0
        log.update()
    assert [entry.findings for entry in entries] == ["warning: Rank 2 is slow."] * 2 + [None]


def test_failing_logger_is_named_where_there_are_several(world: World) -> None:
    log = RunLog(lambda *_: 1 / 0, world.report, lambda: world.now_s, logger="CSVLogger")
    for _ in range(FAILURES_MAX):
        world.receive(mfu=0.5)
        world.now_s += 2.0
        log.update()
    assert "the run could not be logged with CSVLogger (ZeroDivisionError: " in world.lines[0]
    assert "the run is not logged with CSVLogger any more" in world.lines[1]


def test_other_rank_needs_no_writer(world: World) -> None:
    TensorBoardLog(None).update(1)  # this process is not measured: it is sent no summary either
    assert world.lines == []


@pytest.mark.parametrize(("logger", "cure"), [("wandb", "wandb"), ("mlflow", "mlflow-skinny")])
def test_missing_logger_is_named_with_the_cure(logger: str, cure: str) -> None:
    script = f"import sys; sys.modules[{logger!r}] = None; import rankscope.agent.integrations.{logger}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert f"ImportError: rankscope.agent.integrations.{logger} needs " in ended.stderr
    assert f"`pip install {cure}` installs it." in ended.stderr
