"""Measure the agent's results and cost on this machine's GPU, in one table: python -m tests.gpu.report [--out FILE]

Everything is measured in one run, in turns, and each number is a median: what a window costs to begin, to end, to read
and to save, what device events, memory statistics and a sample of NVML cost; NVML compared with nvidia-smi; how long
the work of a window is by its kernels beside CUDA events around it; whether NCCL lets two ranks share the GPU; and
how long steps of several trainings take before the first window, between windows, and after CUPTI was detached
(`tests/gpu/window_effect.py` describes them): the median, and in brackets the tenth and the ninth tenth of the blocks.

Without a CUDA device it prints that and ends with 0.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from rankscope.agent.profiler.kineto_events import read_saved
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.measure.clock import SystemClock
from rankscope.measure.kineto import Category
from rankscope.measure.kineto_columns import read_trace
from tests.benchmarks.machine import RESULTS, describe_run
from tests.gpu.nvidia_smi import find_nvidia_smi, read_gpu
from tests.gpu.training_device import observe_device
from tests.gpu.window_effect import run_all
from tests.integration.torchrun import run, torchrun

REPEATS = 20
FEW_REPEATS = 7
STEPS_PER_WINDOW = 2
LAYERS = 24
WIDTH = 512
NCCL_RANKS = 2
NCCL_SCRIPT = Path(__file__).parent / "scripts" / "nccl_on_one_gpu.py"

Row = tuple[str, str]
"""The measured quantity, and its value."""


def measure_us(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call in us, without the first."""
    action()
    taken_ns = []
    for _ in range(repeats):
        begin_ns = perf_counter_ns()
        action()
        taken_ns.append(perf_counter_ns() - begin_ns)
    return statistics.median(taken_ns) / 1000


class Training:
    """A stack of layers under AdamW: a few hundred kernels a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(LAYERS)]
        self._model = nn.Sequential(*layers).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._batch = torch.ones(256, WIDTH, device="cuda")

    def step(self) -> None:
        """One step, not waited for."""
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()


# -- windows ----------------------------------------------------------------------------------------------------------


def measure_windows(training: Training, *, full: bool) -> list[Row]:
    """Return the cost of windows of STEPS_PER_WINDOW steps to the training thread, and their contents."""
    profiler = TorchProfiler.find()
    windows = [time_window(profiler, training, full=full) for _ in range(1 + FEW_REPEATS)]
    kept = windows[1:]  # the first one attaches CUPTI
    events = int(statistics.median(window.pop("events") for window in kept))
    kind = "full" if full else "light"
    rows = [(f"{kind} window of {STEPS_PER_WINDOW} steps: events", str(events))]
    return rows + [
        (f"{kind} window: {name}", describe_us([window[name] for window in kept], events)) for name in kept[0]
    ]


def time_window(profiler: TorchProfiler, training: Training, *, full: bool) -> dict[str, float]:
    """Return the us of each operation on one window, and its number of events."""
    torch.cuda.synchronize()
    took = {"start": time_us(lambda: profiler.start(full=full))[0]}
    for _ in range(STEPS_PER_WINDOW):
        training.step()
    torch.cuda.synchronize()
    took["stop"], result = time_us(profiler.stop)
    took["list events"], activities = time_us(result.trace_activities)
    took["read 4 fields of each"], _ = time_us(lambda: read_fields(activities))
    took["save"], _ = time_us(lambda: save(result))
    return {**took, "events": len(activities)}


def time_us(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the time of one call, and its result."""
    begin_ns = perf_counter_ns()
    result = action()
    return (perf_counter_ns() - begin_ns) / 1000, result


def read_fields(activities: Any) -> None:
    for activity in activities:
        activity.name()
        activity.timestamp()
        activity.duration()
        activity.resource_id()


