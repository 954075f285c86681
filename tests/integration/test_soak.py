"""A short soak, `make soak` has the long one, and that the soak would see what it looks for."""

from itertools import pairwise

import pytest

from bench.soak.fleet import LeftDelivered
from bench.soak.node import LifeAccount
from bench.soak.plan import COLLECTOR_KILLED, KILLS_UNTIL, KINDS, plan, shape_of
from bench.soak.result import render
from bench.soak.run import SoakSettings, find_errors, find_missing, run_soak
from bench.soak.watch import (
    ERRORS,
    MemorySample,
    Settling,
    find_backward,
    find_comparable,
    find_trend,
    parse_page,
)
from tests.integration.faults import PageAccount

SHAPE = shape_of(32)
MIB = 1 << 20

PAGE = """\
# HELP rankscope_steps_total Steps.
# TYPE rankscope_steps_total counter
rankscope_steps_total{run="a",rank="0"} %d
# TYPE rankscope_frames_received_total counter
rankscope_frames_received_total %d
# TYPE rankscope_run_info gauge
rankscope_run_info{run="a",world_size="1",restart_count="%d"} 1.0
# TYPE rankscope_rank_up gauge
rankscope_rank_up{run="a",rank="0"} %d
"""


def page(steps: int, frames: int = 9, restart: int = 0, up: int = 1) -> str:
    return PAGE % (steps, frames, restart, up)


def test_every_loss_in_a_soak_of_all_fault_kinds_is_counted() -> None:
    # Pages of 32 ranks are written when they are asked for, from a picture that may be a few looks old.
    settings = SoakSettings(
        ranks=32, seconds=25, seed=7, fault_s_max=1.5, scrape_s=1.0, page_age_s_max=3.0, interval_s=0.5
    )
    result = run_soak(settings)
    assert result.problems == ()
    assert {done.planned.kind for done in result.faults} == set(KINDS)
    assert result.collectors >= 2
    assert result.watch.comparisons > 0
    assert result.left.lives > 0
    lossy, *others = result.runs
    assert [one.dropped for one in others] == [0]
    assert lossy.unaccounted == 0
    assert "**Nothing lost that is not counted" in render(result, "")


def test_plan_of_a_seed_is_its_own_and_has_every_kind_of_fault() -> None:
    long = plan(1, 1800, SHAPE, 30)
    assert long == plan(1, 1800, SHAPE, 30) != plan(2, 1800, SHAPE, 30)
    assert {fault.kind for fault in long} == set(KINDS)
    assert all(fault.at_s + fault.duration_s <= 1800 for fault in long)
    assert max(fault.at_s for fault in long if fault.kind == COLLECTOR_KILLED) < KILLS_UNTIL * 1800


def test_faults_of_a_plan_do_not_overlap() -> None:
    faults = plan(3, 600, SHAPE, 30)
    assert all(one.at_s + one.duration_s < other.at_s for one, other in pairwise(faults))


def test_ranks_that_fill_no_node_are_refused() -> None:
    with pytest.raises(ValueError, match=r"33 ranks do not fill 2 runs of 2 nodes; give a multiple of 4"):
        shape_of(33)


@pytest.mark.parametrize(
    ("later", "settled", "same_collector", "backward"),
    [
        (page(11), {"a"}, True, []),
        (page(9), {"a"}, True, ['rankscope_steps_total{run="a",rank="0"} went from 10 to 9']),
        (page(9), {"a"}, False, ['rankscope_steps_total{run="a",rank="0"} went from 10 to 9']),
        (page(9), {"b"}, True, []),
        (page(10, frames=8), set(), True, ["rankscope_frames_received_total{} went from 9 to 8"]),
        (page(10, frames=8), set(), False, []),
        (page(10, up=0), {"a"}, True, []),
    ],
    ids=[
        "forward", "of a run", "of a run, over a kill", "of a run that is not settled", "of the collector",
        "of the next collector", "a gauge",
    ],
)  # fmt: skip
def test_a_counter_that_goes_backwards_is_seen(
    later: str, settled: set[str], same_collector: bool, backward: list[str]
) -> None:
    before, after = parse_page(page(10)), parse_page(later)
    keys = find_comparable(before, after, settled, same_collector=same_collector)
    assert find_backward(before, after, keys) == backward


@pytest.mark.parametrize(
    ("scrapes", "settled"),
    [
        ([(0, 0, 0), (5, 0, 0)], False),
        ([(0, 0, 0), (11, 0, 0)], True),
        ([(0, 0, 0), (11, 0, 1)], False),
        ([(0, 0, 0), (11, 1, 1)], False),
        ([(0, 0, 0), (11, 1, 1), (20, 1, 1)], False),
        ([(0, 0, 0), (11, 1, 1), (22, 1, 1)], True),
    ],
    ids=["young", "old enough", "restarted and not shown yet", "shown now", "shown lately", "shown long ago"],
)
def test_a_run_is_settled_when_no_page_can_be_of_another_restart(
    scrapes: list[tuple[int, int, int]], settled: bool
) -> None:
    settling = Settling(10.0)
    found = [settling.take(parse_page(page(1, restart=shown)), at_s, {"a": made}) for at_s, shown, made in scrapes]
    assert found[-1] == ({"a"} if settled else set())


def test_a_slope_is_that_of_all_processes_after_their_warm_up() -> None:
    """Two processes, 1 and 3 MiB a minute, over the same times, so 2; each with a jump before it is warm."""
    samples = [
        MemorySample(at_s, pid, round((level + (at_s >= 60) * 50 + slope * at_s / 60) * MIB))
        for pid, level, slope in ((1, 100, 1), (2, 200, 3))
        for at_s in range(0, 301, 30)
    ]
    trend = find_trend(samples, warm_up_s=60)
    assert trend is not None
    assert trend.mib_per_min == pytest.approx(2)
    assert (trend.minutes, trend.processes) == (8, 2)
    assert find_trend(samples, warm_up_s=290) is None


LIFE = LifeAccount(
    run="soak-1", rank=0, boot_id="b", made=10, overwritten=1, reports=3, steps_dropped=3, reports_dropped=1,
    is_delivered=True, resends=0,
)  # fmt: skip
ACCOUNT = PageAccount(made=10, published=6, elsewhere=0, overwritten=1, dropped=3, late=0, buffered=0, gaps=1)


def missing_with(**changed: int) -> list[str]:
    account = PageAccount(**{**vars(ACCOUNT), **changed})
    found = find_missing(shape_of(32), [LIFE], LeftDelivered(1, 1, 0), {"soak-1": {0: account}})
    return [said.split(": ")[1] for said in found if said.startswith("rank 0")]


def test_an_account_that_differs_from_the_rank_s_own_is_seen() -> None:
    assert missing_with() == []
    assert missing_with(published=5) == ["unaccounted"]
    assert missing_with(made=9, published=5) == ["made"]
    assert missing_with(overwritten=0, published=7) == ["overwritten"]
    assert missing_with(dropped=4, published=5) == ["dropped"]
    assert missing_with(gaps=2) == ["gaps"]


def test_ranks_without_account_and_leftovers_on_disk_are_seen() -> None:
    found = find_missing(SHAPE, [LIFE], LeftDelivered(0, 0, 2), {"soak-1": {}})
    assert found == [
        "1 of 32 ranks told what they have made",
        "2 killed lives have left something that was not delivered",
        "rank 0 of soak-1 has no account",
    ]


def test_collector_errors_are_seen_except_those_of_its_full_disk() -> None:
    assert find_errors([{(ERRORS, "history_store"): 3, (ERRORS, "run_state"): 1}]) == ["1 errors in run_state"]
