"""The comparison of two sides: ratio, parts that sum to the difference, what is equal work, and the verdict's words."""

import msgspec
import numpy as np
import pytest

from rankscope.collector.comparison.run_comparison import (
    ALL_STEPS,
    USUAL_STEPS,
    RunComparison,
    StepTimeRow,
    compare_sides,
    find_unequal_work,
    judge,
)
from rankscope.collector.comparison.run_side import RunSide, StartSpread
from rankscope.collector.comparison.verdict import describe_comparison, find_named_parts
from rankscope.collector.steps.collective_totals import KindMeans, KindTime
from rankscope.collector.steps.equal_work import Work
from tests.unit.collector.comparison.compared_runs import kept_sums, side_of, vary
from tests.unit.collector.runs.kept_runs import MS

HALF = {"compute": 0.5, "exposed_communication": 0.2, "copy": 0.1, "idle": 0.2}
"""Of 100 ms: 50 compute, 20 exposed communication, 10 copies, 20 idle."""


def side(step_ms: float, data_ms: float = 10.0, seed: int = 0, intervals: int = 10, **shares: float) -> RunSide:
    """A side with steps around a mean, `data_ms` of them waiting for data, and windows with these shares."""
    steps_ms = vary(step_ms, seed=seed)
    sums = [kept_sums(step_ms, **(shares or HALF))] * intervals
    return side_of(steps_ms, sums, data=[data_ms] * len(steps_ms), forward=[ms - data_ms for ms in steps_ms])


def uses_ms(found: RunComparison) -> dict[str, float]:
    return {row.name: round(row.difference_ns / MS, 3) for row in found.uses}


def test_a_run_beside_itself_differs_by_nothing() -> None:
    one = side(100.0)
    found = compare_sides(one, one)
    assert (found.ratio, found.difference_ns, found.outcome) == (1.0, 0.0, "no difference")
    assert {row.difference_ns for row in (*found.phases, *found.uses)} == {0.0}
    assert {row.share for row in (*found.phases, *found.uses)} == {None}


def draw_side(random: np.random.Generator, low_ms: float, high_ms: float) -> RunSide:
    """A side with drawn parts, and steps between these lengths."""
    compute, exposed, copies, idle = map(float, random.dirichlet(np.ones(4)))
    step_ms, data_ms = float(random.uniform(low_ms, high_ms)), float(random.uniform(0.0, 40.0))
    seed = int(random.integers(1_000))
    return side(step_ms, data_ms, seed, compute=compute, exposed_communication=exposed, copy=copies, idle=idle)


