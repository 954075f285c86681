"""Where the time of a run went, by a driven clock. Times in s, so small that they add up in one's head."""

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.events import ReportAdmitted
from rankscope.collector.runs.goodput import LOST_STEPS_KEPT, Goodput, GoodputSnapshot
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.messages import Report
from rankscope.measure.records import Totals
from tests.unit.collector.runs.run_stories import MS, TRANSFER_NS, S, Story, boot_of

BEGIN = 1_000


def account() -> Goodput:
    """Of a run whose first rank joined at BEGIN."""
    goodput = Goodput(hold_ns=0)
    goodput.begin(BEGIN)
    return goodput


def stepping() -> Goodput:
    """Of a run that took 10 s to start and had made 5 s of steps at BEGIN + 15."""
    goodput = account()
    goodput.add_steps(BEGIN + 15, 5)
    return goodput


def spent(goodput: Goodput, now: int) -> dict[str, int]:
    """What is not 0, without the wall."""
    found = goodput.snapshot(now)
    names = ("productive", "slow", "startup", "between_steps", "stalled", "restart", "unreported")
    parts = {name: int(getattr(found, f"{name}_ns")) for name in names}
    assert sum(parts.values()) == found.wall_ns
    return {name: value for name, value in parts.items() if value}


def test_nothing_is_known_of_a_run_that_has_not_begun() -> None:
    assert Goodput().snapshot(BEGIN) == GoodputSnapshot()
    assert GoodputSnapshot().goodput_ratio is None


def test_only_the_first_rank_begins_the_run() -> None:
    goodput = account()
    goodput.begin(BEGIN + 7)
    assert spent(goodput, BEGIN + 10) == {"unreported": 10}


def test_steps_of_bunched_reports_fill_the_gap_before_them() -> None:
    # A healthy run makes 10 s of steps in 10 s. Its collector does not run from 20 to 45, and then gets 25 reports.
    goodput = Goodput()
    goodput.begin(0)
    for second in (*range(1, 21), *[45] * 25):
        if second == 45 and goodput.snapshot(45 * S).productive_ns == 21 * S:
            assert spent(goodput, 45 * S) == {"productive": 21 * S, "unreported": 24 * S}
        goodput.add_steps(second * S, S)
    assert spent(goodput, 45 * S) == {"productive": 45 * S}


def test_dropped_reports_leave_their_steps_in_the_totals() -> None:
    goodput = Goodput()
    goodput.begin(0)
    goodput.add_steps(10 * S, 10 * S)
    goodput.add_steps(110 * S, 95 * S)  # the agent kept none of the reports of 100 s
    assert spent(goodput, 111 * S) == {"productive": 105 * S, "unreported": 6 * S}


def test_gap_that_no_report_fills_was_between_steps() -> None:
    goodput = Goodput()
    goodput.begin(0)
    for second in (10, 40, 45, 50, 55):
        goodput.add_steps(second * S, 5 * S)
    assert spent(goodput, 55 * S) == {"startup": 5 * S, "productive": 25 * S, "between_steps": 25 * S}


def test_gap_is_not_reported_while_it_may_be_filled() -> None:
    goodput = Goodput()
    goodput.begin(0)
    for second in (10, 40, 45):
        goodput.add_steps(second * S, 5 * S)
    assert spent(goodput, 45 * S) == {"startup": 5 * S, "productive": 15 * S, "unreported": 25 * S}
    goodput.mark_stalled(60 * S)
    assert spent(goodput, 60 * S)["between_steps"] == 25 * S


def test_time_before_the_first_step_is_start_up() -> None:
    assert spent(stepping(), BEGIN + 15) == {"startup": 10, "productive": 5}
    assert stepping().snapshot(BEGIN + 15).goodput_ratio == 5 / 15


def test_steps_before_the_collector_came_are_not_counted() -> None:
    goodput = account()
    goodput.add_steps(BEGIN + 2, 5_000)
    goodput.add_steps(BEGIN + 12, 4)
    assert spent(goodput, BEGIN + 12) == {"productive": 2 + 4, "between_steps": 6}


