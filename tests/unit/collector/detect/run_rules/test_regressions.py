"""Slower than before, without a culprit: stages and runs with a known change, in seeded noise."""

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, recall, remember
from rankscope.collector.detect.run_rules.regressions import RunSlowdown, StageSlowdowns
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.step_series import Floats, StepSeries
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, view_of

STAGES = {rank: rank // 4 for rank in range(12)}
STAGE, RUN = StageSlowdowns(Thresholds()), RunSlowdown(Thresholds())


def times(steps: int = 120, ranks: int = 12, seed: int = 1) -> Floats:
    return 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, 0.02, (steps, ranks)))


def view(own_ms: Floats, nodes_of: int = 4, signatures: dict[int, int] | None = None) -> RunView:
    nodes = {rank: f"node{rank // nodes_of}" for rank in range(own_ms.shape[1])}
    return view_of(series_of(own_ms.tolist()), signatures=STAGES if signatures is None else signatures, nodes=nodes)


def find(detector: StageSlowdowns | RunSlowdown, look: RunView, explained: Sequence[Finding] = ()) -> list[Finding]:
    found = detector.find(look, explained)
    if isinstance(found, Abstain):
        assert "of the 36 steps" in found.reason
        return []
    return [candidate.finding for candidate in found]


# -- a stage ----------------------------------------------------------------------------------------------------------


def test_stage_that_becomes_slower_is_named_with_its_node() -> None:
    own_ms = times()
    own_ms[60:, 4:8] *= 1.3
    (finding,) = find(STAGE, view(own_ms))
    assert (finding.kind, finding.ranks, finding.nodes, finding.since_step) == (
        "stage_slowdown", (4, 5, 6, 7), ("node1",), 60,
    )  # fmt: skip
    assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.03)
    assert finding.headline.startswith("Stage of ranks 4-7: 1.3")
    assert finding.nodes == ("node1",)


def test_stage_costs_no_more_than_the_steps_have_grown() -> None:
    # Its ranks take 50 ms longer, and the steps 20: the rest was waiting for other stages before.
    own_ms = np.full((120, 12), 100.0)
    own_ms[60:, 4:8] = 150.0
    step_ms = np.where(np.arange(120) < 60, 160.0, 180.0)[:, np.newaxis].repeat(12, axis=1)
    look = view_of(series_of(own_ms.tolist(), step_ms=step_ms.tolist()), signatures=STAGES)
    (finding,) = find(STAGE, look)
    assert finding.run_slowdown_ratio == pytest.approx(180 / 160)
    (later,) = find(STAGE, dataclasses.replace(look, series=_last_steps(look, 80)), [finding])
    assert later.run_slowdown_ratio == pytest.approx(180 / 160)
    # Where the steps before are not known, the growth of its ranks is the cost.
    without = msgspec.structs.replace(recall(finding), step_before_ns=None)
    (unbound,) = find(STAGE, look, [remember(finding, without)])
    assert unbound.run_slowdown_ratio == pytest.approx(180 / 130)


def _last_steps(look: RunView, first: int) -> StepSeries:
    """Without the steps before one, which have left the table."""
    series = look.series
    return dataclasses.replace(
        series,
        steps=series.steps[first:],
        step_ns=series.step_ns[first:],
        own_ns=series.own_ns[first:],
        cpu_ns=series.cpu_ns[first:],
    )


def test_node_that_others_are_on_too_is_not_named() -> None:
    own_ms = times()
    own_ms[60:, 4:8] *= 1.3
    assert [finding.nodes for finding in find(STAGE, view(own_ms, nodes_of=6))] == [()]


def test_stage_that_always_had_more_work_is_no_slowdown() -> None:
    own_ms = times()
    own_ms[:, 4:8] *= 1.5
    assert find(STAGE, view(own_ms)) == []


def test_stage_is_not_slower_because_the_others_are_faster() -> None:
    own_ms = times()
    own_ms[60:, :4] *= 0.6
    own_ms[60:, 8:] *= 0.6
    assert find(STAGE, view(own_ms)) == []