@pytest.mark.parametrize("seed", range(8))
def test_parts_sum_to_the_difference(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = (draw_side(random, *range_ms) for range_ms in ((50.0, 100.0), (110.0, 200.0)))
    found = compare_sides(a, b)
    for rows in (found.phases, found.uses):
        assert sum(row.a_ns for row in rows) == pytest.approx(found.step_times[0].a_ns, rel=1e-9)
        assert sum(row.difference_ns for row in rows) == pytest.approx(found.difference_ns, rel=1e-9)
        assert sum(row.share or 0.0 for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_interval_of_a_ratio_is_above_0_however_steps_vary(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = (side_of(list(np.repeat(random.choice([10.0, 1_000.0], 12), 10))) for _ in range(2))
    found = compare_sides(a, b)
    assert min(row.ratio_low for row in found.step_times) > 0
    assert describe_comparison(found)


def test_slower_run_is_named_with_its_part() -> None:
    # B's step is 120 ms, of which 40 % instead of 20 % is exposed: 48 ms - 20 ms; compute 50 ms on both sides.
    b = side(120.0, 10.0, 1, compute=50 / 120, exposed_communication=0.4, copy=10 / 120, idle=12 / 120)
    found = compare_sides(side(100.0), b)
    assert found.outcome == "slower"
    assert found.ratio == pytest.approx(1.2)
    assert found.ratio_low < 1.2 < found.ratio_high
    assert uses_ms(found) == {
        "compute": 0.0, "exposed communication": 28.0, "copies": 0.0, "data wait": 0.0, "idle without data wait": -8.0,
    }  # fmt: skip
    begin = "B was slower: a usual step took 1.20 times as long as one of A (95 % interval 1.20 to 1.20): "
    assert describe_comparison(found).startswith(begin)
    assert "140 % of the difference is exposed communication, -40 % other parts." in describe_comparison(found)


def test_data_wait_is_idle_time_in_the_phase_data() -> None:
    # B waits 30 ms in its loader, and its devices were idle for 40: 20 + 20 of 120.
    found = compare_sides(
        side(100.0),
        side(120.0, 30.0, 1, compute=50 / 120, exposed_communication=20 / 120, copy=10 / 120, idle=40 / 120),
    )
    assert uses_ms(found)["data wait"] == 20.0
    assert [row.name for row in find_named_parts(found)] == ["data wait"]


def test_loader_that_no_device_waits_for_is_no_data_wait() -> None:
    a = side(100.0, 30.0, compute=1.0)
    found = compare_sides(a, side(100.0, 60.0, 1, compute=1.0))
    assert {row.name: row.b_ns for row in found.uses}["data wait"] == 0.0


def test_faster_run_is_called_faster() -> None:
    found = compare_sides(side(100.0), side(80.0, 10.0, 1))
    assert found.outcome == "faster"
    begin = "B was faster: a usual step took 0.80 times as long as one of A (95 % interval 0.80 to 0.80): 50 % of"
    assert describe_comparison(found).startswith(begin)


def test_noisy_runs_are_not_known_to_differ() -> None:
    noisy = side_of([float(ms) for ms in np.random.default_rng(5).normal(100.0, 30.0, 120).clip(60.0, 140.0)])
    found = compare_sides(noisy, noisy)
    assert found.outcome == "not known"
    sentence = describe_comparison(found)
    assert sentence.startswith("Not known whether B was slower: a usual step of B took 1.000 times as long as one of A")
    assert "The runs are too short to tell: the interval reaches beyond 5 %; about " in sentence
    assert {row.share for row in found.phases} == {None}


def judged(ratio: float, low: float, high: float) -> RunComparison:
    """A comparison with this ratio and interval, by the default margin of 3 %."""
    row = StepTimeRow(name="", a_ns=1.0, b_ns=ratio, ratio=ratio, ratio_low=low, ratio_high=high)
    found = compare_sides(side(100.0), side(100.0))
    return msgspec.structs.replace(
        found, ratio=ratio, ratio_low=low, ratio_high=high, outcome=judge(row, found.margin)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "low", "high", "words"),
    [
        (1.0, 0.98, 1.02, "No difference: R (95 % interval 0.980 to 1.020), which is within the margin of 3 %."),
        (1.01, 0.99, 1.04, ("No difference: R (95 % interval 0.990 to 1.040), which is within the margin of 3 %; a "
         "change of 5 % or more is excluded.")),
        (0.98, 0.97, 0.99, ("No difference that counts: R (95 % interval 0.970 to 0.990), shorter and within the "
         "margin of 3 %; a change of 5 % or more is excluded.")),
        (1.02, 1.011, 1.029, ("No difference that counts: R (95 % interval 1.011 to 1.029), longer and within the "
         "margin of 3 %.")),
        # log(1.05) - log(1.01) = 0.0388, and the interval is 0.1001 / 2 wide to each side: (0.0500 / 0.0388)^2 = 1.7
        (1.01, 0.96, 1.061, ("Not known whether B was slower: R (95 % interval 0.960 to 1.061). The runs are too short "
         "to tell: the interval reaches beyond 5 %; about 2 times as many steps would be enough if the ratio stayed "
         "the same.")),
        # log(1.04) = 0.0392, and log(1.12 / 0.96) / 2 = 0.0771: (0.0771 / 0.0392)^2 = 3.9
        (1.04, 0.96, 1.12, ("Not known whether B was slower: R (95 % interval 0.960 to 1.120). The runs are too short "
         "to tell: the interval contains 1; about 4 times as many steps would be enough if the ratio stayed the "
         "same.")),
        (0.95, 0.89, 1.01, ("Not known whether B was faster: R (95 % interval 0.890 to 1.010). The runs are too short "
         "to tell: the interval contains 1; about 2 times as many steps would be enough if the ratio stayed the "
         "same.")),
        (1.029, 1.001, 1.057, ("Not known whether B was slower or faster by more than the margin of 3 %: R (95 % "
         "interval 1.001 to 1.057). The runs are too short to tell: the interval reaches beyond 5 %; about 2 times as "
         "many steps would be enough if the ratio stayed the same.")),
    ],
)  # fmt: skip
def test_verdict_says_how_sure_it_is(ratio: float, low: float, high: float, words: str) -> None:
    said = f"a usual step of B took {ratio:.3f} times as long as one of A"
    assert describe_comparison(judged(ratio, low, high)) == words.replace("R", said, 1)


def test_difference_that_two_starts_may_have_is_said() -> None:
    # 1.96 sqrt(2) 0.02 = 0.0554, e^0.0554 = 1.057: a ratio of 1.05 may be chance, one of 1.06 is not.
    known = msgspec.structs.replace(judged(1.05, 1.04, 1.06), start_runs=7, start_deviation=0.02)
    found = msgspec.structs.replace(known, b=msgspec.structs.replace(known.b, run_id="bert@20261126T103005Z"))
    sentence = (
        "7 earlier runs of this work differed by 2.0 % from start to start (standard deviation), so two starts may "
        "differ by up to 5.7 % by chance alone: start B again before you look for a cause."
    )
    assert sentence in describe_comparison(found)
    assert sentence not in describe_comparison(known), "these are two parts of one run"
    assert sentence not in describe_comparison(msgspec.structs.replace(found, ratio=1.06))
    assert sentence not in describe_comparison(msgspec.structs.replace(found, start_deviation=None))
    # 1 % is the smallest spread that is taken into account, whatever that of the runs is. e^(1.96 sqrt(2) 0.01) = 1.028
    least = msgspec.structs.replace(found, ratio=1.02, start_deviation=0.01)
    assert "differed by 1.0 % or less from start to start" in describe_comparison(least)


def test_spread_of_starts_is_that_of_the_runs_before_b() -> None:
    b = side(120.0)._replace(start_spread=StartSpread(6, 0.03))
    found = compare_sides(side(100.0), b)
    assert (found.start_runs, found.start_deviation) == (6, 0.03)


def test_chance_within_the_margin_accuses_nobody() -> None:
    """The whole interval is above 1, by chance in one of 40 equal pairs, and the ratio is one that nobody acts on."""
    assert judged(1.029, 1.009, 1.049).outcome == "no difference"
    assert judged(1.031, 1.011, 1.051).outcome == "slower"


def with_long(count: int, ms: float = 1_000.0) -> RunSide:
    """200 steps of 100 ms, `count` of them of a second, evenly spread."""
    steps_ms = vary(100.0)
    for place in range(count):
        steps_ms[place * (200 // count)] = ms
    return side_of(steps_ms, forward=steps_ms)


def test_few_long_steps_do_not_hide_equal_usual_ones() -> None:
    found = compare_sides(with_long(4), with_long(4))
    assert (found.outcome, found.basis, found.a.long_steps) == ("no difference", USUAL_STEPS, 4)
    assert found.a.long_time_ratio == pytest.approx(4_000 / (196 * 100 + 4_000), rel=0.01)
    sentence = describe_comparison(found)
    assert "Steps over 1.5 times the median took 16.9 % of the time of A and 16.9 % of B" in sentence
    assert "so whether these cost more is not known." in sentence


def test_difference_by_long_steps_alone_is_named() -> None:
    found = compare_sides(with_long(4), with_long(40))
    assert (found.outcome, found.basis) == ("slower", ALL_STEPS)
    assert sum(row.difference_ns for row in found.phases) == pytest.approx(found.difference_ns)
    assert "B was slower: the mean step, with long ones (over 1.5 times the median), took " in describe_comparison(
        found
    )


def test_long_steps_that_change_little_are_within_the_margin() -> None:
    sentence = describe_comparison(compare_sides(with_long(4, 151.0), with_long(4, 151.0)))
    assert "within the margin too." in sentence


def test_run_without_long_steps_says_nothing_of_them() -> None:
    sentence = describe_comparison(compare_sides(side(100.0), side(100.0, 10.0, 1)))
    assert sentence.startswith("No difference: a usual step of B took 1.000 times as long as one of A (95 % interval ")
    assert sentence.endswith("which is within the margin of 3 %.")


def test_uses_are_not_known_with_few_intervals() -> None:
    found = compare_sides(side(100.0), side(120.0, 30.0, 1, intervals=7))
    assert found.uses == ()
    assert found.uses_unknown.startswith("exposed communication is not known: 8 intervals")
    assert "needed, and B has 7; for the next run, more steps or a shorter" in found.uses_unknown
    assert found.uses_unknown.endswith("give more")


def test_side_without_windows_says_what_that_may_mean() -> None:
    found = compare_sides(side(100.0, intervals=0), side(120.0, 30.0, 1))
    assert "needed, and A has 0; " in found.uses_unknown
    assert found.uses_unknown.endswith("; 0: windows were off or rare, or an earlier version stored the run")


def test_phases_are_named_where_uses_are_not_known() -> None:
    found = compare_sides(side(100.0), side(120.0, 30.0, 1, intervals=7))
    assert "100 % of the difference is in the phase data" in describe_comparison(found)


def test_difference_without_a_part_beyond_noise_names_none() -> None:
    steps_ms = vary(110.0, seed=1)
    spread = np.random.default_rng(0).normal(0.0, 400.0, len(steps_ms))
    parts = {"data": list(50.0 + spread), "forward": list(np.array(steps_ms) - 50.0 - spread)}
    a = side_of(vary(100.0), data=[50.0] * 200, forward=[float(ms) - 50.0 for ms in vary(100.0)])
    found = compare_sides(a, side_of(steps_ms, **parts))
    assert (found.outcome, find_named_parts(found)) == ("slower", [])
    assert "no part of the step differs by more than its noise" in describe_comparison(found)


def test_phase_that_one_side_has_not_counts_in_full() -> None:
    a = side_of([100.0] * 200, forward=[100.0] * 200)
    b = side_of([110.0] * 200, forward=[100.0] * 200, checkpoint=[10.0] * 200)
    found = compare_sides(a, b)
    assert {row.name: row.difference_ns for row in found.phases} == {
        "forward": 0.0, "checkpoint": 10.0 * MS, "between phases": 0.0,
    }  # fmt: skip


def test_new_nodes_and_versions_are_said() -> None:
    nodes = frozenset(f"node-{number}" for number in range(6))
    b = side(100.0, 10.0, 1)._replace(nodes=nodes, versions={"torch": ("2.11",), "GPU": ("H200",)})
    found = compare_sides(side(100.0), b)
    assert (found.nodes_new, found.nodes_gone) == (tuple(sorted(nodes)), ("node-a",))
    assert found.versions_changed == ("torch was 2.9 in A and 2.11 in B",)
    sentence = describe_comparison(found)
    assert "6 nodes of B are not among those of A: node-0, node-1, node-2, node-3 and 2 more." in sentence
    assert "Torch was 2.9 in A and 2.11 in B." in sentence


def test_other_world_and_other_batch_are_unequal_work() -> None:
    same = compare_sides(side(100.0), side(100.0, 10.0, 1))
    assert (same.a.samples_per_step, same.a.samples_per_s) == (8.0, 80.0)
    assert same.unequal == ()
    other = msgspec.structs.replace(same.b, world_size=4, samples_per_step=9.0)
    assert find_unequal_work(same.a, other) == [
        "A has 2 ranks and B 4",
        "a step of a rank has 8.0 samples in A and 9.0 in B",
    ]


def test_last_batches_may_be_smaller() -> None:
    same = compare_sides(side(100.0), side(100.0, 10.0, 1))
    assert find_unequal_work(same.a, msgspec.structs.replace(same.b, samples_per_step=7.9)) == []


def test_unknown_batch_is_noted_and_not_refused() -> None:
    found = compare_sides(side_of([100.0] * 200), side(100.0, 10.0, 1))
    assert (found.unequal, found.a.samples_per_step) == ((), None)
    assert "whether steps had equally many samples is not known: A did not report them" in found.notes
    assert "whether steps had equally many tokens is not known: A and B did not report them" in found.notes


def test_verdict_says_that_work_was_unequal() -> None:
    found = compare_sides(side(100.0), side(100.0, 10.0, 1)._replace(world_size=4))
    assert "The work was not equal: A has 2 ranks and B 4." in describe_comparison(found)


def test_two_starts_are_said_to_be_one_sample_each() -> None:
    a, b = side(100.0), side(100.0, 10.0, 1)
    assert not any("from one start to the next" in note for note in compare_sides(a, b).notes)
    other = compare_sides(a, b._replace(run_id="bert@20261126T103005Z"))
    assert any("from one start to the next" in note for note in other.notes)


def test_other_script_numbers_and_flops_are_unequal_work() -> None:
    work = Work(2, model_flops_per_step=1e15, script="train.py", peak_type="bf16")
    a, b = side(100.0)._replace(work=work), side(100.0, 10.0, 1)
    other = work._replace(model_flops_per_step=1.1e15, script="eval.py", peak_type="fp32")
    assert compare_sides(a, b._replace(work=other)).unequal == (
        "the script is train.py in A and eval.py in B",
        "the type of numbers is bf16 in A and fp32 in B",
        "a step of a rank has 1e+15 model FLOPs in A and 1.1e+15 in B",
    )
    assert compare_sides(a, b).unequal == ()  # of B none is known


def test_mfu_is_that_of_the_mean_step() -> None:
    # 2e13 FLOPs in 0.1 s are 2e14 a second, a fifth of the peak.
    work = Work(2, model_flops_per_step=2e13)
    found = compare_sides(side(100.0)._replace(work=work, peak_flops_per_s=1e15), side(100.0, 10.0, 1))
    assert found.a.mfu_ratio == pytest.approx(0.2)
    assert found.b.mfu_ratio is None


def test_group_of_the_communication_is_named_and_parts_sum() -> None:
    # B: 28 ms more of exposed communication, and 8 ms less idle. Of the collectives those of mesh_dp lasted longer.
    b = side(120.0, 10.0, 1, compute=50 / 120, exposed_communication=0.4, copy=10 / 120, idle=12 / 120)
    dp, tp = ("mesh_dp/0,2", "all_reduce"), ("mesh_tp/0-1", "all_reduce")
    found = compare_sides(
        side(100.0)._replace(collective_times={dp: KindTime(10, 10_000), tp: KindTime(10, 1_000)}),
        b._replace(collective_times={dp: KindTime(20, 50_000), tp: KindTime(20, 2_100)}),
    )
    said = "140 % of the difference is exposed communication of the group mesh_dp, -40 % other parts."
    assert found.communication_group == "mesh_dp"
    assert said in describe_comparison(found)


def test_collectives_of_both_sides_are_compared_by_group() -> None:
    dp, tp, gone = ("dp", "all_reduce"), ("tp", "all_gather"), ("pp", "send")
    a = side(100.0)._replace(
        collectives={dp: KindMeans(8, 1e6, 2e6), tp: KindMeans(8, 1e6, 0.0), gone: KindMeans(1, 1, 1)}
    )
    b = side(100.0, 10.0, 1)._replace(collectives={tp: KindMeans(9, 4e6, 0.5e6), dp: KindMeans(9, 1e6, 3e6)})
    first, second = compare_sides(a, b).collectives
    assert (first.group, first.op, first.a_transfer_ns, first.b_transfer_ns) == (*tp, 1e6, 4e6)
    assert (second.group, second.a_wait_ns, second.b_wait_ns) == ("dp", 2e6, 3e6)
