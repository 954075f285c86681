"""Summaries of runs, written by hand."""

from typing import Any

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.summary import HEALTHY, describe_ended_run, summarize, verdict
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals
from tests.unit.collector.runs import run_snapshots

MS = 1_000_000
S = 1_000 * MS


def rank_of(rank: int, ended: str | None = "finished", step_ms: float | None = 100.0, **known: object) -> RankSnapshot:
    fields: dict[str, Any] = {
        "up": ended is None,
        "ended": ended,
        "step_ns_median": None if step_ms is None else step_ms * MS,
        "totals": Totals(steps=160),
        "reports_admitted": 30,
    }
    return run_snapshots.rank_of(rank, world_size=4, **(fields | known))


def finding_of(sentence: str, lost_s: float | None) -> Finding:
    return Finding(
        kind="straggler", ranks=(1,), since_step=5, slowdown_ratio=2.0, cause="host_cpu", sentence=sentence,
        lost_rank_seconds=lost_s,
    )  # fmt: skip


def run_of(*ranks: RankSnapshot, **known: object) -> RunSnapshot:
    return RunSnapshot(run="bert", world_size=4, restart_count=0, ranks=ranks, **known)  # type: ignore[arg-type]


SMALL, LARGE, UNCOSTED = finding_of("Small.", 1.0), finding_of("Large.", 9.0), finding_of("Uncosted.", None)


def test_healthy_run_that_finished() -> None:
    assert summarize(run_of(*map(rank_of, range(4)))) == (
        "run bert: 4 ranks, 160 steps, median step 100.0 ms; 120 reports, 0 lost\n"
        "ended: finished: ranks 0, 1, 2, 3\n"
        "verdict: No rank was slower than the others."
    )


def test_run_that_went_wrong() -> None:
    ranks = (
        rank_of(0, "failed", 90.0, report_gaps=2),
        rank_of(1, None, 110.0, totals=Totals(steps=161)),
        rank_of(2, "failed", 120.0),
        rank_of(3, "killed", None, totals=Totals()),
    )
    assert summarize(run_of(*ranks, findings=(SMALL, LARGE))) == (
        "run bert: 4 ranks, 161 steps, median step 110.0 ms; 120 reports, 2 lost\n"
        "ended: failed: ranks 0, 2; killed: rank 3; still up: rank 1\n"
        "finding: Small.\n"
        "verdict: Large."
    )


def test_speed_is_per_rank_and_summed_where_all_are_known() -> None:
    # 160 steps in 20 s, 2 s of them for data; 1,280 samples in 20 s; 81,920 tokens in the 16 s in which they are known.
    known = Totals(
        steps=160, step_ns=20_000 * MS, phases_ns={"data": 2_000 * MS}, samples=1_280, samples_step_ns=20_000 * MS,
        tokens=81_920, tokens_step_ns=16_000 * MS,
    )  # fmt: skip
    speed = "speed: 8.00 steps/s, 10.0 % of the time waiting for data"
    each = "; 64.0 samples/s, 5,120.0 tokens/s per rank"
    ranks = [rank_of(rank, totals=known) for rank in range(4)]
    assert summarize(run_of(*ranks)).splitlines()[2] == (
        speed + each + "; 256.0 samples/s, 20,480.0 tokens/s for the run if each rank reads its own batches"
    )
    assert summarize(run_of(*ranks[:3])).splitlines()[2] == speed + each
    unknown = rank_of(0, totals=Totals(steps=160, step_ns=20_000 * MS, phases_ns={"data": 2_000 * MS}))
    assert summarize(run_of(unknown)).splitlines()[2] == speed


@pytest.mark.parametrize("findings", [(SMALL, LARGE, UNCOSTED), (LARGE, UNCOSTED, SMALL), (UNCOSTED, SMALL, LARGE)])
def test_verdict_is_the_costliest_finding_below_the_others(findings: tuple[Finding, ...]) -> None:
    lines = summarize(run_of(rank_of(0), findings=findings)).splitlines()
    assert lines[-1] == "verdict: Large."
    assert lines[2:-1] == ["finding: Small.", "finding: Uncosted."]


def test_hang_precedes_costlier_findings() -> None:
    hang = Finding(kind="hang", cause="missing_rank", sentence="Hangs.", severity="critical")
    assert verdict(run_of(findings=(LARGE, hang))) == "Hangs."


def test_finding_counts_after_detection_abstains() -> None:
    assert verdict(run_of(findings=(UNCOSTED,), abstained="too few steps")) == "Uncosted."
    assert verdict(run_of(abstained="too few steps")) == "No verdict: too few steps."
    assert verdict(run_of()) == HEALTHY


