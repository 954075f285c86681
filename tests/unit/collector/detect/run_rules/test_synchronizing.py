"""`host_bound` with and without blocking calls. The GPU is idle 40 ms of steps of 100 ms, so half of that is 20 ms."""

from collections.abc import Sequence

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.run_rules.signals import RunSignals, read_signals
from rankscope.collector.detect.view import RunView
from rankscope.measure.records import Synchronization, WindowSynchronizations
from tests.unit.collector.detect.run_views import STEPS, Shares, findings_in, job_of, window_of, with_samples
from tests.unit.collector.steps.step_series import MS

IDLE: Shares = {"compute": 55, "exposed": 5}
ITEM = Synchronization(call="cudaStreamSynchronize", operator="aten::item", line="train.py:24 (main)", count=1)


def window(idle_ms: float, *, first_step: int = 40, step_count: int = 1) -> WindowSynchronizations:
    idle_ns = round(idle_ms * MS)
    kind = Synchronization(call=ITEM.call, operator=ITEM.operator, line=ITEM.line, count=1, idle_ns=idle_ns)
    return WindowSynchronizations(first_step=first_step, step_count=step_count, idle_ns=idle_ns, kinds=(kind,))


def run_of(*windows: Sequence[WindowSynchronizations]) -> RunView:
    view = job_of(*[IDLE] * len(windows), data_ms=0.0)
    return with_samples(view, view.samples._replace(synchronizations=dict(enumerate(windows))))


def host_bound(view: RunView) -> Finding:
    (finding,) = findings_in(view)
    assert finding.kind == "host_bound"
    return finding


def test_idle_time_after_waits_of_the_hosts_names_the_line() -> None:
    finding = host_bound(run_of([window(30.0)] * 3, [window(30.0)] * 3))
    waits = "at the end of a call that waits for the GPU (as .item())"
    where = "100 % of it in train.py:24 (main) (aten::item, cudaStreamSynchronize)"
    assert finding.what == "GPUs idle 40 % of the time, waiting for their hosts,"
    assert finding.why == f"waiting for data 0.0 % of the time, up to 30 % of the time {waits}, {where}"
    assert finding.evidence["synchronizing_ratio"] == 0.3
    assert ".item()" in finding.suggestion


def test_without_kinds_no_line_is_named() -> None:
    unnamed = [msgspec.structs.replace(window(30.0), kinds=())] * 3
    assert host_bound(run_of(unnamed, unnamed)).why.endswith("at the end of a call that waits for the GPU (as .item())")


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
def test_otherwise_it_is_as_without(why: str, windows: Sequence[WindowSynchronizations]) -> None:
    finding = host_bound(run_of(windows, windows))
    assert finding.why == "waiting for data 0.0 % of the time", why
    assert "synchronizing_ratio" not in finding.evidence
    assert "fused optimizers" in finding.suggestion


def test_one_rank_s_waits_are_none_of_the_run() -> None:
    finding = host_bound(run_of([window(30.0)] * 3, [window(0.0)] * 3))
    assert "synchronizing_ratio" not in finding.evidence


@pytest.mark.parametrize(
    ("why", "idle_ms", "step_ms", "share"),
    [
        ("as long as usual", 30.0, 100.0, 0.3),
        ("at most all idle time", 70.0, 100.0, 0.4),
        ("10 ms longer by the profiler: (40 - 10) / 100", 40.0, 110.0, 0.3),
        ("not longer than all idle time of longer steps", 90.0, 110.0, 0.4),
        ("a rank's number below zero", -30.0, 100.0, None),
    ],
)
def test_share_is_on_the_basis_of_the_idle_share(why: str, idle_ms: float, step_ms: float, share: float | None) -> None:
    # With the profiler's 10 ms the GPU is idle for 50 of 110 ms: (50 - 10) / 100 are 40 % as well.
    view = run_of([window(idle_ms)] * 3, [window(idle_ms)] * 3)
    idle = 40.0 + step_ms - 100.0
    breakdowns = {
        rank: [window_of(number, IDLE, step_ms=step_ms, idle_ms=idle) for number in (40, 60, 80)] for rank in (0, 1)
    }
    finding = host_bound(with_samples(view, view.samples._replace(breakdowns=breakdowns)))
    assert finding.evidence["idle_ratio"] == pytest.approx(0.4), why
    found = finding.evidence.get("synchronizing_ratio")
    assert found == (None if share is None else pytest.approx(share)), why


def test_expired_gpu_windows_are_not_ones_without_blocking_calls() -> None:
    view = run_of([window(30.0)] * 3, [window(30.0)] * 3)
    samples = view.samples._replace(absent_ratios=dict.fromkeys((0, 1), "windows have ended"))
    signals = read_signals(with_samples(view, samples), STEPS)
    assert isinstance(signals, RunSignals)
    assert (signals.synchronizing, signals.synchronizes_in) == (None, "")
