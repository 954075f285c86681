"""Whether a rank runs, hangs or has ended, from messages that come in any order."""

from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest

from rankscope.collector.runs.clock_alignment import ClockAlignment
from rankscope.collector.runs.liveness import GONE_NS_MIN, Ending, Liveness, conclude
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.messages import Goodbye, Report
from rankscope.measure.node_messages import RankEnded, RankUnresponsive
from rankscope.measure.stalls import EXCUSED_FACTOR, GroupStatus, Stall

S = 1_000_000_000
IDENTITY = RankIdentity(
    run=RunId("bert"), rank=1, local_rank=1, world_size=4, node="n0", restart_count=0, boot_id=BootId("boot-of-1"),
    pid=7,
)  # fmt: skip


def goodbye(reason: str, exit_code: int | None = None) -> Goodbye:
    return Goodbye(sequence=9, reason=reason, detail="what it said", exit_code=exit_code)


def seen(reason: str, *, at_host_ns: int = 0, exit_code: int | None = None, signal: int | None = None) -> RankEnded:
    return RankEnded(
        sequence=1, identity=IDENTITY, host_ns=at_host_ns, wall_ns=0, reason=reason, detail="what was seen",
        exit_code=exit_code, signal=signal,
    )  # fmt: skip


def frozen(at_host_ns: int) -> RankUnresponsive:
    return RankUnresponsive(sequence=1, identity=IDENTITY, host_ns=at_host_ns, since_host_ns=0, state="T")


def report(at_host_ns: int, stalled_since_host_ns: int | None = None, stall: Stall | None = None) -> ReportFields:
    said = Report(sequence=1, host_ns=at_host_ns, stalled_since_host_ns=stalled_since_host_ns, stall=stall)
    return ReportFields.of(said)


def stall_in(activity: str) -> Stall:
    return Stall(number=1, since_host_ns=0, taken_host_ns=30 * S, limit_ns=30 * S, activity=activity)


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "found", "reason", "detail", "exit_code"),
    [
        (goodbye("finished"), None, "finished", "what it said", None),
        (None, seen("crashed", signal=11), "crashed", "what was seen", None),
        # A rank that raised, and that the launcher then ended: it had failed by then.
        (goodbye("failed", 1), seen("terminated", signal=15), "failed", "what it said", 1),
        (goodbye("failed", 1), seen("failed", exit_code=1), "failed", "what it said", 1),
        (goodbye("interrupted", 1), seen("killed", signal=9), "interrupted", "what it said", 1),
        # Its goodbye was not heard by everybody, but it ended as it said.
        (goodbye("finished"), seen("finished", exit_code=0), "finished", "what it said", 0),
        (goodbye("stopped"), seen("finished", exit_code=0), "stopped", "what it said", 0),
        # Its launcher reaped it before the sidecar could read how it ended.
        (goodbye("finished"), seen("exit_unknown"), "finished", "what it said", None),
        (goodbye("failed", 1), seen("exit_unknown"), "failed", "what it said", 1),
        (None, seen("exit_unknown"), "exit_unknown", "what was seen", None),
        # Destructors of the interpreter's end crash after the script is over.
        (goodbye("finished"), seen("crashed", signal=11), "crashed", "after it had finished: what was seen", None),
        # The script has left with a status of its own, which its exit handlers do not see; or one of these has.
        (goodbye("finished"), seen("failed", exit_code=3), "failed", "what was seen; its agent had seen no error", 3),
        (goodbye("stopped"), seen("failed", exit_code=3), "failed", "after it had stopped: what was seen", 3),
    ],
)
def test_goodbye_and_notice_make_one_end(
    said: Goodbye | None, found: RankEnded | None, reason: str, detail: str, exit_code: int | None
) -> None:
    ending = conclude(said, found)
    assert ending is not None
    assert (ending.reason, ending.detail, ending.exit_code) == (reason, detail, exit_code)


@pytest.mark.parametrize("found", [None, seen("terminated", signal=15)])
def test_line_that_raised_is_kept_whatever_ended_the_process(found: RankEnded | None) -> None:
    said = Goodbye(sequence=9, reason="failed", detail="ValueError", exit_code=1, line="train.py:24 (main)")
    ending = conclude(said, found)
    assert ending is not None
    assert ending.line == "train.py:24 (main)"


def test_order_of_messages_about_an_end_does_not_matter() -> None:
    tellings: list[Callable[[Liveness], Liveness]] = [
        lambda liveness: liveness.record_goodbye(goodbye("failed", 1), 5 * S),
        lambda liveness: liveness.record_end(seen("terminated", signal=15), ClockAlignment(), 6 * S),
        lambda liveness: liveness.record_process_gone(4 * S),
    ]
    for order in permutations(tellings):
        liveness = Liveness()
        for tell in order:
            liveness = tell(liveness)
        assert liveness.ending == Ending("failed", "what it said", 1)
        assert liveness.ended_collector_ns == 5 * S


def test_process_is_gone_after_a_while() -> None:
    liveness = Liveness()
    liveness = liveness.record_process_gone(10 * S)
    liveness = liveness.record_process_gone(10 * S + GONE_NS_MIN - 1)
    assert liveness.ending is None
    liveness = liveness.record_process_gone(10 * S + GONE_NS_MIN)
    assert liveness.ending == Ending("exit_unknown", "", None)
    assert liveness.ended_collector_ns == 10 * S


def test_end_is_dated_by_the_collector_clock() -> None:
    # host - collector = 500,000
    clock = ClockAlignment().add(sent_collector_ns=1_000, host_ns=501_500, received_collector_ns=2_000)
    liveness = Liveness()
    liveness = liveness.record_end(seen("crashed", at_host_ns=502_100), clock, 90_000)
    assert liveness.ended_collector_ns == 2_100