def test_steps_kept_for_a_late_collector_count_as_reported() -> None:
    goodput = Goodput(hold_ns=10)
    goodput.begin(BEGIN)
    goodput.add_steps(BEGIN + 1, 40, reported_ns=40)
    goodput.add_steps(BEGIN + 2, 5_000, reported_ns=30)  # the others were lost: what they have cost is not known
    assert spent(goodput, BEGIN + 2)["productive"] == 40 + 30 + 1
    goodput.add_steps(BEGIN + 20, 500, reported_ns=500)  # too late to have waited for the collector
    assert spent(goodput, BEGIN + 20)["productive"] == 40 + 30 + 1 + 18
    goodput.validate()


def test_time_that_no_step_fills_is_between_steps() -> None:
    goodput = stepping()
    goodput.add_steps(BEGIN + 25, 8)
    assert spent(goodput, BEGIN + 26) == {"startup": 10, "productive": 13, "between_steps": 2, "unreported": 1}


def test_owed_step_time_is_settled_later() -> None:
    goodput = stepping()
    goodput.add_steps(BEGIN + 16, 3)  # 2 more than there was time for
    assert spent(goodput, BEGIN + 16)["productive"] == 5 + 1
    goodput.add_steps(BEGIN + 22, 3)
    assert spent(goodput, BEGIN + 22) == {"startup": 10, "productive": 5 + 1 + 5, "between_steps": 1}


def test_earlier_report_does_not_reduce_the_time() -> None:
    goodput = stepping()
    goodput.add_steps(BEGIN + 12, 0)
    assert spent(goodput, BEGIN + 15) == {"startup": 10, "productive": 5}


def test_stall_lasts_from_last_step_to_next_report() -> None:
    goodput = stepping()
    for now in (50, 60):
        goodput.mark_stalled(BEGIN + now)
    assert spent(goodput, BEGIN + 61) == {"startup": 10, "productive": 5, "stalled": 45, "unreported": 1}
    goodput.add_steps(BEGIN + 63, 48)  # the step that stalled
    goodput.add_steps(BEGIN + 65, 2)
    assert spent(goodput, BEGIN + 65) == {"startup": 10, "productive": 7, "stalled": 48}


def test_restart_lasts_from_last_step_to_next_first_step() -> None:
    goodput = stepping()
    goodput.restart(BEGIN + 20)
    goodput.add_steps(BEGIN + 40, 6)
    assert spent(goodput, BEGIN + 40) == {"startup": 10, "productive": 11, "restart": 19}


def test_attempt_that_never_made_a_step_was_start_up() -> None:
    goodput = account()
    goodput.restart(BEGIN + 20)
    goodput.add_steps(BEGIN + 30, 4)
    assert spent(goodput, BEGIN + 30) == {"startup": 20, "restart": 6, "productive": 4}


def test_time_stops_when_the_run_is_over() -> None:
    goodput = stepping()
    goodput.end(BEGIN + 18)
    goodput.end(BEGIN + 30)
    goodput.mark_stalled(BEGIN + 30)
    goodput.add_steps(BEGIN + 30, 5)
    assert spent(goodput, BEGIN + 99) == {"startup": 10, "productive": 5, "between_steps": 3}


@pytest.mark.parametrize(("doing", "part"), [("mark_stalled", "stalled"), ("restart", "restart")])
def test_what_a_run_did_last_it_did_to_its_end(doing: str, part: str) -> None:
    goodput = stepping()
    getattr(goodput, doing)(BEGIN + 20)
    goodput.end(BEGIN + 22)
    assert spent(goodput, BEGIN + 99) == {"startup": 10, "productive": 5, part: 7}


def test_run_that_ended_and_is_restarted_goes_on() -> None:
    goodput = stepping()
    goodput.end(BEGIN + 18)
    goodput.restart(BEGIN + 28)
    goodput.add_steps(BEGIN + 30, 1)
    assert spent(goodput, BEGIN + 30) == {"startup": 10, "productive": 6, "between_steps": 3, "restart": 11}


def test_slow_time_is_at_most_the_time_in_steps() -> None:
    goodput = stepping()
    goodput.add_loss([7, 8], [1.2, 0.9])
    assert spent(goodput, BEGIN + 15) == {"startup": 10, "productive": 3, "slow": 2}
    goodput.add_loss([9], [100.0])
    assert spent(goodput, BEGIN + 15) == {"startup": 10, "slow": 5}
    assert goodput.snapshot(BEGIN + 15).steps_ns == 5


