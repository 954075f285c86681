"""What the demo says of what it has planted, and of what was found."""

import pytest

from rankscope.collector.demo.screen import DemoOptions, ProgressLog, write_end, write_live
from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.terminal_colors import PLAIN
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals
from tests.unit.collector.runs.run_snapshots import rank_of

MS = 1_000_000
S = 1_000 * MS
PLAN = DemoOptions(ranks=2, steps=160, fault="data", slow_rank=1, slow_from=60)
STRAGGLER = Finding(
    kind="straggler", ranks=(1,), since_step=61, slowdown_ratio=4.0, run_slowdown_ratio=3.2, cause="data_loading",
    what="than the other rank", why="150.4 ms more per step waiting for its data loader", world_size=2,
    suggestion="Check the disk.", evidence={"own_ns": 192.0 * MS, "peers_own_ns": 48.0 * MS}, lost_rank_seconds=20.0,
)  # fmt: skip
MACHINE = Finding(
    kind="cpu_pressure", nodes=("vm",), since_step=37, until_step=68, cause="cpu_pressure",
    what="waiting for a CPU core", lost_rank_seconds=90.0,
)  # fmt: skip


def a_rank(number: int, own_ms: float, data_ms: float, step_ms: float = 200.0) -> RankSnapshot:
    return rank_of(
        number, totals=Totals(steps=160), step_ns_median=step_ms * MS, own_ns_median=own_ms * MS,
        phases_ns_median={"data": data_ms * MS, "forward": 12.0 * MS, "backward": 26.0 * MS},
    )  # fmt: skip


def a_run(*findings: Finding, abstained: str | None = None, step_ms: float = 200.0) -> RunSnapshot:
    return RunSnapshot(
        run="demo", world_size=2, restart_count=0, abstained=abstained, findings=findings,
        open_findings=tuple(one for one in findings if one.until_step is None),
        ranks=(a_rank(0, 42.0, 0.3), a_rank(1, 192.0, 150.7, step_ms)),
        goodput=GoodputSnapshot(
            wall_ns=20 * S, slow_ns=12 * S, startup_ns=2 * S, productive_ns=6 * S
        ),
    )  # fmt: skip


def test_what_was_planted_and_found_comes_first() -> None:
    lines = write_end(a_run(MACHINE, STRAGGLER), PLAN, named_by_step=89).splitlines()
    assert lines[0] == "PLANTED  rank 1 waits 150 ms longer for each batch from step 60 on  (--fault data)"
    assert lines[1] == "FOUND    Rank 1: 4.0x slower than the other rank since step 61, named by step 89"


def test_facts_stand_each_under_its_label() -> None:
    lines = write_end(a_run(STRAGGLER), PLAN, named_by_step=89).splitlines()
    assert lines[3:7] == [
        "  Times     Own time 192.0 ms per step, peers 48.0 ms",
        "  Why       data_loading: 150.4 ms more per step waiting for its data loader",
        "  Cost      run 3.2x slower, 1.4 of 2 ranks wasted; 20 rank-seconds so far",  # 2 * (1 - 1 / 3.2)
        "  Do        Check the disk.",
    ]


def test_slow_rank_is_the_first_of_the_table() -> None:
    lines = write_end(a_run(STRAGGLER), PLAN, named_by_step=89).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("  rank"))
    assert lines[head + 1].split() == ["1", "192.0", "200.0", "150.7", "12.0", "26.0", "<-", "slow"]
    assert lines[head + 2].split() == ["0", "42.0", "200.0", "0.3", "12.0", "26.0"]
    assert lines[head + 3].startswith("  A step takes about 200.0 ms on every rank")


def test_steps_of_different_length_are_not_called_equal() -> None:
    assert "on every rank" not in write_end(a_run(STRAGGLER, step_ms=230.0), PLAN, named_by_step=89)


def test_findings_about_the_machine_come_last_in_one_line() -> None:
    last = write_end(a_run(MACHINE, STRAGGLER), PLAN, named_by_step=89).splitlines()[-2:]
    assert last == [
        "  Goodput 30 % of 20.0 s: slow ranks 60 %, start-up 10 %",
        "  Also      Node vm: waiting for a CPU core, steps 37-68",
    ]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (a_run(), "no rank is slower than the others"),
        (a_run(abstained="too few steps"), "nothing: too few steps"),
        (a_run(Finding(kind="straggler", ranks=(0,), cause="host_cpu", what="than the other rank", slowdown_ratio=1.2)),
         "Rank 0: 1.20x slower than the other rank"),
    ],
)  # fmt: skip
def test_what_was_not_found_is_said(run: RunSnapshot, said: str) -> None:
    assert write_end(run, PLAN, named_by_step=None).splitlines()[1] == f"FOUND    {said}"


def test_last_screen_has_about_twenty_lines() -> None:
    assert len(write_end(a_run(MACHINE, STRAGGLER), PLAN, named_by_step=89).splitlines()) <= 20


def test_reader_of_a_pipe_hears_each_thing_once() -> None:
    log = ProgressLog(PLAN, "http://here/")
    assert log.describe_news(RunSnapshot(run="demo", world_size=2, restart_count=0, ranks=())) == [
        "live page: http://here/"
    ]
    assert log.describe_news(a_run()) == [
        "training",
        "step 60 has come: rank 1 waits 150 ms longer for each batch from step 60 on",
    ]
    assert log.describe_news(a_run(STRAGGLER)) == ["by step 160: Rank 1: 4.0x slower than the other rank since step 61"]
    assert log.describe_news(a_run(STRAGGLER)) == []


def test_live_screen_says_how_far_it_is() -> None:
    lines = write_live(a_run(STRAGGLER), PLAN, "http://here/", PLAIN).splitlines()
    assert lines[1] == "FOUND    Rank 1: 4.0x slower than the other rank since step 61"
    assert lines[-1] == "Step 160 of 160. Live page: http://here/"
