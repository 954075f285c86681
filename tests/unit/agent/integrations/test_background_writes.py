"""Writes of a log on a thread of its own: how they fail, and what the end of the process waits for."""

import subprocess
import sys
import threading

import pytest

from rankscope.agent.integrations.background_writes import BackgroundWrites
from rankscope.agent.integrations.run_log import FAILURES_MAX, LogEntry, RunLog
from rankscope.agent.run_report import ReceivedSummary, build_report
from rankscope.measure.messages import RunSummary
from tests.no_threads import allow_no_threads


def finish(writes: BackgroundWrites) -> None:
    """Wait for the write that is on."""
    assert writes._thread is not None
    writes._thread.wait_for_end(60.0)


def test_write_is_on_another_thread_that_ends_with_the_process() -> None:
    threads: list[threading.Thread] = []
    writes = BackgroundWrites()
    writes.start(lambda: threads.append(threading.current_thread()))
    finish(writes)
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon


def test_while_a_write_is_on_no_other_is_started() -> None:
    writes, may_end, written = BackgroundWrites(), threading.Event(), list[int]()
    writes.start(may_end.wait)
    with pytest.raises(TimeoutError, match="has not ended yet"):
        writes.start(lambda: written.append(1))
    may_end.set()
    finish(writes)
    writes.start(lambda: written.append(2))
    finish(writes)
    assert written == [2]


def test_start_raises_the_last_writes_error_and_still_writes() -> None:
    writes, written = BackgroundWrites(), list[int]()
    writes.start(lambda: 1 / 0)
    finish(writes)
    with pytest.raises(ZeroDivisionError):
        writes.start(lambda: written.append(1))
    finish(writes)
    writes.start(lambda: written.append(2))
    finish(writes)
    assert written == [1, 2]


def test_log_whose_writes_fail_in_the_background_is_switched_off(capfd: pytest.CaptureFixture[str]) -> None:
    writes, now_s, tried = BackgroundWrites(), [100.0], list[LogEntry]()

    def fail() -> None:
        raise ConnectionError("the server is away")

    def write(entry: LogEntry, _step: int | None) -> None:
        tried.append(entry)
        writes.start(fail)

    log = RunLog(write, lambda: build_report("bert", 0, ReceivedSummary(RunSummary(mfu=0.5), 0), 0), lambda: now_s[0])
    for _ in range(3 * FAILURES_MAX):
        now_s[0] += 10.0
        log.update()
        finish(writes)
    assert len(tried) == FAILURES_MAX + 1  # the first does not know yet
    err = capfd.readouterr().err
    assert "ConnectionError: the server is away" in err
    assert "the run is not logged any more" in err


def test_process_ends_while_a_write_never_does() -> None:
    script = (
        "import threading; from rankscope.agent.integrations import background_writes as module\n"
        "module.EXIT_WAIT_S = 0.2\n"
        "module.BackgroundWrites().start(threading.Event().wait)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_write_that_has_just_begun_is_finished_at_the_end() -> None:
    script = (
        "import time; from rankscope.agent.integrations.background_writes import BackgroundWrites\n"
        "BackgroundWrites().start(lambda: (time.sleep(0.1), print('written', flush=True)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "written\n", "")


def test_write_without_a_thread_fails_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    writes, written = BackgroundWrites(), list[int]()
    allow_no_threads(monkeypatch)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        writes.start(lambda: written.append(1))
    writes._wait_at_exit()
    monkeypatch.undo()
    writes.start(lambda: written.append(2))
    finish(writes)
    assert written == [2]
