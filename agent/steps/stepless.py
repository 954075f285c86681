"""Warn once when a loop trains without torch.optim, so that no steps are counted. Pure.

Gradient accumulation makes 64 to 512 backwards before its first optimizer step. So the warning comes after twice the
largest of these numbers, after a quarter of an hour, which no step takes, or at the end of the script.
"""

from typing import Final

from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import NS_PER_S

BACKWARDS_CERTAIN: Final = 1024
BACKWARDS_MIN: Final = 20
"""Fewer backwards are a test of the model, and give no warning."""
PATIENCE_NS: Final = 900 * NS_PER_S


class SteplessNotice:
    """The warning to the user. Only the first rank of a node gives it."""

    def __init__(self, identity: RankIdentity) -> None:
        self._identity = identity
        self._is_done = identity.local_rank != 0
        self._since_ns: int | None = None

    def find(self, now_ns: int, backwards: int, *, last: bool = False) -> str:
        """Return the warning if it is due now, else an empty string. `backwards`: made without a step; 0: there was a
        step.

        `last`: the script has ended.
        """
        if self._is_done or backwards < BACKWARDS_MIN:
            return ""
        if self._since_ns is None:
            self._since_ns = now_ns
        if not last and backwards < BACKWARDS_CERTAIN and now_ns - self._since_ns < PATIENCE_NS:
            return ""
        self._is_done = True
        counted = "was counted" if last else "has been counted so far"
        return (
            f"rank {self._identity.rank} ran {backwards:,} backward passes and stepped no optimizer of torch.optim, so "
            f"no step {counted}. If the loop updates its parameters in another way, call rankscope.step() at the end "
            "of each step (docs/loops.md)."
        )
