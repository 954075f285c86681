"""What findings explain of each step: the excess of slow ranks, and what links cost."""

from collections.abc import Mapping

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.explained import (
    find_explained_ns,
    find_growths,
    find_suspects,
    name_explaining,
)
from rankscope.collector.detect.view import RunView
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, view_of


def view(*rows: list[float]) -> RunView:
    return view_of(series_of(list(rows)))


def straggler(
    *ranks: int, since_step: int | None = 1, pattern: str = "steady", evidence: Mapping[str, float] | None = None
) -> Finding:
    return Finding(
        kind="straggler", ranks=ranks, since_step=since_step, pattern=pattern, cause="host_cpu", sentence="",
        evidence=evidence or {},
    )  # fmt: skip


ROWS = ([100.0, 150.0, 100.0, 100.0], [100.0, 150.0, 170.0, 100.0], [100.0, 90.0, 100.0, 100.0])


def test_two_slow_ranks_explain_the_sum_of_their_excess() -> None:
    explained = find_explained_ns(view(*ROWS), [straggler(1), straggler(2)])
    # Before step 1 nothing; in step 1 50 and 70 ms; in step 2 none is slow.
    assert explained == pytest.approx([0.0, (50 + 70) * MS, 0.0])


def test_slow_rank_of_unknown_steps_explains_its_usual_excess() -> None:
    unknown = [UNKNOWN] * 4
    numbers = {"own_ns": 130.0 * MS, "peers_own_ns": 100.0 * MS}
    assert find_explained_ns(view(ROWS[0], unknown), [straggler(1, evidence=numbers)])[1] == pytest.approx(30 * MS)
    intermittent = straggler(1, pattern="intermittent", evidence=numbers)
    assert find_explained_ns(view(ROWS[0], unknown), [intermittent])[1] == 0.0


def test_stall_at_the_end_of_a_step_explains_the_next_one_too() -> None:
    # Rank 1 takes 150 of 100 ms in step 1, 20 of them behind the last collective: the others wait for it for 30 ms in
    # step 1, and for 20 ms in step 2, which rank 1 begins 20 ms later than they, so that its own is 20 ms shorter.
    own_ms = [[100.0] * 4, [100.0, 150.0, 100.0, 100.0], [100.0] * 4]
    step_ms = [[100.0] * 4, [130.0, 150.0, 130.0, 130.0], [120.0, 100.0, 120.0, 120.0]]
    look = view_of(series_of(own_ms, step_ms=step_ms))
    numbers = {"own_ns": 150.0 * MS, "peers_own_ns": 100.0 * MS}
    intermittent = straggler(1, pattern="intermittent", evidence=numbers)
    assert find_explained_ns(look, [intermittent]) == pytest.approx([0.0, 50 * MS, 20 * MS])
    assert find_explained_ns(look, [straggler(1)]) == pytest.approx([0.0, 50 * MS, 0.0])
    # A step after one that is not known, or no longer kept, may have been held up by it.
    unknown = view_of(series_of([[UNKNOWN] * 4, own_ms[2]], step_ms=step_ms[1:], first_step=1))
    assert find_explained_ns(unknown, [intermittent])[1] == pytest.approx(20 * MS)
    nothing = view_of(series_of([[100.0] * 4], first_step=1))
    assert find_explained_ns(nothing, [intermittent]).tolist() == [0.0]


def test_rank_that_is_gone_or_without_a_begin_explains_nothing() -> None:
    assert find_explained_ns(view(*ROWS), [straggler(9), straggler(1, since_step=None)]).tolist() == [0.0, 0.0, 0.0]


def test_link_explains_its_share_of_the_steps() -> None:
    link = Finding(kind="slow_link", group="dp", since_step=1, cause="slow_link", sentence="", run_slowdown_ratio=1.25)
    free = Finding(kind="uneven_work", cause="data_imbalance", sentence="")
    # The longest times are 150, 170 and 100 ms, of which 1 - 1 / 1.25 = 0.2 since step 1.
    assert find_explained_ns(view(*ROWS), [link, free]) == pytest.approx([0.0, 34 * MS, 20 * MS])


def test_suspects_are_ranks_whose_mean_excess_explains_half() -> None:
    rows = [[100.0, 100.0, 100.0, 100.0]] * 3 + [[100.0, 160.0, 100.0, 100.0], [100.0, 100.0, 100.0, 100.0]]
    look = view(*rows)
    # The mean since step 3 is 30 ms.
    assert find_suspects(look, 3, 3, 60 * MS, frozenset()) == (1,)
    assert find_suspects(look, 3, 3, 60 * MS, frozenset({1})) == ()
    assert find_suspects(look, 3, 3, 61 * MS, frozenset()) == ()
    assert find_suspects(look, 0, 0, 20 * MS, frozenset()) == (1,)
    assert find_suspects(view([UNKNOWN] * 4), 0, 0, 20 * MS, frozenset()) == ()


def test_rank_slowed_amid_growth_is_suspect_by_its_present_level() -> None:
    look = view([100.0] * 4, [110.0] * 4, [120.0] * 4, [100.0, 150.0, 100.0, 100.0])
    # Gradually slower since step 1, and in step 3 by 50 ms: rank 1, though its mean since step 1 is 17 ms.
    assert find_suspects(look, 1, 3, 50 * MS, frozenset()) == (1,)
    assert find_suspects(look, 1, 1, 50 * MS, frozenset()) == ()


def test_only_some_that_explain_are_named() -> None:
    assert name_explaining([straggler(rank) for rank in range(6)]) == "rank 0, rank 1, rank 2, rank 3 and 2 more"


def test_excess_is_nothing_where_nobody_is_slow() -> None:
    assert np.all(find_explained_ns(view(*ROWS), []) == 0.0)


@pytest.mark.parametrize(
    ("later", "growths_ms"),
    [
        ([102.0, 92.0, 102.0, 130.0], (18.0, 2.0)),
        ([115.0, 105.0, 115.0, 125.0], (0.0, 15.0)),
        ([UNKNOWN] * 4, (0.0, 0.0)),
    ],
)
def test_growth_of_the_largest_excess_and_of_the_middle_rank(
    later: list[float], growths_ms: tuple[float, float]
) -> None:
    rows = [*[[100.0, 90.0, 100.0, 110.0]] * 3, *[later] * 3]
    middle_ns = np.array([row[0] for row in rows]) * MS
    apart_ns, together_ns = find_growths(view(*rows), 3, 3, middle_ns, frozenset())
    assert (apart_ns, together_ns) == pytest.approx((growths_ms[0] * MS, growths_ms[1] * MS), abs=1.0)
    # A rank that is found to be slow is none of them: the others differ as before.
    assert find_growths(view(*rows), 3, 3, middle_ns, frozenset({3}))[0] == pytest.approx(0.0, abs=1.0)
