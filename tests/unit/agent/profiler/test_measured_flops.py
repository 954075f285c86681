"""MeasuredFlops: which measurement holds, and why none does."""

from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.governor import FULL_WINDOWS
from rankscope.agent.profiler.measured_flops import (
    BATCH_CHANGED,
    DROPPED,
    ENDED,
    GRAPHS,
    MEASURED_AGAIN,
    NO_WINDOWS,
    NOT_YET,
    NOT_YET_OF_HOST,
    SLOWED,
    SWITCHED_OFF,
    MeasuredFlops,
)
from rankscope.agent.profiler.reduced_window import EMPTY_WINDOW
from rankscope.agent.profiler.window_effect import EffectState, WindowEffect
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.records import StepRecord, WindowFlops
from rankscope.measure.window_flops import NO_PRODUCTS

STEP = StepRecord(step=9, start_host_ns=0, duration_ns=10, phases_ns={})
MEASURED = WindowFlops(
    first_step=4, step_count=2, model_flops=300, executed_flops=400, number_types={"bf16": (1.0, 1.0)}
)


class Rank:
    """The count of one rank, and what its windows say; `dropped` and `effect` may be set."""

    def __init__(self, *, is_on: bool = True, has_windows: bool = True) -> None:
        self.flops = ModelFlops()
        self.batches = SimpleNamespace(has_changed=False)
        self.plan = SimpleNamespace(dropped=frozenset())
        self.effect: WindowEffect | None = None
        self.has_graphs = False
        self.operators = SimpleNamespace(replaces_windows=False, has_slowed=False, has_graphs=lambda: self.has_graphs)
        windows: Any = SimpleNamespace(
            measures_flops=is_on,
            scheduler=SimpleNamespace(flops=self.batches, operators=self.operators) if has_windows else None,
            plan=self.plan,
            find_effect=lambda: self.effect,
        )
        self.measured = MeasuredFlops(self.flops, windows)

    def update(self, *found: WindowFlops) -> str | None:
        """Add results, and return why there are none in force."""
        self.measured.update([EMPTY_WINDOW._replace(flops=one) for one in found] or [EMPTY_WINDOW])
        return self.flops.absent.get("executed")

    def count(self) -> tuple[float, float]:
        """Return the model and executed FLOPs of the steps so far, with one more."""
        self.flops.add(STEP)
        return self.flops.totals.model.flops, self.flops.totals.executed.flops


def test_measurement_holds_until_the_next() -> None:
    rank = Rank()
    assert rank.update() == NOT_YET
    assert rank.count() == (0, 0)
    assert rank.update(MEASURED) is None
    assert (rank.count(), rank.flops.number_types) == ((300, 400), {"bf16": (1.0, 1.0)})
    assert rank.update() is None
    assert rank.count() == (600, 800)


def test_measurement_does_not_hold_for_another_batch() -> None:
    rank = Rank()
    rank.update(MEASURED)
    rank.batches.has_changed = True
    assert rank.update() == f"{BATCH_CHANGED.format(step=4)}; {MEASURED_AGAIN}"
    assert rank.count() == (0, 0)
    rank.plan.dropped = frozenset({FULL_WINDOWS})
    assert rank.update() == f"{BATCH_CHANGED.format(step=4)}; {DROPPED}"
    rank.batches.has_changed = False
    assert rank.update() is None, "the batch is as it was measured"


def test_window_without_a_figure_ends_the_one_before() -> None:
    rank = Rank()
    assert rank.update(MEASURED, WindowFlops(first_step=8, step_count=2, reason=NO_PRODUCTS)) == NO_PRODUCTS


@pytest.mark.parametrize(
    ("state", "reason"),
    [(EffectState.ENDED, ENDED), (EffectState.ON_DEMAND, ENDED), (EffectState.KEPT, NOT_YET),
     (EffectState.REFERENCE, NOT_YET)],
)  # fmt: skip
def test_windows_of_a_device_that_have_ended_give_none(state: EffectState, reason: str) -> None:
    rank = Rank()
    rank.effect = WindowEffect(warmup_steps=4, state=state)
    assert rank.update() == reason


def test_operators_of_the_host_give_them_then() -> None:
    rank = Rank()
    rank.effect = WindowEffect(warmup_steps=4, state=EffectState.ENDED)
    rank.operators.replaces_windows = True
    assert rank.update() == NOT_YET_OF_HOST
    rank.operators.has_slowed = True
    assert rank.update() == SLOWED
    rank.has_graphs = True
    assert rank.update() == GRAPHS
    assert rank.update(MEASURED) is None


def test_host_operators_are_counted_again_for_another_batch() -> None:
    rank = Rank()
    rank.operators.replaces_windows = True
    rank.update(MEASURED)
    rank.batches.has_changed = True
    assert rank.update() == f"{BATCH_CHANGED.format(step=4)}; {MEASURED_AGAIN}"


def test_what_is_off_is_said() -> None:
    assert Rank(is_on=False).update() == SWITCHED_OFF
    assert Rank(has_windows=False).update() == NO_WINDOWS
    rank = Rank()
    rank.plan.dropped = frozenset({FULL_WINDOWS})
    assert rank.update() == DROPPED
