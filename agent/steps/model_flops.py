"""Count the FLOPs of the steps of one rank: as the user has declared them, else as they were measured.

    model FLOPs       declared, per step or per token of the step; else measured
    executed FLOPs    measured, recomputation included; a declaration says nothing about them

Each step counts what was known when it ended; a step for which nothing was known counts nowhere.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Final, NamedTuple

from rankscope.measure.device_peaks import BF16, FP8, FP16, FP32, FP64, INT8, TF32
from rankscope.measure.model_flops import DECLARED, MEASURED
from rankscope.measure.records import StepRecord

FLOPS_MAX: Final = 1e24
"""Most FLOPs of a step that may be declared: those of the largest GPU in ten years."""

DTYPES: Final = {
    "bfloat16": BF16, "float16": FP16, "half": FP16, "float32": FP32, "float": FP32, "float64": FP64, "double": FP64,
    "float8_e4m3fn": FP8, "float8_e5m2": FP8, "int8": INT8,
    **{name: name for name in (BF16, FP16, FP32, TF32, FP64, FP8, INT8)},
}  # fmt: skip
"""Types of numbers by their names in torch, and by the names of the table of peaks."""

UNKNOWN: Final = "FLOPs are not declared, and not measured yet"
NO_TOKENS: Final = "FLOPs are declared per token, and the number of tokens of a step is not known"
NOT_MEASURED: Final = "executed FLOPs have not been measured yet"


class Counted(NamedTuple):
    """FLOPs of some steps, exact where each step's are an integer, with the number and the durations of these steps."""

    flops: float = 0
    steps: int = 0
    step_ns: int = 0

    def add(self, flops: float, duration_ns: int) -> "Counted":
        """Return the sums with one more step."""
        return Counted(self.flops + flops, self.steps + 1, self.step_ns + duration_ns)


class FlopTotals(NamedTuple):
    """Model and executed FLOPs of the steps so far; each counts the steps in which it was known."""

    model: Counted = Counted()
    executed: Counted = Counted()


class _Declared(NamedTuple):
    """FLOPs of each step or of each token of it; one of them is 0."""

    per_step: float
    per_token: float
    number_type: str | None


class _Measured(NamedTuple):
    model: int
    executed: int
    is_upper_bound: bool


class ModelFlops:
    """The FLOPs of one rank's steps. `add` is called for each finished step, in order; anything else by any thread."""

    def __init__(self) -> None:
        self._declared: _Declared | None = None
        self._measured: _Measured | None = None
        self._why_not_measured = NOT_MEASURED
        self._measured_types: Mapping[str, tuple[float, float]] = {}
        self._lacks_tokens = False
        #: Replaced as a whole, so that another thread reads consistent sums.
        self._totals = FlopTotals()

    def set_declared(self, *, per_step: object = None, per_token: object = None, dtype: object = None) -> None:
        """Declare the model FLOPs of this rank for each step from now on, or for each token; with neither, none are
        declared any more. `dtype` is the type of the products' numbers, of torch or by its name; None: not stated.

        Raise TypeError or ValueError for anything but one finite number from above 0 to FLOPS_MAX, and for a type that
        is not in DTYPES; nothing is changed then.
        """
        step, token = _to_flops("per_step", per_step), _to_flops("per_token", per_token)
        number_type = _to_number_type(dtype)
        if step and token:
            raise ValueError("both per_step and per_token are given; declare the FLOPs of a step, or those of a token")
        self._declared = _Declared(step, token, number_type) if step or token else None

    def set_measured(
        self,
        model: int,
        executed: int,
        number_types: Mapping[str, tuple[float, float]] | None = None,
        *,
        is_upper_bound: bool = False,
    ) -> None:
        """Set what a step was measured to need and to execute, for the steps from now on. `number_types` has the shares
        of both by type. `is_upper_bound`: no more than so much was executed.
        """
        self._measured_types = number_types or {}
        self._measured = _Measured(model, executed, is_upper_bound)

    def clear_measured(self, reason: str) -> None:
        """Measured FLOPs hold no longer, for this reason: the batch has another shape, a window could not be read."""
        self._measured, self._why_not_measured = None, reason

    def add(self, record: StepRecord) -> None:
        """Count a finished step."""
        declared, measured = self._declared, self._measured
        if declared is None and measured is None:
            return
        model: float | None = None if measured is None else measured.model
        if declared is not None:
            model = declared.per_step or (None if record.tokens is None else declared.per_token * record.tokens)
            self._lacks_tokens = model is None
        done = self._totals
        self._totals = FlopTotals(
            done.model if model is None else done.model.add(model, record.duration_ns),
            done.executed if measured is None else done.executed.add(measured.executed, record.duration_ns),
        )

    @property
    def totals(self) -> FlopTotals:
        """FLOPs of the steps so far."""
        return self._totals

    @property
    def source(self) -> str:
        """How model FLOPs are known at present: DECLARED, MEASURED, or empty if they are not."""
        return DECLARED if self._declared is not None else MEASURED if self._measured is not None else ""

    @property
    def number_types(self) -> Mapping[str, tuple[float, float]]:
        """The shares of model and executed FLOPs by type of number: all of the declared type, else those measured last,
        also where that measurement holds no longer, so that the peak stays the same; empty: not known.
        """
        declared = None if self._declared is None else self._declared.number_type
        return self._measured_types if declared is None else {declared: (1.0, 1.0)}

    @property
    def is_upper_bound(self) -> bool:
        """Whether the executed FLOPs that are known at present are the most that a step may have executed."""
        return self._measured is not None and self._measured.is_upper_bound

    @property
    def absent(self) -> dict[str, str]:
        """The reason for each of `model` and `executed` that is not known of the last steps."""
        absent = {} if self._measured is not None else {"executed": self._why_not_measured}
        if not self.source:
            absent["model"] = UNKNOWN if self._why_not_measured == NOT_MEASURED else self._why_not_measured
        elif self._declared is not None and self._lacks_tokens:
            absent["model"] = NO_TOKENS
        return absent


def _to_flops(name: str, value: object) -> float:
    """Return the declared number, as an int where it is one; 0 for None. Sums of integers are exact."""
    if value is None:
        return 0
    number: float
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a number of FLOPs")
    if not 0 < number <= FLOPS_MAX:
        raise ValueError(f"{name} is {number!r}; it must be above 0 and at most {FLOPS_MAX:g} FLOPs")
    return int(number) if number == int(number) else number


def _to_number_type(dtype: object) -> str | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    return DTYPES[name]
