"""The status of a run: its worst ranks and a few facts, for any number of ranks."""

import io
import json

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.publish.api.routes_api import Api
from rankscope.collector.reports.status_text import render_one_rank, render_overview, render_status
from rankscope.collector.reports.terminal_colors import Colors, choose_colors
from rankscope.collector.runs.checkpoints import Checkpoint, Checkpoints
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.run_status import RunStatus, build_status, find_worst
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.records import Totals
from tests.unit.collector.runs.run_snapshots import rank_of

S = 1_000_000_000
SLOW = Finding(kind="straggler", ranks=(3,), cause="host_cpu", sentence="Rank 3 is slow.")
FROZEN = RankUnresponsive(sequence=1, identity=rank_of(7).identity, host_ns=2, since_host_ns=1, state="T")


def run_of(*ranks: RankSnapshot, **known: object) -> RunSnapshot:
    fields: dict[str, object] = {"world_size": len(ranks), "restart_count": 0} | known
    return RunSnapshot(run="bert", ranks=ranks, **fields)  # type: ignore[arg-type]


def numbers(ranks: tuple[RankSnapshot, ...]) -> list[int]:
    return [rank.identity.rank for rank in ranks]


def test_worst_ranks_are_in_the_order_of_states() -> None:
    run = run_of(
        rank_of(0, slowdown_ratio=1.2),
        rank_of(1, up=False, ended="finished"),
        rank_of(2, stalled=True),
        rank_of(3, slowdown_ratio=1.1),
        rank_of(4, up=False, ended="silent"),
        rank_of(5, up=False, ended="killed", ended_collector_ns=9 * S),
        rank_of(6, slowdown_ratio=1.3),
        rank_of(7, stalled=True, unresponsive=FROZEN),
        open_findings=(SLOW,),
    )
    assert numbers(find_worst(run, 8)) == [5, 3, 4, 7, 2, 6, 0, 1]


def test_first_to_fail_stands_before_those_that_died_of_it() -> None:
    first = FirstToFail(rank=2, node="n0", reason="killed")
    run = run_of(
        rank_of(0, up=False, ended="failed", ended_collector_ns=5 * S),
        rank_of(1, up=False, ended="terminated", ended_collector_ns=4 * S),
        rank_of(2, up=False, ended="killed", ended_collector_ns=6 * S),
        end=RunEnd(reason="killed", first=first),
    )
    assert numbers(find_worst(run, 3)) == [2, 0, 1]


def test_of_many_ranks_only_so_many_are_given() -> None:
    run = run_of(*(rank_of(number, slowdown_ratio=1 + number / 1000) for number in range(100)))
    status = build_status(run, 3)
    assert (numbers(status.worst), status.ranks_known, status.run.ranks) == ([99, 98, 97], 100, ())


def test_states_are_counted_the_most_frequent_first() -> None:
    run = run_of(rank_of(0, stalled=True), rank_of(1), rank_of(2), rank_of(3, up=False, awaited=True))
    assert list(build_status(run, 0).states.items()) == [("up", 2), ("stalled", 1), ("awaited", 1)]


def test_answer_about_16384_ranks_is_small() -> None:
    ranks = tuple(rank_of(number, world_size=16_384, slowdown_ratio=1.0) for number in range(16_384))
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run_of(*ranks),))
    answer = Api(lambda: snapshot, lambda _run: ()).answer("/api/v1/runs/bert/status")
    assert answer is not None
    assert len(answer.body) < 50_000
    assert len(msgspec.json.decode(answer.body, type=RunStatus).worst) == 10


@pytest.mark.parametrize("worst", ["-1", "1001", "x"])
def test_number_of_worst_ranks_has_limits(worst: str) -> None:
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run_of(rank_of(0)),))
    answer = Api(lambda: snapshot, lambda _run: ()).answer(f"/api/v1/runs/bert/status?worst={worst}")
    assert answer is not None
    assert json.loads(answer.body) == {"error": f"worst is {worst!r}; it must be a whole number from 0 to 1000"}


