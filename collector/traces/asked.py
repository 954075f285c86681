"""Parts of a report that are made only when they are asked for, and what has to be read of the traces for them."""

from typing import NamedTuple

from rankscope.collector.traces.device_peaks import PeakOverride
from rankscope.collector.traces.kernel_groups import KernelGroup
from rankscope.collector.traces.kernel_sequences import LENGTH_MAX
from rankscope.measure.errors import SettingError
from rankscope.measure.flops import VALUE_OPERATORS
from rankscope.measure.traced_collectives import ALL_TO_ALL_NAMES


class Asked(NamedTuple):
    """What is asked for; `roofline` is None, or the peaks that the user gives; `kernel_groups` None, or those of
    the user; `sequence_length` 0, or the most kernels of a sequence.
    """

    shapes: bool = False
    critical_path: bool = False
    all_to_all: bool = False
    roofline: PeakOverride | None = None
    modules: bool = False
    kernel_groups: tuple[KernelGroup, ...] | None = None
    sequence_length: int = 0

    @property
    def every_shape(self) -> bool:
        """Return whether the shapes of all operators are needed."""
        return self.shapes or self.roofline is not None

    @property
    def values_of(self) -> frozenset[str]:
        """Return the operators and collectives whose arguments are needed."""
        operators = VALUE_OPERATORS if self.roofline is not None else frozenset()
        return operators | ALL_TO_ALL_NAMES if self.all_to_all else operators


NOTHING_ASKED = Asked()


def check_length(sequences: int | None) -> int:
    """Return the length of sequences that a user gives, 0 for None. Raises SettingError."""
    if sequences is not None and not 2 <= sequences <= LENGTH_MAX:  # noqa: PLR2004 - one kernel is no sequence
        raise SettingError(f"--sequences is {sequences}; it is the most kernels in a sequence, from 2 to {LENGTH_MAX}")
    return sequences or 0


def choose_peaks(tflops: float | None, gbps: float | None, *, roofline: bool) -> PeakOverride | None:
    """Return the peaks that a user gives; None without a roofline. Raises SettingError."""
    for option, value in (("--peak-tflops", tflops), ("--peak-gbps", gbps)):
        if value is not None and not roofline:
            raise SettingError(f"{option} is given without --roofline; there is nothing to compare with it")
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(f"{option} is {value}; it must be a number above 0")
    return PeakOverride(tflops, gbps) if roofline else None
