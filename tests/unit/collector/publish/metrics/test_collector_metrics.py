"""From a snapshot to metric families: what is shown, what is absent, and what a stranger's names may do."""

import math
import re

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from rankscope.collector.detect.finding import Finding
from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.snapshot import LostSeconds, RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, Totals, WindowBreakdown

S = 1_000_000_000
"""ns per s"""

OPENMETRICS = TextFormat.OPENMETRICS
LABELS = {re.sub("_(total|info)$", "", measure.name): measure.labels for measure in CATALOG}


def rank_of(rank: int = 0, run: str = "a", node: str = "n0", **known: object) -> RankSnapshot:
    """A rank that is up and has sent one report."""
    identity = RankIdentity(
        run=run, rank=rank, local_rank=rank, world_size=2, node=node, restart_count=0, boot_id=f"boot-of-{rank}", pid=7
    )  # fmt: skip
    fields: dict[str, object] = {"up": True, "reports_admitted": 1} | known
    return RankSnapshot(identity=identity, **fields)  # type: ignore[arg-type]


def run_of(*ranks: RankSnapshot, run: str = "a", **known: object) -> RunSnapshot:
    """A run of two ranks."""
    return RunSnapshot(run=run, world_size=2, restart_count=0, ranks=ranks, **known)  # type: ignore[arg-type]


def snapshot_of(*runs: RunSnapshot) -> Snapshot:
    """A snapshot of these runs."""
    return Snapshot(wall_s=0.0, version="0", runs=runs)


def page_of(*runs: RunSnapshot, series_max: int = 10_000, text_format: TextFormat = OPENMETRICS) -> str:
    """/metrics with everything of these runs."""
    pages = MetricPages(series_max=series_max)
    return b"".join(pages.render(snapshot_of(*runs), Page(METRICS_PATH), text_format)).decode()


def families_of(*runs: RunSnapshot, series_max: int = 10_000) -> dict[str, Metric]:
    """The families by name; a counter's is without `_total`, an info's without `_info`."""
    return {family.name: family for family in parse_openmetrics(page_of(*runs, series_max=series_max))}  # type: ignore[no-untyped-call]


def values(family: Metric) -> dict[tuple[str, ...], float]:
    """The values of a family by the values of its labels, in the order of the catalogue."""
    names = LABELS[family.name]
    return {tuple(sample.labels[name] for name in names): sample.value for sample in family.samples}


# -- unknown and zero -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "family"),
    [
        (rank_of(reports_admitted=0), "rankscope_steps"),
        (rank_of(reports_admitted=0), "rankscope_reports_dropped"),
        (rank_of(reports_admitted=0), "rankscope_step_records_lost"),
        (rank_of(totals=Totals(steps=5, windows=0)), "rankscope_device_idle_seconds"),
        (rank_of(totals=Totals(steps=5, device_steps=0)), "rankscope_device_step_seconds"),
        (rank_of(allocator=None), "rankscope_torch_memory_reserved_bytes"),
        (rank_of(allocator=AllocatorSample(host_ns=0, reserved_bytes=5)), "rankscope_torch_memory_retries"),
        (rank_of(step_ns_median=None), "rankscope_step_median_seconds"),
        (rank_of(step_ns_median=math.nan), "rankscope_step_median_seconds"),
        (rank_of(overhead_ratio=math.inf), "rankscope_agent_overhead_ratio"),
        (rank_of(breakdown=None), "rankscope_idle_ratio"),
        (rank_of(host=HostSample(host_ns=0)), "rankscope_process_cpu_seconds"),
        (rank_of(host=None), "rankscope_process_resident_memory_bytes"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G"),)), "rankscope_gpu_throttled"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G"),)), "rankscope_gpu_power_watts"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G"),)), "rankscope_gpu_ecc_errors"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G", xid_count=0),)), "rankscope_gpu_last_xid"),
        (
            rank_of(collectives=(CollectiveTotals(group="g", op="o", count=1, duration_ns=1),)),
            "rankscope_collective_bytes",
        ),
        (rank_of(slowdown_ratio=None), "rankscope_run_slowdown_ratio"),
    ],
)
def test_what_is_unknown_is_absent(rank: RankSnapshot, family: str) -> None:
    assert family not in families_of(run_of(rank))


