"""Tests of rank 0's log lines about a configured collector."""

from rankscope.agent.reporting.collector_notices import ABSENCES_LOGGED_MAX, CollectorNotices, Delivered
from rankscope.measure.units import NS_PER_S

ENDPOINT = "tcp://head:18490"
METRICS = "http://head:18491/metrics"
AWAY = (
    f"run 'bert': the collector {ENDPOINT} has not been reached for 60 s. Training continues, the newest reports are "
    "kept, and the connection is retried. Check the address (RANKSCOPE_COLLECTOR), that `rankscope serve` runs there, "
    "and that no firewall is in the way."
)


def begin() -> CollectorNotices:
    return CollectorNotices("bert", ENDPOINT, 0)


def look(
    notices: CollectorNotices, s: float, *, connected: bool = False, refused: bool = False, url: str = METRICS
) -> str | None:
    return notices.update(round(s * NS_PER_S), is_connected=connected, is_refused=refused, metrics_url=url)


def test_admitted_run_is_logged_once_with_collector_and_page() -> None:
    notices = begin()
    said = [look(notices, s, connected=True) for s in (1, 2, 100)]
    assert said == [f"run 'bert' reports to {ENDPOINT}; its page is http://head:18491", None, None]


def test_page_on_loopback_is_on_the_machine_of_the_collector() -> None:
    said = look(begin(), 1, connected=True, url="http://127.0.0.1:5/metrics")
    assert said == f"run 'bert' reports to {ENDPOINT}; its page is http://127.0.0.1:5 (on the collector's machine only)"


def test_collector_without_a_page_is_logged_alone() -> None:
    assert look(begin(), 1, connected=True, url="") == f"run 'bert' reports to {ENDPOINT}"


def test_unreached_collector_is_logged_once_after_a_minute() -> None:
    notices = begin()
    assert [look(notices, s) for s in (1, 59.9, 60, 61, 1000)] == [None, None, AWAY, None, None]


def test_late_collector_is_logged_with_its_delay() -> None:
    notices = begin()
    look(notices, 60)
    said = look(notices, 75, connected=True)
    assert said == f"run 'bert' reports to {ENDPOINT}, reached after 75 s; its page is http://head:18491"


def test_absence_during_training_counts_from_its_begin() -> None:
    notices = begin()
    look(notices, 50, connected=True)
    assert [look(notices, s) for s in (100, 159, 160)] == [None, None, AWAY]
    assert look(notices, 200, connected=True) == f"run 'bert': the collector {ENDPOINT} was reached again after 100 s"


def test_short_absence_is_no_news() -> None:
    notices = begin()
    look(notices, 1, connected=True)
    assert [look(notices, 10), look(notices, 69), look(notices, 69.5, connected=True)] == [None, None, None]


def test_number_of_logged_absences_is_bounded() -> None:
    notices, said = begin(), 0
    for hour in range(ABSENCES_LOGGED_MAX + 3):
        look(notices, 3600 * hour, connected=True)
        look(notices, 3600 * hour + 1)
        said += look(notices, 3600 * hour + 90) is not None
    assert said == ABSENCES_LOGGED_MAX


def test_refused_rank_does_not_log_an_absence() -> None:
    assert look(begin(), 100, refused=True) is None


def test_summary_of_complete_delivery_names_the_command() -> None:
    notices = begin()
    look(notices, 1, connected=True)
    assert notices.summarize(Delivered(40, 0)) == (
        "run 'bert': all 40 reports of rank 0 were delivered; `rankscope status bert --url http://head:18491` "
        "shows how the run went"
    )


def test_summary_counts_unacknowledged_reports() -> None:
    notices = begin()
    look(notices, 1, connected=True, url="")
    assert notices.summarize(Delivered(40, 3, "/scratch")) == (
        f"run 'bert': 3 of the 40 reports of rank 0 were not acknowledged by {ENDPOINT} (/scratch keeps as many as it "
        "has room for); `rankscope status bert` shows how the run went"
    )


def test_summary_without_a_collector() -> None:
    assert begin().summarize(Delivered(40, 40)) == (
        f"run 'bert': the collector {ENDPOINT} never accepted rank 0; none of its 40 reports was delivered"
    )
