"""The status of a run for a terminal, written by hand."""

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.rank_table import HEAD, render_rank
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.least_waiting import LeastWaiting
from rankscope.collector.steps.rank_medians import MedianSteps
from rankscope.measure.records import Totals, WindowBreakdown
from tests.full_snapshot import full_snapshot
from tests.unit.collector.reports.whole_run import render_run
from tests.unit.collector.runs.run_snapshots import rank_of

MS = 1_000_000


KNOWN = rank_of(
    0,
    totals=Totals(steps=1_234),
    step_ns_median=156.25 * MS,
    phases_ns_median={
        "data": 0.04 * MS, "forward": 40.0 * MS, "backward": 101.0 * MS, "optimizer": 15.0 * MS, "other": 0.21 * MS,
    },
    own_ns_median=96.04 * MS,
    slowdown_ratio=1.004,
    breakdown=WindowBreakdown(
        first_step=0, step_count=1, window_ns=200, compute_ns=120, communication_ns=60, overlap_ns=20,
        exposed_communication_ns=40, copy_ns=10, idle_ns=30,
    ),
)  # fmt: skip
UNKNOWN = rank_of(1, totals=Totals(steps=2))
SLOW = Finding(
    kind="straggler", ranks=(1,), since_step=5, slowdown_ratio=2.0, cause="host_cpu", sentence="Rank 1 is slow."
)


def run_of(**known: object) -> RunSnapshot:
    fields: dict[str, object] = {"ranks": (KNOWN, UNKNOWN)} | known
    return RunSnapshot(run="bert", world_size=2, restart_count=0, **fields)  # type: ignore[arg-type]


GOLDEN = """\
run bert: no rank is slower than the others
  2 of 2 ranks: 2 up
 rank  steps  step ms     data  forward backward optimizer    other   own ms slowdown compute % comm % overlap % exposed % idle %  state      node
    0   1234    156.2      0.0     40.0    101.0      15.0      0.2     96.0    1.00x        60     30        33        20     15  up         n0
    1      2        -        -        -        -         -        -        -        -         -      -         -         -      -  up         n0"""  # noqa: E501 - a table for a terminal of 140 columns


def test_unknown_values_of_the_table_are_dashes() -> None:
    assert render_run(run_of()) == GOLDEN


def test_table_says_which_steps_its_medians_are_of() -> None:
    table = render_run(run_of(medians_of=MedianSteps(32, 159, 12, 40, 150))).splitlines()
    said = "  ms: medians of each rank's last 32 steps, to step 159; own time of 12 measured steps, 40-150"
    assert table.index(said) == table.index(HEAD) - 1


def test_columns_are_aligned_with_their_heads() -> None:
    assert {len(render_rank(rank)) for rank in (KNOWN, UNKNOWN)} == {len(HEAD) - len("node") + len("n0")}


def test_without_communication_there_is_no_overlap() -> None:
    window = WindowBreakdown(
        first_step=0, step_count=1, window_ns=200, compute_ns=120, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=80,
    )  # fmt: skip
    line = render_rank(msgspec.structs.replace(KNOWN, breakdown=window))
    assert line.split()[-7:] == ["60", "0", "-", "0", "40", "up", "n0"]


def test_ended_rank_shows_its_end() -> None:
    assert render_rank(msgspec.structs.replace(UNKNOWN, up=False, ended="killed")).endswith("  killed     n0")


def test_open_finding_is_the_first_line() -> None:
    lines = render_run(run_of(open_findings=(SLOW,), findings=(SLOW,))).splitlines()
    assert lines[0] == "run bert: Rank 1 is slow."


def test_further_findings_are_above_the_table() -> None:
    small = msgspec.structs.replace(SLOW, sentence="Rank 0 is a little slow.", lost_rank_seconds=2.0)
    large = msgspec.structs.replace(SLOW, sentence="Rank 1 costs much.", lost_rank_seconds=9.0)
    lines = render_run(run_of(open_findings=(small, large))).splitlines()
    assert (lines[0], lines[3]) == ("run bert: Rank 1 costs much.", "  ! Rank 0 is a little slow.")


