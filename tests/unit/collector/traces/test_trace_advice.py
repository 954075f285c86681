"""The rules on real traces, and on reports made from them with one number changed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankscope.collector.traces.advice import advise, name_ranks
from rankscope.collector.traces.advice_rules_device import is_large_fp32
from rankscope.collector.traces.advice_rules_host import own_synchronizations
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import (
    Advice,
    CrossRank,
    KernelRow,
    MemoryReport,
    MemoryRow,
    RankReport,
    Signs,
    SynchronizationRow,
    TraceReport,
)

TRACES = Path(__file__).parents[3] / "traces"
A100, BERT, CPU_ONLY = "a100_nccl_2ranks_r0", "h100_bert_small", "cpu_only_r34"
MI250, MI300X, RESNET = "mi250_minitoy", "mi300x_resnet18", "v100dgxs_resnet50_workers0_a"
DLRM = tuple(f"v100_dlrm_8ranks_r{rank}" for rank in range(4))
CLEAN, SLOW = (tuple(f"gloo-2.13/ddp_2r_{kind}/rank{r}" for r in (0, 1)) for kind in ("clean", "slow1_forward"))


@cache
def report_of(*names: str) -> TraceReport:
    with ThreadPoolExecutor(1) as pool:
        return analyze([str(TRACES / f"{name}.json.gz") for name in names], executor=pool)


def rank_of(name: str) -> RankReport:
    return report_of(name).ranks[0]


def with_signs(report: RankReport, **signs: Any) -> RankReport:
    return replace(report, signs=replace(report.signs, **signs))


def fired(reports: Sequence[RankReport] | RankReport, key: str, across: CrossRank | None = None) -> Advice | None:
    found, _ = advise([reports] if isinstance(reports, RankReport) else reports, across)
    return next((one for one in found if one.key == key), None)


def why_not(reports: Sequence[RankReport] | RankReport, key: str, across: CrossRank | None = None) -> str | None:
    _, abstained = advise([reports] if isinstance(reports, RankReport) else reports, across)
    return next((one.reason for one in abstained if one.key == key), None)


def advice_in(report: TraceReport, key: str) -> Advice:
    return next(one for one in report.advice if one.key == key)


# -- what fires where -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ((A100,), ["low_gpu_utilization", "redundant_copies", "serial_communication"]),
        ((BERT,), ["low_gpu_utilization", "small_kernels"]),
        ((CPU_ONLY,), ["communication_bound", "serial_communication"]),
        ((MI250,), ["low_gpu_utilization"]),
        ((MI300X,), ["low_gpu_utilization", "redundant_copies"]),
        ((RESNET,), ["data_bound", "no_tensor_cores"]),
        (
            DLRM,
            ["blocking_sync", "communication_bound", "low_gpu_utilization", "small_kernels", "serial_communication"],
        ),
        (CLEAN, []),
        (SLOW, ["straggler"]),
    ],
)
def test_real_traces_get_this_advice_and_no_other(names: tuple[str, ...], keys: list[str]) -> None:
    assert [one.key for one in report_of(*names).advice] == keys


@pytest.mark.parametrize("names", [(A100,), (BERT,), (CPU_ONLY,), (MI300X,), (RESNET,), DLRM, CLEAN, SLOW])
def test_a_key_has_either_one_advice_or_one_reason_why_not(names: tuple[str, ...]) -> None:
    report = report_of(*names)
    keys = [one.key for one in report.advice] + [one.key for one in report.abstained]
    assert len(keys) == len(set(keys))


# -- low_gpu_utilization ----------------------------------------------------------------------------------------------


def test_inference_that_the_host_cannot_feed_is_host_bound() -> None:
    advice = fired(rank_of(BERT), "low_gpu_utilization")
    # 4,045,554 ns of 4,426,114 ns.
    assert advice is not None
    assert advice.evidence["host_idle_ratio"] == pytest.approx(0.914, abs=0.001)
    assert advice.evidence["cause"] == "launch"


def test_host_that_frees_device_memory_gets_allocator_advice() -> None:
    advice = fired(rank_of(MI300X), "low_gpu_utilization")
    assert advice is not None
    assert advice.evidence["cause"] == "allocation"
    assert "PYTORCH_NO_HIP_MEMORY_CACHING" in advice.action


def test_device_that_waits_for_data_is_not_called_host_bound() -> None:
    # Idle for 44 %, of which the loader has 34 and the launches 9 of the whole: below 30 %.
    signs = rank_of(RESNET).signs
    assert (signs.idle_ns, signs.idle_launch_ns, signs.window_ns) == (461_335_000, 99_347_000, 1_049_317_000)
    assert fired(rank_of(RESNET), "low_gpu_utilization") is None


@pytest.mark.parametrize("key", ["low_gpu_utilization", "small_kernels", "blocking_sync", "no_tensor_cores"])
def test_rules_about_a_device_abstain_on_a_cpu(key: str) -> None:
    assert why_not(rank_of(CPU_ONLY), key) == "no device work in the trace"


# -- small_kernels ----------------------------------------------------------------------------------------------------


def test_kernels_shorter_than_their_launches_are_small() -> None:
    advice = fired(rank_of(BERT), "small_kernels")
    assert advice is not None
    assert advice.evidence["short_kernel_ratio"] == 39 / 60


def test_short_kernels_behind_a_full_queue_cost_nothing() -> None:
    signs = rank_of(RESNET).signs
    assert (signs.short_kernel_count, signs.launched_kernel_count) == (5429, 8772)  # 62 %
    assert fired(rank_of(RESNET), "small_kernels") is None


def test_few_kernels_are_too_few_to_call_them_small() -> None:
    assert why_not(rank_of(MI250), "small_kernels") == "only 14 kernels with their launches, fewer than 50"


# -- data_bound -------------------------------------------------------------------------------------------------------


def test_starving_loader_without_workers_gets_workers_advice() -> None:
    advice = fired(rank_of(RESNET), "data_bound")
    # 355,571,000 ns of 1,049,317,000 ns.
    assert advice is not None
    assert advice.severity == "critical"
    assert advice.evidence["data_loader_ratio"] == pytest.approx(0.339, abs=0.001)
    assert "set num_workers" in advice.action
    assert "pin_memory=True" in advice.action


def test_loader_that_works_while_the_gpu_is_busy_is_no_problem() -> None:
    hidden = with_signs(rank_of(RESNET), idle_data_loader_ns=0)
    assert fired(hidden, "data_bound") is None


def test_data_without_a_data_loader_cannot_be_judged() -> None:
    assert (why_not(rank_of(A100), "data_bound") or "").startswith("no DataLoader in the trace")


def test_data_cannot_be_judged_without_steps() -> None:
    assert why_not(rank_of(MI300X), "data_bound") == "no steps in the trace (profiler.step() was not called)"


# -- communication ----------------------------------------------------------------------------------------------------


def test_communication_that_hardly_overlaps_is_serial() -> None:
    advice = fired(rank_of(A100), "serial_communication")
    # 39,559,468 ns exposed, shorter than the 108,338,822 ns computed alone; at work: 660,551,005 - 503,050,991 ns.
    assert advice is not None
    assert advice.evidence["hideable_ratio"] == 39_559_468 / 157_500_014
    assert advice.severity == "hint"  # 6 % of the window


def test_communication_on_the_compute_stream_gets_advice() -> None:
    shared = with_signs(rank_of(A100), shared_stream_communication_ns=46_876_493)
    advice = fired(shared, "serial_communication")
    assert advice is not None
    assert "on the compute stream" in advice.sentence


def test_ddp_that_overlaps_is_not_serial() -> None:
    assert fired(report_of(*CLEAN).ranks, "serial_communication") is None


@pytest.mark.parametrize("key", ["serial_communication", "communication_bound"])
def test_communication_rules_abstain_without_communication(key: str) -> None:
    assert (why_not(rank_of(RESNET), key) or "").startswith("no communication in the trace")


def test_waits_for_others_are_not_communication_bound() -> None:
    # Rank 0 spent 616,216,304 of 1,709,985,107 ns in communication alone, 36 %, but waited 2,050,192,584 ns in all.
    report = report_of(*SLOW)
    assert fired(report.ranks, "communication_bound", report.cross_rank) is None


def test_exposed_transfer_makes_ranks_communication_bound() -> None:
    advice = advice_in(report_of(*DLRM), "communication_bound")
    # Rank 2: 3,217,000 ns exposed less 40,000 ns of waiting, of 13,017,000 ns.
    assert advice.evidence["exposed_transfer_ratio"] == 3_177_000 / 13_017_000
    assert advice.ranks == [0, 1, 2, 3]


def test_single_trace_does_not_separate_waits_from_transfer() -> None:
    advice = fired(rank_of(DLRM[0]), "communication_bound")
    assert advice is not None
    assert "is not known from these traces" in advice.sentence


# -- straggler, load_imbalance ----------------------------------------------------------------------------------------


def test_straggler_is_named_with_its_cause() -> None:
    advice = advice_in(report_of(*SLOW), "straggler")
    assert advice.ranks == [1]
    assert advice.evidence["cause"] == "host_cpu"
    assert advice.action.startswith("Look at this rank's host")


@pytest.mark.parametrize("key", ["straggler", "load_imbalance"])
def test_rules_about_unequal_ranks_abstain_on_one_rank(key: str) -> None:
    assert why_not(rank_of(A100), key) == "only one rank's trace: nothing to compare with"


@pytest.mark.parametrize("key", ["straggler", "load_imbalance"])
def test_unequal_rank_rules_abstain_without_a_matching(key: str) -> None:
    report = report_of(*CLEAN)
    assert report.cross_rank is not None
    across = replace(report.cross_rank, refused="the ends do not agree")
    assert why_not(report.ranks, key, across) == "the ends do not agree"


def with_compute(report: RankReport, compute_ns: int) -> RankReport:
    return replace(report, steps=[replace(report.steps[0], window_ns=1_000, compute_ns=compute_ns)])


def test_ranks_that_compute_for_unequal_times_are_out_of_balance() -> None:
    report = report_of(*CLEAN)
    # The mean of 800 and 400 is 600: a third more; 200 of 1,000 ns could be saved.
    uneven = [with_compute(report.ranks[0], 400), with_compute(report.ranks[1], 800)]
    advice = fired(uneven, "load_imbalance", report.cross_rank)
    assert advice is not None
    assert advice.ranks == [1]
    assert (advice.evidence["imbalance_ratio"], advice.evidence["cost_ratio"]) == (200 / 600, 0.2)


def test_clean_ranks_are_in_balance() -> None:
    report = report_of(*CLEAN)
    assert fired(report.ranks, "load_imbalance", report.cross_rank) is None
    assert why_not(report.ranks, "load_imbalance", report.cross_rank) is None


def test_unequal_ranks_with_a_straggler_give_no_imbalance() -> None:
    report = report_of(*SLOW)
    uneven = [with_compute(report.ranks[0], 400), with_compute(report.ranks[1], 800)]
    assert fired(uneven, "load_imbalance", report.cross_rank) is None


def test_ranks_with_other_collectives_are_not_compared() -> None:
    report = report_of(*CLEAN)
    other = replace(report.ranks[1], collectives=[])
    assert "not meant to be equal" in (why_not([report.ranks[0], other], "load_imbalance", report.cross_rank) or "")


# -- blocking_sync ----------------------------------------------------------------------------------------------------


def test_ranks_waiting_in_a_copy_are_blocked() -> None:
    advice = advice_in(report_of(*DLRM), "blocking_sync")
    # Rank 1: blocked 7,431,000 ns, idle for want of launches 6,163,000 + 101,000 ns, of 19,901,000 ns.
    assert advice.evidence["blocked_cost_ratio"] == 6_264_000 / 19_901_000
    assert advice.evidence["operator"] == "aten::copy_"
    assert advice.ranks == [0, 1, 3]


def test_host_waiting_for_a_busy_gpu_loses_nothing() -> None:
    waiting = with_signs(rank_of(DLRM[1]), idle_launch_ns=0)
    assert fired(waiting, "blocking_sync") is None


def test_sentence_has_the_source_line_of_a_synchronization() -> None:
    row = SynchronizationRow(
        name="cudaStreamSynchronize", count=12, total_ns=1_100_000, max_ns=200_000, operator="aten::item",
        source="train.py(44): step",
    )  # fmt: skip
    advice = fired(replace(rank_of(DLRM[1]), synchronizations=[row]), "blocking_sync")
    assert advice is not None
    assert "aten::item (cudaStreamSynchronize, 12 times, 1.1 ms) at train.py(44): step" in advice.sentence


def test_profilers_own_synchronization_is_left_out() -> None:
    assert [row.name for row in rank_of(RESNET).synchronizations] == ["cudaDeviceSynchronize", "cudaStreamSynchronize"]
    assert [row.name for row in own_synchronizations(rank_of(RESNET))] == ["cudaStreamSynchronize"]


# -- redundant_copies -------------------------------------------------------------------------------------------------


def test_convolutions_converting_layout_get_channels_last_advice() -> None:
    advice = fired(rank_of(A100), "redundant_copies")
    assert advice is not None
    assert advice.evidence["copy_ratio"] == 15_120_910 / 115_655_847
    assert "channels_last" in advice.action


def test_copy_operators_are_named() -> None:
    # 30 of the 100 ns computed.
    copying = with_signs(rank_of(BERT), copy_operator_device_ns=30, copy_operator="aten::contiguous")
    advice = fired(replace(copying, compute_ns=100, kernels=[]), "redundant_copies")
    assert advice is not None
    assert (advice.evidence["copy_ratio"], advice.evidence["operator"]) == (0.3, "aten::contiguous")
    assert "aten::contiguous" in advice.sentence


def test_some_copies_are_no_problem() -> None:
    # DLRM: 60,000 of 1,034,000 ns, 6 %.
    assert fired(rank_of(DLRM[0]), "redundant_copies") is None


def test_copies_cannot_be_judged_without_computing() -> None:
    assert why_not(replace(rank_of(BERT), compute_ns=0), "redundant_copies") == "no compute in the trace"


# -- memory_growth ----------------------------------------------------------------------------------------------------


def with_growth(*growth_bytes: int) -> RankReport:
    kept = MemoryRow(operator="aten::mul", count=4, allocated_bytes=9_000_000, kept_bytes=8_000_000)
    memory = MemoryReport(
        device=0, peak_bytes=1 << 30, peak_ns=0, reserved_peak_bytes=None, growth_bytes=sum(growth_bytes),
        growth_by_step_bytes=list(growth_bytes), operators=[kept],
    )  # fmt: skip
    return replace(rank_of(BERT), memory=[memory])


def test_memory_that_grows_in_every_step_is_a_leak() -> None:
    advice = fired(with_growth(2 << 20, 3 << 20, 1 << 20), "memory_growth")
    # (2 + 3 + 1) MiB in 3 steps.
    assert advice is not None
    evidence = advice.evidence
    assert (evidence["growth_bytes"], evidence["step_count"], evidence["device"]) == (6 << 20, 3, 0)
    assert evidence["operator"] == "aten::mul"
    assert "2.0 MiB in a step" in advice.sentence


@pytest.mark.parametrize("growth", [(2 << 20, 0, 2 << 20), (2 << 20, -(1 << 20), 2 << 20), (512, 512, 512)])
def test_memory_that_stays_or_hardly_grows_is_no_leak(growth: tuple[int, ...]) -> None:
    assert fired(with_growth(*growth), "memory_growth") is None


def test_growth_in_two_steps_may_be_chance() -> None:
    assert (
        why_not(with_growth(1 << 20, 1 << 20), "memory_growth")
        == "4 steps are needed to distinguish growth from chance"
    )


# -- memory_near_capacity ---------------------------------------------------------------------------------------------


def with_capacity(memory_bytes: int | None) -> RankReport:
    report = with_growth(0)  # its peak is 1 GiB
    return replace(report, devices=[replace(one, memory_bytes=memory_bytes) for one in report.devices])


def test_memory_that_was_nearly_full_is_said() -> None:
    advice = fired(with_capacity(1_100 << 20), "memory_near_capacity")
    assert advice is not None
    # 1,024 of 1,100 MiB.
    assert advice.evidence["peak_ratio"] == pytest.approx(0.93091, rel=1e-4)
    assert "tensors held 93 % of the memory of GPU 0 at their peak, 1.0 of 1.1 GiB" in advice.sentence


def test_memory_that_has_room_is_no_finding() -> None:
    assert fired(with_capacity(1_200 << 20), "memory_near_capacity") is None
    assert why_not(with_capacity(1_200 << 20), "memory_near_capacity") is None


def test_memory_of_unknown_size_cannot_be_judged() -> None:
    reason = "the trace does not say how much memory the device has"
    assert why_not(with_capacity(None), "memory_near_capacity") == reason
    assert "profile_memory" in (why_not(rank_of(A100), "memory_near_capacity") or "")


def test_memory_cannot_be_judged_without_its_events() -> None:
    assert why_not(rank_of(A100), "memory_growth") == "no memory events in the trace (profile_memory=True)"


# -- no_tensor_cores --------------------------------------------------------------------------------------------------


def test_resnet_in_fp32_on_a_v100_is_sent_to_half_precision() -> None:
    advice = fired(rank_of(RESNET), "no_tensor_cores")
    assert advice is not None
    assert advice.evidence["largest_fp32_gemm"] == "32x2048 @ 2048x1000"
    assert "float16" in advice.action


def test_products_in_fp32_on_an_a100_are_sent_to_tf32() -> None:
    product = KernelRow(
        name="ampere_sgemm_128x64_tn", count=2, total_ns=60, mean_ns=30_000, min_ns=20_000, max_ns=40_000, pct=60.0,
        is_communication=False, uses_tensor_cores=False,
    )  # fmt: skip
    advice = fired(replace(rank_of(A100), compute_ns=100, kernels=[product]), "no_tensor_cores")
    assert advice is not None
    assert advice.evidence["fp32_matrix_ratio"] == 60 / 100
    assert "set_float32_matmul_precision" in advice.action


def test_small_products_in_fp32_are_not_worth_tensor_cores() -> None:
    assert fired(rank_of(DLRM[0]), "no_tensor_cores") is None


def test_device_without_tensor_cores_is_not_asked_for_them() -> None:
    assert fired(with_signs(rank_of(RESNET), compute_capability_major=6), "no_tensor_cores") is None


def test_tensor_cores_are_not_judged_without_a_capability() -> None:
    assert why_not(rank_of(MI300X), "no_tensor_cores") == "the trace has no CUDA compute capability"


@pytest.mark.parametrize(
    ("name", "is_fp32"),
    [
        ("volta_sgemm_128x64_nn", True),
        ("volta_scudnn_128x64_relu_interior_nn_v1", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(", True),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int", True),
        ("volta_sgemm_fp16_128x64_nn", False),
        ("void cudnn::detail::dgrad_engine<__half, 512, 6, 5, 3, 3, 3, false>(int", False),
        ("void at::native::vectorized_elementwise_kernel<4, float>", False),
    ],
)
def test_kernels_in_single_precision_are_known_by_name(name: str, *, is_fp32: bool) -> None:
    assert is_large_fp32(name, 100_000) is is_fp32


# -- all rules --------------------------------------------------------------------------------------------------------


def test_ranks_with_the_same_trouble_share_one_advice() -> None:
    advice = advice_in(report_of(*DLRM), "serial_communication")
    assert advice.ranks == [0, 2]
    assert advice.sentence.endswith("The same is found on rank 0.")


def test_rank_that_cannot_be_judged_is_named_when_others_can() -> None:
    first, second = (rank_of(name) for name in DLRM[:2])
    blind = replace(second, signs=Signs())
    assert why_not([first, blind], "low_gpu_utilization") == "rank 1: no device work in the trace"


def test_most_severe_advice_is_first() -> None:
    order = ["critical", "warning", "hint"]
    found = [order.index(one.severity) for one in report_of(*DLRM).advice]
    assert found == sorted(found)


def test_no_reports_give_no_advice() -> None:
    assert advise([], None) == ([], [])


def test_many_ranks_are_counted_rather_than_named() -> None:
    assert name_ranks(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