def test_ranks_beyond_eight_are_not_listed() -> None:
    assert summarize(run_of(*map(rank_of, range(8)))).splitlines()[1].endswith("ranks 0, 1, 2, 3, 4, 5, 6, 7")
    assert summarize(run_of(*map(rank_of, range(9)))).splitlines()[1].endswith("ranks 0, 1, 2, 3, 4, 5, 6, 7, ...")


# -- the end ----------------------------------------------------------------------------------------------------------

CRASHED = RunEnd(
    reason="crashed",
    ended_wall_s=59.0,
    ranks={"crashed": 1, "failed": 1},
    unheard=2,
    first=FirstToFail(rank=1, node="n0", reason="crashed", detail="SIGSEGV", line="a.py:24 (run)", last_step=7),
)


def test_end_has_its_time_and_the_first_to_fail() -> None:
    ranks = (rank_of(0, "failed"), rank_of(1, "crashed"))
    assert summarize(run_of(*ranks, end=CRASHED)).splitlines()[1:-1] == [
        "ended: crashed at 1970-01-01 00:00:59 UTC; crashed: rank 1; failed: rank 0",
        "first to fail: rank 1 (n0), crashed (SIGSEGV) at a.py:24 (run), the last step it reported was 7",
        "never reported: 2 of 4 ranks",
    ]


def test_running_run_has_no_end() -> None:
    assert describe_ended_run(run_of(rank_of(0, None))) == []


def test_run_ended_from_outside_has_no_first_to_fail() -> None:
    end = RunEnd(reason="terminated", ranks={"terminated": 4}, unknown="the ranks were ended from outside")
    assert describe_ended_run(run_of(end=end)) == [
        "ended: was terminated (ranks: 4 terminated)",
        "first to fail: the ranks were ended from outside",
    ]


def test_lost_run_has_the_time_of_its_last_report() -> None:
    end = RunEnd(
        reason="lost", ended_wall_s=59.0, ranks={"silent": 2}, unknown="?", lost_ranks=(0, 1), lost_since_wall_s=59.0
    )  # fmt: skip
    first, _, lost = describe_ended_run(run_of(end=end))
    assert first == "ended: was lost: not heard of since 1970-01-01 00:00:59 UTC (ranks: 2 silent)"
    assert lost == (
        "lost: ranks 0-1 not heard of since 1970-01-01 00:00:59 UTC; whether their processes still run is not known"
    )


def test_verdict_on_a_crashed_run_is_not_healthy() -> None:
    begin = "The run crashed at 1970-01-01 00:00:59 UTC; "
    assert verdict(run_of(end=CRASHED)) == f"{begin}until then no rank was found to be slower than the others."
    assert verdict(run_of(end=CRASHED, abstained="no steps of 2 of 4 ranks are known")) == (
        f"{begin}whether a rank was slower than the others is not known: no steps of 2 of 4 ranks are known."
    )


def test_verdict_on_a_finished_run_is_healthy() -> None:
    assert verdict(run_of(end=RunEnd(reason="finished"))) == HEALTHY


def test_long_work_before_the_finish_is_no_verdict() -> None:
    work = Finding(kind="hang", cause="unattributed", sentence="Stood still and finished.", severity="info")
    run = run_of(rank_of(0), findings=(work,), end=RunEnd(reason="finished"))
    assert verdict(run) == HEALTHY
    assert "finding: Stood still and finished." in summarize(run).splitlines()


# -- goodput ----------------------------------------------------------------------------------------------------------


def goodput_line(goodput: GoodputSnapshot) -> str | None:
    lines = summarize(run_of(rank_of(0), goodput=goodput)).splitlines()
    return next((line for line in lines if line.startswith("goodput")), None)


def test_goodput_lists_its_losses_largest_first() -> None:
    spent = GoodputSnapshot(
        wall_ns=200_000 * MS, productive_ns=150_000 * MS, slow_ns=10_000 * MS, startup_ns=30_000 * MS,
        between_steps_ns=9_999 * MS, unreported_ns=MS,
    )  # fmt: skip
    assert goodput_line(spent) == (
        "goodput: 75.0 % of 200.0 s in productive steps; start-up 15.0 %, slow ranks 5.0 %, between steps 5.0 %"
    )


def test_goodput_without_a_loss_names_none() -> None:
    assert goodput_line(GoodputSnapshot(wall_ns=S, productive_ns=S)) == "goodput: 100.0 % of 1.0 s in productive steps"


def test_run_without_time_has_no_goodput() -> None:
    assert goodput_line(GoodputSnapshot()) is None
