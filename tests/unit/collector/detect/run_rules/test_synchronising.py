"""`host_bound` with and without blocking calls. The GPU is idle 40 ms of steps of 100 ms, so half of that is 20 ms."""

from collections.abc import Sequence

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.view import RunView
from rankscope.measure.records import Synchronisation, WindowSynchronisations
from tests.unit.collector.detect.run_views import STEPS, Shares, findings_in, job_of, with_samples
from tests.unit.collector.steps.step_series import MS

IDLE: Shares = {"compute": 55, "exposed": 5}
ITEM = Synchronisation(call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)", count=1)


def window(idle_ms: float, *, first_step: int = 40, step_count: int = 1) -> WindowSynchronisations:
    idle_ns = round(idle_ms * MS)
    kind = Synchronisation(call=ITEM.call, operator=ITEM.operator, line=ITEM.line, count=1, idle_ns=idle_ns)
    return WindowSynchronisations(first_step=first_step, step_count=step_count, idle_ns=idle_ns, kinds=(kind,))


def run_of(*windows: Sequence[WindowSynchronisations]) -> RunView:
    view = job_of(*[IDLE] * len(windows), data_ms=0.0)
    return with_samples(view, view.samples._replace(synchronisations=dict(enumerate(windows))))


def host_bound(view: RunView) -> Finding:
    (finding,) = findings_in(view)
    assert finding.kind == "host_bound"
    return finding


def test_idle_time_after_waits_of_the_hosts_names_the_line() -> None:
    finding = host_bound(run_of([window(30.0)] * 3, [window(30.0)] * 3))
    idle = "The GPUs are idle 40 % of the time, waiting for their hosts; waiting for data is 0.0 % of the time"
    waits = "and up to 30 % follows synchronisations of the hosts with them"
    where = "100 % of it in train.py:24 (main) (aten::item, cudaStreamSynchronize)"
    assert finding.sentence == f"{idle}, {waits}, {where}."
    assert finding.evidence["synchronising_ratio"] == 0.3
    assert ".item()" in finding.suggestion


def test_its_past_form_leaves_the_line_alone() -> None:
    past = host_bound(run_of([window(30.0)] * 3, [window(30.0)] * 3)).past
    assert "up to 30 % followed synchronisations of the hosts with them, 100 % of it in train.py:24 (main)" in past


@pytest.mark.parametrize(
    ("why", "windows"),
    [
        ("less than half of the idle time", [window(19.9)] * 3),
        ("too few windows", [window(30.0)] * 2),
        ("windows of the first steps", [window(30.0, first_step=STEPS - 1)] * 3),
        ("windows without steps", [window(30.0, step_count=0)] * 3),
        ("longer windows, with less in each step", [window(30.0, step_count=2)] * 3),
    ],
)
def test_otherwise_it_is_as_without(why: str, windows: Sequence[WindowSynchronisations]) -> None:
    finding = host_bound(run_of(windows, windows))
    assert finding.sentence.endswith("waiting for data is 0.0 % of the time."), why
    assert "synchronising_ratio" not in finding.evidence
    assert "fused optimizers" in finding.suggestion


def test_one_rank_s_waits_are_none_of_the_run() -> None:
    finding = host_bound(run_of([window(30.0)] * 3, [window(0.0)] * 3))
    assert "synchronising_ratio" not in finding.evidence