def test_stage_that_barely_rises_over_its_own_past_is_not_slower() -> None:
    own_ms = times()
    own_ms[60:, 4:8] *= 1.035
    own_ms[60:, :4] *= 0.97
    own_ms[60:, 8:] *= 0.97
    assert find(STAGE, view(own_ms)) == []


def test_one_slow_rank_of_a_stage_is_not_the_stage() -> None:
    own_ms = times()
    own_ms[60:, 5] *= 2
    assert find(STAGE, view(own_ms)) == []


@pytest.mark.parametrize(
    ("signatures", "reason"),
    [
        ({}, "all ranks do the same work: there is no stage to compare"),
        (dict.fromkeys(range(12), 1), "all ranks do the same work: there is no stage to compare"),
        (
            {rank: rank for rank in range(12)},
            "no two ranks are known to do the same work: there is no stage to compare",
        ),
    ],
)
def test_without_stages_it_abstains(signatures: dict[int, int], reason: str) -> None:
    assert STAGE.find(view(times(), signatures=signatures), ()) == Abstain(reason)


def test_stage_of_two_ranks_that_becomes_slower_is_named() -> None:
    own_ms = times()
    own_ms[60:, 4:6] *= 1.3
    pairs = {rank: rank // 2 for rank in range(12)}
    (finding,) = find(STAGE, view(own_ms, signatures=pairs))
    assert (finding.ranks, finding.since_step) == ((4, 5), 60)


def test_one_slow_rank_of_two_is_not_the_stage() -> None:
    own_ms = times()
    own_ms[60:, 4] *= 1.5
    assert find(STAGE, view(own_ms, signatures={rank: rank // 2 for rank in range(12)})) == []


def test_slow_model_of_gpu_explains_no_change() -> None:
    own_ms = times()
    own_ms[60:] *= 1.1
    slow_model = Finding(kind="slow_gpu_model", cause="slow_gpu_model", sentence="", run_slowdown_ratio=1.1)
    assert [finding.kind for finding in find(RUN, view(own_ms), [slow_model])] == ["run_slowdown"]


def test_stage_finding_keeps_its_level_before_until_it_passes() -> None:
    own_ms = times(steps=200)
    own_ms[60:140, 4:8] *= 1.3
    (finding,) = find(STAGE, view(own_ms[:100]))
    (later,) = find(STAGE, view(own_ms[:138]), [finding])
    assert later.since_step == finding.since_step
    assert later.evidence["before_ns"] == finding.evidence["before_ns"]
    assert not STAGE.has_passed(view(own_ms[:138]), finding, ())
    assert STAGE.has_passed(view(own_ms), finding, ())


# -- the run ----------------------------------------------------------------------------------------------------------


def everybody(own_ms: Floats) -> RunView:
    return view(own_ms, signatures={})


def straggler(ratio: float | None, *, rank: int = 1, since_step: int = 60) -> Finding:
    return Finding(
        kind="straggler", ranks=(rank,), cause="host_cpu", sentence="", run_slowdown_ratio=ratio, since_step=since_step
    )


def test_run_that_becomes_slower_is_found() -> None:
    own_ms = times()
    own_ms[60:] *= 1.2
    (finding,) = find(RUN, everybody(own_ms))
    assert (finding.kind, finding.ranks, finding.since_step, finding.cause) == (
        "run_slowdown", (), 60, "unattributed",
    )  # fmt: skip
    assert finding.run_slowdown_ratio == pytest.approx(1.2, rel=0.03)


@pytest.mark.parametrize(("past", "is_told"), [(23, False), (24, True)])
def test_run_is_held_against_its_past_when_it_has_enough_of_it(past: int, is_told: bool) -> None:
    own_ms = times(past + 60)
    own_ms[past:] *= 1.25
    assert bool(find(RUN, everybody(own_ms))) is is_told


def test_run_of_one_rank_has_its_own_history() -> None:
    own_ms = times(ranks=1)
    own_ms[60:] *= 1.2
    assert [finding.since_step for finding in find(RUN, everybody(own_ms))] == [60]


@pytest.mark.parametrize("seed", range(10))
def test_steady_run_is_not_slower(seed: int) -> None:
    assert find(RUN, everybody(times(steps=200, seed=seed))) == []


@pytest.mark.parametrize("seed", range(8))
def test_run_of_which_half_of_the_steps_stall_is_not_slower(seed: int) -> None:
    # The median of a dozen steps is that of either kind, with as little noise as the kind has.
    own_ms, random = times(steps=200, ranks=1, seed=seed), np.random.default_rng(seed)
    own_ms[random.random(200) < 0.5] *= 1.5
    for steps in range(24, 201, 8):
        assert find(RUN, everybody(own_ms[:steps])) == [], steps


def test_recovered_slowness_is_not_found() -> None:
    own_ms = times()
    own_ms[60:110] *= 1.5
    assert find(RUN, everybody(own_ms)) == []


def test_some_slow_steps_are_no_slower_run() -> None:
    own_ms = times()
    own_ms[60::2] *= 1.5
    assert find(RUN, everybody(own_ms)) == []


@pytest.mark.parametrize(("all_ratio", "is_told"), [(1.0, False), (1.03, False), (1.1, True)])
def test_run_is_judged_by_what_a_slow_rank_does_not_explain(all_ratio: float, is_told: bool) -> None:
    own_ms = times()
    own_ms[60:] *= all_ratio
    own_ms[60:, 1] *= 1.4
    look = everybody(own_ms)
    found = find(RUN, look, [straggler(1.4)])
    assert bool(found) is is_told
    if found:
        assert found[0].slowdown_ratio == pytest.approx(1.1, rel=0.02)
        assert found[0].headline.startswith("Whole run: 1.1")
        assert "x slower than before, without what is due to rank 1, since" in found[0].headline
        assert found[0].also == ("no other rank to blame",)


@pytest.mark.parametrize(("step_ms", "is_told"), [(170.0, False), (180.0, True)])
def test_run_is_not_slower_by_what_a_slow_rank_may_explain(step_ms: float, is_told: bool) -> None:
    # Rank 1 takes 50 ms longer than the median, 40 longer than rank 2. Of steps of 120 ms that may be 40 to 50 ms, so
    # that 0 to 10 ms of 170, and 10 to 20 of 180, are something else: 5 % of 120 are 6.
    own_ms = np.full((120, 12), 100.0)
    own_ms[:, 2], own_ms[60:, 1] = 110.0, 150.0
    steps_ms = np.where(np.arange(120) < 60, 120.0, step_ms)[:, np.newaxis].repeat(12, axis=1)
    look = view_of(series_of(own_ms.tolist(), step_ms=steps_ms.tolist()))
    assert bool(find(RUN, look, [straggler(1.3)])) is is_told


def test_run_slowed_by_a_link_as_found_is_not_found_twice() -> None:
    own_ms = times()
    own_ms[60:] *= 1.2
    link = Finding(kind="slow_link", group="dp", since_step=60, cause="slow_link", sentence="", run_slowdown_ratio=1.2)
    assert find(RUN, everybody(own_ms), [link]) == []
    assert find(RUN, everybody(own_ms), [link, straggler(None)]) == []


def test_what_a_link_costs_beyond_its_transfers_is_no_slower_run() -> None:
    # The steps are 60 ms longer, of which the link's transfers explain 20 of 160: the rest is its cause as well.
    step_ms = np.where(np.arange(120) < 60, 100.0, 160.0)
    transfer_ns = {"dp": np.where(np.arange(120) < 60, 5.0, 45.0) * MS}
    transfers = GroupTransfers(transfer_ns, {"dp": np.ones(120)})
    series = series_of(np.full((120, 4), 100.0).tolist(), step_ms=step_ms[:, np.newaxis].repeat(4, axis=1).tolist())
    look = view_of(series, groups={"dp": (0, 1, 2, 3)}, transfers=transfers)
    link = Finding(
        kind="slow_link", group="dp", since_step=60, cause="slow_link", sentence="", run_slowdown_ratio=160 / 140
    )
    (alone,) = find(RUN, look)
    assert alone.cause == "slow_link"
    assert find(RUN, look, [link]) == []
    assert [finding.kind for finding in find(RUN, look, [link, alone])] == ["run_slowdown"]


def test_open_finding_about_the_run_passes_if_others_explain_it() -> None:
    own_ms = times()
    own_ms[60:, 1] *= 1.2
    look = everybody(own_ms)
    before = remember(
        Finding(kind="run_slowdown", since_step=60, cause="unattributed", slowdown_ratio=1.2),
        FindingMemory(before_ns=104e6, robust_z=9.0),
    )
    assert not RUN.has_passed(look, before, ())
    assert RUN.has_passed(look, before, [straggler(1.2)])


def test_rank_maybe_to_blame_is_waited_for_then_not_ruled_out() -> None:
    """Rank 1 stalls in every third step: no median shows it, but the mean of its excess does."""
    own_ms = times(steps=200, ranks=4)
    own_ms[60:] *= 1.06
    own_ms[60::3, 1] *= 2.5
    found = [find(RUN, everybody(own_ms[:steps])) for steps in (100, 150, 160)]
    assert [bool(one) for one in found] == [False, False, True]
    assert found[-1][0].also == ("whether one rank is to blame: not known yet",)


def test_steps_with_a_possible_stall_of_a_rank_are_no_slower_run() -> None:
    # Rank 1 takes 150 of 100 ms in three of four steps; of 8 steps in 16 the own times are known. Of all steps since
    # step 60 three eighths would remain 1.5 times as long, and of the others none.
    own_ms = times(steps=240)
    own_ms[60:, 1] *= np.where(np.arange(60, 240) % 4, 1.5, 1.0)
    measured = np.where((np.arange(240) % 16 < 8)[:, np.newaxis], own_ms, UNKNOWN)
    step_ms = np.repeat(own_ms.max(axis=1, keepdims=True), 12, axis=1)
    look = view_of(series_of(measured.tolist(), step_ms=step_ms.tolist()))
    (finding,) = find(RUN, look)
    rank = msgspec.structs.replace(straggler(1.2), pattern="intermittent")
    assert find(RUN, look, [rank]) == []
    assert RUN.has_passed(look, finding, [rank])


@pytest.mark.parametrize(("ratio_of_all", "is_over"), [(1.0, True), (1.2, False)])
def test_open_slower_run_passes_at_once_when_a_rank_explains_it(ratio_of_all: float, is_over: bool) -> None:
    own_ms = times(steps=120, ranks=4)
    own_ms[60:] *= ratio_of_all
    own_ms[60:, 1] *= 1.5
    look = everybody(own_ms)
    open_since = remember(
        Finding(kind="run_slowdown", since_step=60, cause="unattributed"),
        FindingMemory(before_ns=104e6, robust_z=9.0, steps_to_close=96),
    )
    assert RUN.has_passed(look, open_since, [straggler(1.5)]) is is_over
    assert not RUN.has_passed(look, open_since, ())  # nothing explains it
    lately = msgspec.structs.replace(open_since, since_step=116)  # 4 steps are too few
    assert not RUN.has_passed(look, lately, [straggler(1.5, since_step=116)])


def test_open_finding_about_the_run_says_its_present_size() -> None:
    own_ms = times(steps=240)
    own_ms[60:] *= 1.2
    (finding,) = find(RUN, everybody(own_ms[:100]))
    own_ms[160:, 1] *= 1.5
    (later,) = find(RUN, everybody(own_ms), [finding, straggler(1.5, since_step=160)])
    assert (later.since_step, later.evidence["before_ns"]) == (60, finding.evidence["before_ns"])
    assert later.slowdown_ratio == pytest.approx(1.2, rel=0.02)
    assert "without what is due to rank 1," in later.headline
    own_ms[200:] /= 1.2
    assert find(RUN, everybody(own_ms), [finding, straggler(1.5, since_step=160)]) == []
    assert find(RUN, everybody(own_ms[:8]), [finding]) == []


@pytest.mark.parametrize(("ramp_steps", "off_max"), [(60, 5), (200, 10)])
def test_slowly_growing_run_is_found_with_begin_of_the_growth(ramp_steps: int, off_max: int) -> None:
    own_ms = times(steps=60 + ramp_steps)
    own_ms[60:] *= np.linspace(1.0, 2.0, ramp_steps)[:, np.newaxis]
    (finding,) = find(RUN, everybody(own_ms))
    assert abs((finding.since_step or 0) - 60) <= off_max
    assert finding.pattern == "drifting"
    earliest, latest = finding.since_range or (0, 0)
    assert earliest <= 60 <= latest
    begin = f"about step {finding.since_step} ({earliest}-{latest})"
    assert finding.headline.endswith(f"slower than before and getting slower since {begin}")
    # The median of the last twelve steps is that of the last but six of the ramp.
    assert finding.slowdown_ratio == pytest.approx(2.0 - 6 / ramp_steps, rel=0.04)


@pytest.mark.parametrize(
    ("first", "because"),
    [(40, "more per step waiting for their data loaders"), (80, "found earlier, not comparable now")],
)
def test_slow_growth_that_is_held_keeps_its_cause(first: int, because: str) -> None:
    # Data loaders take longer and longer, by 0 to 50 ms, at first slowly: 12.5 ms in the middle.
    own_ms, added_ms = times(steps=200), np.zeros((200, 12))
    added_ms[60:] = 50.0 * np.linspace(0.0, 1.0, 140)[:, np.newaxis] ** 2

    def find_from(first: int, last: int, known: Sequence[Finding]) -> Finding:
        rows = slice(first, last)
        # What showed the cause has left before the last steps before the begin have.
        phases_ms = {"data": added_ms[rows].tolist()} if first < 80 else {}
        series = series_of((own_ms + added_ms)[rows].tolist(), phases_ms=phases_ms)
        shifted = dataclasses.replace(series, steps=np.arange(first, last))
        (finding,) = find(RUN, view_of(shifted), known)
        return finding

    found = find_from(0, 180, ())
    assert (found.cause, found.pattern) == ("data_loading", "drifting")
    held = find_from(first, 200, [found])
    assert (held.cause, held.pattern) == ("data_loading", "drifting")
    assert held.cause == "data_loading"
    assert because in held.why


@pytest.mark.parametrize("seed", range(4))
def test_range_of_the_begin_of_a_slower_stage_and_run_holds_it(seed: int) -> None:
    # Noise of 6 % of each rank, and a rise of 20 %: each begins with step 60.
    own_ms = 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, 0.06, (120, 12)))
    own_ms[60:, 4:8] *= 1.2
    (stage,) = find(STAGE, view(own_ms))
    own_ms[60:, :4] *= 1.2
    own_ms[60:, 8:] *= 1.2
    (run,) = find(RUN, everybody(own_ms))
    for finding in (stage, run):
        earliest, latest = finding.since_range or (0, 0)
        assert earliest <= 60 <= latest
        assert latest - earliest < 40


def test_begin_of_few_steps_of_noise_is_stated_without_its_range() -> None:
    own_ms = times()
    own_ms[60:] *= 1.3
    (finding,) = find(RUN, everybody(own_ms))
    assert (finding.since_step, finding.since_range) == (60, (60, 60))
    assert finding.headline.endswith("slower than before since step 60")


def test_open_slower_run_keeps_the_range_of_its_begin() -> None:
    own_ms = times()
    own_ms[60:] *= 1.3
    (found,) = find(RUN, everybody(own_ms))
    wide = msgspec.structs.replace(found, since_step_min=50, since_step_max=64)
    (later,) = find(RUN, everybody(own_ms[:100]), [wide])
    assert (later.since_step, later.since_range) == (60, (50, 64))
    assert later.headline.endswith("slower than before since about step 60 (50-64)")


@pytest.mark.parametrize(("steps", "is_found"), [(80, False), (150, False), (180, True)])
def test_lasting_differences_between_ranks_are_a_slower_run(steps: int, is_found: bool) -> None:
    # Since step 60 another rank each step takes 20 ms longer, and all others 2 ms: for 12 x 8 steps it may pass.
    own_ms = times(steps=steps)
    own_ms[60:] += 2.0
    for step in range(60, steps):
        own_ms[step, step % 12] += 20.0
    found = find(RUN, everybody(own_ms))
    assert bool(found) is is_found
    assert all(finding.also == ("no single rank to blame",) for finding in found)


def test_ramp_without_enough_of_a_past_says_nothing() -> None:
    own_ms = times(steps=80)
    own_ms[8:] *= np.linspace(1.0, 1.5, 72)[:, np.newaxis]
    assert find(RUN, everybody(own_ms)) == []


@pytest.mark.parametrize(("tokens_ratio", "is_told"), [(1.0, True), (1.3, False), (None, True)])
def test_more_tokens_in_each_step_are_no_slower_run(tokens_ratio: float | None, is_told: bool) -> None:
    own_ms = times()
    own_ms[60:] *= 1.3
    tokens = np.full(own_ms.shape, 1000.0)
    tokens[60:] *= tokens_ratio or np.nan
    series = dataclasses.replace(series_of(own_ms.tolist()), tokens=tokens)
    assert bool(find(RUN, view_of(series))) is is_told


def with_tokens(own_ms: Floats, tokens: Floats, signatures: dict[int, int] | None = None) -> RunView:
    """A run whose ranks have these tokens in each step, shape (n,)."""
    look = view(own_ms, signatures=signatures or {})
    every_rank = np.repeat(tokens[:, np.newaxis], own_ms.shape[1], axis=1)
    return dataclasses.replace(look, series=dataclasses.replace(look.series, tokens=every_rank))


def jumps(steps: int, *begins: int, ratio: float = 1.5) -> Floats:
    """Return how many times as much as at first something is: `ratio` times as much again since each of these steps."""
    return np.asarray(np.prod([np.where(np.arange(steps) < begin, 1.0, ratio) for begin in begins], axis=0))


def test_slowness_begun_with_larger_batches_is_stated_per_token() -> None:
    own_ms = times()
    own_ms[60:] *= 1.3 * 1.5
    (finding,) = find(RUN, with_tokens(own_ms, 1000.0 * jumps(120, 60)))
    assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.02)
    assert finding.run_slowdown_ratio == pytest.approx(1.3, rel=0.02)
    assert finding.headline.endswith("x slower for each token than before since step 60")
    assert finding.figures.endswith(" ms (scaled up for 1.50 times as many tokens)")
    assert (recall(finding).tokens, recall(finding).more_tokens) == (1500.0, 1.5)
    assert finding.evidence["more_tokens_ratio"] == 1.5


def test_slowness_after_larger_batches_compares_by_tokens() -> None:
    # A third of a step does not grow with its tokens: 1.33 times as long with 1.5 times as many, and then 1.3 times.
    own_ms = times()
    own_ms[40:] *= 4 / 3
    own_ms[80:] *= 1.3
    for begin in (40, 64):  # steps with as many tokens are judged by themselves, or are the level before
        tokens = 1000.0 * jumps(120, begin)
        (finding,) = find(RUN, with_tokens(np.delete(own_ms, np.s_[40:begin], axis=0), tokens[begin - 40 :]))
        assert finding.since_step == 80 - (begin - 40)
        assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.02)
        assert "slower than before since step" in finding.headline
        assert "more_tokens_ratio" not in finding.evidence


