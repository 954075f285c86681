"""The collector is killed in the middle of a run and started again at the same port: nothing is lost."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.messages import Goodbye, Report
from rankscope.measure.records import Losses
from tests.integration.serving import (
    DEADLINE_S,
    Served,
    find_fixed_port,
    find_rank,
    have_ended,
    serving,
)
from tests.integration.torchrun import Ended, forked_ranks, started
from tests.integration.wire_tap import Key, WireTap, tapping

RUN = "restarted-collector"
SLOW_RANK = 1
LIVES = 3
SETTINGS = {
    "RANKSCOPE_RUN": RUN,
    "RANKSCOPE_REPORT_INTERVAL_S": "0.1",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.1",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.5",
}


@dataclass
class Story:
    """What was seen of the run: by each collector just before its end, by the witness, and by who started it."""

    pictures: list[RunSnapshot]
    tap: WireTap
    ended: Ended

    @property
    def lives(self) -> dict[int, str]:
        """The boot id of each rank."""
        return {rank: boot_id for boot_id, rank in self.tap.ranks.items()}

    def settled(self, rank: int) -> list[Mapping[int, Report | Goodbye]]:
        """For each collector what it was given by this rank and acknowledged."""
        found = {key: each for key, each in self.tap.delivered.items() if key.boot_id == self.lives[rank]}
        return [found[key].settled for key in sorted(found, key=lambda key: key.collector)]

    def messages(self, rank: int) -> dict[int, Report | Goodbye]:
        """Everything of this rank that some collector has."""
        return {number: message for settled in self.settled(rank) for number, message in settled.items()}

    def reports(self, rank: int) -> list[Report]:
        """The reports among them, in order."""
        return [message for _, message in sorted(self.messages(rank).items()) if isinstance(message, Report)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two ranks, one of them slow, and three collectors one after the other at one port; the first two are killed."""
    stop = tmp_path_factory.mktemp("restart") / "stop"
    port, pictures = find_fixed_port(), []
    with tapping(port) as tap, ExitStack() as ends:
        served = ends.enter_context(serving(listen=f"tcp://127.0.0.1:{port}"))
        command = forked_ranks(
            2, "-m", "rankscope.agent", "paced.py", "--stop", str(stop), "--slow-rank", str(SLOW_RANK)
        )
        job = ends.enter_context(started(command, {**SETTINGS, "RANKSCOPE_COLLECTOR": tap.endpoint}))
        for steps in (15, 30):
            served.wait_for_steps(RUN, steps)
            pictures.append(_kill_with_reports_on_the_way(served, tap))
            served = ends.enter_context(serving(listen=f"tcp://127.0.0.1:{port}"))
        served.wait_for_run(RUN, lambda run: any(finding.rank == SLOW_RANK for finding in run.open_findings))
        stop.touch()
        ended = job.wait()
        pictures.append(served.wait_for_run(RUN, have_ended))
        yield Story(pictures, tap, ended)


def _kill_with_reports_on_the_way(served: Served, tap: WireTap) -> RunSnapshot:
    """Kill a collector when each rank has sent it reports that it has not read, and so not acknowledged."""
    picture = served.wait_for_steps(RUN, 1)
    served.send(signal.SIGSTOP)
    before = {boot_id: tap.passed(boot_id) for boot_id in tap.ranks}
    tap.wait_until(lambda: all(tap.passed(boot_id) >= before[boot_id] + 3 for boot_id in before), DEADLINE_S)
    served.kill()
    tap.collector += 1
    return picture


def test_training_does_not_notice(story: Story) -> None:
    assert story.ended.exit_code == 0, story.ended.stderr
    assert story.ended.left == ()
    assert story.ended.heard_of_agent == []


@pytest.mark.parametrize("rank", [0, 1])
def test_every_report_is_acknowledged_by_a_collector_that_got_it(story: Story, rank: int) -> None:
    messages = story.messages(rank)
    assert story.tap.problems == []
    assert sorted(messages) == list(range(1, max(messages) + 1))
    assert isinstance(messages[max(messages)], Goodbye)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_reports_hold_every_step_once(story: Story, rank: int) -> None:
    reports = story.reports(rank)
    steps = [step for report in reports for step in report.steps.column("step").tolist()]
    assert steps == list(range(reports[-1].totals.steps))
    assert f"rank {rank} has trained {len(steps)} steps" in story.ended.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_itself_has_lost_nothing(story: Story, rank: int) -> None:
    last = story.reports(rank)[-1]
    skipped = last.losses.windows_skipped
    assert last.losses == Losses(windows_skipped=skipped, steps_made=last.totals.steps, steps_buffered=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_collector_begins_where_the_last_one_had_acknowledged(story: Story, rank: int) -> None:
    seen = [find_rank(picture, rank) for picture in story.pictures]
    last_acknowledged = [max(settled) for settled in story.settled(rank)]
    assert [each.first_sequence for each in seen] == [1, *(last + 1 for last in last_acknowledged[:-1])]
    assert [each.report_gaps for each in seen] == [0] * LIVES
    assert [each.identity.boot_id for each in seen] == [story.lives[rank]] * LIVES


@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_collector_counts_what_the_witness_counts(story: Story, rank: int) -> None:
    seen, settled = find_rank(story.pictures[-1], rank), story.settled(rank)[-1]
    assert (seen.first_sequence, seen.last_sequence, seen.reports_admitted) == (
        min(settled),
        max(settled),
        len(settled),
    )
    assert seen.ended == "finished"


@pytest.mark.parametrize("rank", [0, 1])
def test_reports_were_on_the_way_when_a_collector_was_killed(story: Story, rank: int) -> None:
    """Else none of this would show anything: what was sent to it in vain was sent again to the next one."""
    for collector in range(1, LIVES):
        given = story.tap.delivered[Key(story.lives[rank], collector)]
        in_vain = set(given.numbered) - set(given.settled)
        assert len(in_vain) >= 3
        assert in_vain <= set(story.messages(rank))


def test_the_straggler_is_found_again(story: Story) -> None:
    found = story.pictures[-1].findings  # beside the rank, a busy machine may have held up all of them
    assert [finding.rank for finding in found if finding.rank is not None] == [SLOW_RANK]
