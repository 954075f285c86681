"""All views of a run say the same of a finding: verdict, status, `top`, demo, report as text, page and JSON, incidents,
webhook, OTLP, metric, alert, the collector's log, and the loggers in the training.
"""

import html
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from rankscope.agent.integrations.run_log import NO_FINDINGS, describe_findings
from rankscope.agent.run_report import ReceivedSummary, build_report
from rankscope.collector.captures.incident_views import NO_LINKS, view_run
from rankscope.collector.demo.screen import DemoOptions, write_end
from rankscope.collector.detect.finding import Finding, order_findings, write_whole_cost
from rankscope.collector.detect.finding_words import TENTHS_MIN, WHOLE_MIN, count_ranks_wasted, format_ratio
from rankscope.collector.incidents.incident import Incident, begin
from rankscope.collector.notifications.event import OPENED, IncidentNodes, build_event, describe
from rankscope.collector.notifications.otlp_logs import describe_attributes
from rankscope.collector.publish.api.rank_views import list_ranks
from rankscope.collector.publish.metrics import run_metrics
from rankscope.collector.reports.incident_table import render_incidents
from rankscope.collector.reports.run_page import render_page
from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.run_sections import render_text
from rankscope.collector.reports.status_text import render_status
from rankscope.collector.reports.summary import summarize, verdict
from rankscope.collector.runs.events import CloseFinding, FindingOpened, UpdateFinding
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.run_summary import build_run_summary
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.collector.steps.rank_medians import describe_median_steps
from rankscope.collector.top.board import Board
from rankscope.collector.top.drawing import draw
from rankscope.collector.top.snapshot_fetch import FetchedRun
from tests.unit.collector.runs.run_stories import Story
from tests.unit.collector.runs.test_hang_story import HangStory
from tests.unit.collector.runs.test_out_of_memory_story import failing_story
from tests.unit.collector.test_runs_in_a_row import Standing

WORDS_MAX: Final = 25
"""Words of a sentence."""


def _hang() -> Story:
    story = HangStory(4)
    story.join()
    story.move(7)
    return story.hang(2, 31)


def _stall_now_and_then(story: Story) -> Story:
    for _ in range(12):
        story.train(7).train(3, forward={1: 60.0})
    return story


RUNS: Final[dict[str, Callable[[], Story]]] = {
    "slow loader": lambda: Story(4).join().train(40).train(40, data={2: 50.0}),
    "slow host": lambda: Story(4).join().train(40).train(60, forward={2: 30.0}),
    "a little slow": lambda: Story(8).join().train(40).train(100, forward={5: 13.0}),
    "two slow ranks": lambda: Story(4).join().train(40).train(60, forward={1: 30.0, 3: 50.0}),
    "two ranks": lambda: Story(2).join().train(40).train(60, forward={1: 60.0}),
    "all ranks slower": lambda: Story(4).join().train(60).train(60, forward=dict.fromkeys(range(4), 40.0)),
    "slow from the begin": lambda: Story(4).join().train(90, forward={0: 25.0}),
    "slow, and well again": lambda: Story(4).join().train(40).train(60, data={2: 50.0}).train(120),
    "waits for data": lambda: Story(4).join().train(80, data=dict.fromkeys(range(4), 60.0)),
    "hang": _hang,
    "one rank slow now and then": lambda: _stall_now_and_then(Story(4).join().train(40)),
    "out of memory": lambda: failing_story().tick(),
}
KINDS_MIN: Final = frozenset({"straggler", "run_slowdown", "data_bound", "hang", "out_of_memory"})


@pytest.fixture(params=RUNS, scope="module")
def story(request: pytest.FixtureRequest) -> Story:
    """A run with all that has happened in it."""
    return RUNS[request.param]()


@pytest.fixture(scope="module")
def run(story: Story) -> RunSnapshot:
    """The run as all views get it."""
    return story.snapshot()


def incidents_of(run: RunSnapshot) -> list[Incident]:
    return [begin(one.number, run.run_id or run.run, one, 50_000.0) for one in run.findings]


def report_of(run: RunSnapshot) -> RunReport:
    return RunReport(
        run=run.run, world_size=run.world_size, restart_count=0, attempts=1, begun_wall_s=0.0, changed_wall_s=60.0,
        is_over=False, steps=100, steps_kept=0, step_ns_median=None, reports=1, reports_lost=0, steps_late=0, ends={},
        goodput=run.goodput, findings=run.findings, incidents=tuple(incidents_of(run)),
    )  # fmt: skip


def views_of(run: RunSnapshot) -> Iterator[tuple[str, str]]:
    """The text of each view, with its name."""
    yield "summary", summarize(run)
    yield "status", render_status(build_status(run, 4))
    yield "report", render_text(report_of(run), 20, width=1_000)
    yield "incidents", render_incidents(incidents_of(run), 50_060.0)
    yield "report as a page", read_page(report_of(run))
    yield "webhook", "\n".join(describe(one, OPENED) for one in incidents_of(run))


