"""Summaries of runs for their rank 0, from snapshots written out by hand."""

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.ratio_basis import NO_WINDOW, RatioBasis
from rankscope.collector.runs.run_summary import (
    NO_FLOPS_KNOWN,
    NO_STEPS,
    NO_TIME,
    NOT_COMPARED,
    DataWait,
    build_run_summary,
)
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.codec import encode
from rankscope.measure.messages import SUMMARY_FINDINGS_MAX
from rankscope.measure.model_flops import NO_FLOPS, FlopSum, StepFlops
from rankscope.measure.records import Totals, WindowBreakdown
from tests.full_snapshot import full_rank

S = 1_000_000_000
AGENT_FRAME_BYTES_MAX = 64 * 1024
"""What an agent accepts (SECURITY.md)."""
WINDOW = WindowBreakdown(
    first_step=0, step_count=1, window_ns=100, compute_ns=60, communication_ns=50, overlap_ns=30,
    exposed_communication_ns=20, copy_ns=0, idle_ns=20,
)  # fmt: skip
FLOPS = StepFlops(model=FlopSum(3e14, 1, S), source="declared", peak_flops_per_s=1e15, peak_type="bf16")


def rank_of(number: int, **known: object) -> RankSnapshot:
    full = full_rank(0)
    identity = msgspec.structs.replace(full.identity, rank=number)
    fields = {
        "identity": identity, "breakdown": WINDOW, "flops": FLOPS, "ended": None, "up": True,
        "ratio_basis": RatioBasis(steps=1, of_steps=1, age_steps=1, age_s=1.0),
    }  # fmt: skip
    return msgspec.structs.replace(full, **(fields | known))


def run_of(*ranks: RankSnapshot, **known: object) -> RunSnapshot:
    return RunSnapshot(run="bert", world_size=len(ranks), restart_count=0, ranks=ranks, **known)  # type: ignore[arg-type]


def finding_of(number: int, severity: str = "warning", **known: object) -> Finding:
    cause = "host_cpu"
    return Finding(kind="straggler", number=number, cause=cause, severity=severity, sentence="s", **known)  # type: ignore[arg-type]


def test_everything_known_has_no_reason_beside_it() -> None:
    goodput = GoodputSnapshot(wall_ns=100, productive_ns=80, startup_ns=20)
    found = build_run_summary(run_of(rank_of(0), rank_of(1), run_slowdown_ratio=1.25, goodput=goodput), 0.1)
    assert (found.slowdown_ratio, found.goodput_ratio, found.exposed_communication_ratio) == (1.25, 0.8, 0.2)
    assert found.mfu == pytest.approx(0.3)
    assert (found.data_wait_ratio, found.absent, found.findings, found.findings_left_out) == (0.1, {}, (), 0)


def test_each_missing_number_has_its_reason() -> None:
    found = build_run_summary(run_of(rank_of(0, breakdown=None, ratio_basis=NO_WINDOW, flops=NO_FLOPS)), None)
    assert found.absent == {
        "slowdown_ratio": NOT_COMPARED,
        "goodput_ratio": NO_TIME,
        "mfu": NO_FLOPS_KNOWN,
        "exposed_communication_ratio": NO_WINDOW.absent,
        "data_wait_ratio": NO_STEPS,
    }
    assert {getattr(found, name) for name in found.absent} == {None}


def test_reasons_of_detection_and_of_ranks_are_passed_on() -> None:
    no_peak = StepFlops(model=FlopSum(1.0, 1, S), absent={"peak": "no GPU is in use"})
    found = build_run_summary(run_of(rank_of(0), rank_of(1, flops=no_peak), abstained="3 of 8 ranks are silent"), 0.0)
    assert found.absent["slowdown_ratio"] == "3 of 8 ranks are silent"
    assert found.absent["mfu"] == "rank 1: no GPU is in use"
    assert found.data_wait_ratio == 0.0  # measured: nobody has waited


def test_utilization_is_that_of_live_ranks() -> None:
    ended = rank_of(1, flops=StepFlops(model=FlopSum(9e14, 1, S), peak_flops_per_s=1e15), ended="finished")
    assert build_run_summary(run_of(rank_of(0), ended), None).mfu == pytest.approx(0.3)


def test_findings_are_the_most_severe_first_and_at_most_eight() -> None:
    findings = [finding_of(1, "info"), *(finding_of(number) for number in range(2, 12)), finding_of(12, "critical")]
    found = build_run_summary(run_of(rank_of(0), open_findings=tuple(findings)), None)
    assert [one.number for one in found.findings] == [12, 2, 3, 4, 5, 6, 7, 8]
    assert found.findings_left_out == 4


def test_finding_says_whom_what_and_since_when() -> None:
    finding = finding_of(3, "critical", ranks=(2, 3), since_step=40)
    (one,) = build_run_summary(run_of(rank_of(0), open_findings=(finding,)), None).findings
    assert (one.number, one.kind, one.cause, one.subject, one.sentence, one.severity, one.since_step) == (
        3, "straggler", "host_cpu", "ranks 2-3", "s", "critical", 40,
    )  # fmt: skip


def test_summary_of_longest_texts_is_smaller_than_agents_accept() -> None:
    widest = "\U00020000" * 10_000  # four bytes each
    finding = Finding(kind=widest, cause=widest, sentence=widest, nodes=(widest,), severity="critical")
    silent = StepFlops(absent={"model": widest})
    basis = RatioBasis(absent=widest)
    rank = rank_of(0, flops=silent, breakdown=None, ratio_basis=basis)
    findings = (finding,) * (2 * SUMMARY_FINDINGS_MAX)
    found = build_run_summary(run_of(rank, abstained=widest, open_findings=findings), None)
    assert len(encode(found)) < AGENT_FRAME_BYTES_MAX // 2  # as the relay's and the agent's limits assume


def test_wait_for_data_is_that_since_the_call_before() -> None:
    wait = DataWait()
    first = {"a": Totals(steps=1, step_ns=100, phases_ns={"data": 50}), "b": Totals(steps=1, step_ns=100)}
    assert wait.update(first) == 0.25
    later = {"a": Totals(steps=2, step_ns=200, phases_ns={"data": 60}), "b": Totals(steps=2, step_ns=200)}
    assert wait.update(later) == 0.05


def test_restarted_rank_counts_from_its_own_begin() -> None:
    wait = DataWait()
    wait.update({"a": Totals(steps=9, step_ns=900, phases_ns={"data": 900})})
    assert wait.update({"a2": Totals(steps=1, step_ns=100, phases_ns={"data": 30})}) == 0.3
