"""Read how many FLOPs the last steps of a rank had, beside the peak of its device, for each report."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.agent.steps.model_flops import Counted, ModelFlops
from rankscope.measure.device_peaks import BF16, FP16, TFLOP, find_peaks
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.units import s_to_ns

RECENT_NS: Final = s_to_ns(60)
"""Time of the steps that a rate is over, or a report's steps more."""
KEPT_MAX: Final = 1024
"""Reports whose totals are kept: ten a second for more than RECENT_NS."""


NAMED_SHARE_MIN: Final = 0.01
"""Share of the FLOPs from which on a type of numbers is named. All of them count."""
ALL: Final = (1.0, 1.0)


class Peak(NamedTuple):
    """Peak of a device without sparsity (FLOP/s) for the types of numbers of the model's FLOPs, and of the executed
    ones, or why there is none. `number_types` names them, most FLOPs first; it is empty where the user gave the peak.
    """

    flops_per_s: float | None
    executed_flops_per_s: float | None = None
    number_types: str = ""
    absent: str = ""


class StepFlopsReader:
    """Reader of the FLOPs of the last steps, on the agent thread. `find_device` returns the GPU, None where there is
    none or while it is not known; `peak_tflops` is the setting, 0 for none.
    """

    def __init__(self, flops: ModelFlops, find_device: Callable[[], TorchDevice | None], peak_tflops: float) -> None:
        self._flops = flops
        self._find_device = find_device
        self._peak_tflops = peak_tflops
        self._model = _RecentSteps()
        self._executed = _RecentSteps()

    def read(self) -> StepFlops:
        """Return the FLOPs of the steps of about the last RECENT_NS of step time, all so far where these are fewer."""
        totals = self._flops.totals
        model, executed = self._model.read(totals.model), self._executed.read(totals.executed)
        absent = self._flops.absent
        peak = find_peak(self._find_device(), self._flops.number_types, self._peak_tflops)
        if peak.absent:
            absent["peak"] = peak.absent
        return StepFlops(
            model=None if "model" in absent else model,
            executed=None if "executed" in absent else executed,
            source=self._flops.source,
            peak_flops_per_s=peak.flops_per_s,
            peak_type=peak.number_types,
            absent=absent,
            executed_peak_flops_per_s=peak.executed_flops_per_s,
            executed_is_upper_bound=self._flops.is_upper_bound and "executed" not in absent,
        )


class _RecentSteps:
    """The sums of earlier reports, back to the last one that is RECENT_NS of step time old."""

    def __init__(self) -> None:
        self._kept = deque([Counted()], KEPT_MAX)

    def read(self, now: Counted) -> FlopSum | None:
        """Return the sums of the recent steps; None without any."""
        kept = self._kept
        if now != kept[-1]:
            kept.append(now)
        while len(kept) > 1 and now.step_ns - kept[1].step_ns >= RECENT_NS:
            kept.popleft()
        begin = kept[0]
        steps = now.steps - begin.steps
        return FlopSum(float(now.flops - begin.flops), steps, now.step_ns - begin.step_ns) if steps else None


def find_peak(device: TorchDevice | None, types: Mapping[str, tuple[float, float]], peak_tflops: float) -> Peak:
    """Return the peak of a device: as set, else of the table by its name. `types` has the shares of the model's and the
    executed FLOPs by type of number. Each type takes the time of its own peak, so that of a mixture is

        1 / sum of share / peak over the types

    Without types it is that of bf16, as is usual, or of fp16 for a device without it.

    >>> a100 = TorchDevice(index=0, uuid=None, pci_address=None, is_amd=False, name="NVIDIA A100-SXM4-80GB")
    >>> find_peak(a100, {"bf16": (1.0, 0.5), "tf32": (0.0, 0.5)}, 0)
    Peak(flops_per_s=312000000000000.0, executed_flops_per_s=208000000000000.0, number_types='bf16, tf32', absent='')
    >>> find_peak(None, {}, 0.5).flops_per_s, find_peak(None, {"bf16": (1.0, 1.0)}, 0).absent
    (500000000000.0, 'no GPU is in use; peak_tflops sets a peak')
    """
    if peak_tflops > 0:
        return Peak(peak_tflops * TFLOP, peak_tflops * TFLOP)
    if device is None:
        return Peak(None, absent="no GPU is in use; peak_tflops sets a peak")
    peaks = find_peaks(device.name)
    if peaks is None:
        return Peak(None, absent=f"the peak of {device.name or 'this GPU'} is not known; peak_tflops sets it")
    wanted = types or {BF16 if BF16 in peaks.tflops or FP16 not in peaks.tflops else FP16: ALL}
    unknown = [name for name in wanted if name not in peaks.tflops]
    if unknown:
        return Peak(None, absent=f"the peak of {device.name} for {unknown[0]} is not known; peak_tflops sets it")
    model, executed = (
        TFLOP / sum(shares[place] / peaks.tflops[name] for name, shares in wanted.items()) for place in (0, 1)
    )
    by_share = sorted(wanted.items(), key=lambda item: (-item[1][1], item[0]))
    return Peak(model, executed, ", ".join(name for name, shares in by_share if max(shares) >= NAMED_SHARE_MIN))