def draw_top(run: RunSnapshot) -> str:
    """The screen of `rankscope top`, without ranks."""
    lines, _ = draw(Board(), FetchedRun(wall_s=0.0, runs=(run.run_id,), run=run), 100, 30)
    return "\n".join("".join(span.text for span in line) for line in lines)


def read_page(report: RunReport) -> str:
    """The texts of a report as a page."""
    return html.unescape(re.sub(r"<[^>]+>", " ", render_page(report, 20)))


def squeeze(text: str) -> str:
    """Text as one line: views wrap it differently."""
    return re.sub(r"\s+", " ", text)


def test_every_run_has_a_finding() -> None:
    found = {name: len(make().snapshot().findings) for name, make in RUNS.items()}
    assert sum(count > 0 for count in found.values()) == len(RUNS), found


def test_runs_are_of_different_kinds_and_causes() -> None:
    findings = [one for make in RUNS.values() for one in make().snapshot().findings]
    assert {one.kind for one in findings} >= KINDS_MIN
    assert {one.pattern for one in findings} >= {"steady", "intermittent"}
    assert {one.severity for one in findings} >= {"warning", "critical"}
    assert {one.is_closed for one in findings} == {False, True}
    assert len({one.cause for one in findings}) >= 5


def test_every_view_has_the_headline(run: RunSnapshot) -> None:
    for name, text in views_of(run):
        findings = run.open_findings if name == "status" else run.findings
        for one in findings:
            assert one.headline in squeeze(text), (name, one.headline)


def test_commands_of_a_suggestion_can_be_typed_as_they_are(run: RunSnapshot) -> None:
    for one in run.findings:
        assert not re.search(r"\bRUN\b|--rank N\b|around:N\b", one.suggestion), one.suggestion
    if any(one.kind == "hang" for one in run.findings):
        assert f"rankscope status {run.run} --rank 2" in run.findings[0].suggestion


def test_screen_of_top_has_the_first_headline(run: RunSnapshot) -> None:
    if run.open_findings and run.end is None:
        assert run.open_findings[0].headline in squeeze(draw_top(run))


def test_log_of_the_collector_has_what_was_found(caplog: pytest.LogCaptureFixture, story: Story) -> None:
    updates = Standing().updates
    with caplog.at_level(logging.WARNING, "rankscope"):
        for effect in story.effects:
            if isinstance(effect, FindingOpened | UpdateFinding | CloseFinding):
                updates._carry_out(effect)
    told = [one for one in story.effects if isinstance(one, FindingOpened | UpdateFinding | CloseFinding)]
    assert len(caplog.messages) == len(told)
    for one, message in zip(told, caplog.messages, strict=True):
        assert message.startswith(f"run {one.run!r}: finding {one.finding.number}")
        assert message.endswith(f": {one.reason if isinstance(one, CloseFinding) else one.finding.sentence}")
    assert {one.finding.number for one in told} >= {one.number for one in story.snapshot().findings}


def test_loggers_in_the_training_have_the_open_findings(run: RunSnapshot) -> None:
    received = ReceivedSummary(build_run_summary(run, None), 0)
    lines = describe_findings(build_report("story", 0, received, 0)).split("\n")
    said = [f"{one.severity}: {one.sentence}" for one in run.open_findings]
    assert lines == (said or [NO_FINDINGS])


def test_otlp_has_the_fields_of_the_incident(run: RunSnapshot) -> None:
    for one, incident in zip(run.findings, incidents_of(run), strict=True):
        event = build_event(incident, OPENED, 1, 0.0, IncidentNodes())
        given = describe_attributes(event)
        assert given["rankscope.incident.sentence"] == one.sentence
        assert given.get("rankscope.incident.slowdown_ratio") == one.slowdown_ratio
        assert one.sentence in event.text
        assert event.action == one.suggestion


def test_every_view_that_gives_a_cost_gives_the_same(run: RunSnapshot) -> None:
    for one in run.open_findings:
        assert write_whole_cost(one) in squeeze(render_status(build_status(run, 4)))
    for one in run.findings:
        if one.cost:
            assert one.cost in one.sentence
            assert f"ost: {one.cost}" in squeeze(render_incidents(incidents_of(run), 50_060.0))


def test_page_and_json_have_the_fields_as_they_are(run: RunSnapshot) -> None:
    shown = msgspec.to_builtins(view_run(run, NO_LINKS))
    for one, view in zip(run.open_findings, shown["open_findings"], strict=True):
        for name in ("headline", "figures", "why", "cost", "sentence", "suggestion", "slowdown_ratio"):
            assert view[name] == getattr(one, name)
        assert (view["whole_cost"], view["reason_said"]) == (write_whole_cost(one), one.reason)
    report = msgspec.json.decode(msgspec.json.encode(report_of(run)), type=RunReport)
    assert report.findings == run.findings


