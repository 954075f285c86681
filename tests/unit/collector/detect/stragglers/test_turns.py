"""Ranks that are slow in turns: own times of 20 ms, of 80 in a rank's turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.turns import PATIENCE_STEPS, find_in_turns
from rankscope.collector.detect.view import RunView
from tests.unit.collector.steps.step_series import series_of, view_of


def view_with(owners: Sequence[int | None], ranks: int = 2, **more: object) -> RunView:
    """Return the view of a run after 40 usual steps and these: in each one rank is slow, or none."""
    own_ms = np.full((40 + len(owners), ranks), 20.0)
    own_ms += np.random.default_rng(1).normal(0, 0.2, own_ms.shape)
    for step, owner in enumerate(owners, 40):
        if owner is not None:
            own_ms[step, owner] += 60.0
    return view_of(series_of(own_ms.tolist()), **more)  # type: ignore[arg-type]


def in_turns(owners: Sequence[int | None], ranks: int = 2) -> set[int]:
    return set(find_in_turns(view_with(owners, ranks), Thresholds()))


def test_ranks_that_alternate_take_turns() -> None:
    assert in_turns([0] * 25 + [1] * 25 + [0] * 10) == {0, 1}
    assert in_turns([0, 1, 1, 0, 1, 0, 0] * 5) == {0, 1}


def test_usual_steps_within_a_turn_belong_to_it() -> None:
    assert in_turns([0, None] * 12 + [1, None] * 12) == {0, 1}


@pytest.mark.parametrize("steps", [40, PATIENCE_STEPS + 1])
def test_rank_whose_turn_does_not_end_is_slow(steps: int) -> None:
    before = 50 if steps > PATIENCE_STEPS else 15
    assert in_turns([0] * before + [1] * steps) == set()


def test_one_slow_rank_takes_no_turns() -> None:
    assert in_turns([1] * 40) == set()
    assert in_turns([1, None, 1, 1] * 10 + [0]) == set()


def test_nobody_takes_turns_where_nobody_is_slow() -> None:
    assert in_turns([None] * 20) == set()


def test_two_of_four_ranks_are_not_most() -> None:
    def turns_of(*ranks: int) -> list[int | None]:
        return [owner for _ in range(2) for rank in ranks for owner in (*[rank] * 14, None, None, None)]

    assert in_turns(turns_of(0, 1), ranks=4) == set()
    assert in_turns(turns_of(0, 1, 3), ranks=4) == {0, 1, 3}
    assert in_turns([0, 1, 3] * 20, ranks=4) == set()  # of four each stalls now and then


def test_slowness_that_one_rank_hands_on_to_another_is_a_turn() -> None:
    assert in_turns([0] * 25 + [1] * 13, ranks=8) == {0, 1}
    assert in_turns([0] * 25 + [None] + [1] * 13, ranks=8) == {0, 1}
    assert in_turns([0] * 25 + [None] * 2 + [1] * 13, ranks=8) == set()
    assert in_turns([0] * 25 + [1] * 51, ranks=8) == set()  # by now it is a straggler


def test_rank_that_becomes_slower_than_a_slow_one_takes_no_turn() -> None:
    view = view_with([0] * 40, ranks=8)
    own_ns = view.series.own_ns.copy()
    own_ns[-13:, 1] += 100e6
    both = replace(view, series=replace(view.series, own_ns=own_ns, step_ns=own_ns))
    assert find_in_turns(both, Thresholds()) == {}


def test_ranks_without_peers_of_equal_work_take_no_turns() -> None:
    assert find_in_turns(view_with([0, 1] * 20, signatures={0: "a", 1: "b"}), Thresholds()) == {}


def test_turns_of_a_large_run_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collector.detect.stragglers.turns.RANKS_MAX", 1)
    assert in_turns([0, 1] * 20) == set()
