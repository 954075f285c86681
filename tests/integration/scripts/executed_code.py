"""Executes code in a session of torch's profiler with stacks, frees it, and uses its memory again before the session
ends; prints which of the names of its files are in the trace.
"""

import json
import sys
from pathlib import Path

import torch

FILES = 200
folder = Path(sys.argv[1])


def execute(number: int) -> None:
    """Execute code of a file of its own, which nothing keeps: a module is executed so when it is imported."""
    name = f"/executed/{number:03}/" + "x" * 40 + ".py"
    exec(compile("torch.ones(1)", name, "exec"), {"torch": torch})  # noqa: S102 - what is tested


with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
    for number in range(FILES):
        execute(number)
    filler = [("#" * (40 + number % 48)) for number in range(100 * FILES)]  # strings as long as those names, and others
profiler.export_chrome_trace(str(folder / "trace.json"))
names = {event.get("name", "") for event in json.loads((folder / "trace.json").read_bytes())["traceEvents"]}
print(sum(any(f"/executed/{number:03}/" in name for name in names) for number in range(FILES)), "of", FILES)