@pytest.mark.parametrize(
    ("rank", "family"),
    [
        (rank_of(), "rankscope_steps"),
        (rank_of(), "rankscope_reports_dropped"),
        (rank_of(reports_admitted=0), "rankscope_report_gaps"),
        (rank_of(totals=Totals(windows=1)), "rankscope_device_copy_seconds"),
        (rank_of(totals=Totals(device_steps=1)), "rankscope_device_step_seconds"),
        (rank_of(allocator=AllocatorSample(host_ns=0, retries=0)), "rankscope_torch_memory_retries"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G", throttle_reasons=()),)), "rankscope_gpu_throttled"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G", xid_count=0),)), "rankscope_gpu_xid_errors"),
        (rank_of(devices=(DeviceSample(host_ns=0, uuid="G", ecc_uncorrected=0),)), "rankscope_gpu_ecc_errors"),
        (
            rank_of(devices=(DeviceSample(host_ns=0, uuid="G", remapping_failed=False),)),
            "rankscope_gpu_row_remapping_failed",
        ),
        (rank_of(host=HostSample(host_ns=0, gc_pause_ns=0)), "rankscope_gc_pause_seconds"),
        (rank_of(host=HostSample(host_ns=0, run_queue_wait_ns=0)), "rankscope_process_core_wait_seconds"),
    ],
)
def test_a_measured_zero_is_shown(rank: RankSnapshot, family: str) -> None:
    assert set(values(families_of(run_of(rank))[family]).values()) == {0}


def test_link_bytes_have_directions_and_unknown_ones_are_absent() -> None:
    sent, both = (
        rank_of(devices=(DeviceSample(host_ns=0, uuid="G", nvlink_tx_bytes=7),)),
        rank_of(devices=(DeviceSample(host_ns=0, uuid="G", nvlink_tx_bytes=7, nvlink_rx_bytes=9),)),
    )
    directions = [
        {labels[-1]: value for labels, value in values(families_of(run_of(rank))["rankscope_gpu_nvlink_bytes"]).items()}
        for rank in (sent, both)
    ]
    assert directions == [{"tx": 7}, {"tx": 7, "rx": 9}]


def test_without_communication_only_the_overlap_ratio_is_absent() -> None:
    window = WindowBreakdown(
        first_step=0, step_count=1, window_ns=8, compute_ns=6, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=2,
    )  # fmt: skip
    families = families_of(run_of(rank_of(breakdown=window)))
    assert "rankscope_overlap_ratio" not in families
    assert values(families["rankscope_communication_ratio"]) == {("a", "0"): 0}
    assert values(families["rankscope_compute_ratio"]) == {("a", "0"): 6 / 8}
    assert values(families["rankscope_idle_ratio"]) == {("a", "0"): 2 / 8}


def test_times_are_seconds() -> None:
    rank = rank_of(totals=Totals(steps=4, step_ns=10 * S, phases_ns={"data": 3 * S}), step_ns_median=S / 2)
    families = families_of(run_of(rank))
    assert values(families["rankscope_step_seconds"]) == {("a", "0"): 10}
    assert values(families["rankscope_step_phase_seconds"]) == {("a", "0", "data"): 3}
    assert values(families["rankscope_step_median_seconds"]) == {("a", "0"): 0.5}


# -- ranks that are gone ----------------------------------------------------------------------------------------------


def finding_of(rank: int, cause: str = "host_cpu") -> Finding:
    """An open finding."""
    return Finding(kind="straggler", ranks=(rank,), since_step=1, slowdown_ratio=2.0, cause=cause, sentence="")


@pytest.mark.parametrize("ended", ["finished", "killed", "silent"])
def test_ended_rank_keeps_only_info_end_up_0_and_step_account(ended: str) -> None:
    counts = StepCounts(made=9, buffered=0, published=9)
    gone = rank_of(1, up=False, ended=ended, totals=Totals(steps=9), slowdown_ratio=2.0, steps=counts)
    run = run_of(rank_of(0), gone, open_findings=(finding_of(1),), lost=(LostSeconds(1, "host_cpu", 5.0),))
    families = families_of(run)
    of_rank_1 = {name for name, family in families.items() for labels in values(family) if labels[:2] == ("a", "1")}
    account = {"created", "published", "acked_by_previous_collector", "buffered", "lost"}
    kept = {"rankscope_rank", "rankscope_rank_up", "rankscope_rank_end", "rankscope_report_gaps"}
    missed = {"rankscope_rank_missing"} if ended in {"killed", "silent"} else set()
    assert of_rank_1 == kept | missed | {f"rankscope_step_records_{name}" for name in account}
    assert values(families["rankscope_rank_up"]) == {("a", "0"): 1, ("a", "1"): 0}