def test_metric_is_the_ratio_that_is_said(run: RunSnapshot) -> None:
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run,))
    metrics = {labels[1:4:2]: value for labels, value in run_metrics.find_slowdowns(snapshot) if value is not None}
    for one in run.open_findings:
        if one.slowdown_ratio is not None and one.kind in {"straggler", "run_slowdown"}:
            assert f" {format_ratio(metrics[one.kind, one.subject])} slower" in one.headline


def test_metric_of_the_cost_is_what_is_said(run: RunSnapshot) -> None:
    # The alerts read it (deploy/prometheus/rules), so they say the same.
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run,))
    wasted = {labels[1:4:2]: value for labels, value in run_metrics.find_wasted(snapshot)}
    for one in run.open_findings:
        said = re.search(r"([\d,.]+) of \d+ ranks wasted", one.cost)
        if said is not None:
            assert float(said[1]) == pytest.approx(wasted[one.kind, one.subject], abs=0.05)


def find_formats(alerts: str, value: str) -> set[tuple[str, ...]]:
    """By which limit, and by which formats from there on and below, alerts write a value."""
    form = rf'if ge {re.escape(value)} ([\d.]+) }}}}{{{{ printf "(\S+)" {re.escape(value)} }}}}{{{{ else }}}}'
    return set(re.findall(form + r'\{\{ printf "(\S+)"', alerts))


def test_alerts_write_numbers_as_sentences_do() -> None:
    # Annotations are templates of Prometheus: with the same limits, and as many decimals.
    alerts = squeeze((Path(__file__).parents[2] / "deploy/prometheus/rules/alerts.yml").read_text())
    assert find_formats(alerts, "$value") == {(f"{TENTHS_MIN}", "%.1f", "%.2f")}
    assert find_formats(alerts, ".Value") == {(f"{WHOLE_MIN:.1f}", "%.0f", "%.1f")}


def test_every_table_of_ranks_says_which_steps_it_is_of(run: RunSnapshot) -> None:
    said = describe_median_steps(run.medians_of)
    plan = DemoOptions(ranks=run.world_size, steps=100, fault="host", slow_rank=2, slow_from=40)
    tables = {
        "status": render_status(build_status(run, 4)),
        "demo": write_end(run, plan, None),
        "top": draw_top(run),
        "page": list_ranks(run, "slowdown", 0, 4).medians_said,
    }
    assert bool(said) == any(rank.step_ns_median is not None for rank in run.ranks)
    assert all(said in text for text in tables.values())


def test_finding_has_the_own_times_of_a_table_of_its_steps(run: RunSnapshot) -> None:
    # What is planted is the same in every slow step, so the table of the last steps has it too.
    ranks = {rank.identity.rank: rank for rank in run.ranks}
    for one in run.open_findings:
        if one.kind == "straggler" and one.rank is not None and one.pattern == "steady":
            assert ranks[one.rank].own_ns_median == pytest.approx(one.evidence["own_ns"], rel=0.02)


def test_incident_and_wire_have_the_same_words(run: RunSnapshot) -> None:
    for one, incident in zip(run.findings, incidents_of(run), strict=True):
        words = ("headline", "figures", "why", "also", "cost", "sentence", "suggestion")
        assert all(getattr(incident, name) == getattr(one, name) for name in words)
    sent = build_run_summary(run, None)
    assert [one.sentence for one in sent.findings] == [one.sentence for one in order_findings(run.open_findings)]


def test_verdict_is_the_first_finding_of_every_list(run: RunSnapshot) -> None:
    if not run.findings:
        return
    first = order_findings(run.findings)[0]
    assert verdict(run) == first.sentence
    assert squeeze(render_text(report_of(run), 20, width=1_000)).startswith(first.headline)
    assert list(run.open_findings) == order_findings(run.open_findings)


def test_ranks_wasted_follow_from_the_slowdown_of_the_run(run: RunSnapshot) -> None:
    for one in run.findings:
        said = re.search(r"([\d,.]+) of (\d+) ranks wasted", one.sentence)
        if said is not None:
            assert one.run_slowdown_ratio is not None
            wasted = count_ranks_wasted(one.run_slowdown_ratio, run.world_size)
            assert float(said[1]) == pytest.approx(wasted, abs=0.05)
            assert int(said[2]) == run.world_size


def sentences_of(finding: Finding) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z\d])", finding.sentence)


def test_no_sentence_is_long(run: RunSnapshot) -> None:
    for one in run.findings:
        assert all(len(sentence.split()) <= WORDS_MAX for sentence in sentences_of(one)), one.sentence
