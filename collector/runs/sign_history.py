"""Keep by which step the GPUs of a run have shown each sign of a fault. Pure.

A sign (an Xid error, rows to be remapped, a narrow PCIe link) that was there before a rank became slow has not made it
slow. Samples have the present state only, so it is looked at in every pass: of large runs at some ranks in turn, as the
samples of each must be decoded.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.collector.detect.stragglers.root_cause import find_signs
from rankscope.measure.records import DeviceSample

RANKS_PER_PASS_MAX: Final = 512
"""10 ms: a rank's samples take 20 us. Of 16,384 ranks each is looked at every 32 passes."""
SIGNS_MAX: Final = 8
"""Of one rank; its GPU shows hardly more than two at once."""


class SignHistory:
    """The signs of one attempt."""

    def __init__(self) -> None:
        #: `{rank: {sign: last step by which it was seen first}}` of ranks with any; at most SIGNS_MAX of each.
        self.by_step: dict[int, dict[str, int]] = {}
        self._next = 0

    def look(self, ranks: Sequence[int], devices: Mapping[int, Sequence[DeviceSample]], last_step: int) -> None:
        """Look at the next ranks, after `last_step` steps."""
        count = min(len(ranks), RANKS_PER_PASS_MAX)
        for place in range(self._next, self._next + count):
            rank = ranks[place % len(ranks)]
            for sign in {sign for device in devices.get(rank, ()) for sign in find_signs(device)}:
                known = self.by_step.setdefault(rank, {})
                if len(known) < SIGNS_MAX:
                    known.setdefault(sign, last_step)
        self._next = (self._next + count) % max(1, len(ranks))
