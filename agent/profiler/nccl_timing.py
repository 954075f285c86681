"""Make torch time each collective of NCCL, by TORCH_NCCL_ENABLE_TIMING=1.

torch reads the variable in the constructor of a process group of NCCL (ProcessGroupNCCL), so it must be set before
init_process_group; later it has no effect. It is set in this process, so children that the script starts inherit it.

torch then records one more CUDA event before each collective and makes both events timed: 2.5 to 3.7 us a collective on
an H200 (`tests/benchmarks/results/gpu-nvidia-h200.md`). Its flight recorder has the duration of each.
"""

from collections.abc import Mapping, MutableMapping
from typing import Final

from rankscope.agent.config import AUTO, OFF

TIMING_VARIABLE: Final = "TORCH_NCCL_ENABLE_TIMING"
COST_NS: Final = 3_700
"""Cost of timing one collective, on the training thread: the larger of the two measurements."""
COST_TEXT: Final = "2.5 to 3.7 us a collective on an H200"

RING_VARIABLES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RING_ENTRIES: Final = 2_000
"""Entries of torch's recorder by default."""
RECORDER_ON_SINCE: Final = (2, 11)
"""The first torch of which it was seen on a GPU that its recorder is on by default and has durations."""
EVENT_CACHE_VARIABLE: Final = "TORCH_NCCL_CUDA_EVENT_CACHE"

_TRUE: Final = frozenset({"1", "y", "yes", "t", "true"})
"""What torch takes for yes: any other value but those of _FALSE ends in an error."""
_FALSE: Final = frozenset({"0", "n", "no", "f", "false"})


def enable_timing(choice: str, environment: MutableMapping[str, str]) -> bool:
    """Set the variable in `environment` by the setting `nccl_timing`; return whether this call has set it. A value that
    is there stays, whatever it is. Call it with torch imported, before the first process group.
    """
    if choice == OFF or TIMING_VARIABLE in environment:
        return False
    if choice == AUTO and not _can_time(environment):
        return False
    environment[TIMING_VARIABLE] = "1"
    return True


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
        "NCCL's collectives are not timed: the agent was started after init_process_group, which had read "
        f"{TIMING_VARIABLE} by then. Start the agent before it (-m rankscope.agent, RANKSCOPE=1), or set "
        f"{TIMING_VARIABLE}=1 for the job."
    )


def describe_timing(environment: Mapping[str, str]) -> str:
    """Return the line about collectives that are timed, with what it costs."""
    return (
        f"NCCL's collectives are timed ({TIMING_VARIABLE}={environment.get(TIMING_VARIABLE, '')}), which costs "
        f"{COST_TEXT}. RANKSCOPE_NCCL_TIMING=off leaves them untimed (docs/cost.md)"
    )


def _can_time(environment: Mapping[str, str]) -> bool:
    """Return whether torch's recorder would have durations. Whether a GPU is there is not asked, since that could
    initialise CUDA: without a process group of NCCL nothing reads the variable.

    Without torch's cache of CUDA events reading the recorder could query an event that has just been destroyed.
    """
    try:
        import torch  # noqa: PLC0415 - the user's torch
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415
    except ImportError:
        return False
    has_nccl = hasattr(c10d, "ProcessGroupNCCL")
    has_dump = any(hasattr(c10d, name) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"))
    if not (has_nccl and has_dump) or environment.get(EVENT_CACHE_VARIABLE, "").lower() in _FALSE:
        return False
    entries = find_ring_entries(environment)
    return _read_release(torch.__version__) >= RECORDER_ON_SINCE if entries is None else entries > 0


def _read_release(version: object) -> tuple[int, ...]:
    """Return major and minor number of a version; (0,) if they cannot be read."""
    numbers = str(version).split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else (0,)
