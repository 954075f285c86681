"""Make torch time each collective of NCCL, by TORCH_NCCL_ENABLE_TIMING=1.

torch reads the variable in the constructor of a process group of NCCL (ProcessGroupNCCL), so it must be set before
init_process_group; later it has no effect. It is set in this process, so children that the script starts inherit it.

With `nccl_timing = measured` the variable stays unset, and timing is switched on later (`measured_timing.py`).

torch then records one more CUDA event before each collective and makes both events timed: 2.5 to 3.7 us a collective on
an H200 (`bench/results/gpu-nvidia-h200-first-run.md`). Its flight recorder has the duration of each.
"""

from collections.abc import Mapping, MutableMapping
from typing import Final

from rankscope.agent.captures.flight_recorder import DUMPS
from rankscope.agent.config import MEASURED, OFF, ON

NCCL_TIMING: Final = "nccl_timing"
"""The part of the agent that measures what timing does to the steps."""
TIMING_VARIABLE: Final = "TORCH_NCCL_ENABLE_TIMING"
SET_VARIABLE: Final = "RANKSCOPE_NCCL_TIMING_SET"
"""Set beside TIMING_VARIABLE by the agent, whose cost the timing is then, also in children that inherit both."""
COST_NS: Final = 3_700
"""Cost of timing one collective, on the training thread: the larger of the two measurements."""
COST_TEXT: Final = "2.5 to 3.7 us a collective on an H200"

OLD_RING_VARIABLE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""The only variable that switches on the recorder of NCCL before RECORDER_ON_SINCE."""
RING_VARIABLES: Final = ("TORCH_FR_BUFFER_SIZE", OLD_RING_VARIABLE)
RING_ENTRIES: Final = 2_000
"""Entries of torch's recorder by default."""
RECORDER_ON_SINCE: Final = (2, 11)
"""The first torch of which it was seen on a GPU that its recorder is on by default and has durations."""
EVENT_CACHE_VARIABLE: Final = "TORCH_NCCL_CUDA_EVENT_CACHE"
EVENT_CACHE_SINCE: Final = (2, 6)
"""The first torch that reuses CUDA events by default (pytorch #140975)."""

_TRUE: Final = frozenset({"1", "y", "yes", "t", "true"})
"""What torch takes for yes: any other value but those of _FALSE ends in an error."""
_FALSE: Final = frozenset({"0", "n", "no", "f", "false"})


def enable_timing(choice: str, environment: MutableMapping[str, str]) -> bool:
    """Set the variable in `environment` by the setting `nccl_timing`; return whether this call has set it. A value that
    is there stays, whatever it is. Call it with torch imported, before the first process group.
    """
    if choice in {OFF, MEASURED} or TIMING_VARIABLE in environment or not is_safe_to_read(environment):
        return False
    if choice != ON and not _has_recorder_on(environment):
        return False
    environment[TIMING_VARIABLE] = environment[SET_VARIABLE] = "1"
    return True


def find_obstacle(environment: Mapping[str, str]) -> str | None:
    """Return why collectives would not be timed although `nccl_timing` is `measured`, to follow "because"; None: they
    may be. A variable that the job has set is none: then the job decides. Call it with torch imported.
    """
    if not is_safe_to_read(environment):
        return "reading the durations is not safe with this torch, or without its event cache"
    if not _has_recorder_on(environment):
        return "this torch has no NCCL, or no flight recorder that is known to be on"
    return None


def may_read(environment: Mapping[str, str]) -> bool:
    """Return whether torch's recorder has the collectives of NCCL, timed or not, and may be read."""
    return (is_timing(environment) or _has_recorder_on(environment)) and is_safe_to_read(environment)


def is_safe_to_read(environment: Mapping[str, str]) -> bool:
    """Return whether torch's recorder can be read while collectives run. Without torch's cache of CUDA events reading
    could query one that has just been destroyed.
    """
    if environment.get(EVENT_CACHE_VARIABLE, "").lower() in _FALSE or _find_release() < EVENT_CACHE_SINCE:
        return False
    try:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415 - the user's torch
    except ImportError:
        return False
    return any(hasattr(c10d, name) for name in DUMPS)


def is_timing(environment: Mapping[str, str]) -> bool:
    """Return whether the variable makes torch time collectives."""
    return environment.get(TIMING_VARIABLE, "").lower() in _TRUE


def find_ring_entries(environment: Mapping[str, str]) -> int | None:
    """Return the number of entries that the recorder is set to keep; None if it is not set.

    >>> find_ring_entries({"TORCH_FR_BUFFER_SIZE": "500"}), find_ring_entries({})
    (500, None)
    """
    texts = (environment.get(name, "") for name in RING_VARIABLES)
    return next((int(text) for text in texts if text.isdecimal()), None)


def describe_too_late() -> str:
    """Return the line about an agent that was started after the process groups of NCCL."""
    return (
        f"NCCL's collectives are not timed: the agent was started after init_process_group, too late: torch reads "
        f"{TIMING_VARIABLE} in it. Start the agent before it (-m rankscope.agent, RANKSCOPE=1), or set "
        f"{TIMING_VARIABLE}=1 for the job."
    )


def describe_timing(environment: Mapping[str, str]) -> str:
    """Return the line about collectives that are timed, with what it costs, or about those that are not."""
    value = environment.get(TIMING_VARIABLE, "")
    if not is_timing(environment):
        return (
            f"NCCL's collectives are not timed ({TIMING_VARIABLE} was {value or 'not set in time'}). "
            "When ranks enqueue some of them is read from torch's flight recorder instead; "
            "RANKSCOPE_NCCL_TIMING=off stops that (docs/cost.md)."
        )
    if is_set_by_agent(environment):
        advice = "To switch it off: RANKSCOPE_NCCL_TIMING=off (docs/cost.md)."
    else:
        advice = (
            "The job set the variable itself; RANKSCOPE_NCCL_TIMING=off stops rankscope from reading the durations "
            "(docs/cost.md)."
        )
    return f"NCCL's collectives are timed ({TIMING_VARIABLE}={value}), which costs {COST_TEXT}. {advice}"


def is_set_by_agent(environment: Mapping[str, str]) -> bool:
    """Return whether it is the agent, here or in a parent process, that has torch time collectives."""
    return environment.get(SET_VARIABLE, "") == "1"


def _has_recorder_on(environment: Mapping[str, str]) -> bool:
    """Return whether torch has NCCL, and a recorder that is on. Whether a GPU is there is not asked, since that could
    initialize CUDA: without a process group of NCCL nothing reads the variable.
    """
    try:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415 - the user's torch
    except ImportError:
        return False
    if not hasattr(c10d, "ProcessGroupNCCL"):
        return False
    if _find_release() >= RECORDER_ON_SINCE:
        return find_ring_entries(environment) != 0
    size = environment.get(OLD_RING_VARIABLE, "")
    return size.isdecimal() and int(size) > 0


def _find_release() -> tuple[int, ...]:
    try:
        import torch  # noqa: PLC0415 - the user's torch
    except ImportError:
        return (0,)
    return _read_release(torch.__version__)


def _read_release(version: object) -> tuple[int, ...]:
    """Return major and minor number of a version; (0,) if they cannot be read."""
    numbers = str(version).split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else (0,)
