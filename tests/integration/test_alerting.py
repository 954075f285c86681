"""From ranks to a webhook: a collector, Prometheus and Alertmanager with the rules and routes of deploy/.

Three runs of four ranks, two on a node, report to one collector, in step with the clock. One is well. In the sick one
rank 2 becomes slow, and later the process of rank 1 is killed, so that the others wait for it; in the end it is
restarted, and well again. Of the third both ranks of one node are killed. At last the collector itself is.
"""

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import zmq

from rankscope.collector.runs.events import GoodbyeAdmitted, RankJoined, ReportAdmitted, RunEvent
from rankscope.measure import __version__
from rankscope.measure.machine import read_machine_id
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import CollectiveRecord, StepRecord, WindowBreakdown
from tests.integration.monitoring import Labels, Notice, Running, Webhook, alerting
from tests.integration.serving import read_url, serving, wait_for
from tests.integration.wire_ranks import WireRanks
from tests.unit.collector.runs.run_stories import TRANSFER_NS, Story

WELL, SICK, CUT = "well", "sick", "cut"
RANKS, RANKS_A_NODE = 4, 2
DEAD_RANK, SLOW_RANK = 1, 2
DEAD_NODE_RANKS = (0, 1)
PHASE_MS, SLOW_MS = 10.0, 60.0
"""What a phase takes, and what the forward of the slow rank takes: the step is 85 ms instead of 35."""
PENDING_ROUNDS = 5
"""Evaluations of all rules after which whatever is so is at least pending: rates need two scrapes, alerts what is
recorded of them."""
TOLD_ROUNDS = 10
"""Evaluations after which what is so is told: the longest `for` is 8 s here."""


class NamedRanks(WireRanks):
    """The ranks of a run of this name, two on a node; one of them lives in a process of this machine."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, run: str, pids: dict[int, int]
    ) -> None:
        super().__init__(context, endpoint)
        self._run = run
        self._pids = pids

    def apply(self, event: RunEvent) -> list[object]:
        match event:
            case RankJoined(hello):
                known = hello.identity
                identity = msgspec.structs.replace(
                    known, run=self._run, boot_id=self._name(known.boot_id), node=node_of(self._run, known.rank)
                )
                if known.rank in self._pids:
                    pid = self._pids.pop(known.rank)
                    identity = msgspec.structs.replace(identity, pid=pid, machine_id=read_machine_id())
                hello = msgspec.structs.replace(hello, identity=identity, agent_version=__version__)
                return super().apply(msgspec.structs.replace(event, hello=hello))
            case ReportAdmitted() | GoodbyeAdmitted():
                return super().apply(msgspec.structs.replace(event, boot_id=self._name(event.boot_id)))
        return []

    def _name(self, boot_id: str) -> str:
        return f"{self._run}-{boot_id}"


class PacedStory(Story):
    """A story that makes as many steps as fit into the time that passes."""

    def __init__(self, ranks: NamedRanks) -> None:
        super().__init__(RANKS)
        self.run = ranks  # type: ignore[assignment]  # it takes what a story gives
        self.dead: set[int] = set()
        self.slow: dict[int, float] = {}
        self._even_s = time.monotonic()
        """Up to when the steps made so far have lasted."""

    def keep_up(self) -> None:
        """Report: the steps since the last time, or none where all wait for one that is dead."""
        now_s = time.monotonic()
        if self.dead:
            self._even_s = now_s
            for rank in range(RANKS):
                self.report(rank, [], [])
            return
        step_s = (2 * PHASE_MS + max([PHASE_MS, *self.slow.values()])) / 1e3 + TRANSFER_NS / 1e9
        steps = math.ceil((now_s - self._even_s) / step_s)
        if steps > 0:
            self._even_s += steps * step_s
            self.train(steps, forward=self.slow)

    def report(
        self,
        rank: int,
        records: list[StepRecord],
        collectives: list[CollectiveRecord],
        breakdowns: tuple[WindowBreakdown, ...] = (),
        out_of_memory: tuple[OutOfMemory, ...] = (),
    ) -> None:
        """Nothing of one that is dead."""
        if rank not in self.dead:
            super().report(rank, records, collectives, breakdowns, out_of_memory)


@dataclass
class Seen:
    """What Prometheus and Alertmanager said, and what arrived at the webhook, at each turn of the story."""

    before: list[Any] = field(default_factory=list)
    """Alerts of Prometheus, pending ones too, while both runs are well."""
    messages_before: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    """What has arrived until the sick run was mended."""
    suppressed: list[Labels] = field(default_factory=list)
    """Alerts that Alertmanager holds back then."""
    rules: list[dict[str, Any]] = field(default_factory=list)
    after: list[Notice] = field(default_factory=list)
    after_the_collector: set[str] = field(default_factory=set)
    """The names of alerts that fire in Prometheus once the collector is gone, and did not before."""


def node_of(run: str, rank: int) -> str:
    return f"{run}-node-{rank // RANKS_A_NODE}"


@contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that wait for their input, and end with the block."""
    with ExitStack() as ends:
        started = []
        for _ in range(count):
            child = ends.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            ends.callback(child.kill)
            started.append(child)
        yield started


