"""Lower the power limit of a GPU for as long as a process lives and says nothing on a pipe, and restore it.

    python -m rankscope.agent.faults.power_cap check              may this process change the limit of a GPU?
    python -m rankscope.agent.faults.power_cap hold UUID PARENT   lower it to the lowest allowed; restore it at the end

The limit belongs to the GPU and outlives the process that set it. So a process of its own sets and restores it, in a
session of its own, deaf to the signals by which a run is ended: it restores the limit when its standard input has a
byte (from PARENT) or ends (PARENT is dead), when PARENT is not its parent any more, and after HOLD_S_MAX. Only if this
process itself is killed, or the node loses power, the limit stays; `describe_cure` has the command that restores it by
hand.

It prints one line: `ok BEFORE LOWEST` (milliwatts) once the limit is lowered, or else the reason why it is not.
NVML: nvmlDeviceGetPowerManagementLimit, ...LimitConstraints, nvmlDeviceSetPowerManagementLimit (root only).
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

HOLD_S_MAX: Final = 600.0
"""Longest time that a limit stays lowered; a fault that lasts longer goes on without it."""
POLL_S: Final = 0.2
OK: Final = "ok"
MILLIWATTS: Final = 1_000
DEAF_TO: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def check() -> str:
    """Return why the limit of the first GPU cannot be changed, empty if it can: it is set to what it is."""
    try:
        nvml = _open()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetPowerManagementLimit(handle, nvml.nvmlDeviceGetPowerManagementLimit(handle))
    except Exception as error:  # noqa: BLE001 - NVML, or pynvml itself: any reason refuses the fault
        return describe_error(error)
    return ""


def hold(uuid: str, parent: int) -> int:
    """Lower the limit of a GPU until the end of `parent`, and restore it. Return the exit status: 0 if the limit is as
    before.
    """
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    try:
        nvml = _open()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        before = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        lowest, _ = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        if lowest >= before:
            print(f"its power limit is {before // MILLIWATTS} W, the lowest allowed already", flush=True)
            return 0
        nvml.nvmlDeviceSetPowerManagementLimit(handle, lowest)
    except Exception as error:  # noqa: BLE001 - as above
        print(describe_error(error), flush=True)
        return 0
    try:
        print(OK, before, lowest, flush=True)
        _wait_for_end_of(parent)
    finally:
        nvml.nvmlDeviceSetPowerManagementLimit(handle, before)
    return int(nvml.nvmlDeviceGetPowerManagementLimit(handle) != before)


def describe_error(error: Exception) -> str:
    """Return an error of NVML with what to do about it.

    >>> describe_error(ValueError("Insufficient Permissions"))
    'NVML says: Insufficient Permissions. Only root may change a power limit: run this rank as root, in a container \
with the right to'
    """
    reason = str(error) or type(error).__name__
    if "ermission" in reason:
        cure = "Only root may change a power limit: run this rank as root, in a container with the right to"
        return f"NVML says: {reason}. {cure}"
    return f"NVML says: {reason}"


def describe_cure(uuid: str, before_milliwatts: int) -> str:
    """Return the command that restores a limit by hand.

    >>> describe_cure("GPU-8f6d", 700_000)
    'nvidia-smi -i GPU-8f6d -pl 700'
    """
    return f"nvidia-smi -i {uuid} -pl {before_milliwatts // MILLIWATTS}"


def _open() -> Any:
    import pynvml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - it comes without types

    pynvml.nvmlInit()
    return pynvml


def _wait_for_end_of(parent: int) -> None:
    end_s = time.monotonic() + HOLD_S_MAX
    while os.getppid() == parent and time.monotonic() < end_s:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable:  # a byte says the end too: processes that PARENT has forked since keep the pipe open
            return


def main(words: Sequence[str]) -> int:
    """Carry out the command. Return the exit status."""
    if words[0] == "check":
        refusal = check()
        print(refusal or OK, flush=True)
        return 0
    return hold(words[1], int(words[2]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