def save(result: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result.save(str(Path(folder) / "window.json"))


def describe_us(values_us: list[float], events: int) -> str:
    text = f"{statistics.median(values_us) / 1000:.2f} ms ({min(values_us) / 1000:.2f} to {max(values_us) / 1000:.2f})"
    return text + (f", {statistics.median(values_us) / events:.2f} us an event" if events else "")


def compare_window_with_events(training: Training) -> list[Row]:
    """Return the same steps by the kernels of a window and by CUDA events around them."""
    profiler = TorchProfiler.find()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    profiler.start(full=True)
    begin.record()
    for _ in range(STEPS_PER_WINDOW):
        training.step()
    end.record()
    torch.cuda.synchronize()
    result = profiler.stop()
    trace = read_trace([read_saved(result)])
    kernels = trace.rows(Category.KERNEL)
    start_ns, duration_ns = trace.events.start_ns[kernels], trace.events.duration_ns[kernels]
    by_events = f"{begin.elapsed_time(end):.3f} ms"
    if not len(kernels):
        return [("device time of a window: by CUDA events", by_events), ("by its kernels", "it holds no kernels")]
    span_ns, busy_ns = (start_ns + duration_ns).max() - start_ns.min(), duration_ns.sum()
    by_kernels = f"{span_ns / 1e6:.3f} ms from the first to the last of {len(kernels)}, {busy_ns / 1e6:.3f} ms in them"
    return [("device time of a window: by CUDA events", by_events), ("device time of a window: by kernels", by_kernels)]


# -- the rest ---------------------------------------------------------------------------------------------------------


def measure_calls() -> list[Row]:
    """Return the cost of calls of the always-on parts."""
    event = torch.cuda.Event(enable_timing=True)
    sampler = NvmlSampler(SystemClock(), observe_device().uuid)
    calls: dict[str, Callable[[], object]] = {
        "CUDA event: record": event.record,
        "CUDA event: query": event.query,
        "torch.cuda.memory_stats_as_nested_dict": torch.cuda.memory_stats_as_nested_dict,
        "NVML: one sample of the agent": sampler.sample,
    }
    rows = [(name, f"{measure_us(call):.1f} us") for name, call in calls.items()]
    sampler.close()
    return rows


def compare_nvml() -> list[Row]:
    """Return one sample of the agent and one of nvidia-smi, of an idle GPU."""
    if find_nvidia_smi() is None:
        return [("nvidia-smi", "not on PATH")]
    torch.cuda.synchronize()
    sampler = NvmlSampler(SystemClock(), observe_device().uuid)
    samples = sampler.sample()
    sampler.close()
    if not samples:
        return [("NVML", f"not to be used: {sampler.unavailable}")]
    ours, theirs = samples[0], read_gpu(samples[0].uuid)
    pairs = {
        "memory.total": ours.memory_total_bytes, "memory.used": ours.memory_used_bytes, "power.draw": ours.power_watts,
        "enforced.power.limit": ours.power_limit_watts, "temperature.gpu": ours.temperature_celsius,
        "clocks.sm": ours.sm_clock_hertz, "clocks.mem": ours.memory_clock_hertz,
        "utilization.gpu": ours.utilization_ratio,
    }  # fmt: skip
    rows = [(f"nvidia-smi {name}", f"{theirs[name]}; the agent's sample: {value}") for name, value in pairs.items()]
    return [*rows, ("absent in the agent's sample", json.dumps(dict(ours.absent)) if ours.absent else "nothing")]


def try_nccl() -> list[Row]:
    """Run two ranks on one GPU, without the agent."""
    ended = run(torchrun(NCCL_RANKS, str(NCCL_SCRIPT)))
    summary = "; ".join(ended.stdout.split("\n")[:4]).strip("; ")
    text = summary if ended.exit_code == 0 else f"ended with {ended.exit_code}: {ended.stderr[-500:]}"
    return [(f"NCCL, {NCCL_RANKS} ranks on this GPU through sockets", text.replace("|", "/").replace("\n", " "))]


def render(head: str, rows: list[Row]) -> str:
    """Return the text of the result file."""
    properties = torch.cuda.get_device_properties(0)
    gpu = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        gpu += f", NCCL {'.'.join(str(part) for part in torch.cuda.nccl.version())}"
    explanation = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]
    table = "\n".join(["| what | result |", "|---|---|", *(f"| {name} | {answer} |" for name, answer in rows)])
    return "\n\n".join(["# The agent on a GPU", head, f"GPU: {gpu}", explanation, table]) + "\n"


def main() -> int:
    """Measure, print and write the result; 0 also where there is nothing to measure."""
    parser = argparse.ArgumentParser(description="What the agent sees and costs on this machine's GPU.")
    parser.add_argument("--out", type=Path, help="the file to write [tests/benchmarks/results/gpu-MODEL.md]")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"no report: torch {torch.__version__} finds no CUDA device here")
        return 0
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    head = describe_run("make test-gpu")
    training = Training()
    for _ in range(FEW_REPEATS):
        training.step()
    rows = [
        *measure_windows(training, full=True),
        *measure_windows(training, full=False),
        *compare_window_with_events(training),
        *measure_calls(),
        *compare_nvml(),
        *try_nccl(),
        *((f"us a step: {seen.how}", seen.describe().replace("|", "/").replace("\n", " ")) for seen in run_all()),
    ]
    text = render(head, rows)
    model = "-".join(torch.cuda.get_device_name(0).lower().split())
    out = options.out or RESULTS / f"gpu-{model}.md"
    out.write_text(text)
    print(f"{text}\nwritten to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
