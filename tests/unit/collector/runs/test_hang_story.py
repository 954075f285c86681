"""Hangs as the collector finds them: from reports, notices of sidecars, and time."""

import msgspec
import pytest

from rankscope.collector.runs.events import (
    ClockSampled,
    CloseFinding,
    EndSeen,
    FindingOpened,
    InspectorSeen,
    RasSeen,
    ReportAdmitted,
    UnresponsiveSeen,
    UpdateFinding,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Report
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import InspectorRead, RankEnded, RankUnresponsive, RasAnswered
from rankscope.measure.records import GroupInfo
from tests.unit.collector.detect.hang_states import call, progress_of, stall_of
from tests.unit.collector.runs.run_stories import GROUP, S, Story, boot_of

RANKS = 4
LIMIT_S = 30.0
INTERVAL_S = 1.0


class HangStory(Story):
    """A run whose ranks report every second how far they are, by clocks that started at other times."""

    def say(self, rank: int, enqueued: int, completed: int, **known: object) -> None:
        """One report, without steps."""
        self.sequence[rank] += 1
        report = Report(
            sequence=self.sequence[rank],
            host_ns=self.host_ns(rank),
            progress=progress_of({GROUP: (enqueued, completed)}),
            groups=(GroupInfo(label=GROUP, description=GROUP, ranks=tuple(range(self.ranks)), backend="gloo"),),
            **known,  # type: ignore[arg-type]
        )
        self.run.apply(ReportAdmitted(boot_of(rank, self.life), ReportFields.of(report), self.now_ns, 0.0))

    def host_ns(self, rank: int) -> int:
        return self.now_ns + rank * 1_000 * S

    def say_stalled(self, rank: int, stalled_s: float, *, is_waiting: bool, activity: str = "other") -> None:
        """One report of a rank that has been stalled for so long."""
        pending = (call(sequence=8),) if is_waiting else ()
        stall = msgspec.structs.replace(
            stall_of("collective" if is_waiting else activity, pending), limit_ns=round(LIMIT_S * S)
        )
        since_host_ns = self.host_ns(rank) - round(stalled_s * S)
        self.say(rank, 7 + is_waiting, 7, stall=stall, stalled_since_host_ns=since_host_ns)

    def hang(self, missing: int, stalled_s: float, *others_said: int, activity: str = "other") -> "HangStory":
        """Everybody's report while rank `missing` does not enter, or only those of some ranks; then a look."""
        for rank in others_said or range(self.ranks):
            self.say_stalled(rank, stalled_s, is_waiting=rank != missing, activity=activity)
        self.tick(INTERVAL_S)
        return self

    def move(self, completed: int) -> "HangStory":
        """Everybody's report while the run moves; then a look."""
        for rank in range(self.ranks):
            self.say(rank, completed, completed)
        self.tick(INTERVAL_S)
        return self

    def identity(self, rank: int) -> RankIdentity:
        return self.snapshot().ranks[rank].identity

    def end(self, rank: int, reason: str = "killed") -> None:
        seen = RankEnded(
            sequence=1,
            identity=self.identity(rank),
            host_ns=self.host_ns(rank),
            wall_ns=0,
            reason=reason,
            detail="SIGKILL",
        )
        self.run.apply(EndSeen(boot_of(rank, self.life), seen, self.now_ns))

    def hangs(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(one.cause, one.ranks) for one in self.snapshot().open_findings if one.kind == "hang"]


@pytest.fixture
def story() -> HangStory:
    story = HangStory(RANKS)
    story.join()
    story.move(7)
    return story


def test_hang_is_found_with_the_first_stalled_reports(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1)
    assert story.hangs() == [("missing_rank", (2,))]
    (finding,) = story.snapshot().open_findings
    assert (finding.kind, finding.severity, finding.number) == ("hang", "critical", 1)
    assert finding.what == "rank 2 (node-a) stalled at train.py:74 (main)"
    assert finding.why.startswith("3 ranks waiting for it")
    assert finding.sentence.count("31.0 s") == 1


def test_hang_is_found_once_the_missing_rank_reports_a_stall(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1, 0, 1, 3)
    assert story.hangs() == []
    story.hang(2, LIMIT_S + 2)
    assert story.hangs() == [("missing_rank", (2,))]


def test_one_hang_is_one_finding_from_its_begin_to_its_end(story: HangStory) -> None:
    for second in range(1, 10):
        story.hang(2, LIMIT_S + second)
    story.move(8)
    story.move(9)
    told = [effect for effect in story.effects if isinstance(effect, FindingOpened | UpdateFinding | CloseFinding)]
    assert [type(effect) for effect in told] == [FindingOpened, CloseFinding]
    assert story.hangs() == []
    assert [one.cause for one in story.snapshot().findings] == ["missing_rank"]


def test_wait_for_data_becomes_critical_after_ten_limits(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1, activity="data")
    assert story.hangs() == [("data_wait", (2,))]
    story.hang(2, 10 * LIMIT_S + 1, activity="data")
    assert story.hangs() == [("missing_rank", (2,))]
    # One finding, which has changed.
    assert [(one.number, one.severity) for one in story.snapshot().findings] == [(1, "critical")]


@pytest.mark.parametrize("activity", ["checkpoint", "compile", "import"])
def test_so_do_checkpoints_and_compilations(story: HangStory, activity: str) -> None:
    story.hang(2, LIMIT_S + 1, activity=activity)
    assert story.hangs() == [("busy_rank", (2,))]
    story.hang(2, 10 * LIMIT_S + 1, activity=activity)
    assert story.hangs() == [("missing_rank", (2,))]
    assert [(one.number, one.severity) for one in story.snapshot().findings] == [(1, "critical")]


def test_checkpoint_that_ends_leaves_a_pause_that_is_over(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1, activity="checkpoint")
    story.move(8)
    (finding,) = story.snapshot().findings
    assert not story.snapshot().open_findings
    assert finding.what == "rank 2 (node-a) busy without training in main at train.py:74 (checkpoint)"


def test_rank_killed_before_the_hang_is_its_cause(story: HangStory) -> None:
    story.end(1)
    story.tick(LIMIT_S)
    story.hang(1, LIMIT_S + 0.5, 0, 2, 3)
    assert story.hangs() == [("dead_rank", (1,))]


def test_a_death_is_dated_by_the_clocks_of_the_ranks(story: HangStory) -> None:
    for rank in range(RANKS):
        sample = ClockSampled(boot_of(rank), story.now_ns, story.host_ns(rank), story.now_ns)
        story.run.apply(sample)
    story.end(1)
    story.tick(LIMIT_S)
    story.hang(1, LIMIT_S, 0, 2, 3)
    assert story.hangs() == [("dead_rank", (1,))]


def test_ends_caused_by_a_hang_do_not_change_it(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1)
    story.tick(60.0)
    for rank in (0, 1, 3):
        story.end(rank, "collective_timeout")
        story.hang(2, LIMIT_S + 62, 2)
        assert story.hangs() == [("missing_rank", (2,))]
    story.end(2, "terminated")
    story.tick()
    assert story.hangs() == []
    assert [one.ranks for one in story.snapshot().findings] == [(2,)]


def test_a_rank_whose_machine_is_gone_is_silent_and_not_dead(story: HangStory) -> None:
    for _ in range(20):
        story.tick()
        for rank in (0, 1, 3):
            story.say(rank, 8, 7)
    story.hang(2, LIMIT_S + 1, 0, 1, 3)
    assert story.hangs() == [("silent_rank", (2,))]


def test_unresponsive_rank_is_missing_by_its_sidecar(story: HangStory) -> None:
    seen = RankUnresponsive(
        sequence=1,
        identity=story.identity(2),
        host_ns=story.host_ns(2) + 1,
        since_host_ns=story.host_ns(2) - 20 * S,
        state="S",
        progress=progress_of({GROUP: (7, 7)}),
    )
    story.run.apply(UnresponsiveSeen(boot_of(2), seen, story.now_ns))
    story.hang(2, LIMIT_S + 1, 0, 1, 3)
    assert story.hangs() == [("missing_rank", (2,))]


def test_an_elastic_restart_closes_the_hang(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1)
    story.restart()
    story.tick()
    assert story.hangs() == []


def test_a_job_that_is_not_stalled_costs_detection_nothing(story: HangStory) -> None:
    assert story.hangs() == []
    assert [effect for effect in story.effects if isinstance(effect, FindingOpened)] == []


# -- NCCL's RAS service -----------------------------------------------------------------------------------------------


def answer(story: HangStory, *pids: int, ago_s: float = 0.0, is_own: bool | None = True) -> None:
    """RAS was asked so long ago, and found these processes behind. Rank r of the story is process 1,000 + r."""
    behind = tuple(
        RasRank(communicator_rank=7, state="behind", host="h", pid=pid, launched=1, furthest=2) for pid in pids
    )
    answered = RasAnswered(
        sequence=1,
        identity=story.identity(0),
        host_ns=story.host_ns(0) - round(ago_s * S),
        stalled_since_host_ns=0,
        communicators_total=1,
        communicators=(RasCommunicator(name="ab", size=4, ranks=behind),),
        is_own=is_own,
    )
    story.run.apply(RasSeen(boot_of(0), answered, story.now_ns))


def sentence_of(story: HangStory) -> str:
    (finding,) = story.snapshot().open_findings
    return finding.sentence


def test_nccl_answer_joins_the_finding_under_the_rank_of_the_run(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1)
    assert "NCCL RAS" not in sentence_of(story)
    answer(story, 1_002)
    story.hang(2, LIMIT_S + 2)
    assert "NCCL RAS agreed: rank 2 had launched 1 operation, where another rank had launched 2," in sentence_of(story)
    assert story.hangs() == [("missing_rank", (2,))]


def test_nccl_dumps_join_the_finding_once_they_are_of_the_stall(story: HangStory) -> None:
    story.hang(2, LIMIT_S + 1)
    for ago_s, is_said in ((LIMIT_S, False), (0.0, True)):
        for rank in range(4):
            story.run.apply(ClockSampled(boot_of(rank), story.now_ns, story.host_ns(rank), story.now_ns))
            read = InspectorRead(
                sequence=1,
                identity=story.identity(rank),
                host_ns=story.host_ns(rank) - round(ago_s * S),
                communicators=(
                    InspectorCommunicator(id="0xab", size=4, last_op="AllReduce", last_sequence=41 - (rank == 2)),
                ),
            )
            story.run.apply(InspectorSeen(boot_of(rank), read, story.now_ns))
        story.hang(2, LIMIT_S + 2)
        said = "NCCL Inspector's dumps agreed: rank 2 had last completed AllReduce 40 in a communicator of 4 ranks"
        assert (said in sentence_of(story)) == is_said
    assert story.hangs() == [("missing_rank", (2,))]


def test_process_not_surely_a_rank_keeps_its_communicator_rank(story: HangStory) -> None:
    for pids, is_own in (((9_999,), True), ((1_002,), None)):
        answer(story, *pids, is_own=is_own)
        story.hang(2, LIMIT_S + 1)
        assert f"not known: communicator rank 7 (process {pids[0]} on h) had launched" in sentence_of(story)