def test_stage_slower_for_larger_batches_is_stated_per_token() -> None:
    own_ms = times()
    own_ms[60:] *= 1.5
    tokens = 1000.0 * jumps(120, 60)
    assert find(STAGE, with_tokens(own_ms, tokens, STAGES)) == []
    own_ms[60:, 4:8] *= 1.3
    (finding,) = find(STAGE, with_tokens(own_ms, tokens, STAGES))
    assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.02)
    assert "1.30x slower for each token" in finding.headline


def test_open_slower_run_compares_with_the_level_of_equal_tokens() -> None:
    own_ms, tokens = times(steps=300), 1000.0 * jumps(300, 120)
    own_ms *= tokens[:, np.newaxis] / 1000.0
    own_ms[60:] *= 1.3
    (found,) = find(RUN, with_tokens(own_ms[:100], tokens[:100]))
    assert "more_tokens_ratio" not in found.evidence
    look = with_tokens(own_ms[:200], tokens[:200])
    (meanwhile,) = find(RUN, look, [found])
    assert meanwhile.slowdown_ratio == pytest.approx(1.3, rel=0.02)
    assert not RUN.has_passed(look, found, ())
    late = with_tokens(own_ms[140:], tokens[140:])
    (later,) = find(RUN, late, [found])
    assert later.slowdown_ratio == pytest.approx(1.3, rel=0.02)
    assert (recall(later).tokens, later.evidence["more_tokens_ratio"]) == (1500.0, 1.5)
    (again,) = find(RUN, late, [later])
    assert (again.evidence, recall(again)) == (later.evidence, recall(later))
    healthy = with_tokens(own_ms[140:] / 1.3, tokens[140:])
    assert find(RUN, healthy, [later]) == []
    assert RUN.has_passed(healthy, found, ())