def test_second_notice_of_an_end_is_ignored() -> None:
    liveness = Liveness()
    liveness = liveness.record_end(seen("crashed"), ClockAlignment(), 5)
    liveness = liveness.record_end(seen("killed"), ClockAlignment(), 4)
    assert liveness.ending == Ending("crashed", "what was seen", None)
    assert liveness.ended_collector_ns == 5


# -- stalls -----------------------------------------------------------------------------------------------------------


def test_stall_is_unknown_before_any_report() -> None:
    assert Liveness().is_stalled is None


def test_rank_is_stalled_while_it_reports_a_stall() -> None:
    liveness = Liveness()
    stall = stall_in("collective")
    liveness = liveness.record_report(report(1 * S))
    assert (liveness.is_stalled, liveness.stall) == (False, None)
    liveness = liveness.record_report(report(31 * S, 1 * S, stall))
    liveness = liveness.record_report(report(32 * S, 1 * S))
    assert (liveness.is_stalled, liveness.stall) == (True, stall)
    liveness = liveness.record_report(report(33 * S))
    assert (liveness.is_stalled, liveness.stall) == (False, None)


def test_excused_stall_counts_after_ten_limits() -> None:
    liveness = Liveness()
    stall = stall_in("checkpoint")
    liveness = liveness.record_report(report(31 * S, 0, stall))
    assert (liveness.is_stalled, liveness.stall) == (False, stall)
    liveness = liveness.record_report(report(EXCUSED_FACTOR * 30 * S + 1, 0))
    assert liveness.is_stalled is True


def test_unresponsive_rank_is_stalled_and_not_silent() -> None:
    liveness = Liveness()
    liveness = liveness.record_report(report(1 * S))
    liveness = liveness.mark_silent()
    liveness = liveness.record_unresponsive(frozen(12 * S))
    assert (liveness.is_stalled, liveness.ending) == (True, None)
    liveness = liveness.record_report(report(13 * S))
    assert (liveness.is_stalled, liveness.unresponsive) == (False, None)


def test_older_report_does_not_end_unresponsiveness() -> None:
    liveness = Liveness()
    liveness = liveness.record_unresponsive(frozen(12 * S))
    liveness = liveness.record_report(report(11 * S))
    assert liveness.is_stalled is True


def test_notice_older_than_the_last_report_is_ignored() -> None:
    liveness = Liveness()
    liveness = liveness.record_report(report(13 * S))
    liveness = liveness.record_unresponsive(frozen(12 * S))
    assert (liveness.is_stalled, liveness.unresponsive) == (False, None)


def test_last_reported_progress_is_kept() -> None:
    liveness = Liveness()
    progress = (GroupStatus(group="default_pg", enqueued=7),)
    liveness = liveness.record_report(ReportFields.of(Report(sequence=1, host_ns=1, progress=progress)))
    liveness = liveness.record_report(report(2))
    assert liveness.progress == progress


# -- progress ---------------------------------------------------------------------------------------------------------


def progress_of(enqueued: int) -> tuple[GroupStatus, ...]:
    return (GroupStatus(group="default_pg", enqueued=enqueued),)


def report_progress(at_host_ns: int, enqueued: int | None) -> ReportFields:
    progress = () if enqueued is None else progress_of(enqueued)
    return ReportFields.of(Report(sequence=1, host_ns=at_host_ns, progress=progress))


def test_progress_is_unchanged_since_the_first_report_with_it() -> None:
    liveness = Liveness()
    assert liveness.progress_unchanged_ns is None
    unchanged = []
    for at_s, enqueued in ((1, 7), (3, 7), (4, 8), (9, None), (11, 8), (12, 9)):
        liveness = liveness.record_report(report_progress(at_s * S, enqueued))
        unchanged.append(liveness.progress_unchanged_ns)
    assert unchanged == [0, 2 * S, 0, 5 * S, 7 * S, 0]


def test_progress_of_each_group_is_dated_in_a_stall() -> None:
    liveness = Liveness()
    found = []
    for at_s, since_s, beside in ((1, None, 1), (2, None, 2), (5, 1, 3), (8, 1, 4), (9, 1, 4), (10, None, 5)):
        progress = (*progress_of(7), GroupStatus(group="beside", enqueued=beside))
        since_host_ns = None if since_s is None else since_s * S
        report = Report(sequence=1, host_ns=at_s * S, progress=progress, stalled_since_host_ns=since_host_ns)
        liveness = liveness.record_report(ReportFields.of(report))
        found.append((liveness.progress_unchanged_ns, liveness.group_unchanged_ns.get("default_pg")))
    # default_pg is known to be the same since the last change before the stall, at 2 s; afterwards it is not asked.
    assert found == [(0, None), (0, None), (0, 3 * S), (0, 6 * S), (1 * S, 7 * S), (0, None)]


def test_group_unknown_before_a_stall_has_no_age_of_its_own() -> None:
    first = Report(sequence=1, host_ns=5 * S, progress=progress_of(7), stalled_since_host_ns=1 * S)
    assert Liveness().record_report(ReportFields.of(first)).group_unchanged_ns == {}


def test_progress_that_the_sidecar_reads_later_has_no_known_age() -> None:
    liveness = Liveness().record_report(report_progress(1 * S, 7))
    assert liveness.record_unresponsive(frozen(12 * S)).progress_unchanged_ns == 11 * S
    same, later = (msgspec.structs.replace(frozen(12 * S), progress=progress_of(enqueued)) for enqueued in (7, 8))
    assert liveness.record_unresponsive(same).progress_unchanged_ns == 11 * S
    assert liveness.record_unresponsive(later).progress_unchanged_ns is None
    assert liveness.record_unresponsive(later).group_unchanged_ns == {}
