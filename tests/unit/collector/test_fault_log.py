"""Logging and counting of the collector's faults."""

import logging

import pytest

from rankscope.collector.fault_log import KINDS_MAX, LOG_AGAIN_NS, FaultLog
from tests.driven_clock import DrivenClock


@pytest.fixture
def clock() -> DrivenClock:
    """A clock that the test moves."""
    return DrivenClock()


@pytest.fixture
def faults(clock: DrivenClock) -> FaultLog:
    """A log of faults by that clock."""
    return FaultLog(clock)


def fail(faults: FaultLog, error: Exception, *, place: str = "run_state", run: str = "bert") -> None:
    try:
        raise error
    except type(error):
        faults.note(place, "a report could not be handled", run=run)


def test_a_fault_is_logged_with_run_sentence_and_traceback(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    fail(faults, KeyError("step"))
    (record,) = caplog.records
    assert record.getMessage() == "run 'bert': a report could not be handled"
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


def test_the_same_fault_is_counted_and_not_logged_again(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        fail(faults, KeyError("step"))
    assert faults.counts == {"run_state": 100}
    assert len(caplog.records) == 1


def test_another_type_place_or_run_is_another_fault(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    fail(faults, KeyError("step"))
    fail(faults, ValueError("step"))
    fail(faults, KeyError("step"), run="llama")
    fail(faults, KeyError("step"), place="incidents")
    assert len(caplog.records) == 4
    assert faults.counts == {"run_state": 3, "incidents": 1}


def test_a_fault_that_lasts_is_logged_each_minute_with_its_count(
    faults: FaultLog, clock: DrivenClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        fail(faults, KeyError("step"))
    clock.now_s += LOG_AGAIN_NS / 1e9
    fail(faults, KeyError("step"))
    assert "(3 more of this kind since it was last logged)" in caplog.records[1].getMessage()


def test_the_kinds_that_are_remembered_are_bounded(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    for run in range(KINDS_MAX + 1):
        fail(faults, KeyError("step"), run=str(run))
    fail(faults, KeyError("step"), run="0")  # forgotten for the last one
    fail(faults, KeyError("step"), run=str(KINDS_MAX))
    assert len(caplog.records) == KINDS_MAX + 2
