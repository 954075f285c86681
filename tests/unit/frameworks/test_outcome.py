"""What a job of a framework said is compared with and without the monitor; numbers that time changes do not count."""

import pytest

from rankscope.collector.detect.finding import STRAGGLER, Finding
from tests.frameworks.outcome import (
    Told,
    compare_told,
    find_accused,
    find_differences,
    find_named,
    read_error,
    read_told,
)


def test_each_rank_is_read_from_an_output_with_other_lines() -> None:
    output = "WARNING: odd\n(Worker pid=7) told rank=1 steps=3 losses=0x1.8p+0\ntold rank=0 steps=3 losses=0x1.0p+0\n"
    assert read_told(output) == {0: Told(3, "0x1.0p+0"), 1: Told(3, "0x1.8p+0")}


def test_loss_that_differs_in_its_last_digit_is_another_loss() -> None:
    bare, watched = {0: Told(1, "0x1.0000000000000p+0")}, {0: Told(1, "0x1.0000000000001p+0")}
    assert compare_told(bare, watched) == ("rank 0 told other losses",)
    assert compare_told(bare, bare) == ()


def test_rank_that_says_nothing_with_the_monitor_is_told() -> None:
    one = Told(1, "0x1.0p+0")
    assert compare_told({0: one, 1: one}, {0: one}) == ("rank 1 told nothing with the monitor",)


@pytest.mark.parametrize(
    ("bare", "watched"),
    [
        ("saved in 3.25 s\n", "saved in 11.5 s\n"),
        ("[2026-11-29 01:02:03,456] ready\n", "[2026-11-30 11:12:13,4] ready\n"),
        ("loaded /tmp/abc1/model\n", "loaded /tmp/x_2/model\n"),
        ("object at 0x7f01ab\n", "object at 0x55cd\n"),
        (" 10%|█ | 1/10\r 20%|██ | 2/10\n", " 30%|███ | 3/10\n"),
        ("a\nb\n", "b\na\n"),
    ],
)
def test_times_paths_addresses_and_progress_are_no_difference(bare: str, watched: str) -> None:
    assert find_differences(bare, watched) == ()


def test_line_that_comes_or_goes_is_a_difference() -> None:
    assert find_differences("kept\nlost\n", "kept\nUserWarning: new\n") == ("- lost", "+ UserWarning: new")


def test_lines_of_monitor_and_ranks_are_compared_elsewhere() -> None:
    assert find_differences("", "rankscope: watching\ntold rank=0 steps=1 losses=0x1.0p+0\n") == ()


def test_error_is_the_exception_of_the_rank_not_the_launcher() -> None:
    said = "[rank1]: ModuleNotFoundError: No module named 'triton'\n    raise ChildFailedError(\nChildFailedError: x\n"
    assert read_error(said) == "ModuleNotFoundError: No module named 'triton'"


def test_error_without_an_exception_is_the_last_line() -> None:
    assert read_error("starting\nKilled\n\n") == "Killed"
    assert read_error("") == ""


def straggler(rank: int, ratio: float, lost: float) -> Finding:
    return Finding(kind=STRAGGLER, cause="", sentence="", ranks=(rank,), slowdown_ratio=ratio, lost_rank_seconds=lost)


def test_stragglers_are_named_the_dearest_first() -> None:
    other = Finding(kind="hang", cause="", sentence="", ranks=(3,))
    named = find_named([straggler(0, 1.4, 2.0), other, straggler(1, 2.0, 9.0)])
    assert [one.ranks for one in named] == [(1,), (0,)]


def test_slowness_a_machine_may_cause_accuses_nobody_a_hang_does() -> None:
    hang = Finding(kind="hang", cause="", sentence="", ranks=(0,))
    about_the_run = Finding(kind="data_loading", cause="", sentence="", slowdown_ratio=3.0)
    assert find_accused([straggler(1, 1.19, 1.0), about_the_run, hang]) == [hang]
