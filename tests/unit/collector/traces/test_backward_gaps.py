"""Gaps between ranges of autograd's engine: pauses of one backward, and the steps between two. Times in ms."""

import numpy as np
import pytest

from rankscope.collector.traces.stages import _bridge
from rankscope.measure.intervals import Intervals

MS = 1_000_000
ENGINE = ((0.0, 2.0), (2.9, 5.0))

Pairs = tuple[tuple[float, float], ...]


def spans(pairs: Pairs) -> Intervals:
    return (np.array(pairs, dtype=np.float64).reshape(-1, 2) * MS).astype(np.int64)


@pytest.mark.parametrize(
    ("optimizer", "begins", "backward"),
    [
        ((), (), ((0, 5),)),
        (((2.5, 2.7),), (), ((0, 2.5), (2.7, 5))),
        (((2.5, 2.7),), (2.8,), ENGINE),
        ((), (0.0, 2.4, 7.0), ENGINE),
        ((), (0.0, 7.0), ((0, 5),)),
    ],
    ids=["a pause", "an optimizer in backward", "the next step", "a step without optimizer", "steps around"],
)
def test_short_gap_is_a_pause_unless_a_step_begins_in_it(
    optimizer: Pairs, begins: tuple[float, ...], backward: Pairs
) -> None:
    begins_ns = (np.array(begins) * MS).astype(np.int64)
    assert _bridge(spans(ENGINE), spans(optimizer), begins_ns).tolist() == spans(backward).tolist()


def test_long_gap_is_none() -> None:
    engine = spans(((0, 2), (4, 5)))
    assert _bridge(engine, spans(()), np.empty(0, dtype=np.int64)).tolist() == engine.tolist()
