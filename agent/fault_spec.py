"""The fault that the setting `fault` orders: what one rank does on purpose, to see what the monitor says of it.

    rank=2 kind=host_sleep ms=50 phase=forward steps=200:400

Words of NAME=VALUE in any order; `rank`, `kind` and `steps` are needed. `steps` are the first and the last step, both
included. Imported only where the setting is not empty.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

PHASES: Final = ("data", "forward", "backward", "optimizer")
"""The phases of a step in which a fault may be: `forward` is before the backward, the others are at their beginning."""
STEP_MAX: Final = 10**9
RANK_MAX: Final = 10**6


class FaultKind(NamedTuple):
    """What a fault does. `ms` is its duration by default, in a step or, where `is_once`, at all; None: it has none.

    A kind with `phase` is in that phase only. One that `is_once` happens in its first step alone.
    """

    meaning: str
    ms: int | None
    ms_max: int = 60_000
    is_once: bool = False
    phase: str = ""


KINDS: Final[Mapping[str, FaultKind]] = {
    "host_sleep": FaultKind("the training thread sleeps", 50),
    "gil_spin": FaultKind("another thread computes and keeps Python's lock", 50),
    "garbage_collection": FaultKind("Python's garbage collector runs", 50),
    "loader_delay": FaultKind("the data loader takes longer for a batch", 50, phase="data"),
    "allocation_churn": FaultKind("the training thread allocates and frees memory of the host", 50),
    "cpu_hog": FaultKind("seven processes compute on the core to which the training thread is bound", None),
    "sigstop": FaultKind("the process is stopped (SIGSTOP), and continued", 30_000, 600_000, is_once=True),
    "hang": FaultKind(
        "the training thread sleeps for long, so it is missing in the next collective", 60_000, 600_000, is_once=True
    ),
    "exit": FaultKind("the process ends with exit code 3", None, is_once=True),
    "crash": FaultKind("the process crashes (SIGSEGV)", None, is_once=True),
}


class FaultSpec(NamedTuple):
    """A fault of one rank. Steps count from 0, `last_step` is included; `ms` is None where the kind has no duration."""

    rank: int
    kind: str
    first_step: int
    last_step: int
    phase: str = "forward"
    ms: int | None = None

    @property
    def is_once(self) -> bool:
        """Whether it happens in its first step alone."""
        return KINDS[self.kind].is_once

    def describe(self) -> str:
        """Return the fault as text.

        >>> parse_fault("rank=2 kind=host_sleep ms=50 steps=200:400").describe()
        'host_sleep of 50 ms in the forward, steps 200 to 400'
        >>> parse_fault("rank=2 kind=exit phase=backward steps=200:400").describe()
        'exit in the backward of step 200'
        """
        what = self.kind if self.ms is None else f"{self.kind} of {self.ms} ms"
        place = f"{what} in the {'data phase' if self.phase == 'data' else self.phase}"
        return (
            f"{place} of step {self.first_step}"
            if self.is_once
            else f"{place}, steps {self.first_step} to {self.last_step}"
        )


def parse_fault(text: str) -> FaultSpec:
    """Return the fault that the text orders. Raises ValueError, which says what it must be instead."""
    words = _split(text)
    name = words.pop("kind")
    kind = KINDS.get(name)
    if kind is None:
        import difflib  # noqa: PLC0415 - only a mistake needs it

        near = difflib.get_close_matches(name, KINDS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"its kind must be one of {', '.join(KINDS)}{meant}")
    first_step, last_step = _parse_steps(words.pop("steps"))
    phase = words.pop("phase", kind.phase or "forward")
    allowed = (kind.phase,) if kind.phase else PHASES
    if phase not in allowed:
        raise ValueError(f"its phase must be {' or '.join(allowed)}, for the kind {name}")
    ms = words.pop("ms", None)
    if ms is not None and kind.ms is None:
        raise ValueError(f"the kind {name} has no ms: leave that out")
    return FaultSpec(
        rank=_parse_number("rank", words.pop("rank"), 0, RANK_MAX),
        kind=name,
        first_step=first_step,
        last_step=last_step,
        phase=phase,
        ms=kind.ms if ms is None else _parse_number("ms", ms, 1, kind.ms_max),
    )


def find_fault_problem(text: str) -> str | None:
    """Return what the text must be instead; None where it orders a fault, or nothing."""
    try:
        if text:
            parse_fault(text)
    except ValueError as error:
        return str(error)
    return None


def _split(text: str) -> dict[str, str]:
    known = ("rank", "kind", "ms", "phase", "steps")
    words: dict[str, str] = {}
    for word in text.split():
        name, separator, value = word.partition("=")
        if not separator or name not in known or name in words:
            allowed = f"words of NAME=VALUE, each of {', '.join(known)} at most once"
            raise ValueError(f"it must be {allowed}; {word!r} is not one of these")
        words[name] = value
    missing = [name for name in ("rank", "kind", "steps") if name not in words]
    if missing:
        raise ValueError(f"it needs {' and '.join(missing)}, as in rank=2 kind=host_sleep ms=50 steps=200:400")
    return words


def _parse_steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    steps = _parse_number("steps", first, 0, STEP_MAX), _parse_number("steps", last, 0, STEP_MAX)
    if steps[0] > steps[1]:
        raise ValueError("its steps must be FIRST:LAST with the first not after the last")
    return steps


def _parse_number(name: str, text: str, smallest: int, largest: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(STEP_MAX)) else -1
    if not smallest <= number <= largest:
        shape = "FIRST:LAST, two whole numbers" if name == "steps" else "a whole number"
        raise ValueError(f"its {name} must be {shape} from {smallest} to {largest}")
    return number
