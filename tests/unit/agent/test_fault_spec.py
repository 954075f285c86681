"""What the setting `fault` may say, and what is said where it is wrong."""

import re

import pytest

from rankscope.agent.config import read_config, read_launch_config
from rankscope.agent.fault_spec import KINDS, FaultSpec, find_fault_problem, parse_fault

GOOD = "rank=2 kind=host_sleep ms=50 phase=backward steps=200:400"


def test_every_word_is_read() -> None:
    assert parse_fault(GOOD) == FaultSpec(2, "host_sleep", 200, 400, "backward", 50)


@pytest.mark.parametrize(
    ("kind", "phase", "ms"),
    [
        ("host_sleep", "forward", 50), ("loader_delay", "data", 50), ("sigstop", "forward", 30_000),
        ("crash", "forward", None),
    ],
)  # fmt: skip
def test_what_is_left_out_has_the_default_of_its_kind(kind: str, phase: str, ms: int | None) -> None:
    assert parse_fault(f"kind={kind} rank=0 steps=3:3") == FaultSpec(0, kind, 3, 3, phase, ms)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rank=2 kind=host_sleep", "it needs steps, as in rank=2"),
        ("kind=exit", "it needs rank and steps"),
        ("rank=2 kind=host_sleep steps=1:2 rank=3", "each of rank, kind, ms, phase, steps at most once; 'rank=3' is"),
        ("rank=2 kind=host_sleep steps=1:2 speed=3", "words of NAME=VALUE, .*; 'speed=3' is not one of these$"),
        ("rank=2 host_sleep steps=1:2", "words of NAME=VALUE, .*; 'host_sleep' is not one of these$"),
        ("rank=2 kind=host_slep steps=1:2", r"\(did you mean host_sleep\?\)"),
        ("rank=2 kind=zzz steps=1:2", f"one of {', '.join(KINDS)}$"),
        ("rank=2 kind=host_sleep steps=3:2", "the first not after the last"),
        ("rank=2 kind=host_sleep steps=3", "its steps must be FIRST:LAST, two whole numbers from 0 to 1000000000"),
        ("rank=-1 kind=host_sleep steps=1:2", "its rank must be a whole number from 0 to 1000000"),
        ("rank=2 kind=host_sleep steps=1:2 ms=0", "its ms must be a whole number from 1 to 60000"),
        ("rank=2 kind=hang steps=1:2 ms=600001", "its ms must be a whole number from 1 to 600000"),
        ("rank=2 kind=exit steps=1:2 ms=5", "the kind exit has no ms"),
        ("rank=2 kind=host_sleep steps=1:2 phase=step", "its phase must be data or forward or backward or optimizer"),
        ("rank=2 kind=loader_delay steps=1:2 phase=forward", "its phase must be data, for the kind loader_delay"),
        ("rank=٢ kind=host_sleep steps=1:2", "its rank must be a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_fault_is_refused_with_the_cure(text: str, problem: str) -> None:
    found = find_fault_problem(text)
    assert found is not None
    assert re.search(problem, found), found


def test_settings_take_a_good_fault_and_nothing() -> None:
    assert read_config({"RANKSCOPE_FAULT": GOOD, "RANKSCOPE_FAULTS_ALLOWED": "1"}).fault == GOOD
    assert read_config({}).fault == ""
    assert find_fault_problem("") is None


def test_wrong_fault_is_noted_and_the_rank_measured_without_it() -> None:
    found = read_launch_config({"RANKSCOPE_FAULT": "rank=2 kind=exit"}, {})
    assert (found.is_usable, found.config.fault) == (True, "")
    (note,) = found.notes
    assert note.startswith("fault is 'rank=2 kind=exit' (from RANKSCOPE_FAULT); it needs steps")
