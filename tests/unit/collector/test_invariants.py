"""Invariants that do not hold."""

import pytest

from rankscope.collector.invariants import InvariantError, require


def test_broken_invariant_raises_with_its_text() -> None:
    with pytest.raises(InvariantError, match="ranks and boot ids differ"):
        require([], "ranks and boot ids differ")