def test_cause_of_a_slower_run_excludes_what_tokens_explain() -> None:
    own_ms = times()
    own_ms[60:] *= 1.3 * 1.5
    look = with_tokens(own_ms, 1000.0 * jumps(120, 60))
    data_ms = np.where(np.arange(120) < 60, 40.0, 60.0)[:, np.newaxis].repeat(12, axis=1)

    def find_cause(data_ms: Floats) -> Finding:
        phases = dataclasses.replace(look.series, phases_ns={"data": data_ms * MS})
        (finding,) = find(RUN, dataclasses.replace(look, series=phases))
        return finding

    assert find_cause(data_ms).cause == "unattributed"
    data_ms[60:] += 45.0
    finding = find_cause(data_ms)
    assert finding.cause == "data_loading"
    assert "45.0 ms more per step waiting for their data loaders than the added tokens explain" in finding.why


def test_stage_is_judged_without_its_ranks_that_are_found() -> None:
    own_ms = times()
    own_ms[60:, 4] *= 1.5
    own_ms[60:, 5] *= 1.5
    found = [straggler(1.4, rank=4), straggler(1.4, rank=5)]
    assert find(STAGE, view(own_ms), found) == []
    own_ms[60:, 4:8] *= 1.3
    (finding,) = find(STAGE, view(own_ms), found)
    # Of two ranks the shorter time counts: 1.29 for 1.3.
    assert finding.headline.startswith("Stage of ranks 6-7 (without 2 slow ranks): 1.29x slower")
    assert finding.also == ("no other rank to blame",)
    assert not STAGE.has_passed(view(own_ms), finding, found)
    assert STAGE.has_passed(view(own_ms), finding, [straggler(1.4, rank=rank) for rank in (4, 5, 6, 7)])
    assert find(STAGE, view(own_ms), [straggler(1.4, rank=rank) for rank in (4, 5, 6)]) == []


