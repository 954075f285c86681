"""The state of a run that is over."""

import re

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import ENDED, FINISHED, WENT_ON
from rankscope.collector.reports.summary import HEALTHY, describe_ended_run, verdict
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import CloseFinding
from rankscope.collector.runs.findings import _find_outcome
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.run_end_words import find_failure, write_end
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.saved_runs import restore_run, save_run
from rankscope.measure.records import StepRecord
from tests.run_ticks import tick_run
from tests.unit.collector.runs.run_stories import S, Story
from tests.unit.collector.runs.test_hang_story import LIMIT_S, HangStory

RANKS = 4
SLOW_RANK = 2


def slow_story() -> Story:
    """Steps 0 to 39 as usual; in 40 to 99 one rank's forward takes 30 ms instead of 10."""
    return Story(RANKS).join().train(40).train(60, forward={SLOW_RANK: 30.0})


def finish(story: Story, reason: str = "finished") -> None:
    for rank in range(RANKS):
        story.say_goodbye(rank, reason)
    story.tick()


def test_run_that_goes_on_has_no_end() -> None:
    assert slow_story().snapshot().end is None


def test_findings_are_closed_with_the_run_with_their_period() -> None:
    story = slow_story()
    finish(story)
    run = story.snapshot()
    assert run.open_findings == ()
    (found,) = run.findings
    # Own work of 55 ms against 35 ms; steps of 55 ms and 5 ms of transfer, of which 60 are 3.6 s at most.
    assert found.headline.startswith("Rank 2 (node-a): 1.57x slower than its 3 peers, steps 40-99 (3 s; ")
    assert found.until_step == 99
    assert [effect.reason for effect in story.effects if isinstance(effect, CloseFinding)] == ["the run is over"]


def test_passed_finding_is_closed_while_the_run_goes_on() -> None:
    story = slow_story().train(60)
    (found,) = story.snapshot().findings
    assert "1.57x slower than its 3 peers, steps 40-99" in found.headline
    assert story.snapshot().end is None


def test_finished_run_has_its_end_time_and_no_failure() -> None:
    story = slow_story()
    finish(story)
    end = story.snapshot().end
    assert end is not None
    assert (end.reason, end.ranks, end.first) == ("finished", {"finished": RANKS}, None)
    assert end.ended_wall_s == pytest.approx(-1.0)  # the goodbyes came one second before the tick, at 0 by the wall


def test_healthy_run_that_finished_was_healthy() -> None:
    story = Story(RANKS).join().train(60)
    finish(story)
    assert verdict(story.snapshot()) == HEALTHY


def test_run_too_short_to_compare_is_not_called_healthy() -> None:
    story = Story(RANKS).join().train(5)
    finish(story)
    assert re.match(r"No verdict: \d of 12 comparable steps: ", verdict(story.snapshot()))


def test_run_that_reports_again_is_not_over() -> None:
    config = CollectorConfig(rank_silent_s=2)
    story = Story(RANKS, config).join().train(40).train(60, forward={SLOW_RANK: 30.0})
    story.tick(3.0)
    lost = story.snapshot()
    assert lost.end is not None
    assert (lost.end.reason, lost.end.lost_ranks, lost.open_findings) == ("not_heard", (0, 1, 2, 3), ())
    story.train(1, forward={SLOW_RANK: 30.0})
    back = story.snapshot()
    assert back.end is None
    assert [finding.number for finding in back.open_findings] == [1]


def test_restart_revokes_the_end() -> None:
    story = slow_story()
    finish(story, "failed")
    assert story.snapshot().end is not None
    story.restart().tick()
    assert story.snapshot().end is None


def test_next_collector_knows_the_end_that_was_kept() -> None:
    story = slow_story()
    finish(story, "failed")
    clocks = Clocks(story.now_ns, 0.0)
    saved = save_run(story.run, clocks)
    assert saved is not None
    before = saved.run.end
    lives = [saved.save_rank(rank, clocks)() for rank in saved.ranks]
    run = restore_run(CollectorConfig(), saved.run, saved.story, lives, clocks)
    tick_run(run, story.now_ns + S, 1.0)
    after = run.ending.end
    assert before is not None
    assert after is not None
    assert (after.reason, after.first) == (before.reason, before.first)