def test_a_run_without_live_ranks_keeps_its_info_and_no_verdict() -> None:
    gone = rank_of(0, up=False, ended="finished")
    families = families_of(run_of(gone, run_slowdown_ratio=1.5))
    assert values(families["rankscope_run"]) == {("a", "2", "0", "a"): 1}
    assert "rankscope_run_slowdown_ratio" not in families


def test_a_run_tells_its_account_of_time_once_it_has_made_a_step() -> None:
    known = GoodputSnapshot(wall_ns=10 * S, productive_ns=6 * S, slow_ns=S, startup_ns=2 * S, unreported_ns=S)
    families = families_of(run_of(rank_of(), goodput=known))
    spent = {"steps": 7.0, "startup": 2.0, "between_steps": 0.0, "stalled": 0.0, "restart": 0.0}
    assert values(families["rankscope_run_seconds"]) == {("a", kind): value for kind, value in spent.items()}
    assert values(families["rankscope_goodput_ratio"]) == {("a",): 0.6}
    just_begun = GoodputSnapshot(wall_ns=S, unreported_ns=S)
    starting = families_of(run_of(rank_of(), goodput=just_begun))
    assert "rankscope_run_seconds" not in starting
    # Its Hello and its first steps were read at one moment: the counters begin together, this one with nothing.
    trained = families_of(run_of(rank_of(totals=Totals(steps=3)), goodput=just_begun))
    assert values(trained["rankscope_run_seconds"]) == {("a", kind): 0.0 for kind in spent}


def test_rank_that_is_down_but_has_not_ended_keeps_its_counters() -> None:
    families = families_of(run_of(rank_of(up=False, totals=Totals(steps=9))))
    assert values(families["rankscope_steps"]) == {("a", "0"): 9}
    assert values(families["rankscope_rank_up"]) == {("a", "0"): 0}


def test_the_same_rank_number_in_another_run_is_another_rank() -> None:
    other = run_of(rank_of(0, run="b", up=False, ended="finished"), run="b", lost=(LostSeconds(0, "host_cpu", 7.0),))
    families = families_of(run_of(rank_of(0), lost=(LostSeconds(0, "host_cpu", 5.0),)), other)
    assert values(families["rankscope_lost_gpu_seconds"]) == {("a", "0", "host_cpu"): 5}


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_open_straggler_is_shown_once_for_each_cause() -> None:
    closed = finding_of(1, "data_loading")
    twice = (finding_of(0), finding_of(0), finding_of(0, "unattributed"))
    run = run_of(rank_of(0), rank_of(1), open_findings=twice, findings=(closed, *twice))
    assert values(families_of(run)["rankscope_straggler"]) == {("a", "0", "host_cpu"): 1, ("a", "0", "unattributed"): 1}


# -- names of strangers -----------------------------------------------------------------------------------------------

HOSTILE = [
    'quote " here',
    "back\\slash",
    "line\nbreak",
    'all \\"\n\\n of it',
    "jürgen 訓練 🚂",
    "} 1\nrankscope_steps_total 9",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_survives_both_text_formats(name: str) -> None:
    run = run_of(rank_of(run=name, node=name, totals=Totals(phases_ns={name: S})), run=name)
    for text_format, parse in ((TextFormat.CLASSIC, parse_classic), (OPENMETRICS, parse_openmetrics)):
        families = {family.name: family for family in parse(page_of(run, text_format=text_format))}
        assert families["rankscope_rank_up"].samples[0].labels == {"run": name, "rank": "0"}
        phases = next(family for key, family in families.items() if key.startswith("rankscope_step_phase_seconds"))
        assert [sample.labels["phase"] for sample in phases.samples] == [name]
        assert len(families["rankscope_rank_up"].samples) == 1


# -- series that come twice -------------------------------------------------------------------------------------------


def test_a_series_that_comes_twice_is_shown_once() -> None:
    twice = (DeviceSample(host_ns=0, uuid="G", power_watts=1.0), DeviceSample(host_ns=0, uuid="G", power_watts=2.0))
    rank = msgspec.structs.replace(rank_of(), devices=twice)
    assert values(families_of(run_of(rank))["rankscope_gpu_power_watts"]) == {("a", "0", "n0", "G"): 2}
