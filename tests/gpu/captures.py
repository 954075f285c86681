"""Captures of a training on a GPU: what they were expected to cost and did cost, and what is in them.

Each set of options is a process of its own, of an eager training that waits for its device every ten steps, with full
windows of the device, so that there is a price before the first capture.
"""

import gzip
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rankscope.agent.config import ALWAYS
from tests.gpu.agent_effect import SCRIPT
from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, DEADLINE_S, python, run

OPTIONS: Final = ("", "modules", "memory", "shapes", "stacks")
SECONDS: Final = 5.0
RUN: Final = "captured"
SETTINGS: Final = {
    "RANKSCOPE_RUN": RUN,
    "RANKSCOPE_DEVICE_WINDOWS": ALWAYS,
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1",
    "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
    "RANKSCOPE_CAPTURE_PAUSE_S_MAX": "60",
    "RANKSCOPE_CAPTURE_SCHEDULE": "skip_first=180, warmup=1, active=3, wait=60, repeat=3",
}
_EXPECTED: Final = re.compile(r"expected to stop training for ([\d.e-]+) s")
_REAL: Final = re.compile(r"Training stood still for ([\d.e-]+) s")


def measure_captures(find_left_s: Callable[[], float]) -> Iterator[tuple[str, str]]:
    """Yield a row for each set of options."""
    for options in OPTIONS:
        yield f"captures of 3 steps: {options or 'no option'}", measure_option(options, min(DEADLINE_S, find_left_s()))


def measure_option(options: str, deadline_s: float, device: str = "cuda") -> str:
    """Return in words the pauses of the captures, and the events of the last one."""
    with tempfile.TemporaryDirectory() as folder, listening() as collector:
        given = {"RANKSCOPE_CAPTURE_FOLDER": folder, "RANKSCOPE_CAPTURE_OPTIONS": options}
        command = python(*AGENT, SCRIPT, "eager", "--device", device, "--seconds", str(SECONDS))
        environment = {**ALONE, **SETTINGS, **given, "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(command, environment, deadline_s=deadline_s)
        files = sorted((Path(folder) / RUN).rglob("*.json.gz"))
        if ended.exit_code or not files:
            return f"ended with {ended.exit_code}, {len(files)} files: {ended.stderr[-300:]}"
        return f"{describe_pauses(ended.stderr)}; {describe_events(files[-1])}"


def describe_pauses(printed: str) -> str:
    """Return what the agent has said of each capture.

    >>> describe_pauses("It is expected to stop training for 0.2 s\\n... Training stood still for 0.31 s. To read it")
    'expected 0.2 s; stood still 0.31 s'
    """
    expected, real = (", ".join(pattern.findall(printed)) for pattern in (_EXPECTED, _REAL))
    return f"expected {expected or 'not known'} s; stood still {real} s"


def describe_events(path: Path) -> str:
    """Return the events of a trace by category, and its size."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    counts = Counter(event.get("cat") for event in events if event.get("ph") == "X")
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5))
    return f"{len(events)} events ({kinds}) in {path.stat().st_size / 1e6:.2f} MB"
