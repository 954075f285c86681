"""Captures that incidents order: which, of which ranks, and how many."""

import msgspec
import pytest

from rankscope.collector.captures.capture import Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.incident_captures import IncidentCaptures
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.runs.events import ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.measure.messages import Report
from rankscope.measure.records import NO_COMPILATIONS, Compilations, DeviceSample
from tests.unit.collector.runs.run_stories import Story, boot_of

NOW_S = 1_000_000.0


def incident(number: int, **other: object) -> Incident:
    plain = Incident(
        id=number, run="story", severity="warning", severity_found="warning", kind="straggler", subject="rank 2",
        ranks=(2,), cause="host_cpu", sentence="Rank 2 is slow.", opened_wall_s=NOW_S, updated_wall_s=NOW_S,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **other)


class Orders:
    """What is ordered, each of which counts as a capture."""

    def __init__(self, *opened_before: Incident) -> None:
        self.requests: list[CaptureRequest] = []
        self.captures: tuple[Capture, ...] = ()
        self.asked_wall_s = NOW_S
        self.story = Story(4).join().train(3)
        self.of_incidents = IncidentCaptures(
            lambda _run: self.story.run, self.order, lambda: self.captures, opened_before
        )

    def report(self, rank: int, compilations: Compilations | None) -> None:
        """Have a rank report a GPU, and what it has compiled."""
        self.story.sequence[rank] += 1
        report = Report(
            sequence=self.story.sequence[rank], host_ns=self.story.now_ns, compilations=compilations,
            devices=(DeviceSample(host_ns=0, uuid="GPU"),),
        )  # fmt: skip
        self.story.run.apply(ReportAdmitted(boot_of(rank), ReportFields.of(report), self.story.now_ns, 0.0))

    def order(self, request: CaptureRequest) -> Capture | CaptureRefusal:
        self.requests.append(request)
        taken = Capture(
            id=str(len(self.requests)), run="story", run_id="story", state="complete", incident=request.incident,
            asked_wall_s=self.asked_wall_s, changed_wall_s=self.asked_wall_s,
        )  # fmt: skip
        self.captures = (taken, *self.captures)
        return taken

    def consider(self, *incidents: Incident, now_wall_s: float = NOW_S) -> list[str]:
        """Consider incidents; return those that have ordered so far."""
        self.of_incidents.consider(incidents, now_wall_s)
        return [one.incident for one in self.requests]


def test_incident_orders_its_rank_with_a_peer_and_a_neighbor() -> None:
    orders = Orders()
    orders.consider(incident(1))
    # All do the same work at the same pace: of the peers 0, 1 and 3 the middle one is 1. Then 3 is next to 2.
    assert (orders.requests[0].ranks, orders.requests[0].asked_by) == ((1, 2, 3), "incident 1")


def test_modules_are_recorded_on_gpus_with_maybe_longer_kernels() -> None:
    orders = Orders()
    orders.consider(incident(1))
    for rank in (1, 2, 3):
        orders.report(rank, NO_COMPILATIONS)
    orders.consider(incident(2))
    orders.report(3, Compilations(compiled=1, duration_ns=1))  # it would refuse a capture with modules
    orders.consider(incident(3))
    orders.report(3, None)  # it may have compiled
    orders.consider(incident(4))
    assert [one.options for one in orders.requests] == [(), ("modules",), (), ()]


def test_incident_orders_once() -> None:
    orders = Orders()
    orders.consider(incident(1))
    assert orders.consider(incident(1)) == ["1"]


def test_incident_of_an_earlier_collector_orders_nothing() -> None:
    assert Orders(incident(5)).consider(incident(5)) == []


def test_incident_without_further_steps_or_ranks_orders_nothing() -> None:
    hang, group, over = incident(1, kind="hang"), incident(2, ranks=()), incident(3, state="resolved")
    assert Orders().consider(hang, group, over) == []


def test_rank_that_does_not_report_orders_nothing() -> None:
    assert Orders().consider(incident(1, ranks=(9,))) == []


def test_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    run = Story(4).join().train(3).run
    of_incidents = IncidentCaptures(lambda _run: run, lambda _asked: CaptureRefusal(409, "another one"), tuple, ())
    of_incidents.consider([incident(1)], NOW_S)
    assert caplog.messages == ["run 'story': incident 1 gets no capture: another one"]


def test_run_has_four_captures_of_incidents_a_day() -> None:
    orders = Orders()
    assert orders.consider(*(incident(number) for number in range(1, 7))) == ["1", "2", "3", "4"]
    assert orders.consider(incident(7), now_wall_s=NOW_S + 86_400.0) == ["1", "2", "3", "4", "7"]
