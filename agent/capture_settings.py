"""What the settings of captures mean: the steps of a schedule, and what is recorded beside operators. Pure.

A schedule has the words of `torch.profiler.schedule`. Every rank computes its steps alone, from step numbers, so all
ranks capture the same steps without talking to each other.
"""

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Final, NamedTuple

from rankscope.measure.capture_limits import CAPTURE_OPTIONS, CAPTURE_STEPS_MAX

DEFAULTS: Final = {"skip_first": 0, "wait": 0, "warmup": 1, "active": 3, "repeat": 1}
"""What a schedule means where it leaves a word out."""
STEPS_MAX: Final = 10**9
ACTIVE_MAX: Final = CAPTURE_STEPS_MAX


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


class CaptureSteps(NamedTuple):
    """The steps of one capture: it is prepared before `begin_step` and records `first_step` to `last_step`, both
    included. `begin_step` is at most `first_step`. `order_id` is that of the collector's order; empty for others.
    """

    begin_step: int
    first_step: int
    last_step: int
    order_id: str = ""

    @property
    def step_count(self) -> int:
        """The number of recorded steps."""
        return self.last_step - self.first_step + 1

    def overlaps(self, other: "CaptureSteps") -> bool:
        """Return whether one of its steps, those of preparation included, is one of the other's.

        >>> steps = CaptureSteps(7, 8, 9)
        >>> steps.overlaps(CaptureSteps(9, 10, 12)), steps.overlaps(CaptureSteps(10, 11, 12))
        (True, False)
        """
        return self.begin_step <= other.last_step and other.begin_step <= self.last_step

    def __str__(self) -> str:
        """Return the recorded steps for a sentence.

        >>> str(CaptureSteps(7, 8, 8)), str(CaptureSteps(7, 8, 9))
        ('step 8', 'steps 8 to 9')
        """
        return f"step {self.first_step}" if self.step_count == 1 else f"steps {self.first_step} to {self.last_step}"


