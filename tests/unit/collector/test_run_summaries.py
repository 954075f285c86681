"""Which ranks are sent summaries, and when."""

import pytest

from rankscope.agent.run_report import STALE_NS
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.exchange import SendToRank
from rankscope.collector.run_summaries import SUMMARY_NS, SUMMARY_TICKS, RunSummaries
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.measure.clock import SystemClock
from rankscope.measure.messages import RunSummary
from rankscope.measure.units import NS_PER_S
from tests.unit.collector.runs.run_stories import Story, boot_of


class Sent:
    """What was sent to whom, at each tick."""

    def __init__(self, *stories: Story) -> None:
        self.stories = stories
        self.messages: list[tuple[str, RunSummary]] = []
        self.faults = FaultLog(SystemClock())
        self.summaries = RunSummaries(self._keep, self.faults)
        self.now_ns = 0

    def _keep(self, sent: SendToRank) -> None:
        assert isinstance(sent.message, RunSummary)
        self.messages.append((sent.boot_id, sent.message))

    def tick(self, count: int = 1, tick_ns: int = NS_PER_S) -> list[str]:
        """Tick so often, so far apart; return the boot ids that have been sent a summary meanwhile."""
        self.messages.clear()
        runs: list[RunState] = [story.run for story in self.stories]
        for _ in range(count):
            snapshot = Snapshot(wall_s=0.0, version="", runs=[run.lazy_snapshot(10**10) for run in runs])
            self.now_ns += tick_ns
            self.summaries.tick(self.now_ns, runs, snapshot)
        return [boot_id for boot_id, _ in self.messages]


def story_of(*, wants_summary: bool) -> Story:
    story = Story(2)
    story.wants_summaries = wants_summary
    return story.join().train(10)


def test_rank_0_is_sent_one_every_tenth_tick() -> None:
    sent = Sent(story_of(wants_summary=True))
    assert sent.tick(SUMMARY_TICKS - 1) == []
    assert sent.tick() == [boot_of(0)]
    assert sent.tick(SUMMARY_TICKS) == [boot_of(0)]


@pytest.mark.parametrize("tick_s", [0.05, 0.5, 1.0, 3.0, 6.0, 7.0, 10.0, 30.0])
def test_summary_never_grows_stale_however_long_ticks_are(tick_s: float) -> None:
    sent, tick_ns = Sent(story_of(wants_summary=True)), round(tick_s * NS_PER_S)
    sent.tick(1, tick_ns)
    came_ns, gaps_ns = sent.now_ns, []
    for _ in range(40):
        if sent.tick(1, tick_ns):
            gaps_ns.append(sent.now_ns - came_ns)
            came_ns = sent.now_ns
    assert gaps_ns, "none came"
    assert max(gaps_ns) < STALE_NS
    assert max(gaps_ns) < SUMMARY_NS + tick_ns


def test_first_summary_covers_all_steps_and_later_ones_new_steps() -> None:
    sent = Sent(story_of(wants_summary=True))
    sent.tick(SUMMARY_TICKS)
    ((_, first),) = sent.messages
    assert first.data_wait_ratio is not None
    sent.tick(SUMMARY_TICKS)
    ((_, second),) = sent.messages
    assert (second.data_wait_ratio, second.absent["data_wait_ratio"]) == (
        None, "no step has been reported since the summary before",
    )  # fmt: skip


def test_rank_0_that_does_not_want_one_is_sent_none() -> None:
    assert Sent(story_of(wants_summary=False)).tick(SUMMARY_TICKS) == []


def test_rank_0_that_has_ended_is_sent_none() -> None:
    story = story_of(wants_summary=True)
    assert Sent(story.say_goodbye(0)).tick(SUMMARY_TICKS) == []


def test_run_whose_summary_fails_costs_the_others_nothing() -> None:
    broken, whole = story_of(wants_summary=True), story_of(wants_summary=True)
    whole.run.run = "other"
    sent = Sent(whole)
    runs = [broken.run, whole.run]
    # The snapshot lacks the first run.
    for _ in range(SUMMARY_TICKS):
        sent.summaries.tick(0, runs, Snapshot(wall_s=0.0, version="", runs=[whole.run.lazy_snapshot(10**10)]))
    assert [boot_id for boot_id, _ in sent.messages] == [boot_of(0)]
    assert sent.faults.counts == {"summary": 1}
