"""MFU and HFU of runs from ranks with figures written out by hand, up to the texts and the pages of metrics."""

import msgspec
import pytest

from rankscope.collector.publish.api.live_snapshot import build_live_snapshot
from rankscope.collector.publish.api.rank_views import list_ranks
from rankscope.collector.reports.status_text import render_one_rank, render_status
from rankscope.collector.reports.summary import summarize
from rankscope.collector.runs.run_flops import describe_rank_flops, describe_run_flops, find_run_flops
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.model_flops import NO_FLOPS, FlopSum, StepFlops
from tests.full_snapshot import full_rank

S = 1_000_000_000
DECLARED = StepFlops(
    model=FlopSum(3e15, 10, 10 * S), source="declared", peak_flops_per_s=1e15, peak_type="bf16",
    absent={"executed": "executed FLOPs have not been measured yet"},
)  # fmt: skip
"""3e14 FLOPs a step, each a second long: MFU 0.3."""
MEASURED = StepFlops(
    model=FlopSum(5e15, 10, 10 * S), executed=FlopSum(6e15, 10, 10 * S), source="measured", peak_flops_per_s=1e15,
    peak_type="bf16",
)  # fmt: skip
NO_PEAK = StepFlops(
    model=FlopSum(3e15, 10, 10 * S), source="declared", absent={"peak": "no GPU is in use; peak_tflops sets a peak"}
)


def rank_of(number: int, flops: StepFlops, **known: object) -> RankSnapshot:
    full = full_rank(0)
    identity = msgspec.structs.replace(full.identity, rank=number)
    return msgspec.structs.replace(full, identity=identity, flops=flops, **known)


def run_of(*ranks: RankSnapshot) -> RunSnapshot:
    return RunSnapshot(run="bert", world_size=len(ranks), restart_count=0, ranks=ranks)


def test_utilization_of_run_is_mean_over_its_ranks() -> None:
    found = find_run_flops([rank_of(0, DECLARED), rank_of(1, MEASURED)])
    assert found.mfu == pytest.approx(0.4)
    assert found.hfu is None  # only one of the two is measured
    assert found.model_flops_per_step == pytest.approx(8e14)
    assert describe_run_flops(found) == "MFU 40.0 %"


def test_both_utilizations_where_all_ranks_are_measured() -> None:
    found = find_run_flops([rank_of(0, MEASURED), rank_of(1, MEASURED)])
    assert describe_run_flops(found) == "MFU 50.0 %, HFU 60.0 %"


@pytest.mark.parametrize(
    ("flops", "said"),
    [
        (NO_PEAK, "no MFU: rank 1: no GPU is in use; peak_tflops sets a peak"),
        (StepFlops(absent={"model": "the batch has another shape"}), "no MFU: rank 1: the batch has another shape"),
        (NO_FLOPS, "no MFU: rank 1: it has had no step with known FLOPs"),
    ],
)
def test_one_rank_without_utilization_leaves_the_run_without(flops: StepFlops, said: str) -> None:
    found = find_run_flops([rank_of(0, DECLARED), rank_of(1, flops)])
    assert found.mfu is None
    assert describe_run_flops(found) == said


def test_run_whose_ranks_report_no_flops_says_nothing_of_them() -> None:
    found = find_run_flops([rank_of(0, NO_FLOPS), rank_of(1, NO_FLOPS)])
    assert (found.mfu, found.model_flops_per_step, describe_run_flops(found)) == (None, None, "")


def test_run_without_flops_has_the_reason() -> None:
    found = find_run_flops([rank_of(0, StepFlops(absent={"model": "not declared"})) for _ in range(2)])
    assert describe_run_flops(found) == "no MFU: rank 0: not declared"


def test_run_with_executed_flops_alone_has_hfu_and_the_reason() -> None:
    only = StepFlops(
        executed=FlopSum(6e15, 10, 10 * S), peak_flops_per_s=1e15, absent={"model": "FLOPs are declared per token"}
    )
    found = find_run_flops([rank_of(0, only)])
    assert describe_run_flops(found) == "HFU 60.0 %, no MFU: rank 0: FLOPs are declared per token"
    assert describe_rank_flops(NO_FLOPS) == ""
    assert find_run_flops([]) == find_run_flops([rank_of(0, NO_FLOPS)])


def test_rank_is_described_with_its_peak_or_why_it_has_none() -> None:
    assert describe_rank_flops(MEASURED) == (
        "500 TFLOPs of the model a step (measured), 500.0 TFLOP/s; MFU 50.0 %, HFU 60.0 % of 1,000 TFLOP/s (bf16)"
    )
    assert describe_rank_flops(msgspec.structs.replace(DECLARED, peak_flops_per_s=5e14, peak_type="")).endswith(
        "MFU 60.0 % of 500 TFLOP/s (as set by peak_tflops)"
    )
    assert describe_rank_flops(NO_PEAK).endswith("no MFU: no GPU is in use; peak_tflops sets a peak")


def test_executed_flops_that_are_an_upper_bound_are_said_to_be() -> None:
    bounded = msgspec.structs.replace(
        MEASURED, executed_is_upper_bound=True, executed_peak_flops_per_s=8e14, peak_type="bf16, fp32"
    )
    assert describe_rank_flops(bounded).endswith("MFU 50.0 %, HFU at most 75.0 % of 1,000 and 800 TFLOP/s (bf16, fp32)")
    assert describe_run_flops(find_run_flops([rank_of(0, bounded)])) == "MFU 50.0 %, HFU at most 75.0 %"


def test_ended_and_awaited_ranks_are_not_in_the_status() -> None:
    run = run_of(rank_of(0, DECLARED), rank_of(1, MEASURED, ended="crashed"), rank_of(2, MEASURED, awaited=True))
    assert build_status(run, 8).flops.mfu == pytest.approx(0.3)


def test_texts_for_users_have_the_utilization() -> None:
    run = run_of(rank_of(0, DECLARED), rank_of(1, DECLARED))
    assert "; MFU 30.0 %" in render_status(build_status(run, 8))
    assert "last minute of its steps: 300 TFLOPs of the model a step" in render_one_rank(run, run.ranks[0], None)
    assert "MFU 30.0 % in the last minute of steps" in summarize(run)
    assert [rank.mfu_ratio for rank in list_ranks(run, "rank", 0, 8).ranks] == pytest.approx([0.3, 0.3])


def test_live_page_has_the_utilization() -> None:
    run = run_of(rank_of(0, DECLARED))
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run,))
    shown = build_live_snapshot(snapshot, "bert").run
    assert shown is not None
    assert shown.mfu_ratio == pytest.approx(0.3)
    assert (shown.hfu_ratio, shown.flops_said) == (None, "MFU 30.0 %")