class CaptureSchedule(NamedTuple):
    """Cycles of `wait` steps without a capture, `warmup` steps in which the profiler is prepared, and `active` recorded
    ones, `repeat` times (0: until the end), after the first `skip_first` steps of the run.

    >>> schedule = parse_schedule("skip_first=10, wait=90, warmup=2, active=3, repeat=2")
    >>> schedule.find_next(0)
    CaptureSteps(begin_step=100, first_step=102, last_step=104, order_id='')
    >>> schedule.find_next(101)
    CaptureSteps(begin_step=195, first_step=197, last_step=199, order_id='')
    >>> schedule.find_next(196) is None
    True
    """

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def find_next(self, step: int) -> CaptureSteps | None:
        """Return the first capture that begins at this step or later; None after the last one."""
        length = self.wait + self.warmup + self.active
        cycle = max(0, -(-(step - self.skip_first - self.wait) // length))
        if self.repeat and cycle >= self.repeat:
            return None
        begin = self.skip_first + cycle * length + self.wait
        return CaptureSteps(begin, begin + self.warmup, begin + self.warmup + self.active - 1)


def find_schedule_problem(text: str) -> str | None:
    """Return what a schedule must be instead; None if it is good, as the empty one is.

    >>> find_schedule_problem("active=3, stride=2")
    'stride is not one of skip_first, wait, warmup, active, repeat'
    """
    return _find_problem(parse_schedule, text)


def parse_schedule(text: str) -> CaptureSchedule | None:
    """Return the schedule that `wait=100, warmup=1, active=3` describes, in any order; None for an empty text.

    Raises ValueError with what it must be instead.
    """
    if not text.strip():
        return None
    given = [part.partition("=") for part in text.split(",")]
    numbers = dict(DEFAULTS)
    for name, _, number in ((word.strip(), sign, value.strip()) for word, sign, value in given):
        if name not in DEFAULTS:
            raise ValueError(f"{name} is not one of {', '.join(DEFAULTS)}")
        if not (number.isascii() and number.isdigit() and int(number) <= STEPS_MAX):
            raise ValueError(f"{name} must be a whole number of at most {STEPS_MAX}, as in {name}={DEFAULTS[name]}")
        numbers[name] = int(number)
    if not 1 <= numbers["active"] <= ACTIVE_MAX:
        raise ValueError(f"active must be between 1 and {ACTIVE_MAX}")
    return CaptureSchedule(**numbers)


URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://.")
PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"
}  # fmt: skip
"""The package by which fsspec reaches each scheme. Of others it is not known before the first upload."""


def is_url(folder: str) -> bool:
    """Return whether the files of captures are uploaded.

    >>> is_url("s3://bucket/captures"), is_url("/shared/captures")
    (True, False)
    """
    return URL.match(folder) is not None


def find_folder_problem(folder: str, is_installed: Callable[[str], bool] = is_installed) -> str | None:
    """Return what `capture_folder` must be instead; None if it is good, as the empty one is."""
    if is_url(folder):
        package = PACKAGES.get(folder.partition("://")[0])
        needed = ["fsspec"] if package is None else ["fsspec", package]
        if all(is_installed(name) for name in needed):
            return None
        return f"for this URL this Python needs other packages: pip install {' '.join(needed)}"
    if not folder or folder.startswith("/"):
        return None
    return "it must be an absolute path, since ranks may run in different directories, or a URL as s3://bucket/path"


OPTIONS: Final = CAPTURE_OPTIONS
SHAPES, STACKS, MEMORY, MODULES = OPTIONS


class EventCost(NamedTuple):
    """The time of one event of a capture, in ns: while its end stops the training thread, and while its file is written
    and all Python threads wait; and how many events there are for one without options.
    """

    stop_ns: int
    save_ns: int
    events: float


PLAIN_COST: Final = EventCost(2_500, 1_700, 1.0)
COSTS: Final = {
    SHAPES: EventCost(8_100, 2_800, 1.0),
    STACKS: EventCost(6_400, 4_200, 1.6),
    MEMORY: EventCost(3_700, 2_800, 1.0),
    MODULES: EventCost(2_500, 1_700, 1.05),
}
"""Measured with torch 2.13 (bench/results/captures.md). Modules add one event for each call: 1 % there, more
where they are small.
"""
SCALE_MAX: Final = 8.0
"""A machine is taken to be so many times as slow as that of the measurement, or as fast, at most."""


class RecordOptions(NamedTuple):
    """What a capture records beside operators, kernels and copies."""

    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    modules: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The options that are on."""
        return tuple(name for name, is_on in zip(OPTIONS, self, strict=True) if is_on)

    def expect_pause_ns(self, events: float, window_ns: float = PLAIN_COST.stop_ns) -> int:
        """Return for how long a capture of so many events of a full profiler window stops training, in ns: about, and
        mostly at its end. `window_ns`: what a full window has cost the training thread for each of its events, which
        tells how fast the machine is.

        >>> RecordOptions().expect_pause_ns(10_000), RecordOptions(shapes=True).expect_pause_ns(10_000)
        (42000000, 109000000)
        >>> RecordOptions().expect_pause_ns(10_000, window_ns=5_000)
        84000000
        """
        costs = [COSTS[name] for name in self.names]
        more = 1.0 + sum(cost.events - PLAIN_COST.events for cost in costs)
        stop_ns = PLAIN_COST.stop_ns + sum(cost.stop_ns - PLAIN_COST.stop_ns for cost in costs)
        save_ns = PLAIN_COST.save_ns + sum(cost.save_ns - PLAIN_COST.save_ns for cost in costs)
        scale = min(max(window_ns / PLAIN_COST.stop_ns, 1 / SCALE_MAX), SCALE_MAX)
        return round(events * more * (stop_ns + save_ns) * scale)


def parse_options(text: str) -> RecordOptions:
    """Return the options that `shapes, stacks` names. Raises ValueError with what it must be instead.

    >>> parse_options("stacks, shapes").names
    ('shapes', 'stacks')
    """
    return choose_options(text.split(","))


def choose_options(given: Iterable[str]) -> RecordOptions:
    """Return the options of these names; empty ones count for nothing. Raises ValueError as `parse_options`."""
    names = {name.strip() for name in given} - {""}
    unknown = sorted(names - {*OPTIONS})
    if unknown:
        raise ValueError(f"{unknown[0]} is not one of {', '.join(OPTIONS)}")
    return RecordOptions(*(name in names for name in OPTIONS))


def find_options_problem(text: str) -> str | None:
    """Return what the options must be instead; None if they are good."""
    return _find_problem(parse_options, text)


def _find_problem(parse: Callable[[str], object], text: str) -> str | None:
    """Return the text of the ValueError with which `parse` refuses a text; None if it does not."""
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return None
