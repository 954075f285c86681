"""Which group's data movement is slow: transfers with a known truth, from a seeded generator. Ten ms are healthy."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.links.slow_links import Past, SlowLink, build_links, find_past, find_slow_links
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.group_transfers import LINKS, MB, STEP_MS, draw, mesh, noisy, view_with
from tests.unit.collector.steps.step_series import MS

FOUR_PAIRS = {f"mesh_tp/{rank}-{rank + 1}": (rank, rank + 1) for rank in (0, 2, 4, 6)}
SLOW = "mesh_tp/2-3"
ALONE = {"mesh_dp": (0, 1, 2, 3)}
NAN = float("nan")


def judge(view: RunView, **pasts: float) -> tuple[SlowLink, ...] | Abstain:
    links = build_links(view, {group: Past(ms * MS) for group, ms in pasts.items()}, LINKS)
    return find_slow_links(links, STEP_MS * MS, LINKS)


def found(view: RunView, **pasts: float) -> tuple[SlowLink, ...]:
    verdict = judge(view, **pasts)
    assert not isinstance(verdict, Abstain)
    return verdict


def found_alone(transfer_ms: Floats, **pasts: float) -> tuple[SlowLink, ...]:
    return found(view_with(ALONE, {"mesh_dp": transfer_ms}), **pasts)


# -- against siblings -------------------------------------------------------------------------------------------------


def test_slow_group_is_named_with_its_first_step_and_ratio() -> None:
    transfers = draw(FOUR_PAIRS, 100)
    transfers[SLOW][60:] *= 1.8
    (link,) = found(view_with(FOUR_PAIRS, transfers, first_step=1_000))
    assert link.group == SLOW
    assert link.siblings == ("mesh_tp/0-1", "mesh_tp/4-5", "mesh_tp/6-7")
    assert abs(link.slow.since_step - 1_060) <= 2
    assert link.slow.slowdown_ratio == pytest.approx(1.8, rel=0.05)
    assert float(np.median(link.excess_ns[60:])) == pytest.approx(8 * MS, rel=0.1)


def test_link_that_was_always_slow_is_seen_beside_its_siblings() -> None:
    transfers = draw(FOUR_PAIRS, 64)
    transfers[SLOW] *= 1.5
    assert [(link.group, link.slow.since_step) for link in found(view_with(FOUR_PAIRS, transfers))] == [(SLOW, 0)]


@pytest.mark.parametrize(("ratio", "count"), [(1.20, 0), (1.30, 1)])
def test_less_than_a_quarter_more_is_no_slow_link(ratio: float, count: int) -> None:
    transfers = draw(FOUR_PAIRS, 100)
    transfers[SLOW] *= ratio
    assert len(found(view_with(FOUR_PAIRS, transfers))) == count


def test_transfer_negligible_in_the_step_is_no_slow_link() -> None:
    # Twice 0.4 ms in steps of 100 ms: the run could not be half a percent faster.
    transfers = {group: 0.04 * ms for group, ms in draw(FOUR_PAIRS, 100).items()}
    transfers[SLOW] *= 2
    assert found(view_with(FOUR_PAIRS, transfers)) == ()


@pytest.mark.parametrize("other", ["more bytes", "another dimension", "more members", "more machines"])
def test_groups_that_do_not_move_the_same_are_no_siblings(other: str) -> None:
    groups: dict[str, tuple[int, ...]] = dict(FOUR_PAIRS)
    sizes, nodes = {}, dict.fromkeys(range(9), "a")
    match other:
        case "more bytes":
            sizes = {SLOW: np.full(100, 2 * MB)}
        case "another dimension":
            groups["mesh_cp/2-3"] = groups.pop(SLOW)
        case "more members":
            groups[SLOW] = (2, 3, 8)
        case _:
            nodes[3] = "b"
    # Always twice as slow: only the siblings show it.
    transfers = draw(groups, 100)
    transfers[next(group for group in groups if groups[group][:2] == (2, 3))] *= 2
    assert found(view_with(groups, transfers, size_bytes=sizes, nodes=nodes)) == ()


# -- against its own past ---------------------------------------------------------------------------------------------


def test_group_without_siblings_is_compared_with_its_own_past() -> None:
    transfer_ms = noisy(100)
    transfer_ms[60:] *= 1.5
    (link,) = found_alone(transfer_ms)
    assert (link.group, link.siblings) == ("mesh_dp", ())
    assert abs(link.slow.since_step - 60) <= 2
    assert link.slow.peers_own_ns == pytest.approx(10 * MS, rel=0.02)
    assert float(np.median(link.excess_ns[60:])) == pytest.approx(5 * MS, rel=0.1)


def test_group_that_became_faster_is_not_slow() -> None:
    transfer_ms = noisy(100)
    transfer_ms[60:] /= 2
    assert found_alone(transfer_ms) == ()


def test_past_of_too_few_steps_is_none() -> None:
    transfer_ms = noisy(60)
    transfer_ms[8:] *= 2
    assert found_alone(transfer_ms) == ()


def test_kept_past_holds_after_the_change_left_the_table() -> None:
    transfer_ms = 2 * noisy(100)
    assert found_alone(transfer_ms) == ()
    (link,) = found_alone(transfer_ms, mesh_dp=10.0)
    assert link.slow.slowdown_ratio == pytest.approx(2.0, rel=0.05)
    assert not link.slow.change_is_seen


def test_past_is_known_no_better_than_its_noise_allows() -> None:
    # Of 40 % noise the median of 14 steps is off by 13 % or more, and five times that is more than a half.
    few, many = (np.concatenate([noisy(steps, 0.4, 2), 1.5 * noisy(200, 0.4, 3)]) for steps in (14, 200))
    assert found_alone(few) == ()
    assert len(found_alone(many)) == 1


def test_other_amounts_of_data_are_other_transfers() -> None:
    # From step 50 on twice the bytes take twice the time: of the present amount nothing longer is known.
    transfer_ms, sizes = noisy(100), np.full(100, MB)
    transfer_ms[50:] *= 2
    sizes[50:] *= 2
    assert found(view_with(ALONE, {"mesh_dp": transfer_ms}, size_bytes={"mesh_dp": sizes})) == ()


def test_unknown_bytes_count_as_equal() -> None:
    transfer_ms = noisy(100)
    transfer_ms[60:] *= 2
    view = view_with(ALONE, {"mesh_dp": transfer_ms}, size_bytes={"mesh_dp": np.full(100, NAN)})
    assert [link.group for link in found(view)] == ["mesh_dp"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_healthy_links_are_not_called_slow(spread: float, seed: int) -> None:
    groups = mesh(2, 4) | ALONE
    assert found(view_with(groups, draw(groups, 200, spread, seed))) == ()


@pytest.mark.parametrize("seed", range(10))
def test_rare_long_transfers_are_no_slow_link(seed: int) -> None:
    groups = mesh(2, 4)
    transfers = draw(groups, 200, 0.05, seed)
    random = np.random.default_rng(seed)
    for transfer_ms in transfers.values():
        transfer_ms[random.random(200) < 0.03] *= 10
    assert found(view_with(groups, transfers)) == ()


# -- siblings that are slow together ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 4])
def test_siblings_of_which_most_become_slow_are_found_together(count: int) -> None:
    transfers = draw(FOUR_PAIRS, 100)
    for group in sorted(FOUR_PAIRS)[:count]:
        transfers[group][60:] *= 2
    (link,) = found(view_with(FOUR_PAIRS, transfers))
    assert (link.group, link.siblings) == ("mesh_tp/*0", ())
    assert abs(link.slow.since_step - 60) <= 2
    assert link.slow.slowdown_ratio == pytest.approx(2.0, rel=0.05)


def test_siblings_of_another_size_are_another_family() -> None:
    groups = FOUR_PAIRS | {f"mesh_tp/{rank}-{rank + 1}": (rank, rank + 1) for rank in (8, 10, 12, 14)}
    transfers = draw(groups, 100)
    sizes = {group: np.full(100, 2 * MB) for group in groups if group not in FOUR_PAIRS}
    for group in sizes:
        transfers[group][60:] *= 2
    assert [link.group for link in found(view_with(groups, transfers, size_bytes=sizes))] == ["mesh_tp/*8"]


# -- the past by itself -----------------------------------------------------------------------------------------------


def test_past_is_the_median_before_the_clearest_change() -> None:
    past = find_past(np.array([5.0, 6.0, 7.0] * 5 + [50.0, 60.0, 70.0] * 5) * MS, steps_min=12)
    assert past.ns == pytest.approx(6 * MS)
    assert 0 < past.error < 0.2


def test_past_of_a_level_that_never_changed_is_that_level() -> None:
    past = find_past(np.full(30, 6.0), steps_min=12)
    assert past.ns == pytest.approx(6.0)
    assert past.error == float("inf")


def test_past_of_nothing_is_not_known() -> None:
    assert np.isnan(find_past(np.array([NAN, NAN]), steps_min=12).ns)


# -- no verdict -------------------------------------------------------------------------------------------------------


def test_no_verdict_without_transfers() -> None:
    # A group of one rank has no link, and one with unknown members cannot be judged.
    view = view_with({"a": (0,)}, {"a": noisy(50), "b": noisy(50)})
    assert judge(view) == Abstain("no transfer of any process group is known")


def test_no_verdict_on_too_few_steps() -> None:
    verdict = judge(view_with(FOUR_PAIRS, draw(FOUR_PAIRS, 7)))
    assert verdict == Abstain("the transfers of 7 steps can be compared, 12 are needed")
