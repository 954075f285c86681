"""Check the machine's own clocks, and the identity of the machine."""

import itertools
import os
import time
from typing import NoReturn

import pytest

from rankscope.measure.clock import OFFSET_READINGS, SystemClock, read_wall_minus_host_ns
from rankscope.measure.machine import read_machine_id


def test_the_monotonic_clock_is_the_systems() -> None:
    before = time.monotonic_ns()
    assert before <= SystemClock().monotonic_ns() <= time.monotonic_ns()


def test_the_wall_clock_counts_from_1970() -> None:
    # A second on either side: the clock may be set meanwhile.
    assert abs(SystemClock().wall_ns() - time.time_ns()) < 1_000_000_000


def test_clock_offset_is_of_the_closest_pair_if_none_is_close() -> None:
    # Each pair is 1 ms apart, but the third: 0.1 ms. The wall clock is 7 ms ahead, read 10 ns after each begin.
    apart_ns = [1_000_000, 1_000_000, 100_000, 1_000_000, 1_000_000]
    begin_ns = list(itertools.accumulate([0, *apart_ns]))
    host_ns = iter([at for begin, apart in zip(begin_ns, apart_ns, strict=False) for at in (begin, begin + apart)])
    wall_ns = iter([begin + 10 + 7_000_000 for begin in begin_ns])
    # It is taken to be read in the middle, which in the third pair is 50 us after its begin.
    assert read_wall_minus_host_ns(lambda: next(wall_ns), lambda: next(host_ns)) == 7_000_000 + 10 - 50_000
    assert len(list(host_ns)) == 2 * (len(apart_ns) - OFFSET_READINGS) == 0


def test_the_offset_of_the_systems_clocks_is_their_difference() -> None:
    before_ns = time.time_ns() - time.monotonic_ns()
    assert abs(read_wall_minus_host_ns() - before_ns) < 1_000_000_000


def test_all_who_ask_on_one_machine_read_the_same_id() -> None:
    assert read_machine_id() == read_machine_id() != ""


def test_a_machine_that_does_not_tell_who_it_is_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(os, "readlink", refuse)
    assert read_machine_id() == ""