def test_stage_with_a_rank_that_may_be_to_blame_is_waited_with() -> None:
    own_ms = times()
    own_ms[60:, 4:8] *= 1.2
    own_ms[60::3, 4] *= 3
    assert find(STAGE, view(own_ms)) == []


def test_run_has_passed_when_its_steps_are_short_again() -> None:
    own_ms = times(steps=200)
    own_ms[60:140] *= 1.3
    (finding,) = find(RUN, everybody(own_ms[:100]))
    assert RUN.has_passed(everybody(own_ms), finding, ())
    assert not RUN.has_passed(everybody(own_ms[:8]), finding, ())


def test_few_or_unknown_steps_tell_nothing() -> None:
    few = "20 of the 36 steps needed to compare the run with its own past"
    assert RUN.find(everybody(times(steps=20)), ()) == Abstain(few)
    assert find(RUN, everybody(np.full((60, 2), UNKNOWN))) == []
    assert find(STAGE, view(np.full((60, 12), UNKNOWN))) == []


@pytest.mark.parametrize(
    ("slow_ranks", "is_told"), [((1,), False), ((0, 1), False), ((0, 1, 2), True), ((0, 1, 2, 3), True), ((), True)]
)
def test_grown_phases_of_some_ranks_are_no_slower_run(slow_ranks: tuple[int, ...], is_told: bool) -> None:
    """Own times are not known since the change; in each step all wait for the slowest."""
    step_ms = times(steps=220, ranks=4)
    step_ms[60:] += 50.0
    data_ms = np.full_like(step_ms, 5.0)
    data_ms[60:, list(slow_ranks)] += 50.0
    own_ms = step_ms.copy()
    own_ms[60:] = UNKNOWN

    def told(**phases_ms: Sequence[Sequence[float]]) -> bool:
        return bool(find(RUN, view_of(series_of(own_ms.tolist(), step_ms=step_ms.tolist(), phases_ms=phases_ms))))

    assert told(data=data_ms.tolist()) is is_told
    assert told(backward=data_ms.tolist())
    data_ms[60:] = UNKNOWN
    assert told(data=data_ms.tolist())
    data_ms[:] = UNKNOWN
    assert told(data=data_ms.tolist())


