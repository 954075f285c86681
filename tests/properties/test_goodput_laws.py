"""Laws of goodput: no time is lost or counted twice, and no counter decreases."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.runs.goodput import Goodput, GoodputSnapshot

BEGIN = 10**12
GROWING = ("wall_ns", "steps_ns", "slow_ns", "startup_ns", "between_steps_ns", "stalled_ns", "restart_ns")

Move = tuple[str, int, int]
"""What is reported, how much later than the last time (earlier if negative), and how much of it."""

moves = st.lists(
    st.tuples(
        st.sampled_from(["begin", "add_steps", "mark_stalled", "restart", "end", "add_loss"]),
        st.integers(-5, 50),
        st.integers(0, 60),
    ),
    max_size=30,
)


def tell(goodput: Goodput, move: Move, now: int) -> None:
    match move[0]:
        case "add_steps":
            goodput.add_steps(now, move[2])
        case "add_loss":
            goodput.add_loss([now % 7, 8], [move[2], 1.0])
        case name:
            getattr(goodput, name)(now)


def pictures(told: Sequence[Move], hold: int = 20) -> list[GoodputSnapshot]:
    goodput, now, found = Goodput(hold_ns=hold), BEGIN, []
    goodput.begin(now)
    for move in told:
        now += move[1]
        tell(goodput, move, now)
        found.append(goodput.snapshot(now))
    return found


@given(moves)
def test_parts_sum_to_the_wall_and_none_is_negative(told: list[Move]) -> None:
    for one in pictures(told):
        parts = [
            one.productive_ns, one.slow_ns, one.startup_ns, one.between_steps_ns, one.stalled_ns, one.restart_ns,
            one.unreported_ns,
        ]  # fmt: skip
        assert sum(parts) == one.wall_ns
        assert min(parts) >= 0


@given(moves)
def test_what_is_told_only_grows(told: list[Move]) -> None:
    found = pictures([move for move in told if move[1] >= 0])
    for before, after in itertools.pairwise(found):
        assert all(getattr(before, name) <= getattr(after, name) for name in GROWING)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20))
def test_steps_and_gaps_come_out_as_they_were_made(made: list[tuple[int, int]]) -> None:
    """Each step is reported when it ends."""
    goodput, now = Goodput(hold_ns=0), BEGIN
    goodput.begin(now)
    for gap, step in made:
        now += gap + step
        goodput.add_steps(now, step)
    found = goodput.snapshot(now)
    assert found.productive_ns == sum(step for _, step in made)
    assert found.startup_ns == made[0][0]
    assert found.between_steps_ns == sum(gap for gap, _ in made[1:])
