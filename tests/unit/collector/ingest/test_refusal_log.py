"""Content and rate of the lines about refusals."""

import pytest

from rankscope.collector.ingest.refusal_log import LINES_MAX, LOG_AGAIN_NS, LoggedRefusal, RefusalLog
from tests.driven_clock import DrivenClock

REFUSED_HELLO = LoggedRefusal("full", "10.1.2.3:4242", "k" * 40, run="bert", text="rank 1 of run 'bert': no room")


@pytest.fixture
def clock() -> DrivenClock:
    """A clock that the test moves."""
    return DrivenClock()


@pytest.fixture
def log(clock: DrivenClock) -> RefusalLog:
    """A log by that clock."""
    return RefusalLog(clock)


def test_refusal_names_address_key_and_run(log: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note(REFUSED_HELLO)
    assert caplog.messages == [
        f"refused (full): rank 1 of run 'bert': no room (from 10.1.2.3:4242, client key {'k' * 40}, run 'bert')"
    ]


def test_a_connection_without_keys_is_named_by_its_address(log: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note(LoggedRefusal("no_keys", "10.1.2.3:4242"))
    assert caplog.messages == [
        "refused (no_keys): an agent without keys; give the agent key_file and collector_key_file (from 10.1.2.3:4242)"
    ]


def test_a_routing_id_is_shown_without_control_characters(log: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note(LoggedRefusal("bad_magic", "10.1.2.3:4242", peer=b"boot\n\x1b[31mone"))
    assert r"routing id 'boot\n\x1b[31mone'" in caplog.text


def test_a_reason_is_logged_once_a_minute_for_each_run(
    log: RefusalLog, clock: DrivenClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        log.note(REFUSED_HELLO)
        log.note(REFUSED_HELLO._replace(run="llama"))
    assert len(caplog.messages) == 2
    clock.now_s += LOG_AGAIN_NS / 1e9
    log.note(REFUSED_HELLO)
    assert caplog.messages[2].endswith("; 999 more since this was last logged")


def test_made_up_runs_get_few_lines(log: RefusalLog, clock: DrivenClock, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        log.note(REFUSED_HELLO._replace(run=f"run-{number}"))
    log.note(LoggedRefusal("no_keys", "10.1.2.3:4242"))  # another reason has lines of its own
    assert len(caplog.messages) == LINES_MAX + 1
    clock.now_s += LOG_AGAIN_NS / 1e9
    log.note(REFUSED_HELLO._replace(run="run-1000"))
    assert len(caplog.messages) == LINES_MAX + 2