def test_slower_run_waits_for_comparison_but_not_forever() -> None:
    own_ms = times(steps=200)
    own_ms[60:] *= 1.3

    def told(steps: int) -> list[Finding]:
        # Steps are known at once, own times up to step 60 only.
        known = own_ms[:steps].copy()
        known[60:] = UNKNOWN
        series = series_of(known.tolist(), step_ms=own_ms[:steps].tolist())
        return find(RUN, view_of(series))

    assert [bool(told(steps)) for steps in (100, 150, 160)] == [False, False, True]
    (finding,) = told(160)
    assert finding.also == ("whether one rank is to blame: not known yet",)


@pytest.mark.parametrize(("every", "is_qualified"), [(2, False), (3, True)])
def test_rank_cleared_by_few_known_steps_is_said_to_be_by_these(every: int, is_qualified: bool) -> None:
    own_ms = times()
    own_ms[60:] *= 1.3
    known_ms = own_ms.copy()
    known_ms[60:][np.arange(60) % every > 0] = UNKNOWN
    look = view_of(series_of(known_ms.tolist(), step_ms=own_ms.tolist()))
    (finding,) = find(RUN, look)
    assert finding.details == {"blame": "nobody"}  # however it is worded
    by = " (waits known in 20 of 60 steps since then)" if is_qualified else ""
    assert finding.also == (f"no single rank to blame{by}",)
    (later,) = find(RUN, look, [finding])
    assert later.sentence == finding.sentence


def test_what_is_long_past_is_no_past_of_a_run() -> None:
    """Steps that have grown gradually look like a change in comparison with it."""
    own_ms = times(steps=160)
    own_ms[32:] *= 1.3
    series = series_of(own_ms.tolist())
    assert find(RUN, view_of(series))
    assert find(RUN, view_of(dataclasses.replace(series, earlier_count=32))) == []


def test_open_finding_about_a_past_slowdown_is_not_repeated() -> None:
    own_ms = times(steps=140)
    own_ms[60:100] *= 1.2
    (finding,) = find(RUN, everybody(own_ms[:100]))
    assert find(RUN, everybody(own_ms), [finding]) == []