def test_step_of_several_findings_is_lost_once() -> None:
    goodput = stepping()
    goodput.add_loss([7, 8], [1.0, 2.0])
    goodput.add_loss([7, 8], [2.0, 1.0])
    assert spent(goodput, BEGIN + 15)["slow"] == 2 + 2


def test_same_step_number_of_another_attempt_is_another_step() -> None:
    goodput = stepping()
    goodput.add_loss([7], [2.0])
    goodput.restart(BEGIN + 15)
    goodput.add_loss([7], [2.0])
    assert spent(goodput, BEGIN + 15)["slow"] == 4


def test_what_was_lost_is_remembered_of_the_last_steps_only() -> None:
    goodput = account()
    goodput.add_steps(BEGIN + 10 * LOST_STEPS_KEPT, 10 * LOST_STEPS_KEPT)
    goodput.add_loss(range(LOST_STEPS_KEPT + 1), [1.0] * (LOST_STEPS_KEPT + 1))
    # The newer half is known, the older one is not any more.
    goodput.add_loss([0, LOST_STEPS_KEPT], [1.0, 1.0])
    assert spent(goodput, BEGIN)["slow"] == LOST_STEPS_KEPT + 1 + 1


# -- as a run feeds it ------------------------------------------------------------------------------------------------


def spent_ms(story: Story) -> dict[str, float]:
    found = story.snapshot().goodput
    names = ("productive", "slow", "startup", "between_steps", "stalled", "restart", "unreported")
    parts = {name: int(getattr(found, f"{name}_ns")) for name in names}
    assert sum(parts.values()) == found.wall_ns
    return {name: value / MS for name, value in parts.items() if value}


STEP_MS = 30 + TRANSFER_NS / MS
"""10 ms each of data, forward and backward."""


def test_run_that_trains_has_its_steps_as_productive_time() -> None:
    story = Story(4).join()
    story.now_ns += 2 * S
    story.train(10)  # and a tick 1 s later
    assert spent_ms(story) == {"startup": 2_000, "productive": 10 * STEP_MS, "unreported": 1_000}


def test_steps_count_to_their_end_in_a_late_report() -> None:
    story = Story(2).join().train(10)
    # The tick after the first ten took 1 s in which nothing was reported: so far it is not known.
    story.train(10)
    assert spent_ms(story) == {"productive": 20 * STEP_MS, "unreported": 2_000}


def test_restart_of_a_run_is_restart_until_its_first_step() -> None:
    story = Story(2).join().train(10).restart()
    story.now_ns += 3 * S
    story.train(4)
    assert spent_ms(story) == {"productive": 14 * STEP_MS, "restart": 4_000, "unreported": 1_000}


def test_run_is_over_when_its_last_rank_ended() -> None:
    story = Story(2).join().train(10)
    story.say_goodbye(0).tick(2)
    story.say_goodbye(1).tick(50)
    assert spent_ms(story) == {"productive": 10 * STEP_MS, "between_steps": 3_000}


def test_stalled_rank_stalls_the_run() -> None:
    story = Story(2).join().train(10)
    stalled = Report(sequence=2, host_ns=story.now_ns, stalled_since_host_ns=0, totals=Totals())
    story.run.apply(ReportAdmitted(boot_of(0), ReportFields.of(stalled), story.now_ns, 0.0))
    story.tick(2)
    assert spent_ms(story) == {"productive": 10 * STEP_MS, "stalled": 3_000}


def test_what_a_slow_rank_costs_is_slow_time() -> None:
    story = Story(4, CollectorConfig()).join()
    for _ in range(7):
        story.train(8, forward={2: 40.0})
    slow = story.snapshot().goodput.slow_ns
    (finding,) = story.snapshot().open_findings
    # The first three steps of a run are nobody's slowness; in each of the others 30 of 65 ms are lost.
    assert slow / MS == pytest.approx(53 * 30)
    assert slow / S * 4 == pytest.approx(finding.lost_rank_seconds)
