"""Check what is read of a `stat` file of /proc, also of this process."""

import os
from pathlib import Path

import pytest

from rankscope.measure.proc_stat import ProcessStat, parse_stat, read_stat

WHOLE = "4242 (python) S " + " ".join(str(field) for field in range(4, 53)) + "\n"
"""Fields from the fourth on whose values are their numbers, as proc(5) counts them."""


def test_fields_are_those_of_the_manual() -> None:
    assert parse_stat(WHOLE) == ProcessStat("python", "S", cpu_ticks=14 + 15, start_ticks=22, exit_status=52)


@pytest.mark.parametrize("name", ["a b", ") Z 1", "((", "", "\udcff"])
def test_name_may_be_anything(name: str) -> None:
    found = parse_stat(WHOLE.replace("python", name))
    assert found is not None
    assert (found.name, found.state) == (name, "S")


@pytest.mark.parametrize(("state", "has_ended"), [("R", False), ("D", False), ("Z", True), ("X", True)])
def test_zombies_have_ended(state: str, has_ended: bool) -> None:
    found = parse_stat(WHOLE.replace(" S ", f" {state} "))
    assert found is not None
    assert found.has_ended is has_ended


def test_what_the_file_does_not_have_is_none() -> None:
    assert parse_stat("7 (a) R 1") == ProcessStat("a", "R", None, None, None)


@pytest.mark.parametrize("text", ["", "7 (a)", "7 (a) "])
def test_what_is_no_such_file_is_nothing(text: str) -> None:
    assert parse_stat(text) is None


def test_this_process_runs() -> None:
    found = read_stat(f"/proc/{os.getpid()}")
    assert found is not None
    assert (found.has_ended, found.exit_status) == (False, 0)
    assert found.start_ticks is not None
    assert found.start_ticks > 0


def test_nothing_is_read_where_there_is_no_process(tmp_path: Path) -> None:
    assert read_stat(str(tmp_path / "42")) is None
