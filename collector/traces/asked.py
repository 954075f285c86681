"""Parts of a report that are made only when they are asked for, and what has to be read of the traces for them."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rankscope.collector.traces.kernel_groups import KernelGroup, Patterns, compile_groups
from rankscope.collector.traces.kernel_sequences import LENGTH_MAX
from rankscope.collector.traces.memory_stretch import MemoryStretch
from rankscope.collector.traces.operator_groups import GroupsAsked
from rankscope.measure.device_peaks import PeakOverride
from rankscope.measure.errors import SettingError
from rankscope.measure.flops import VALUE_OPERATORS, Count
from rankscope.measure.kineto import ReadOptions
from rankscope.measure.traced_collectives import ALL_TO_ALL_NAMES


class FlopsAsked(NamedTuple):
    """How FLOPs are counted: the peaks that the user gives, and formulas for operators of the user's own, by name."""

    peaks: PeakOverride = PeakOverride()
    formulas: Mapping[str, Count] = {}


class Asked(NamedTuple):
    """What is asked for; `roofline` is None, or the peaks that the user gives; `kernel_groups` None, or those of
    the user; `sequence_length` 0, or the most kernels of a sequence; `flops` None, or how to count them; `memory_every`
    0, or of how many operators one is a point of the curve of memory; `operator_groups` None, or how to group them;
    `memory_between` None, or the stretch of time whose memory is summed, and to which `allocations` are limited;
    `shorten` None, or what to shorten on the critical path: by pattern the share of the time that is left.
    """

    shapes: bool = False
    critical_path: bool = False
    all_to_all: bool = False
    roofline: PeakOverride | None = None
    modules: bool = False
    kernel_groups: tuple[KernelGroup, ...] | None = None
    sequence_length: int = 0
    flops: FlopsAsked | None = None
    memory_every: int = 0
    memory_flow: bool = False
    operator_groups: GroupsAsked | None = None
    launches: bool = False
    arguments: bool = False
    allocations: bool = False
    memory_between: MemoryStretch | None = None
    events: bool = False
    shorten: Mapping[str, float] | None = None
    calls: bool = False

    @property
    def options(self) -> ReadOptions:
        """Return what is read of the traces for it."""
        costs = self.roofline is not None or self.flops is not None
        return ReadOptions(
            every_shape=self.shapes or self.arguments or costs,
            every_wait=self.critical_path,
            values_of=frozenset().union(
                VALUE_OPERATORS if costs else (),
                self.flops.formulas if self.flops is not None else (),
                ALL_TO_ALL_NAMES if self.all_to_all else (),
            ),
            autograd=self.modules or self.allocations or self.events or self.flops is not None,
            launches=self.launches or self.events,
            arguments=self.arguments,
        )


NOTHING_ASKED = Asked()


def check_length(sequences: int | None) -> int:
    """Return the length of sequences that a user gives, 0 for None. Raises SettingError."""
    if sequences is not None and not 2 <= sequences <= LENGTH_MAX:  # noqa: PLR2004 - one kernel is no sequence
        raise SettingError(f"--sequences is {sequences}; it is the most kernels in a sequence, from 2 to {LENGTH_MAX}")
    return sequences or 0


def check_every(memory_every: int | None) -> int:
    """Return of how many operators one is a point of the curve of memory, 0 for None. Raises SettingError."""
    if memory_every is not None and memory_every < 1:
        raise SettingError(f"--memory-every is {memory_every}; it must be 1 or more")
    return memory_every or 0


def check_shares(shorten: Mapping[str, float] | None, *, critical_path: bool) -> Mapping[str, float] | None:
    """Return what a user wants to be shorter on the critical path, None for nothing. Raises SettingError."""
    if shorten and not critical_path:
        raise SettingError("--shorten is given without --critical-path; there is no path to shorten")
    for pattern, share in (shorten or {}).items():
        if not 0 <= share <= 1:
            raise SettingError(f"--shorten has {share} for {pattern!r}; it is the share of the time left, from 0 to 1")
        try:
            re.compile(pattern)
        except re.error as error:
            raise SettingError(f"--shorten has {pattern!r}, which is not a valid regular expression: {error}") from None
    return shorten or None


def choose_groups(patterns: Patterns | None) -> tuple[KernelGroup, ...] | None:
    """Return the groups of kernels that a user gives; None without any. Raises SettingError."""
    return compile_groups(patterns) if patterns is not None else None


def choose_peaks(tflops: float | None, gbps: float | None, *, roofline: bool) -> PeakOverride | None:
    """Return the peaks of a roofline that a user gives; None without a roofline. Raises SettingError."""
    if gbps is not None and not roofline:
        raise SettingError("--peak-gbps is given without --roofline; there is nothing to compare with it")
    for option, value in (("--peak-tflops", tflops), ("--peak-gbps", gbps)):
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(f"{option} is {value}; it must be a number above 0")
    return PeakOverride(tflops, gbps) if roofline else None


def choose_flops(
    tflops: float | None, formulas: Mapping[str, Count] | None, *, flops: bool, roofline: bool
) -> FlopsAsked | None:
    """Return how to count FLOPs; None where they are not asked for. Raises SettingError for what needs them."""
    if tflops is not None and not (flops or roofline):
        raise SettingError("--peak-tflops is given without --roofline or --flops; there is nothing to compare with it")
    if formulas and not flops:
        raise SettingError("flop_formulas are given without flops=True; nothing is counted with them")
    return FlopsAsked(PeakOverride(tflops), dict(formulas or {})) if flops else None
