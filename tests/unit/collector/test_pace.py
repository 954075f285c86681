"""How often a costly turn is taken: no more than its share of the time, and a cheap one whenever it may."""

from rankscope.collector.pacing import CpuShareLimiter

SECOND_NS = 10**9


def take_turns(cost_ns: int, seconds: int, share: float) -> int:
    """How many turns are taken when there is a chance every second."""
    pace, taken = CpuShareLimiter(share, SECOND_NS), 0
    for second in range(seconds):
        if pace.is_due(second * SECOND_NS):
            pace.take(second * SECOND_NS, cost_ns)
            taken += 1
    return taken


def test_what_costs_less_than_its_share_is_done_at_every_chance() -> None:
    assert take_turns(cost_ns=50_000_000, seconds=100, share=0.05) == 100


def test_what_costs_more_takes_its_share_of_the_time_and_no_more() -> None:
    """0.2 s at 5 % is a turn every 4 s; 0.21 s one every 4.2 s, of which chances come every second: every 5 s."""
    assert take_turns(cost_ns=200_000_000, seconds=100, share=0.05) == 25
    assert take_turns(cost_ns=210_000_000, seconds=100, share=0.05) == 20


def test_a_turn_that_became_cheap_is_taken_at_every_chance_again() -> None:
    pace = CpuShareLimiter(0.1, SECOND_NS)
    pace.take(0, SECOND_NS)
    assert not pace.is_due(9 * SECOND_NS)
    assert pace.is_due(10 * SECOND_NS)
    pace.take(10 * SECOND_NS, 1)
    assert pace.is_due(10 * SECOND_NS + 1)
