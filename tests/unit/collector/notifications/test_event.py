"""What an event says: ids, the sentence for people, and the standing of the nodes."""

from pathlib import Path

import pytest

from rankscope.collector.config import NOTIFIED_SEVERITIES, CollectorConfig
from rankscope.collector.detect.finding import SEVERITIES
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.notifications.event import IncidentNodes, NodeStanding, build_event, find_id
from rankscope.collector.notifications.node_finder import NO_RANKS, NO_STORE, NOT_STORED, NodeFinder
from rankscope.collector.notifications.notifier import read_receivers
from rankscope.collector.runs.run import RunState
from rankscope.measure.errors import SettingError
from tests.driven_clock import DrivenClock
from tests.unit.collector.notifications.worlds import opened, resolved
from tests.unit.collector.runs.run_stories import Story

STANDING = NodeStanding(node="node-12", runs=12, runs_held_up=9, ratio_low=0.468)


def no_run(_: str) -> RunState | None:
    return None


def test_event_says_what_to_do_and_how_the_node_stands() -> None:
    incident = opened(suggestion="Look at its data loader.")
    event = build_event(incident, "opened", 1, 5.0, IncidentNodes((STANDING,)))
    assert event.text == "incident 1 of run bert is opened (warning): Rank 2 is slow."
    assert event.action == "Look at its data loader. node-12 has held up 9 of its last 12 runs."
    assert (event.incident, event.nodes, event.why_nodes_unknown) == (incident, (STANDING,), "")


def test_resolved_event_says_why() -> None:
    event = build_event(
        resolved(opened()), "resolved", 2, 5.0, IncidentNodes((NodeStanding(node="node-12"),), NO_STORE)
    )
    assert event.text == "incident 1 of run bert is resolved (warning: passed): Rank 2 is slow."
    assert (event.action, event.why_nodes_unknown) == ("", NO_STORE)


def test_id_is_that_of_the_event_whatever_its_numbers() -> None:
    assert find_id(opened(), 1) == find_id(opened(lost_rank_seconds=7.0), 1)
    others = (opened(2), opened(cause="gpu_slow"), opened(run="gpt"), opened(at_s=1.0), resolved(opened()))
    ids = {find_id(opened(), 1), find_id(opened(), 2), *(find_id(other, 1) for other in others)}
    assert len(ids) == 7
    assert all(len(one) == 32 for one in ids)


def test_settings_know_the_severities_of_findings() -> None:
    assert NOTIFIED_SEVERITIES == SEVERITIES


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_nodes_of_ranks_are_those_of_their_run_now() -> None:
    story = Story(4).join(*range(4))
    finder = NodeFinder(None, lambda _: story.run, FaultLog(DrivenClock()))
    assert finder.find(opened()) == IncidentNodes((NodeStanding(node="node-a"),), NO_STORE)


def test_ranks_of_a_run_that_is_gone_have_no_nodes() -> None:
    assert NodeFinder(None, no_run, FaultLog(DrivenClock())).find(opened()) == IncidentNodes((), NO_RANKS)


def test_incident_of_the_whole_run_is_about_no_node() -> None:
    finder = NodeFinder(None, no_run, FaultLog(DrivenClock()))
    assert finder.find(opened(ranks=())) == IncidentNodes(())


def test_store_that_cannot_be_read_is_a_reason(tmp_path: Path) -> None:
    finder = NodeFinder(tmp_path / "runs.db", no_run, FaultLog(DrivenClock()))
    nodes = finder.find(opened(nodes=("node-12",)))
    assert nodes.standings == (NodeStanding(node="node-12"),)
    assert nodes.why_unknown.startswith("there is no store at ")


def test_node_that_the_store_has_no_run_of_has_no_counts(tmp_path: Path) -> None:
    IncidentStore(tmp_path / "runs.db").close()
    finder = NodeFinder(tmp_path / "runs.db", no_run, FaultLog(DrivenClock()))
    assert finder.find(opened(nodes=("node-12",))) == IncidentNodes((NodeStanding(node="node-12"),), NOT_STORED)


# -- the settings -----------------------------------------------------------------------------------------------------


def test_nothing_is_notified_of_by_default() -> None:
    assert read_receivers(CollectorConfig(), DrivenClock()) == {}


@pytest.mark.parametrize(
    "url",
    ["hooks.example", "ftp://hooks.example/", "https://", "https://user:word@hooks.example/", "https://hooks.example:99999/",
     "https://hooks.example/#part", "https://hooks.example/a b", "https://[::1/"],
)  # fmt: skip
def test_address_that_cannot_be_used_is_refused(url: str) -> None:
    for name in ("notify_webhook_url", "grafana_url", "runbooks_url"):
        with pytest.raises(SettingError, match=rf"{name} is .*; it must be https://HOST\[:PORT\]/PATH"):
            CollectorConfig(**{name: url})  # type: ignore[arg-type]
