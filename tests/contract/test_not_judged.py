"""What detection cannot judge is listed with its reason, by kind, also of single rules: in the API and the report."""

import re
from collections import Counter

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.run_rules.rules import NO_GPUS, NO_WINDOWS, RULES
from rankscope.collector.detect.run_rules.signals import read_signals
from rankscope.collector.detect.view import RunView
from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.run_sections import render_text
from rankscope.collector.runs.goodput import GoodputSnapshot
from tests.simulation.host_jobs import HostJob
from tests.simulation.test_host_jobs import draw_usual
from tests.unit.collector.detect.run_views import BUSY, STEPS, job_of, unjudged_in

DETECTORS = build_detectors(CollectorConfig())
KINDS = Counter(kind for detector in DETECTORS for kind in detector.kinds)
VIEWS = {
    "GPUs": job_of(BUSY, BUSY),
    "GPUs without windows": job_of(BUSY, BUSY, windows=0, core_wait_ms=(1.0, 1.0)),
    "GPUs whose loaders are slow": job_of({"compute": 20}, {"compute": 20}, data_ms=50, windows=0),
    "CPUs": job_of(BUSY, BUSY, gpus=0),
    "one rank": job_of(BUSY, gpus=0),
    "young": job_of(BUSY, BUSY, made=STEPS + 3),
    "begun": job_of(BUSY, BUSY, made=STEPS),
}
OF_GPUS = {"host_bound", "low_gpu_utilization", "communication_bound", "serialized_communication", "memory_pressure"}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_kind_is_either_judged_or_listed_in_each_pass(view: RunView) -> None:
    results = detect(view, DETECTORS).results
    assert Counter(kind for result in results for kind in result.kinds) == KINDS


@pytest.mark.parametrize("view", [one for name, one in VIEWS.items() if name not in {"young", "begun"}])
def test_every_rule_that_cannot_judge_is_listed(view: RunView) -> None:
    signals = read_signals(view, STEPS)
    assert not isinstance(signals, Abstain)
    verdicts = {kind: rule.judge(signals, 1.0) for kind, rule in RULES.items()}
    expected = {kind: one.reason for kind, one in verdicts.items() if isinstance(one, Abstain)}
    assert unjudged_in(view) == expected != {}


def test_reasons_say_what_is_missing() -> None:
    assert unjudged_in(VIEWS["CPUs"]).items() >= dict.fromkeys(OF_GPUS, NO_GPUS).items()
    assert unjudged_in(VIEWS["GPUs without windows"])["host_bound"] == NO_WINDOWS
    told = [result.abstained for view in VIEWS.values() for result in detect(view, DETECTORS).results]
    for reason in {one for one in told if one is not None}:
        assert re.fullmatch(r"[a-z0-9][^_]*[^.]", reason), reason
        assert len(reason.split()) <= 25, reason


def test_run_in_the_api_and_its_report_say_what_was_not_judged() -> None:
    job = HostJob(2, draw_usual(2))
    job.run(120)
    (run,) = (msgspec.to_builtins(job.end.snapshot(job.now_ns)),)
    assert run["not_judged"].items() >= dict.fromkeys(OF_GPUS | {"copy_bound"}, NO_GPUS).items()
    assert "data_bound" not in run["not_judged"]
    report = RunReport(
        run="a", world_size=2, restart_count=0, attempts=1, begun_wall_s=0.0, changed_wall_s=1.0, is_over=True,
        steps=120, steps_kept=120, step_ns_median=None, reports=1, reports_lost=0, steps_late=0, ends={},
        goodput=GoodputSnapshot(), not_judged=run["not_judged"],
    )  # fmt: skip
    text = re.sub(r"\s+", " ", render_text(report, 30))
    for kind, reason in run["not_judged"].items():
        assert kind in text
        assert reason in text
