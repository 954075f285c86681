"""Check every figure that other tools and an independent computation give for the shared traces, to the ns.

`reference.json` explains the origin of its figures. If its three sources disagree, docs/definitions.md decides, and
docs/traces.md shows the difference.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.files import read_chunks
from rankscope.collector.traces.report import RankReport
from rankscope.collector.traces.stages import KINDS, kinds_of_time, split_by_kind
from rankscope.collector.traces.windows import break_down_window, find_launched
from rankscope.measure import intervals
from rankscope.measure.kineto import Category
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView

TRACES = Path(__file__).parents[1] / "traces"
REFERENCE: dict[str, Any] = json.loads((TRACES / "reference.json").read_text())
FILES = sorted(REFERENCE["files"])
WITH_DEVICE = [name for name in FILES if "gpu" in REFERENCE["files"][name]["exact"]]

SET_KEYS = {
    "compute_ns": "compute_us", "communication_ns": "comm_us", "overlap_ns": "overlap_us",
    "exposed_communication_ns": "exposed_comm_us", "copy_ns": "copy_us", "idle_ns": "idle_us",
}  # fmt: skip
LAUNCHED_KEYS = {
    "first_ns": "gpu_first_us", "last_ns": "gpu_last_us", "busy_ns": "busy_us", "compute_ns": "compute_us",
    "communication_ns": "comm_us", "overlap_ns": "overlap_us",
}  # fmt: skip


def ns(us: float) -> int:
    """Return the reference's microseconds in ns; each has at most three decimals."""
    return round(us * 1000)


@cache
def exact(name: str) -> dict[str, Any]:
    found: dict[str, Any] = REFERENCE["files"][name]["exact"]
    return found


@cache
def view_of(name: str) -> RankView:
    return RankView(read_trace(read_chunks(str(TRACES / name))))


@cache
def report_of(name: str) -> RankReport:
    report = analyze(str(TRACES / name))
    assert report.errors == []
    return report.ranks[0]


def plugin(name: str) -> dict[str, Any]:
    """Return the figures of the TensorBoard plugin's last source for the one worker."""
    found: dict[str, Any] = REFERENCE["files"][name]["torch_tb_profiler"]["last_source"]["worker0"]
    return found


