"""The verdict in words."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.detect.stragglers.cost import Cost
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.root_cause import Cause
from rankscope.collector.detect.stragglers.sentence import write_sentence
from rankscope.collector.detect.stragglers.slow_sets import SlowSet
from rankscope.collector.steps.step_series import StepSeries
from tests.unit.collector.steps.step_series import series_of, slow_of, view_of

NO_COST = Cost(1.0, 0.0, 0.0)
LATE_DATA = Cause("data_loading", "it waits 40.0 ms a step longer for its data loader", {})
SLOW = slow_of(2, (0, 1, 3), self_ms=75.0, peers_ms=35.0, since_step=1_040)
SERIES = series_of([[35.0, 35.0, 75.0, 35.0]])


def say(*slow: SlowRank, cost: Cost = NO_COST, series: StepSeries = SERIES) -> str:
    view = view_of(series, nodes=dict.fromkeys(range(8), "node-a"))
    return write_sentence(
        SlowSet(("node-a",) if len(slow) > 1 else (), slow or (SLOW,)), (slow or (SLOW,))[0], LATE_DATA, cost, view
    )


def test_sentence_states_rank_ratio_begin_cause_and_cost() -> None:
    assert say(cost=Cost(75 / 35, 12.0, 40 / 75 * 4)) == (
        "Rank 2 (node-a) is 2.14 times as slow as its 3 peer ranks since step 1040: 75.0 ms a step excluding waits for "
        "other ranks, against 35.0 ms; cause data_loading: it waits 40.0 ms a step longer for its data loader. The "
        "whole run takes 2.14 "
        "times as long as it would without this; each hour costs 2.1 rank-hours."
    )


def say_past(*slow: SlowRank, cost: Cost = NO_COST) -> str:
    view = view_of(SERIES, nodes=dict.fromkeys(range(8), "node-a"))
    return write_sentence(
        SlowSet(("node-a",) if len(slow) > 1 else (), slow or (SLOW,)),
        (slow or (SLOW,))[0],
        LATE_DATA,
        cost,
        view,
        is_over=True,
    )


def test_of_what_is_over_the_sentence_is_in_the_past_tense() -> None:
    assert say_past(cost=Cost(75 / 35, 12.0, 40 / 75 * 4)) == (
        "Rank 2 (node-a) was 2.14 times as slow as its 3 peer ranks{when}: 75.0 ms a step excluding waits for other "
        "ranks, against 35.0 ms; "
        "cause data_loading: it waited 40.0 ms a step longer for its data loader. The whole run took 2.14 times as "
        "long as it would have without this; each hour cost 2.1 rank-hours."
    )


def test_past_form_without_peers_names_the_comparison() -> None:
    slow = slow_of(2, (0, 1, 3), self_ms=75.0, peers_ms=35.0, do_same_work=False)
    assert "as usual compared with the other 3 ranks, none of which was known to do the same work,{when}" in say_past(
        slow
    )


@pytest.mark.parametrize(("ratio", "is_said"), [(1.0099, False), (1.01, True)])
def test_cost_below_one_per_cent_is_not_worth_saying(ratio: float, is_said: bool) -> None:
    text = say(cost=Cost(ratio, 1.0, 0.04))
    assert text.endswith("each hour costs 0.0 rank-hours.") == is_said
    assert text.endswith("for its data loader.") != is_said


@pytest.mark.parametrize(
    ("peers", "do_same_work", "whom"),
    [
        ((0, 1, 3), True, "as slow as its 3 peer ranks since"),
        (
            (0, 1, 3),
            False,
            "as slow as usual compared with the other 3 ranks, none of which is known to do the same work, since",
        ),
        ((0,), True, "as slow as its only peer rank since"),
        ((0,), False, "as slow as usual compared with the other rank since"),
    ],
)
def test_sentence_names_the_comparison(peers: tuple[int, ...], do_same_work: bool, whom: str) -> None:
    slow = slow_of(2, peers, self_ms=75.0, peers_ms=35.0, do_same_work=do_same_work)
    assert whom in say(slow)


def test_only_other_rank_of_a_run_is_named_so() -> None:
    slow = slow_of(1, (0,), self_ms=75.0, peers_ms=35.0)
    assert "as slow as the other rank since" in say(slow, series=series_of([[35.0, 75.0]]))


def test_sentence_names_phases_used_instead_of_self_time() -> None:
    stood_in = series_of([[35.0, 35.0, 75.0, 35.0]], self_is_measured=False)
    text = say(series=stood_in)
    assert "75.0 ms a step in data, forward and optimizer, against 35.0 ms" in text


def test_sentence_names_the_devices_own_times_used_instead() -> None:
    by_device = dataclasses.replace(series_of([[35.0, 35.0, 75.0, 35.0]], self_is_measured=False), is_by_device=True)
    assert (
        "75.0 ms a step on the GPU without the end of backward, where ranks wait for each other, against 35.0 ms; cause"
    ) in say(series=by_device)


def test_sentence_about_a_node_names_its_ranks() -> None:
    slow = [slow_of(rank, (4, 5, 6, 7), self_ms=75.0, peers_ms=35.0) for rank in (1, 0, 3)]
    assert say(*slow).startswith(
        "Node node-a (ranks 0-1, 3) is up to 2.14 times as slow as its 4 peer ranks since step 0: "
    )


@pytest.mark.parametrize(
    ("slow_steps", "words"),
    [
        ([10, 14, 18, 22], "peer ranks every 4 steps since step 0"),
        ([10, 14, 19, 30], "peer ranks in 25 % of the steps since step 0"),
    ],
)
def test_sentence_states_how_often_a_rank_is_slow(slow_steps: list[int], words: str) -> None:
    slow = SLOW._replace(since_step=0, pattern="intermittent", slow_steps=np.array(slow_steps), persistence=0.25)
    assert words in say(slow)


def test_sentence_states_a_drift() -> None:
    assert "its 3 peer ranks, and ever slower, since about step 1040: " in say(SLOW._replace(pattern="drifting"))


def test_begin_that_is_not_sure_is_stated_with_its_range() -> None:
    assert " peer ranks since about step 1040 (between 1020 and 1043): " in say(
        SLOW._replace(since_range=(1_020, 1_043))
    )
    # A range of five steps to either side is no news.
    assert " peer ranks since step 1040: " in say(SLOW._replace(since_range=(1_035, 1_045)))


def test_sentence_states_since_when_a_rank_is_as_slow_as_now() -> None:
    slow = SLOW._replace(told_level_step=1_100)
    assert "since step 1040, by this much since step 1100: 75.0 ms" in say(slow)
    assert "3 peer ranks{when}, by this much from step 1100 on: 75.0 ms" in say_past(slow)
    assert "by this much" not in say(slow._replace(told_level_step=None, level_from_step=1_100, level_is_seen=True))
    assert "by this much" not in say(slow._replace(told_level_step=0))
    assert "by this much" not in say(slow._replace(pattern="drifting"))
