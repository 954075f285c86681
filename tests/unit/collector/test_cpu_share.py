"""Work within a share of a core."""

from rankscope.collector.cpu_share import CpuShareLimiter
from rankscope.measure.units import NS_PER_S


def count_runs(cost_ns: int, seconds: int, share: float) -> int:
    """How often the work is done when there is an opportunity every second."""
    limiter, runs = CpuShareLimiter(share, NS_PER_S), 0
    for second in range(seconds):
        if limiter.is_due(second * NS_PER_S):
            limiter.record(second * NS_PER_S, cost_ns)
            runs += 1
    return runs


def test_work_below_its_share_runs_at_every_opportunity() -> None:
    assert count_runs(cost_ns=50_000_000, seconds=100, share=0.05) == 100


def test_work_above_its_share_is_spaced_to_it() -> None:
    """0.2 s at 5 % is a run every 4 s; 0.21 s one every 4.2 s, with opportunities every second: every 5 s."""
    assert count_runs(cost_ns=200_000_000, seconds=100, share=0.05) == 25
    assert count_runs(cost_ns=210_000_000, seconds=100, share=0.05) == 20


def test_work_that_became_cheap_runs_at_every_opportunity() -> None:
    limiter = CpuShareLimiter(0.1, NS_PER_S)
    limiter.record(0, NS_PER_S)
    assert not limiter.is_due(9 * NS_PER_S)
    assert limiter.is_due(10 * NS_PER_S)
    limiter.record(10 * NS_PER_S, 1)
    assert limiter.is_due(10 * NS_PER_S + 1)
