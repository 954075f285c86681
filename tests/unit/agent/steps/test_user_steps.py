"""SteplessNotice: when it warns of a loop without optimizer steps, and when that may be gradient accumulation."""

import msgspec
import pytest

from rankscope.agent.steps.user_steps import BACKWARDS_CERTAIN, BACKWARDS_MIN, PATIENCE_NS, SteplessNotice
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of

CURE = (
    "If the loop updates its parameters in another way, call rankscope.step() at the end of each step (docs/loops.md)."
)


@pytest.fixture
def notice() -> SteplessNotice:
    return SteplessNotice(identity_of(0, 1))


def test_warns_once_after_1024_backwards_without_a_step(notice: SteplessNotice) -> None:
    assert notice.find(0, BACKWARDS_CERTAIN - 1) == ""
    assert notice.find(1 * S, BACKWARDS_CERTAIN) == (
        "rank 0 ran 1,024 backward passes and stepped no optimizer of torch.optim, so no step has been counted so far. "
        + CURE
    )
    assert notice.find(2 * S, 2 * BACKWARDS_CERTAIN) == ""
    assert notice.find(3 * S, 2 * BACKWARDS_CERTAIN, last=True) == ""


def test_no_warning_for_an_accumulation_of_512_backwards(notice: SteplessNotice) -> None:
    assert [notice.find(second * S, second) for second in range(512)] == [""] * 512
    assert notice.find(512 * S, 0) == ""  # its first optimizer step
    assert notice.find(5_000 * S, 0, last=True) == ""


def test_warns_of_slow_backwards_after_a_quarter_of_an_hour(notice: SteplessNotice) -> None:
    assert notice.find(0, BACKWARDS_MIN) == ""
    assert notice.find(PATIENCE_NS - 1, 60) == ""
    assert notice.find(PATIENCE_NS, 60).startswith("rank 0 ran 60 backward passes")


def test_warns_at_the_end_after_twenty_backwards(notice: SteplessNotice) -> None:
    assert notice.find(5 * S, BACKWARDS_MIN - 1, last=True) == ""
    assert notice.find(5 * S, BACKWARDS_MIN, last=True) == (
        "rank 0 ran 20 backward passes and stepped no optimizer of torch.optim, so no step was counted. " + CURE
    )


def test_only_the_first_rank_of_a_node_warns() -> None:
    first_of_node_2 = SteplessNotice(msgspec.structs.replace(identity_of(8, 1), local_rank=0))
    assert SteplessNotice(identity_of(1, 1)).find(0, BACKWARDS_CERTAIN) == ""
    assert first_of_node_2.find(0, BACKWARDS_CERTAIN).startswith("rank 8 ran")
