"""FLOPs of steps written out by hand: two steps of 250 and 750 ms."""

from decimal import Decimal
from typing import Any

import pytest

from rankscope.agent.steps.model_flops import FLOPS_MAX, NO_TOKENS, NOT_MEASURED, UNKNOWN, Counted, ModelFlops
from rankscope.measure.records import StepRecord

MS = 1_000_000


def step(duration_ms: int, tokens: int | None = None) -> StepRecord:
    return StepRecord(step=0, start_host_ns=0, duration_ns=duration_ms * MS, phases_ns={}, tokens=tokens)


def test_declared_flops_count_from_the_declaration_on() -> None:
    flops = ModelFlops()
    flops.add(step(9_000))
    assert (flops.totals.model, flops.source) == (Counted(), "")
    flops.set_declared(per_step=3e12)
    flops.add(step(250))
    flops.add(step(750))
    assert flops.totals.model == Counted(6 * 10**12, 2, 1_000 * MS)
    assert flops.source == "declared"


def test_flops_per_token_count_only_where_tokens_are_known() -> None:
    flops = ModelFlops()
    flops.set_declared(per_token=6_000_000)
    flops.add(step(250, tokens=512))
    flops.add(step(750))
    assert flops.totals.model == Counted(512 * 6_000_000, 1, 250 * MS)
    assert flops.absent["model"] == NO_TOKENS
    flops.add(step(250, tokens=0))
    assert flops.totals.model == Counted(512 * 6_000_000, 2, 500 * MS)
    assert "model" not in flops.absent


def test_declared_flops_win_over_measured_ones() -> None:
    flops = ModelFlops()
    flops.set_measured(model=300, executed=400)
    flops.add(step(250))
    assert flops.source == "measured"
    flops.set_declared(per_step=1_000)
    flops.add(step(750))
    assert flops.totals.model == Counted(1_300, 2, 1_000 * MS)
    assert flops.totals.executed == Counted(800, 2, 1_000 * MS)
    flops.set_declared()
    flops.add(step(250))
    assert flops.totals.model == Counted(1_600, 3, 1_250 * MS)


def test_flops_measured_before_a_change_hold_no_longer() -> None:
    flops = ModelFlops()
    assert flops.absent == {"model": UNKNOWN, "executed": NOT_MEASURED}
    flops.set_measured(model=300, executed=400)
    assert flops.absent == {}
    flops.clear_measured("the batch has another shape")
    flops.add(step(250))
    assert flops.totals.model == flops.totals.executed == Counted()
    assert flops.absent == dict.fromkeys(("executed", "model"), "the batch has another shape")
    flops.set_declared(per_step=1_000)
    assert flops.absent == {"executed": "the batch has another shape"}


def test_sums_of_whole_flops_are_exact() -> None:
    flops = ModelFlops()
    flops.set_declared(per_step=2**60 + 1)
    for _ in range(3):
        flops.add(step(1))
    assert flops.totals.model.flops == 3 * (2**60 + 1)


def test_number_type_is_the_declared_one_else_the_measured() -> None:
    flops = ModelFlops()
    assert flops.number_types == {}
    mixed = {"bf16": (0.75, 0.5), "fp32": (0.25, 0.5)}
    flops.set_measured(1, 1, mixed)
    flops.set_declared(per_step=1)
    assert flops.number_types == mixed
    flops.set_declared(per_step=1, dtype="float32")
    assert flops.number_types == {"fp32": (1.0, 1.0)}


def test_upper_bound_is_that_of_the_measurement_in_force() -> None:
    flops = ModelFlops()
    assert not flops.is_upper_bound
    flops.set_measured(1, 2, is_upper_bound=True)
    assert flops.is_upper_bound
    flops.clear_measured("the batch has another size")
    assert not flops.is_upper_bound


def test_type_stays_when_its_measurement_holds_no_longer() -> None:
    flops = ModelFlops()
    flops.set_declared(per_step=1)
    flops.set_measured(1, 1, {"tf32": (1.0, 1.0)})
    flops.clear_measured("the batch has another size")
    assert flops.number_types == {"tf32": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"per_step": 0}, "per_step is 0; it must be above 0"),
        ({"per_step": -1.5}, "per_step is -1.5; it must be above 0"),
        ({"per_token": float("nan")}, "per_token is nan"),
        ({"per_token": float("inf")}, "per_token is inf"),
        ({"per_step": 10**400}, "at most 1e"),
        ({"per_step": FLOPS_MAX * 2}, "at most 1e"),
        ({"per_step": True}, "per_step is of type bool"),
        ({"per_step": "1e12"}, "per_step is of type str"),
        ({"per_step": Decimal(1)}, "per_step is of type Decimal"),
        ({"per_step": 1, "per_token": 1}, "both per_step and per_token are given"),
        ({"per_step": 1, "dtype": "bf17"}, "dtype is 'bf17'; it must be one of bfloat16"),
    ],
)
def test_unusable_declaration_changes_nothing(declared: dict[str, Any], said: str) -> None:
    flops = ModelFlops()
    flops.set_declared(per_step=7)
    with pytest.raises((TypeError, ValueError), match=said):
        flops.set_declared(**declared)
    flops.add(step(1))
    assert flops.totals.model.flops == 7