def test_large_run_is_described_in_three_lines() -> None:
    totals = Totals(steps=2_000, step_ns=500 * S)
    first = rank_of(0, totals=totals, reports_admitted=1, step_ns_median=0.25 * S, slowdown_ratio=1.0)
    others = (
        rank_of(number, totals=totals, step_ns_median=0.25 * S, slowdown_ratio=1.0 + number / 10_000)
        for number in range(1, 2_048)
    )
    lines = render_status(build_status(run_of(first, *others, open_findings=(SLOW,)), 10)).splitlines()
    assert lines[:3] == [
        "run bert: Rank 3 is slow.",
        "  2,048 of 2,048 ranks: 2,048 up; 2,000 steps, 4.00 steps/s, median step 250.0 ms",
        "  the worst 10 of 2,048 ranks (--all lists every rank, --rank N shows one):",
    ]
    assert [line.split()[0] for line in lines[3:]] == ["rank", "3", *map(str, range(2_047, 2_038, -1))]


def test_status_of_an_ended_run_has_its_end_and_no_speed() -> None:
    first = FirstToFail(rank=0, node="n0", reason="crashed", signal="SIGSEGV", last_step=41)
    end = RunEnd(reason="crashed", ranks={"crashed": 1}, first=first)
    totals = Totals(steps=42, step_ns=S)
    run = run_of(rank_of(0, up=False, ended="crashed", totals=totals, reports_admitted=1), end=end)
    lines = render_status(build_status(run, 10), with_ranks=False).splitlines()
    first_to_fail = "rank 0 (n0), crashed (SIGSEGV), the last step it reported was 41"
    assert lines == [
        "run bert: The run crashed",
        f"  why: first to fail: {first_to_fail}",
        f"  do: {suggest('run_failure', 'crashed')}",
        "  1 of 1 ranks: 1 crashed; 42 steps",
        "  before that: no rank was found to be slower than the others",
    ]


def test_failed_run_says_first_that_it_failed_then_the_findings() -> None:
    end = RunEnd(reason="killed", ranks={"killed": 1}, unheard=2)
    found = run_of(rank_of(0), end=end, findings=(SLOW,))
    last = [f"  never reported: 2 of {found.world_size} ranks", "  before that: Rank 3 is slow."]
    assert render_status(build_status(found, 0)).splitlines()[-2:] == last
    unjudged = run_of(rank_of(0), end=end, abstained="too few steps")
    text = "  before that: whether a rank was slower than the others is not known: too few steps"
    assert render_status(build_status(unjudged, 0)).splitlines()[-1] == text


def test_run_ended_on_purpose_begins_with_its_findings() -> None:
    run = run_of(rank_of(0), end=RunEnd(reason="interrupted", ranks={"interrupted": 1}), findings=(SLOW,))
    lines = render_status(build_status(run, 0)).splitlines()
    assert lines[0] == "run bert: Rank 3 is slow."
    assert "  ended: was interrupted (ranks: 1 interrupted)" in lines


def test_each_finding_says_what_to_do_about_it() -> None:
    worse = msgspec.structs.replace(SLOW, sentence="Slow.", lost_rank_seconds=9.0, suggestion="Drain it.")
    other = msgspec.structs.replace(SLOW, sentence="Also.", lost_rank_seconds=1.0, suggestion="Ask\x1b why.")
    lines = render_status(build_status(run_of(rank_of(0), open_findings=(other, worse)), 0)).splitlines()
    assert lines[:3] == ["run bert: Slow.", "  cost: 9 rank-seconds so far", "  do: Drain it."]
    assert lines[4:] == ["  ! Also.", "    cost: 1 rank-seconds so far", "    do: Ask\\x1b why."]


def test_several_runs_begin_with_which_of_them_need_somebody() -> None:
    def status_of(name: str, **known: object) -> RunStatus:
        return build_status(msgspec.structs.replace(run_of(rank_of(0), **known), run=name), 0)

    found, well = status_of("bert", open_findings=(SLOW,)), status_of("llama")
    early = status_of("t5", abstained="too few steps")
    crashed = status_of("gpt\x1b", end=RunEnd(reason="crashed", ranks={"crashed": 1}))
    assert render_overview([well, found, early, crashed]) == (
        "4 runs: 1 with findings (bert), 1 ended badly (gpt\\x1b), 1 without a verdict yet (t5)"
    )
    assert render_overview([well, well]) == "2 runs: no finding"
    assert render_overview([found] * 6) == "6 runs: 6 with findings (bert, bert, bert, bert, and 2 more)"
    assert render_overview([found, well], Colors(are_on=True)).startswith("\x1b[1;33m2 runs")