def pick(
    found: object, expected: Mapping[str, float], keys: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Ours and theirs, under our names, of what the reference has."""
    known = {ours: theirs for ours, theirs in keys.items() if theirs in expected}
    get = found.get if isinstance(found, dict) else lambda key: getattr(found, key)
    return {ours: get(ours) for ours in known}, {ours: ns(expected[theirs]) for ours, theirs in known.items()}


# -- what is in the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_event_is_counted_by_phase_and_category(name: str) -> None:
    trace = view_of(name).trace
    assert trace.event_count == exact(name)["trace_events"]
    assert trace.phases == exact(name)["phases"]
    assert trace.categories == exact(name)["categories"]
    assert trace.warnings == []


@pytest.mark.parametrize("name", FILES)
def test_who_recorded_it_is_told(name: str) -> None:
    reference = exact(name)["distributed"] or {}
    report = report_of(name)
    if reference:
        assert report.rank == reference["rank"]
    assert (report.world_size, report.backend) == (reference.get("world_size"), reference.get("backend"))
    assert report.device == (exact(name)["device"] or "CPU")


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_device_work_is_counted_by_kind(name: str) -> None:
    view, counts = view_of(name), exact(name)["gpu_counts"]
    categories = [int((view.events.category[view.work.row] == kind).sum()) for kind in (5, 6, 7)]
    assert categories == [counts["kernel"], counts["memcpy"], counts["memset"]]
    assert int(view.work.is_communication.sum()) == counts["comm_kernels"]
    streams = {str(stream) for stream in view.work.stream[view.work.is_kernel].tolist()}
    assert streams == set(exact(name)["gpu"]["streams"])


# -- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_the_whole_trace_is_broken_down_to_the_ns(name: str) -> None:
    gpu = exact(name)["gpu"]
    ours, theirs = pick(report_of(name), gpu, {**SET_KEYS, "window_ns": "span_us", "start_ns": "first_us"})
    assert ours == theirs


@pytest.mark.parametrize("name", [name for name in WITH_DEVICE if "steps" in exact(name)])
def test_steps_are_broken_down_to_the_ns(name: str) -> None:
    view = view_of(name)
    for step, report, expected in zip(view.steps, report_of(name).steps, exact(name)["steps"], strict=True):
        assert (step.number, report.start_ns) == (expected["step"], ns(expected["start_us"]))
        own = break_down_window(view, step.start_ns, step.end_ns)
        ours, theirs = pick(own, expected["window"], {**SET_KEYS, "window_ns": "length_us"})
        assert ours == theirs
        if "window_to_next_step" in expected:
            ours, theirs = pick(report, expected["window_to_next_step"], {**SET_KEYS, "window_ns": "length_us"})
            assert ours == theirs


@pytest.mark.parametrize("name", [name for name in WITH_DEVICE if "steps" in exact(name)])
def test_what_steps_launched_is_found_wherever_it_ran(name: str) -> None:
    for report, expected in zip(report_of(name).steps, exact(name)["steps"], strict=True):
        launched = report.launched
        assert launched is not None
        reference = expected.get("launched", {"kernels": 0, "memory_ops": 0})
        assert (launched.kernel_count, launched.copy_count) == (reference["kernels"], reference["memory_ops"])
        ours, theirs = pick(launched, reference, LAUNCHED_KEYS)
        assert ours == theirs


@pytest.mark.parametrize("name", FILES)
def test_the_parts_of_every_window_sum_to_it(name: str) -> None:
    report = report_of(name)
    for window in (report, *report.steps, *report.devices):
        parts = window.compute_ns + window.exposed_communication_ns + window.copy_ns + window.idle_ns
        assert parts == window.window_ns
        assert window.communication_ns == window.overlap_ns + window.exposed_communication_ns


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_the_sets_of_time_are_those_of_the_reference(name: str) -> None:
    view, gpu = view_of(name), exact(name)["gpu"]
    compute, communication, copies = (intervals.union(raw) for raw in (view.compute, view.communication, view.copies))
    kernels = intervals.union(np.concatenate([compute, communication]))
    anything = intervals.union(np.concatenate([compute, copies]))
    lengths = view.work.end_ns - view.work.start_ns
    assert intervals.total_ns(copies) == ns(gpu["memory_us"])
    assert intervals.total_ns(kernels) == ns(gpu["kernel_busy_us"])
    assert intervals.total_ns(intervals.union(np.concatenate([kernels, copies]))) == ns(gpu["busy_us"])
    assert intervals.total_ns(intervals.intersect(communication, anything)) == ns(gpu["comm_hidden_by_any_us"])
    assert int(lengths[view.work.is_kernel].sum()) == ns(gpu["kernel_time_sum_us"])
    assert int(lengths[view.work.is_communication].sum()) == ns(gpu["comm_time_sum_us"])


@pytest.mark.parametrize("name", [name for name in FILES if exact(name).get("gpu_annotations_top")])
def test_ranges_as_the_device_saw_them_are_summed_by_name(name: str) -> None:
    view = view_of(name)
    rows = view.trace.rows(Category.GPU_ANNOTATION)
    for reference in exact(name)["gpu_annotations_top"]:
        named = [row for row in rows.tolist() if view.trace.name(row) == reference["name"]]
        assert (len(named), int(view.events.duration_ns[named].sum())) == (
            reference["count"],
            ns(reference["total_us"]),
        )


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_kernels_are_summed_by_name(name: str) -> None:
    ours = {row.name: row for row in report_of(name).kernels}
    assert len(ours) == exact(name)["distinct_kernel_names"]
    for reference in exact(name)["top_kernels"]:
        row = ours[reference["name"]]
        assert (row.count, row.total_ns) == (reference["count"], ns(reference["total_us"]))
        assert (row.min_ns, row.max_ns) == (ns(reference["min_us"]), ns(reference["max_us"]))
        assert row.mean_ns == pytest.approx(ns(reference["mean_us"]), abs=1)
        assert row.pct == pytest.approx(reference["pct_of_kernel_time"], abs=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_calls_that_wait_for_the_device_are_summed_by_name(name: str) -> None:
    ours: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    # The reference has the calls that wait by their name; copies that block although they are named Async come beside.
    for row in (row for row in report_of(name).synchronizations if row.name != "cudaMemcpyAsync"):
        before = ours[row.name]
        ours[row.name] = [before[0] + row.count, before[1] + row.total_ns, max(before[2], row.max_ns)]
    reference = {
        call: [sums["count"], ns(sums["total_us"]), ns(sums["max_us"])]
        for call, sums in exact(name)["sync_calls"].items()
    }
    assert dict(ours) == reference


@pytest.mark.parametrize(("name", "total_ns"), [("v100_dlrm_8ranks_r0", 903_000), ("v100_dlrm_8ranks_r1", 890_000)])
def test_copies_to_pageable_memory_are_synchronization_points(name: str, total_ns: int) -> None:
    # Each has two "Memcpy DtoH (Device -> Pageable)" of 1 us, whose calls return 7 us after their end.
    rows = [row for row in report_of(f"{name}.json.gz").synchronizations if row.name == "cudaMemcpyAsync"]
    assert (sum(row.count for row in rows), sum(row.total_ns for row in rows)) == (2, total_ns)


@pytest.mark.parametrize("name", FILES)
def test_named_collectives_are_summed_by_group_and_type(name: str) -> None:
    ours = sorted(
        (row.group, row.group_size, row.count, row.total_ns, row.bytes) for row in report_of(name).collectives
    )
    reference = [
        (one["pg_desc"], one["group_size"], one["count"], ns(one["total_us"]), one["bytes_max_in_out"])
        for one in exact(name)["collectives"]
    ]
    if reference:
        assert ours == sorted(reference)


@pytest.mark.parametrize("name", [name for name in FILES if "comm_kernels_by_launching_annotation" in exact(name)])
def test_launching_range_names_operation_of_kernels(name: str) -> None:
    ours: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in report_of(name).collectives:
        ours[f"nccl:{row.op}"] = [ours[f"nccl:{row.op}"][0] + row.count, ours[f"nccl:{row.op}"][1] + row.total_ns]
    reference = exact(name)["comm_kernels_by_launching_annotation"]
    assert dict(ours) == {op: [one["count"], ns(one["total_us"])] for op, one in reference.items()}


@pytest.mark.parametrize("name", [name for name in FILES if "steps" in exact(name)])
def test_time_in_the_data_loader_is_summed(name: str) -> None:
    found = {row.stage: row.host_ns for row in report_of(name).model}
    assert found["data_loader"] == ns(exact(name)["dataloader_us"])


# -- the other tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_hta_without_its_rounding_says_the_same(name: str) -> None:
    found = REFERENCE["files"][name]["hta"]
    # With whole microseconds in the file its rounding changes nothing.
    reference = found.get("with_last_step_no_rounding") or found["with_last_step"]
    (temporal,) = reference["temporal_breakdown"]
    report = report_of(name)
    # It sums exposed communication and exposed copies.
    uncomputed_ns = report.exposed_communication_ns + report.copy_ns
    for ours, theirs in (
        (report.window_ns, temporal["kernel_time(us)"]),
        (report.compute_ns, temporal["compute_time(us)"]),
        (report.idle_ns, temporal["idle_time(us)"]),
        (uncomputed_ns, temporal["non_compute_time(us)"]),
    ):
        assert ours == pytest.approx(ns(theirs), abs=1000), "to the microsecond: it adds up floats"
    (overlap,) = reference["comm_comp_overlap"]
    theirs_pct = overlap["comp_comm_overlap_pctg"]
    if theirs_pct is None or (isinstance(theirs_pct, float) and math.isnan(theirs_pct)):
        assert report.overlap_ratio is None
    else:
        assert report.overlap_ratio == pytest.approx(theirs_pct / 100, abs=6e-5)


OLD_WITHOUT_COMMUNICATION = ["v100dgxs_resnet50_workers0_a.json.gz"]
PLUGIN_KINDS = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CpuOp", "Other")


@pytest.mark.parametrize("name", OLD_WITHOUT_COMMUNICATION)
def test_plugin_overview_by_event_type_follows_from_launches(name: str) -> None:
    view = view_of(name)
    reached_ns = 0
    for step, reference in zip(view.steps, plugin(name)["steps"], strict=True):
        launched = find_launched(view, step)
        # A step of the plugin ends with the work that it launched, and begins where that of the one before has ended.
        end_ns = max(step.end_ns, *view.work.end_ns[launched].tolist())
        ours = split_by_kind(kinds_of_time(view, launched), max(step.start_ns, reached_ns), end_ns)
        reached_ns = end_ns
        assert dict(zip(KINDS, ours, strict=True)) == {
            kind: ns(reference[theirs]) for kind, theirs in zip(KINDS, PLUGIN_KINDS, strict=True)
        }


@pytest.mark.parametrize(
    "name", ["a100_nccl_2ranks_r0.json.gz", "v100_dlrm_8ranks_r0.json.gz", "v100_dlrm_8ranks_r2.json.gz",
             "v100dgxs_resnet50_workers0_a.json.gz", "h100_bert_small.json.gz"],
)  # fmt: skip
def test_device_rates_are_those_of_the_plugin(name: str) -> None:
    (reference,) = plugin(name)["gpu"].values()
    (device,) = report_of(name).devices
    assert device.utilization_ratio == pytest.approx(reference["utilization"], abs=6e-5)
    assert device.sm_efficiency_ratio == pytest.approx(reference["est_sm_efficiency"], abs=6e-5)
    assert device.achieved_occupancy_ratio == pytest.approx(reference["est_achieved_occupancy"] / 100, abs=1e-6)


# -- all ranks --------------------------------------------------------------------------------------------------------


@cache
def dlrm() -> Any:
    return analyze(str(TRACES / "v100_dlrm_8ranks_r*.json.gz"))


def test_matched_collectives_tell_waiting_from_transfer() -> None:
    reference = REFERENCE["groups"]["v100_dlrm_8ranks (ranks 0-3 only)"]["multi_rank"]["per_rank"]
    across = dlrm().cross_rank
    assert across.wait_ns == {rank: ns(one["wait_by_min_duration_us"]) for rank, one in reference.items()}
    assert across.transfer_ns == {rank: ns(one["transfer_by_min_duration_us"]) for rank, one in reference.items()}
    assert across.lower_bound, "four of eight ranks are here"


def test_who_came_last_is_named_for_each_collective() -> None:
    reference = REFERENCE["groups"]["v100_dlrm_8ranks (ranks 0-3 only)"]["multi_rank"]["matched"]
    ours = dlrm().cross_rank.collectives
    assert [one.transfer_ns for one in ours] == [ns(one["min_dur_us"]) for one in reference]
    for one, expected in zip(ours, reference, strict=True):
        if one.late_rank is not None:
            assert expected["dur_us"][str(one.late_rank)] == expected["min_dur_us"]


GLOO = {
    "ddp_2r_clean": [],
    "ddp_2r_accum4": [],
    "fsdp2_2r_clean": [],
    "ddp_2r_slow1_forward": [(1, "host_cpu")],
    "ddp_2r_slow1_data": [(1, "data_loading")],
    "ddp_4r_slow2_forward": [],  # four ranks on two cores: see the next test
}


@pytest.mark.parametrize("folder", sorted(GLOO))
def test_slow_rank_of_a_gloo_run_is_the_only_finding(folder: str) -> None:
    report = analyze(str(TRACES / "gloo-2.13" / folder))
    assert report.errors == [], "the files beside the traces are no traces, and nobody asked for them"
    across = report.cross_rank
    assert across is not None
    assert across.refused is None
    assert [(found.rank, found.cause) for found in across.findings] == GLOO[folder]


def test_slow_rank_within_the_noise_of_its_steps_is_doubted() -> None:
    # Its three steps are 699, 1,587 and 1,164 ms long, those of the others about 750, 1,350 and 1,420 ms.
    report = analyze(str(TRACES / "gloo-2.13" / "ddp_4r_slow2_forward"))
    (reason,) = [one.reason for one in report.abstained if one.key == "straggler"]
    assert reason.startswith(
        "rank 2: without waits its steps took 1.17 times as long as its peers', but the steps differ"
    )
