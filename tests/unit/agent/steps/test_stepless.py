"""When a loop without optimizer steps is told of, and when it may still be accumulating gradients."""

import msgspec
import pytest

from rankscope.agent.steps.stepless import BACKWARDS_CERTAIN, BACKWARDS_MIN, PATIENCE_NS, SteplessNotice
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of

CURE = (
    "If the loop updates its parameters in another way, call rankscope.step() at the end of each step (docs/loops.md)."
)


@pytest.fixture
def notice() -> SteplessNotice:
    return SteplessNotice(identity_of(0, 1))


def test_after_1024_backwards_without_an_optimizer_step_it_is_said_once(notice: SteplessNotice) -> None:
    assert notice.find(0, BACKWARDS_CERTAIN - 1) == ""
    assert notice.find(1 * S, BACKWARDS_CERTAIN) == (
        "rank 0 ran 1,024 backward passes and stepped no optimizer of torch.optim, so no step has been counted so far. "
        + CURE
    )
    assert notice.find(2 * S, 2 * BACKWARDS_CERTAIN) == ""
    assert notice.find(3 * S, 2 * BACKWARDS_CERTAIN, last=True) == ""


def test_an_accumulation_of_512_backwards_over_minutes_is_told_nothing(notice: SteplessNotice) -> None:
    assert [notice.find(second * S, second) for second in range(512)] == [""] * 512
    assert notice.find(512 * S, 0) == ""  # its first optimizer step
    assert notice.find(5_000 * S, 0, last=True) == ""


def test_slow_backwards_are_told_of_after_a_quarter_of_an_hour(notice: SteplessNotice) -> None:
    assert notice.find(0, BACKWARDS_MIN) == ""
    assert notice.find(PATIENCE_NS - 1, 60) == ""
    assert notice.find(PATIENCE_NS, 60).startswith("rank 0 ran 60 backward passes")


def test_at_the_end_of_the_script_twenty_backwards_are_enough(notice: SteplessNotice) -> None:
    assert notice.find(5 * S, BACKWARDS_MIN - 1, last=True) == ""
    assert notice.find(5 * S, BACKWARDS_MIN, last=True) == (
        "rank 0 ran 20 backward passes and stepped no optimizer of torch.optim, so no step was counted. " + CURE
    )


def test_of_a_node_the_first_rank_says_it() -> None:
    first_of_node_2 = SteplessNotice(msgspec.structs.replace(identity_of(8, 1), local_rank=0))
    assert SteplessNotice(identity_of(1, 1)).find(0, BACKWARDS_CERTAIN) == ""
    assert first_of_node_2.find(0, BACKWARDS_CERTAIN).startswith("rank 8 ran")