def test_names_cannot_control_the_terminal() -> None:
    finding = Finding(kind="straggler", ranks=(1,), cause="host_cpu", sentence="Rank 1 (\x1b[2Jnode)")
    table = render_run(msgspec.structs.replace(run_of(open_findings=(finding,)), run="a\x1b]0;b\x07"))
    assert all(sign.isprintable() for line in table.splitlines() for sign in line)


def test_closed_finding_is_not_shown_as_open() -> None:
    assert render_run(run_of(findings=(SLOW,))).splitlines()[0] == "run bert: no rank is slower than the others"


def test_reason_for_no_verdict_is_the_first_line() -> None:
    lines = render_run(run_of(ranks=(KNOWN,), abstained="no steps of 1 of 2 ranks are known")).splitlines()
    assert lines[0] == "run bert: no verdict yet: no steps of 1 of 2 ranks are known"
    assert lines[1].startswith("  1 of 2 ranks: 1 up")


def test_ranks_without_peers_are_told() -> None:
    lines = render_run(run_of(ranks_without_peers=1)).splitlines()
    assert lines[2] == "  1 of 2 ranks has no peers with equal work: judged by its own past only"
    ended = render_run(run_of(ranks_without_peers=2, end=RunEnd(reason="finished", ranks={"finished": 2}))).splitlines()
    assert "  2 of 2 ranks had no peers with equal work: judged by their own past only" in ended


def test_rank_that_waited_least_is_told_unless_a_finding_has_it() -> None:
    least = LeastWaiting(rank=1, steps=40, share=0.95, margin_ns=8e6)
    said = (
        "Rank 1 waited for others least in 95 % of 40 steps, the next one 8.0 ms longer: it is slower, or has more work"
    )
    assert said in render_run(run_of(ranks_without_peers=1, least_waiting=least))
    named = run_of(ranks_without_peers=1, least_waiting=least, findings=(SLOW,), open_findings=(SLOW,))
    assert said not in render_run(named)
    assert said not in render_run(run_of(least_waiting=least)), "all ranks have peers"


def test_pipeline_is_told_and_who_waits_least_not_twice() -> None:
    (full,) = full_snapshot().runs
    least = LeastWaiting(rank=1, steps=40, share=0.95, margin_ns=8e6)
    said = render_run(run_of(ranks_without_peers=1, least_waiting=least, pipeline=full.pipeline)).splitlines()
    told = [line.removeprefix("  pipeline: ") for line in said if line.startswith("  pipeline: ")]
    head = "Schedule1F1B, 2 stages on 2 ranks, 4 microbatches"
    assert told == [
        f"{head}: bubble 12.5-37.5 % of the pipeline's time, 20.0 % with equal stages",
        "stage 1 sets the pace: own time 86.0 ms per step, 24.0 ms above the next (slower, or more work)",
        "even split: at best 91.5 ms per step instead of 100.0 ms",
    ]
    assert not any("waited for others least" in line for line in said)


def test_layers_are_told() -> None:
    (full,) = full_snapshot().runs
    said = render_run(run_of(layers=full.layers)).splitlines()
    blocks = "2 of TransformerBlock: forward 2.0 ms to 2.5 ms, backward 4.0 ms to 5.0 ms per call, 4 calls per step"
    slow = "rank 1: layer 1 of 2 (TransformerBlock): 2.0x slower than its peers', 60.0 ms per step, peers 30.0 ms"
    assert [line.removeprefix("  layers: ") for line in said if line.startswith("  layers: ")] == [
        f"{blocks}, keeps up to 4.0 MiB (4 ranks, 16 timed steps to step 158)",
        f"{slow}, mostly forward",
    ]


def test_loads_of_experts_are_told() -> None:
    (full,) = full_snapshot().runs
    told = [line for line in render_run(run_of(experts=full.experts)).splitlines() if "experts: " in line]
    assert told == [
        "  experts: mesh_ep/0,1: rank 1 has 75.0 % of the load of 2 ranks, 1.50x the mean (64 steps to step 159)",
        "  experts: mesh_ep/0,1: the hottest rank of each step works 4.0 ms longer than the mean",
    ]


def test_finding_stays_visible_without_a_new_verdict() -> None:
    assert render_run(run_of(open_findings=(SLOW,), abstained="nothing new")).startswith("run bert: Rank 1 is slow.\n")
