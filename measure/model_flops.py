"""Define what a rank reports of the FLOPs of its steps, and the utilization that follows from it. Pure.

    MFU = FLOPs that the model needs / (time of these steps * peak of the device)
    HFU = FLOPs that were executed  / (time of these steps * peak of the device)

With numbers of several types the peak is the rate at which their FLOPs, one type after the other, would be done.
The time is that of the steps by the host clock, without the time between steps (docs/definitions.md section 2).
"""

from typing import Final

import msgspec

from rankscope.measure.bounds import Reasons, ShortName
from rankscope.measure.identity import Count
from rankscope.measure.units import s_to_ns

DECLARED: Final = "declared"
MEASURED: Final = "measured"


class FlopSum(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """FLOPs of some steps of one rank, the number of these steps, and the sum of their durations.

    FLOPs are a float: a GPU of 1 PFLOP/s does 2^63 of them in three hours.
    """

    flops: float
    steps: Count
    step_ns: Count

    @property
    def per_s(self) -> float | None:
        """FLOPs per second of step time; None without any.

        >>> FlopSum(6e12, 2, 500_000_000).per_s
        12000000000000.0
        """
        return self.flops / self.step_ns * s_to_ns(1) if self.step_ns > 0 else None

    @property
    def per_step(self) -> float | None:
        """FLOPs of a mean step; None without any."""
        return self.flops / self.steps if self.steps > 0 else None


class StepFlops(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """FLOPs of a rank's last steps, about a minute of them or all so far, and the peak of its device.

    `model` are those that the model needs, `executed` those that were computed, recomputation included; None: not
    known. Each counts the steps in which it was known. `source` is how `model` is known: DECLARED, MEASURED, or empty.
    `peak_flops_per_s` is the dense peak of the device for numbers of the types `peak_type` (`bf16, fp32`, those of most
    FLOPs first); they are empty where the peak is that of the setting `peak_tflops`. `executed_peak_flops_per_s` is
    that for the executed FLOPs, None: the same (or none). `absent` has the reason for what is None. With
    `executed_is_upper_bound` no more than `executed` were executed at present: a recomputation may have stopped early.
    """

    model: FlopSum | None = None
    executed: FlopSum | None = None
    source: ShortName = ""
    peak_flops_per_s: float | None = None
    peak_type: ShortName = ""
    absent: Reasons = {}
    executed_peak_flops_per_s: float | None = None
    executed_is_upper_bound: bool = False

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization, 0 and up (above 1 something is declared wrongly); None where it is not known.

        >>> StepFlops(model=FlopSum(6e12, 2, 500_000_000), peak_flops_per_s=4e13).mfu
        0.3
        """
        return _divide(self.model, self.peak_flops_per_s)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization, 0 and up; None where it is not known. At most this with
        `executed_is_upper_bound`.
        """
        return _divide(self.executed, self.executed_peak_flops_per_s or self.peak_flops_per_s)


NO_FLOPS: Final = StepFlops()


def _divide(done: FlopSum | None, peak_flops_per_s: float | None) -> float | None:
    per_s = None if done is None else done.per_s
    return None if per_s is None or not peak_flops_per_s else per_s / peak_flops_per_s
