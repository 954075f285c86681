"""How fast a run trains, from totals written out by hand."""

import pytest

from rankscope.collector.runs.run_status import Speed, find_throughput
from rankscope.measure.records import Totals

S = 1_000_000_000


def totals_of(steps: int, samples: int | None = None, known_s: int = 0, tokens: int | None = None) -> Totals:
    """Ten seconds of steps, of which one was spent waiting for data."""
    return Totals(
        steps=steps, step_ns=10 * S, phases_ns={"data": S, "other": 9 * S}, samples=samples, tokens=tokens,
        samples_step_ns=known_s * S, tokens_step_ns=known_s * S,
    )  # fmt: skip


def test_speeds_are_the_median_of_the_ranks_and_their_sum() -> None:
    found = find_throughput([totals_of(40, 320, 10), totals_of(40, 640, 10), totals_of(50, 330, 10)], world_size=3)
    assert found is not None
    assert (found.steps_per_s, found.reader_ratio) == pytest.approx((4.0, 0.1))
    assert found.samples_per_s is not None
    assert found.samples_per_s == pytest.approx(Speed(33.0, 32.0 + 64.0 + 33.0))
    assert found.tokens_per_s is None


def test_speed_is_over_the_steps_whose_samples_are_known() -> None:
    found = find_throughput([totals_of(40, samples=320, known_s=8, tokens=0)], world_size=1)
    assert found is not None
    assert found.samples_per_s == pytest.approx(Speed(40.0, 40.0))
    assert found.tokens_per_s == Speed(0.0, 0.0)


@pytest.mark.parametrize("others", [[], [totals_of(40)], [Totals()]])
def test_there_is_no_sum_while_a_rank_does_not_know(others: list[Totals]) -> None:
    found = find_throughput([totals_of(40, 320, 10), *others], world_size=2)
    assert found is not None
    assert found.samples_per_s == Speed(32.0, None)


def test_before_the_first_step_there_is_no_throughput() -> None:
    assert find_throughput([], world_size=2) is None
    assert find_throughput([Totals()], world_size=1) is None
