"""What a report says of the floating-point operations of a rank: sums, operators, modules, and what is not counted."""

import msgspec

from rankscope.measure.uncounted_operators import UncountedOperator


class FlopsByType(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of the products in one type of numbers: `bf16`, `tf32`, ..., or torch's name of a type without a peak.
    `peak_flops_per_s` is that of one device, as given or by its data sheet; None where it is not known.
    """

    dtype: str
    forward_flops: int
    backward_flops: int
    recompute_flops: int
    peak_flops_per_s: float | None


class FlopsOperator(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator in one phase (`forward`, `backward` or `recompute`) with numbers of one type. `time_ns`
    is that of the kernels which they launched, on a CPU their own; None where a device's work is not in the trace.
    """

    operator: str
    phase: str
    dtype: str
    count: int
    flops: int
    time_ns: int | None
    flops_per_s: float | None


class FlopsModule(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of what ran in one module instance and the modules inside it, by phase; `self_flops` without those inside,
    of all phases. `path` are the instances from the root; None for what belongs to no module. `time_ns` is the device
    time of what it launched in forward, recomputation and backward, on a CPU the host's time in it. `parameters` are
    numbers in its parameters and those of the modules inside it, each once, `attributes` is its path in the code, as
    `layers.1.mlp`, empty for the outermost module; None where the trace does not say.
    """

    path: str | None
    name: str
    depth: int
    count: int | None
    parameters: int | None
    attributes: str | None = None
    forward_flops: int
    backward_flops: int
    recompute_flops: int
    self_flops: int
    time_ns: int | None
    flops_per_s: float | None


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs (2 for a multiply-accumulate) of the products that one rank computed in `step_count` steps, or in the whole
    trace where that is None; all figures are sums over these.

    `executed_flops` is as run: `forward_flops`, `recompute_flops` (forward products repeated in the backward, as by
    activation checkpointing) and `backward_flops`. `model_flops` is 3 x `forward_flops`, the convention for a training
    step; without a backward in the trace 1 x. `mfu_ratio` is the time that the model's FLOPs take at the device's
    peaks, by type, over `window_ns`; `hfu_ratio` that of the executed; None with `utilization_reason`.
    `is_lower_bound`: operators that may have products are not counted. `is_upper_bound`: recomputation may have stopped
    before its last product.
    `modules` are in the order of their tree, empty where the trace has none.
    """

    step_count: int | None
    window_ns: int
    device_count: int
    forward_flops: int
    recompute_flops: int
    backward_flops: int
    executed_flops: int
    model_flops: int
    executed_flops_per_s: float | None
    model_flops_per_s: float | None
    mfu_ratio: float | None
    hfu_ratio: float | None
    utilization_reason: str | None
    is_lower_bound: bool
    is_upper_bound: bool
    by_dtype: list[FlopsByType]
    operators: list[FlopsOperator]
    modules: list[FlopsModule]
    uncounted: list[UncountedOperator]
    notes: list[str]
