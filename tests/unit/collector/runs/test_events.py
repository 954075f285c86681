"""The last events of a run that are kept."""

from rankscope.collector.runs.events import EVENTS_KEPT, EventLog


def test_reports_do_not_displace_rare_events() -> None:
    log = EventLog()
    log.record("RankJoined", 0, "boot-zero", 1)
    for number in range(2 * EVENTS_KEPT):
        log.record("ReportAdmitted", 0, "boot-zero", number)
    log.validate()
    kept = log.read()
    assert len(kept) == EVENTS_KEPT + 1
    assert (kept[0].number, kept[0].kind, kept[1].number) == (1, "RankJoined", EVENTS_KEPT + 2)
    assert log.counts == {"RankJoined": 1, "ReportAdmitted": 2 * EVENTS_KEPT}
