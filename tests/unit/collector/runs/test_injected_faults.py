"""A fault that a rank does to itself on purpose is stated wherever its run is: findings, status, report, page, end."""

from rankscope.collector.detect.finding import describe_faults
from rankscope.collector.reports.status_text import render_one_rank, render_status
from rankscope.collector.reports.summary import summarize
from rankscope.collector.reports.terminal_colors import PLAIN
from rankscope.collector.runs.run_end_words import write_end
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.top.board import Board
from rankscope.collector.top.drawing import draw
from rankscope.collector.top.screen_lines import render
from rankscope.collector.top.snapshot_fetch import FetchedRun
from tests.unit.collector.runs.run_stories import Story

FAULT = "loader_delay of 50 ms in the data phase, steps 40 to 400"
STATED = f"Injected on purpose on rank 2: {FAULT}."


def story() -> Story:
    story = Story(4)
    story.faults = {2: FAULT}
    return story.join().train(40)


def slow_story() -> Story:
    return story().train(40, data={2: 50.0})


def test_every_finding_states_the_fault_now_and_once_passed() -> None:
    slow = slow_story()
    (finding,) = slow.snapshot().open_findings
    assert finding.sentence.endswith(f". {STATED}")
    (passed,) = slow.train(60).snapshot().findings
    assert passed.until_step is not None
    assert passed.sentence.endswith(f" {STATED}")


def test_a_run_without_a_fault_states_nothing() -> None:
    snapshot = Story(4).join().train(40).train(40, data={2: 50.0}).snapshot()
    assert snapshot.injected_faults == ""
    assert "purpose" not in snapshot.open_findings[0].sentence
    assert "purpose" not in summarize(snapshot)


def test_status_report_and_screen_state_it_before_any_finding() -> None:
    snapshot = story().snapshot()
    assert snapshot.open_findings == ()
    assert f"\n  {STATED}" in render_status(build_status(snapshot, 4))
    assert f"\n  {STATED}" in render_one_rank(snapshot, snapshot.ranks[0], None)
    assert f"\n{STATED}\n" in summarize(snapshot)
    assert STATED in draw_screen(snapshot)
    assert STATED in draw_screen(slow_story().snapshot())


def test_the_end_of_the_run_states_it() -> None:
    ended = story()
    for rank in range(4):
        ended.say_goodbye(rank, "failed" if rank == 2 else "finished")
    snapshot = ended.tick().snapshot()
    assert snapshot.end is not None
    assert write_end(snapshot.end).endswith(f" {STATED}")
    assert STATED in draw_screen(snapshot)


def test_next_process_of_the_rank_has_no_fault_unless_it_says_so() -> None:
    again = story()
    again.faults = {}
    assert again.restart().train(3).snapshot().injected_faults == ""


def test_faults_are_in_the_order_of_their_ranks() -> None:
    assert describe_faults({}) == ""
    assert describe_faults({7: "exit in the forward of step 3", 2: "crash in the forward of step 4"}) == (
        "Injected on purpose on rank 2: crash in the forward of step 4; on rank 7: exit in the forward of step 3."
    )


def draw_screen(run: RunSnapshot) -> str:
    lines, _ = draw(Board(), FetchedRun(wall_s=0.0, runs=(run.run,), run=run, ranks=()), 240, 24)
    return "\n".join(render(lines, PLAIN))