def test_status_says_whose_run_it_is() -> None:
    rank = rank_of(0)
    identity = msgspec.structs.replace(rank.identity, slurm_job_id="4711", user="ada\x1b")
    run = run_of(msgspec.structs.replace(rank, identity=identity))
    assert render_status(build_status(run, 0)).splitlines()[2] == "  Slurm job 4711, user ada\\x1b"
    assert "Slurm" not in render_status(build_status(run_of(rank), 0))


def test_status_of_one_rank_names_its_pod() -> None:
    rank = rank_of(3)
    rank = msgspec.structs.replace(rank, identity=msgspec.structs.replace(rank.identity, k8s_pod="bert-3"))
    assert ", pod bert-3)" in render_one_rank(run_of(rank), rank, None).splitlines()[0]


def test_findings_beyond_five_are_counted() -> None:
    findings = tuple(msgspec.structs.replace(SLOW, sentence=f"No {n}.", lost_rank_seconds=1.0 * n) for n in range(8))
    lines = render_status(build_status(run_of(rank_of(0), open_findings=findings), 0)).splitlines()
    assert lines[0] == "run bert: No 7."
    assert [line for line in lines if line.startswith("  !")] == [
        *(f"  ! No {n}." for n in (6, 5, 4, 3, 2)),
        "  ! and 2 more: rankscope incidents --open",
    ]


def test_status_of_one_rank_has_its_findings_and_its_end() -> None:
    rank = rank_of(3, up=False, ended="crashed", ended_detail="SIGSEGV", exit_code=-11, last_step=41)
    lines = render_one_rank(run_of(rank, open_findings=(SLOW,)), rank, (7, "times")).splitlines()
    assert lines[:4] == [
        "run bert, rank 3: crashed (node n0, local rank 3, pid 7)",
        "  crashed: SIGSEGV",
        "  the last step it reported was 41",
        "  Rank 3 is slow.",
    ]
    assert lines[-1].endswith("times          the median of the 7 it is compared with")


def test_rank_of_a_run_of_two_is_compared_with_the_one_other() -> None:
    lines = render_one_rank(run_of(rank_of(0), rank_of(1)), rank_of(0), (1, "times")).splitlines()
    assert lines[-1].endswith("times          the one rank it is compared with")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "are_on"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_color_is_for_terminals_whose_user_wants_it(
    stream: io.StringIO, environment: dict[str, str], are_on: bool
) -> None:
    assert choose_colors(stream, environment) == Colors(are_on=are_on)


def test_healthy_run_is_green_and_slow_rank_yellow() -> None:
    colors = Colors(are_on=True)
    healthy, slow = run_of(rank_of(0)), run_of(rank_of(0), open_findings=(SLOW,))
    assert "\x1b[1;32mno rank is slower than the others\x1b[0m" in render_status(build_status(healthy, 1), colors)
    assert "\x1b[1;33mRank 3 is slow.\x1b[0m" in render_status(build_status(slow, 1), colors)


def test_names_from_the_wire_cannot_steer_the_terminal() -> None:
    rank = rank_of(0)
    identity = msgspec.structs.replace(rank.identity, node="n\x1b[2J")
    finding = msgspec.structs.replace(SLOW, ranks=(0,), sentence="Rank 0 \x1b]0;x\x07")
    run = msgspec.structs.replace(
        run_of(msgspec.structs.replace(rank, identity=identity), open_findings=(finding,)), run="a\x1b[31m"
    )
    text = render_status(build_status(run, 1)) + render_one_rank(run, run.ranks[0], None)
    assert all(sign.isprintable() for line in text.splitlines() for sign in line)


def test_last_checkpoint_is_a_line_where_one_is_marked() -> None:
    last = Checkpoint(attempt=0, step=1_200, wall_s=1_800_000_000.0, duration_ns=2_300_000_000, rank=0)
    marked = Checkpoints(count=3, duration_ns=6_000_000_000, latest=(last,))
    line = "  checkpoints: the last of 3 in step 1,200 at 2027-01-15 08:00:00 UTC, for 2.3 s; all together 6.0 s"
    assert line in render_status(build_status(run_of(rank_of(0), checkpoints=marked), 0)).splitlines()
    only = build_status(run_of(rank_of(0), checkpoints=msgspec.structs.replace(marked, count=1)), 0)
    assert "  checkpoints: one, in step 1,200 at" in render_status(only)
    assert "checkpoint" not in render_status(build_status(run_of(rank_of(0)), 0))
