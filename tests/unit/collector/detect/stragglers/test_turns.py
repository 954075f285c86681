"""Ranks that are slow in turns: own times of 20 ms, of 80 in a rank's turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.turns import PATIENCE_STEPS, find_in_turns, find_turns
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


def test_rank_with_one_turn_more_among_the_kept_steps_takes_turns() -> None:
    cycle = [rank for rank in range(4) for _ in range(25)]
    assert in_turns([*cycle, *[0] * 30], ranks=4) == {0, 1, 2, 3}
    assert in_turns([0] * 60 + cycle[25:] + [0] * 30, ranks=4) == {1, 2, 3}  # it has more of it than others


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


def test_moment_of_another_rank_does_not_end_a_turn() -> None:
    assert in_turns([*[0] * 25, 5, *[0] * 8, *[1] * 13], ranks=8) == {0, 1}
    assert in_turns([*[0] * 33, *[1] * 8, 5, *[1] * 13], ranks=8) == {0, 1}
    assert in_turns([*[1] * 30, 5, *[1] * 35], ranks=8) == set()  # nobody else has had one


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


def noisy_turns(usual: int, turns: int, length: int) -> RunView:
    """Return the view of two ranks whose usual steps differ by a tenth, and that are slow in turns after these."""
    owners = [turn % 2 for turn in range(turns) for _ in range(length)]
    own_ms = np.full((usual + len(owners), 2), 20.0)
    own_ms *= np.exp(np.random.default_rng(7).normal(0, 0.1, own_ms.shape))
    for step, owner in enumerate(owners, usual):
        own_ms[step, owner] += 60.0
    return view_of(series_of(own_ms.tolist()))


@pytest.mark.parametrize("turns", [2, 4, 5, 6])
def test_turns_are_seen_beside_usual_steps(turns: int) -> None:
    """Levels of three kinds, each a third of the steps, are no noise."""
    (found,) = find_turns(noisy_turns(60, turns, 25), Thresholds())
    assert found.ranks == (0, 1)
    assert found.since_step == 60
    assert len(found.rows) >= 0.9 * 25 * turns


def test_turns_begin_where_slow_steps_become_frequent() -> None:
    owners: list[int | None] = [None] * 100
    owners[10], owners[55] = 0, 1  # a stall each
    view = view_with([*owners, *[0, 1] * 40])
    (found,) = find_turns(view, Thresholds())
    assert (found.since_step, found.since_range) == (140, (140, 141))
    assert set(view.series.steps[found.rows].tolist()) == set(range(140, 220))


def test_turns_of_all_kept_steps_may_be_older() -> None:
    view = view_of(series_of([[80.0, 20.0], [20.0, 80.0]] * 40))
    (found,) = find_turns(view, Thresholds())
    assert (found.since_step, found.since_range) == (0, None)


def test_two_of_three_steps_by_chance_are_no_straggler_in_turns() -> None:
    owners = [0, 1] * 20 + [1, 1, 0] * 20
    found = Stragglers(Thresholds()).find(view_with(owners), ())
    assert not isinstance(found, Abstain)
    assert found == []


def test_rank_that_is_slow_alone_after_turns_is_a_straggler() -> None:
    owners = [rank for rank in (0, 1, 2, 0) for _ in range(15)] + [1] * 100
    found = Stragglers(Thresholds()).find(view_with(owners, ranks=3), ())
    assert not isinstance(found, Abstain)
    assert [(one.finding.ranks, one.finding.pattern) for one in found] == [((1,), "steady")]


def test_steps_of_a_turn_that_has_just_begun_are_lost_too() -> None:
    """Of three ranks a dozen steps make a turn; what fewer lost is not told later."""
    view = view_with([0] * 25 + [1] * 25 + [2] * 25 + [0] * 5, ranks=3)
    (found,) = find_turns(view, Thresholds())
    assert found.lost_ns[40:].tolist() == pytest.approx([60e6] * 80, rel=0.05)
    assert found.lost_ns[:40].tolist() == [0.0] * 40