def test_hang_lasted_until_the_run_was_ended() -> None:
    story = HangStory(RANKS)
    story.join()
    story.move(7)
    story.hang(2, LIMIT_S + 1)
    for rank in range(RANKS):
        story.end(rank, "terminated")
    story.tick()
    (hang,) = story.snapshot().findings
    assert hang.headline.endswith(", until the run ended: rank 2 (node-a) stalled at train.py:74 (main)")
    assert hang.severity == "critical"


def test_standstill_after_which_the_run_finished_is_no_hang() -> None:
    story = HangStory(RANKS)
    story.join()
    story.move(7)
    story.hang(2, LIMIT_S + 1)
    finish(story)
    (hang,) = story.snapshot().findings
    assert hang.severity == "info"
    assert hang.headline.startswith("Stall for 31 s (")
    assert ", then the run finished: rank 2" in hang.headline


def test_hang_until_the_end_is_closed_with_its_outcome() -> None:
    story = HangStory(RANKS)
    story.join()
    story.move(7)
    story.hang(2, LIMIT_S + 1)
    for rank in range(RANKS):
        story.end(rank, "terminated")
    story.tick()
    (closed,) = [effect for effect in story.effects if isinstance(effect, CloseFinding)]
    assert (closed.reason, closed.finding) == ("the run is over", story.snapshot().findings[0])


def test_hang_that_passed_did_not_last_until_the_end() -> None:
    """It went on within its step, an hour of evaluation for example."""
    story = HangStory(RANKS)
    story.join()
    story.move(7)
    story.hang(2, LIMIT_S + 1)
    story.move(3_000)
    for rank in range(RANKS):
        story.end(rank, "terminated")
    story.tick()
    (hang,) = story.snapshot().findings
    assert hang.headline.startswith("Hang for 31 s (")


@pytest.mark.parametrize(
    ("since_step", "last_step", "is_good", "has_lasted", "outcome"),
    [
        (30, 31, True, False, WENT_ON),
        (30, 31, False, False, WENT_ON),
        (30, 30, True, True, FINISHED),
        (30, 29, False, True, ENDED),
        (30, 29, False, False, ""),
        (None, None, False, True, ENDED),
        # It hung before its first step had ended, and then made a hundred.
        (None, 99, True, False, WENT_ON),
        (None, None, True, False, FINISHED),
        # Whether the step in which it hung was finished before the end or by it is not known.
        (30, 30, False, True, ""),
    ],
)
def test_only_another_step_shows_that_a_run_went_on(
    since_step: int | None, last_step: int | None, is_good: bool, has_lasted: bool, outcome: str
) -> None:
    end = RunEnd(reason="finished" if is_good else "crashed")
    assert _find_outcome(since_step, end, last_step, has_lasted=has_lasted) == outcome


def test_ranks_that_have_finished_are_said_to_have_reported() -> None:
    """Neither by the last pass of detection, of which one was not there yet, nor by the next one."""
    story = Story(2).join(0)
    story.report(0, [StepRecord(step=step, start_host_ns=0, duration_ns=S, phases_ns={}) for step in range(20)], [])
    story.tick().join(1).say_goodbye(0).say_goodbye(1)
    for known in ("no steps of 1 of 2 ranks are known", "0 of 12 comparable steps: those with the own times of all 2"):
        run = story.snapshot()
        assert build_status(run, worst_max=0).states == {"finished": 2}
        assert str(run.abstained).startswith(known)
        told = [verdict(run), *run.not_judged.values(), *describe_ended_run(run)]
        assert not [text for text in told if "ranks" in text and "reported" in text]
        story.tick()


@pytest.mark.parametrize("line", ["", "train.py:24 (step)"])
def test_crash_is_put_on_no_hardware(line: str) -> None:
    """It may have come of a profiler session of the agent's own."""
    first = FirstToFail(rank=1, node="n0", reason="crashed", signal="SIGSEGV", line=line, last_step=30)
    end = RunEnd(reason="crashed", ranks={"crashed": 1}, first=first)
    found = find_failure(end)
    assert found is not None
    told = " ".join((write_end(end), found.sentence, found.why, found.suggestion))
    assert not re.search(r"\b(Xid|GPU|hardware|memory error|ECC)\b", told), told
    assert "RANKSCOPE_COLLECTIVE_WINDOWS=false and RANKSCOPE_FULL_WINDOWS=false" in found.suggestion
