"""The log of refused orders: each at first, and few of very many."""

import pytest

from rankscope.collector.publish.api.refused_orders import RefusedOrders
from tests.driven_clock import DrivenClock

PATH = "/api/v1/runs/bert/captures"


def test_refusals_beyond_five_a_minute_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = DrivenClock()
    refused = RefusedOrders(clock)
    for _ in range(12):
        refused.note(PATH, "10.0.0.1", 403, "wrong token")
    line = f"refused POST {PATH} by 10.0.0.1 (403): wrong token"
    assert caplog.messages == [line] * 5
    clock.now_s += 60.0
    caplog.clear()
    refused.note(PATH, "10.0.0.1", 403, "wrong token")
    assert caplog.messages == [f"{line}; 7 more with this status were not logged"]


def test_statuses_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedOrders(DrivenClock())
    for _ in range(12):
        refused.note(PATH, "10.0.0.1", 403, "wrong token")
    refused.note(PATH, "10.0.0.2", 409, "another one has not ended")
    assert caplog.messages[5:] == [f"refused POST {PATH} by 10.0.0.2 (409): another one has not ended"]


def test_client_cannot_write_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    RefusedOrders(DrivenClock()).note("/x\x1b[2J", "10.0.0.1", 400, "unknown field `a\nb`")
    assert caplog.messages == [r"refused POST /x\x1b[2J by 10.0.0.1 (400): unknown field `a\nb`"]