def kill(*victims: subprocess.Popen[bytes]) -> None:
    """SIGKILL; when it returns the processes are gone."""
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.wait()


@dataclass
class Scene:
    """Everything that runs, and the waiting for it, during which the ranks go on reporting."""

    stories: list[PacedStory]
    prometheus: Running
    alertmanager: Running
    webhook: Webhook

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Until it is so."""

        def look() -> bool | None:
            for story in self.stories:
                story.keep_up()
            return is_so() or None

        wait_for(look, lambda: f"{what}; arrived: {self.webhook.read_notices()}; pending: {self.read_alerts()}")

    def wait_for_notice(self, status: str, **labels: str) -> None:
        """Until the webhook has been told of such an alert."""
        self.wait(
            lambda: any(said == status and labels.items() <= of.items() for said, of in self.webhook.read_notices()),
            f"nobody is told {status} {labels}",
        )

    def settle(self, rounds: int) -> None:
        """Until every group of rules has been evaluated so often."""
        begin = self._count_evaluations()
        self.wait(lambda: self._count_evaluations() >= begin + rounds, "the rules are not evaluated")

    def read_alerts(self) -> list[Any]:
        """The alerts of Prometheus, pending and firing."""
        alerts: list[Any] = self.prometheus.ask("/api/v1/alerts")["data"]["alerts"]
        return alerts

    def read_firing(self) -> set[str]:
        """The names of the alerts that fire in Prometheus."""
        return {alert["labels"]["alertname"] for alert in self.read_alerts() if alert["state"] == "firing"}

    def read_suppressed(self) -> list[Labels]:
        """The alerts that Alertmanager holds back because of others."""
        return [
            alert["labels"]
            for alert in self.alertmanager.ask("/api/v2/alerts")
            if alert["status"]["state"] == "suppressed" and alert["status"]["inhibitedBy"]
        ]

    def wait_for_suppressed(self, **labels: str) -> None:
        """Until such an alert is held back."""
        self.wait(
            lambda: any(labels.items() <= held.items() for held in self.read_suppressed()), f"{labels} is not held back"
        )

    def _count_evaluations(self) -> float:
        page = read_url(f"{self.prometheus.url}/metrics").decode()
        counts = re.findall(r"^prometheus_rule_group_iterations_total\{[^}]*\} (\S+)$", page, re.MULTILINE)
        return min(map(float, counts))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The whole story."""
    found = Seen()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with (
        closing_context(context),
        processes(3) as (of_sick, *of_cut),
        serving("--rank-silent-s", "10") as served,
        alerting(served.ports[1], tmp_path_factory.mktemp("alerting")) as (prometheus, alertmanager, webhook),
    ):
        well = PacedStory(NamedRanks(context, served.endpoint, WELL, {}))
        sick = PacedStory(NamedRanks(context, served.endpoint, SICK, {DEAD_RANK: of_sick.pid}))
        pids = {rank: process.pid for rank, process in zip(DEAD_NODE_RANKS, of_cut, strict=True)}
        cut = PacedStory(NamedRanks(context, served.endpoint, CUT, pids))
        scene = Scene([well, sick, cut], prometheus, alertmanager, webhook)
        for story in scene.stories:
            story.join()
        scene.settle(PENDING_ROUNDS)
        found.before, found.messages_before = scene.read_alerts(), len(webhook.messages)

        sick.slow = {SLOW_RANK: SLOW_MS}
        kill(*of_cut)
        cut.dead = set(DEAD_NODE_RANKS)
        scene.wait_for_notice("firing", alertname="RankscopeStragglerRank", run=SICK)
        scene.wait_for_suppressed(alertname="RankscopeGoodputLow", run=SICK)
        kill(of_sick)
        sick.dead = {DEAD_RANK}
        scene.wait_for_notice("firing", alertname="RankscopeRankMissing", run=SICK)
        scene.wait_for_notice("firing", alertname="RankscopeNodeMissing", run=CUT)
        scene.settle(TOLD_ROUNDS)
        found.suppressed, found.messages = scene.read_suppressed(), [*webhook.messages]

        sick.dead, sick.slow = set(), {}
        sick.restart()
        for name in ("RankscopeStragglerRank", "RankscopeRankMissing"):
            scene.wait_for_notice("resolved", alertname=name, run=SICK)
        found.after = webhook.read_notices()
        found.rules = [rule for group in prometheus.ask("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

        known = scene.read_firing()
        served.kill()
        scene.stories.clear()  # nobody takes their reports any more
        scene.wait_for_notice("firing", alertname="RankscopeCollectorDown")
        found.after_the_collector = scene.read_firing() - known
    return found


@contextmanager
def closing_context(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[None]:
    """End its sockets with the block, whatever they have not sent."""
    try:
        yield
    finally:
        context.destroy(linger=0)


def told(seen: Seen, alert: str) -> dict[str, Any]:
    """The first word of an alert, and the message it came in."""
    return next(
        {**each, "path": message["path"], "group": message["groupLabels"]}
        for message in seen.messages
        for each in message["alerts"]
        if each["labels"]["alertname"] == alert
    )


def test_nothing_fires_or_is_pending_while_all_runs_are_well(seen: Seen) -> None:
    assert (seen.before, seen.messages_before) == ([], 0)


def test_only_slow_rank_dead_rank_and_dead_node_are_told(seen: Seen) -> None:
    alerts = {
        (labels["alertname"], labels["run"], labels["node"], labels.get("rank"))
        for message in seen.messages
        for labels in (alert["labels"] for alert in message["alerts"])
    }
    assert alerts == {
        ("RankscopeStragglerRank", SICK, node_of(SICK, SLOW_RANK), str(SLOW_RANK)),
        ("RankscopeRankMissing", SICK, node_of(SICK, DEAD_RANK), str(DEAD_RANK)),
        ("RankscopeNodeMissing", CUT, node_of(CUT, 0), None),
    }


def test_the_run_that_is_well_is_never_told_of(seen: Seen) -> None:
    assert [labels for _, labels in seen.after if labels.get("run") == WELL] == []


def test_a_symptom_of_the_slow_rank_is_held_back(seen: Seen) -> None:
    assert ("RankscopeGoodputLow", SICK) in {(labels["alertname"], labels["run"]) for labels in seen.suppressed}


def test_the_ranks_of_the_dead_node_are_held_back(seen: Seen) -> None:
    held = {labels["rank"] for labels in seen.suppressed if labels["alertname"] == "RankscopeRankMissing"}
    assert held == {str(rank) for rank in DEAD_NODE_RANKS}


def test_alert_goes_to_receiver_of_its_severity_grouped_by_run(seen: Seen) -> None:
    straggler, missing = told(seen, "RankscopeStragglerRank"), told(seen, "RankscopeRankMissing")
    assert (straggler["path"], straggler["group"]) == ("/rankscope-team", {"run": SICK})
    assert (missing["path"], missing["group"]) == ("/rankscope-pager", {"run": SICK})


def test_the_messages_say_rank_node_cause_and_cost(seen: Seen) -> None:
    straggler = told(seen, "RankscopeStragglerRank")["annotations"]["description"]
    assert re.fullmatch(
        rf"Rank {SLOW_RANK} on node {SICK}-node-1 is \d\.\d\d?x slower than its peers\. "
        rf"Cause: \w+\. Cost: (\d+\.\d of {RANKS} ranks wasted|not known)\. "
        rf"Evidence and what to do: rankscope incidents {SICK} --open\.",
        straggler,
    ), straggler
    missing = told(seen, "RankscopeRankMissing")["annotations"]["description"]
    assert missing == (
        f"Rank {DEAD_RANK} on node {SICK}-node-0 does not report, and others of its run do. Cause: exit_unknown. "
        f"Cost: if the run waits for it, all {RANKS} GPUs of the run."
    )


def test_what_has_passed_is_told_as_resolved(seen: Seen) -> None:
    resolved = {labels["alertname"] for status, labels in seen.after if status == "resolved"}
    assert {"RankscopeStragglerRank", "RankscopeRankMissing"} <= resolved


def test_without_the_collector_that_alone_is_told(seen: Seen) -> None:
    # Its `for` is longer than those of all who tell that somebody is missing.
    assert seen.after_the_collector == {"RankscopeCollectorDown"}


def test_every_rule_can_be_evaluated(seen: Seen) -> None:
    assert len(seen.rules) > 0
    assert [(rule["name"], rule["lastError"]) for rule in seen.rules if rule["health"] != "ok"] == []
