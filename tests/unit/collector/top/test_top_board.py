"""Keys of `rankscope top` and their effect on the board."""

import pytest

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.top.board import Board, press
from rankscope.collector.top.snapshot_fetch import FetchedRank, FetchedRun

RANKS = (
    FetchedRank(rank=0, node="gpu-a", slowdown_ratio=1.0, step_ns_median=90.0, phases_ns_median={"data": 5.0}),
    FetchedRank(rank=1, node="gpu-a", slowdown_ratio=1.4, step_ns_median=70.0, ratios={"idle": 0.5}),
    FetchedRank(rank=2, node="gpu-b", slowdown_ratio=None, step_ns_median=None),
    FetchedRank(
        rank=3, node="gpu-b", slowdown_ratio=1.4, step_ns_median=80.0, ended="killed", wait_caused_ns_median=3.0
    ),
)


def view(run: str = "a", runs: tuple[str, ...] = ("a", "b", "c"), ranks: tuple[FetchedRank, ...] = RANKS) -> FetchedRun:
    return FetchedRun(
        wall_s=0.0, runs=runs, run=RunSnapshot(run=run, world_size=4, restart_count=0, ranks=()), ranks=ranks
    )


def after(keys: list[str], board: Board | None = None, latest: FetchedRun | None = None) -> Board:
    board = board or Board()
    for key in keys:
        board = press(board, key, latest or view())
    return board


def order_of(board: Board) -> list[int]:
    return [rank.rank for rank in board.arrange(RANKS)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], [1, 3, 0, 2]),
        (["s"], [0, 1, 3, 2]),
        (["s", "s"], [1, 3, 0, 2]),
        (["t"], [0, 3, 1, 2]),
        (["w"], [3, 0, 1, 2]),
        (["d"], [0, 1, 2, 3]),
        (["i"], [1, 0, 2, 3]),
        (["r"], [0, 1, 2, 3]),
        (["r", "r"], [3, 2, 1, 0]),
    ],
)
def test_sort_keys_put_unknown_last_and_reverse_when_repeated(keys: list[str], expected: list[int]) -> None:
    assert order_of(after(keys)) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("1", [1]), ("1-2", [1, 2]), ("gpu-B", [3, 2]), ("kill", [3]), ("zz", []), ("", [1, 3, 0, 2])],
)
def test_slash_begins_a_filter_and_enter_keeps_it(typed: str, expected: list[int]) -> None:
    board = after(["/", *typed, "enter"])
    assert (order_of(board), board.is_typing) == (expected, False)


def test_keys_are_letters_while_a_filter_is_typed() -> None:
    board = after(["/", "q", "s", "x", "backspace", "left"])
    assert (board.filter, board.order, board.is_over) == ("qs", "s", False)
    assert after(["escape"], board)._replace(rows=10) == Board()


def test_filter_length_is_limited() -> None:
    assert len(after(["/", *("x" * 100)]).filter) == 64


def test_escape_clears_the_filter() -> None:
    assert after(["/", "1", "enter", "escape"]).filter == ""


def test_frozen_view_stays_until_unfrozen() -> None:
    first, second = view(), view(ranks=())
    board = after(["f"], latest=first)
    assert board.choose_shown(second) is first
    assert after(["f"], board, second).choose_shown(second) is second


def test_n_and_p_cycle_through_the_runs() -> None:
    assert after(["n"]).run == "b"
    assert after(["p"]).run == "c"
    assert after(["n"], latest=view(run="gone")).run == "b"
    assert after(["n"], latest=FetchedRun(wall_s=0.0)).run == ""


def test_switching_the_run_unfreezes() -> None:
    assert after(["f", "n"]).frozen is None


@pytest.mark.parametrize(
    ("keys", "top"),
    [
        (["down"], 1),
        (["down", "up", "up"], 0),
        (["page down"], 2),
        (["end"], 2),
        (["end", "home"], 0),
        (["end", "page up"], 0),
    ],
)
def test_scrolling_stays_within_the_ranks(keys: list[str], top: int) -> None:
    assert after(keys, Board(rows=2)).top == top


def test_any_key_only_leaves_the_help() -> None:
    assert after(["?"]).shows_help
    assert after(["?", "q"]) == Board()


def test_q_quits() -> None:
    assert after(["q"]).is_over


def test_unknown_key_changes_nothing() -> None:
    assert after(["Z"]) == Board()
