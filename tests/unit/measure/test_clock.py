"""Check the machine's own clocks, and the identity of the machine."""

import os
import time
from typing import NoReturn

import pytest

from rankscope.measure.clock import SystemClock
from rankscope.measure.machine import read_machine_id


def test_the_monotonic_clock_is_the_systems() -> None:
    before = time.monotonic_ns()
    assert before <= SystemClock().monotonic_ns() <= time.monotonic_ns()


def test_the_wall_clock_counts_from_1970() -> None:
    # A second on either side: the clock may be set meanwhile.
    assert abs(SystemClock().wall_ns() - time.time_ns()) < 1_000_000_000


def test_all_who_ask_on_one_machine_read_the_same_id() -> None:
    assert read_machine_id() == read_machine_id() != ""


def test_a_machine_that_does_not_tell_who_it_is_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(os, "readlink", refuse)
    assert read_machine_id() == ""
