"""Run the tests on this machine's GPU and measure the agent's results and cost there, in one table:

    python -m tests.gpu.report [--out FILE]

Everything is measured in one run, and each number is a median: steps per second without the agent, with it before its
first window, and between windows (`tests/gpu/agent_effect.py`); what torch's timing of NCCL's collectives costs each of
them; the agent's reading of a window beside torch's trace file of the same session (what export_chrome_trace writes),
and beside CUDA events around it; what a window costs to begin, to end, to read and to save, and what more with shapes,
by CPU time; what device events, memory statistics and a sample of NVML cost; NVML compared with nvidia-smi; whether
NCCL lets two ranks share the GPU; for how long captures stopped training, and were expected to
(`tests/gpu/captures.py`); and how long steps take before the first window, between windows and after CUPTI was
detached, without the rest of the agent (`tests/gpu/window_effect.py`): the median, and in brackets the tenth and the
ninth tenth of the blocks.

The file is written after each part, so that what was measured stays if a part hangs or crashes the machine. A part that
does not fit into LIMIT_S any more is left out, and says so; a process of a part is killed when no time is left, with
all that it has started. (A part in this very process cannot be ended.) The exit status is that of the tests. Without a
CUDA device it prints that and ends with 0.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import nn

from bench import flops_windows
from bench.machine import RESULTS, ROOT, describe_run
from rankscope.agent.profiler.kineto_events import read_saved
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.measure.clock import SystemClock
from rankscope.measure.kineto import Category
from rankscope.measure.kineto_columns import read_trace
from tests.gpu import agent_effect
from tests.gpu.captures import OPTIONS, SECONDS, measure_captures
from tests.gpu.nvidia_smi import find_nvidia_smi, read_gpu
from tests.gpu.training_device import observe_device
from tests.gpu.window_effect import run_all
from tests.integration.torchrun import DEADLINE_S, run, started, torchrun
from tests.unit.agent.profiler.saved_window import record_window

REPEATS = 20
FEW_REPEATS = 7
SHAPES_PAIRS = 20
SHAPES_PARTS = (*flops_windows.PARTS, flops_windows.COUNTING)
STEPS_PER_WINDOW = 2
LAYERS = 24
WIDTH = 512
NCCL_RANKS = 2
NCCL_SCRIPT = Path(__file__).parent / "scripts" / "nccl_on_one_gpu.py"
NCCL_TIMING_SCRIPT = NCCL_SCRIPT.with_name("nccl_timing.py")
NCCL_TURNS = 2
WINDOW_EFFECT_HOWS = ("eager", "busy", "graph")
"""The others of tests/gpu/window_effect.py take their time and have crashed; they are run by hand."""

LIMIT_S = 480
"""A run on a lent GPU is over in 8 minutes."""
TESTS_S_MAX = 100
PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:benchmark", "-q", "-rf")
"""pytest-benchmark, where PYTHON has it, warns beside xdist, and warnings are errors here."""
JOBS = ("tests/gpu/test_nccl.py", "tests/gpu/test_windows.py", "tests/gpu/test_captures.py")
"""Tests of whole jobs, which take 10 to 30 s each, and are right also where several of them share the GPU."""
ON_AN_IDLE_GPU = (*PYTEST, "tests/gpu", *(f"--ignore={path}" for path in JOBS))
SIDE_BY_SIDE = ("-n", "4", "--dist", "loadgroup") if importlib.util.find_spec("xdist") else ()
TESTS = {"pytest, on an idle GPU": ON_AN_IDLE_GPU, "pytest, whole jobs": (*PYTEST, *SIDE_BY_SIDE, *JOBS)}
TAIL_CHARACTERS = 4_000
"""How much is printed of tests that are not over in time."""
ARMS_S, NCCL_S, FEW_S, IN_PROCESS_S, WINDOW_EFFECT_S = 65.0, 45.0, 12.0, 6.0, 26.0
CAPTURES_S = len(OPTIONS) * (SECONDS + 7.0)
"""What parts take about, in s, on an H100 with slow processors."""

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


def compare_shapes() -> list[Row]:
    """Return what full windows with shapes cost beside plain ones, by the CPU time of their threads."""
    found = flops_windows.run(SHAPES_PAIRS, Training())
    events = [int(statistics.median(pair[at].events for pair in found)) for at in (0, 1)]
    rows = [(f"window with shapes: {part}", flops_windows.describe_part(found, part)) for part in SHAPES_PARTS]
    return [("window with shapes: events", f"{events[0]} plain, {events[1]} with shapes"), *rows]


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


def try_nccl(left_s: float) -> list[Row]:
    """Run two ranks on one GPU, without the agent."""
    ended = run(torchrun(NCCL_RANKS, str(NCCL_SCRIPT)), deadline_s=min(DEADLINE_S, left_s))
    summary = "; ".join(ended.stdout.split("\n")[:4]).strip("; ")
    text = summary if ended.exit_code == 0 else f"ended with {ended.exit_code}: {ended.stderr[-500:]}"
    return [(f"NCCL, {NCCL_RANKS} ranks on this GPU through sockets", text)]


def compare_nccl_timing(ranks: int, find_left_s: Callable[[], float]) -> list[Row]:
    """Return the us of an all-reduce without and with torch's timing of collectives, in turns while time is left."""
    said: dict[str, list[str]] = {"0": [], "1": []}
    for _ in range(NCCL_TURNS):
        for timing, texts in said.items():
            environment = {"TORCH_NCCL_ENABLE_TIMING": timing, "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
            texts.append(run_nccl_timing(ranks, environment, min(DEADLINE_S, find_left_s())))
    return [(f"NCCL, {ranks} rank{'s' if ranks > 1 else ''}: us an all-reduce of 4 KiB", describe_nccl_timing(said))]


def run_nccl_timing(ranks: int, environment: Mapping[str, str], deadline_s: float) -> str:
    """Return what rank 0 has printed, or why it has not."""
    try:
        ended = run(torchrun(ranks, str(NCCL_TIMING_SCRIPT)), environment, deadline_s=deadline_s)
    except AssertionError:
        return f"not over after {deadline_s:.0f} s"
    return ended.stdout.strip() if ended.exit_code == 0 else f"ended with {ended.exit_code}"


def describe_nccl_timing(said: Mapping[str, Sequence[str]]) -> str:
    """Return what processes without ("0") and with ("1") timing have said, with the difference of the medians.

    >>> describe_nccl_timing({"0": ["us 12.70", "us 12.90"], "1": ["us 16.50", "us 15.30"]})
    'untimed 12.70, 12.90; timed 16.50, 15.30: +3.10 us a collective'
    >>> describe_nccl_timing({"0": ["refused: one GPU"], "1": ["us 9.00"]})
    'untimed: refused: one GPU; timed 9.00'
    """
    numbers = {name: [float(text.split()[1]) for text in said[name] if text.startswith("us ")] for name in said}
    parts = []
    for name, what in (("0", "untimed"), ("1", "timed")):
        values = ", ".join(f"{value:.2f}" for value in numbers[name])
        parts.append(f"{what} {values}" if values else f"{what}: {'; '.join(said[name])}")
    text = "; ".join(parts)
    if not all(numbers.values()):
        return text
    return f"{text}: {statistics.median(numbers['1']) - statistics.median(numbers['0']):+.2f} us a collective"


def compare_window_with_file() -> list[Row]:
    """Return whether the agent reads from a window what torch's trace file of the same session holds."""
    window = record_window("cuda", STEPS_PER_WINDOW)
    live, file = window.live, window.file
    is_same = all(np.array_equal(*both) for both in zip(live.sets, file.sets, strict=True))
    busy = " and ".join(f"{sum(len(one) for one in view.sets)} intervals of work" for view in (live, file))
    answer = "the same to the ns" if is_same and live.has_device and file.has_device else "not the same"
    return [("a window by the agent and by torch's trace file", f"{answer}: {busy}")]


def run_tests(name: str, command: Sequence[str], limit_s: float = TESTS_S_MAX) -> tuple[Row, int]:
    """Run tests, and return their last line with the tests that failed, and the exit status. After `limit_s` all
    their processes are killed, the ranks of their jobs too; the end of what they had printed by then is kept.
    """
    with started(command, folder=ROOT) as job:
        try:
            ended = job.wait(limit_s)
        except AssertionError:
            tail = job.printed[-TAIL_CHARACTERS:]
            print(tail, flush=True)
            return (name, f"not over after {limit_s:.0f} s; printed last: {tail[-300:]}"), 1
    print(ended.stdout, flush=True)
    return (name, summarize_tests(ended.stdout) or ended.stderr[-300:]), ended.exit_code


def summarize_tests(printed: str) -> str:
    """Return the last line of pytest and the tests that failed.

    >>> summarize_tests("..F\\nFAILED tests/gpu/test_a.py::test_b - AssertionError: x\\n1 failed, 2 passed in 3.00s\\n")
    '1 failed, 2 passed in 3.00s; failed: test_a.py::test_b'
    """
    lines = printed.strip().splitlines()
    failed = [line.split()[1].removeprefix("tests/gpu/") for line in lines if line.startswith("FAILED ")]
    return "; ".join([*lines[-1:], *(["failed: " + ", ".join(failed)] if failed else [])])


class Report:
    """The result file, written anew after each part. `read_clock_s` counts from any time."""

    def __init__(self, head: str, path: Path, read_clock_s: Callable[[], float] = time.monotonic) -> None:
        self._head = head
        self._path = path
        self._read_clock_s = read_clock_s
        self._begin_s = read_clock_s()
        self.rows: list[Row] = []

    def find_left_s(self) -> float:
        """Return how much of LIMIT_S is left."""
        return max(0.0, LIMIT_S - (self._read_clock_s() - self._begin_s))

    def add(self, name: str, takes_s: float, measure: Callable[[], Iterable[Row]]) -> None:
        """Measure a part that takes about `takes_s`, and write the file. A part that fails says so in its row."""
        left_s = self.find_left_s()
        if takes_s > left_s:
            self._write([(name, f"not run: it takes {takes_s:.0f} s, and {left_s:.0f} of {LIMIT_S} s are left")])
            return
        try:
            for row in measure():
                self._write([row])
        except Exception as error:  # noqa: BLE001 - the other parts are still worth measuring
            self._write([(name, f"failed: {type(error).__name__}: {str(error)[-300:]}")])

    def _write(self, rows: Iterable[Row]) -> None:
        for name, answer in rows:
            self.rows.append((name, " ".join(answer.replace("|", "/").split())))
            print(f"{name}: {answer}", flush=True)
        self._path.write_text(render(self._head, self.rows))


def render(head: str, rows: Sequence[Row]) -> str:
    """Return the text of the result file."""
    explanation = (__doc__ or "").partition("[--out FILE]\n\n")[2].partition("\n\n")[0]
    table = "\n".join(["| what | result |", "|---|---|", *(f"| {name} | {answer} |" for name, answer in rows)])
    return f"# The agent on a GPU\n\n{head}\n\n{explanation}\n\n{table}\n"


def describe_gpu() -> str:
    """Return the GPU and the libraries in a line."""
    properties = torch.cuda.get_device_properties(0)
    gpu = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    if torch.distributed.is_nccl_available():
        gpu += f", NCCL {'.'.join(str(part) for part in torch.cuda.nccl.version())}"
    return f"GPU: {gpu}"


def measure_in_process() -> Iterator[Row]:
    """Yield what is measured in this process."""
    training = Training()
    for _ in range(FEW_REPEATS):
        training.step()
    yield from measure_windows(training, full=True)
    yield from measure_windows(training, full=False)
    yield from compare_window_with_events(training)
    yield from measure_calls()
    yield from compare_nvml()


def compare_arms(name: str, how: str, find_left_s: Callable[[], float]) -> list[Row]:
    """Return the steps per second of one kind of training, without the agent and with it."""
    return [(name, agent_effect.compare(how, find_left_s))]


def describe_effects(name: str, how: str, find_left_s: Callable[[], float]) -> Iterator[Row]:
    """Yield the us a step of one kind of training, in each of its stretches."""
    for seen in run_all([how], find_left_s):
        yield name, seen.describe()


def main() -> int:
    """Test, measure, print and write the result; 0 also where there is nothing to measure."""
    parser = argparse.ArgumentParser(description="What the agent sees and costs on this machine's GPU.")
    parser.add_argument("--out", type=Path, help="the file to write [bench/results/gpu-MODEL.md]")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"no report: torch {torch.__version__} finds no CUDA device here")
        return 0
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    model = "-".join(torch.cuda.get_device_name(0).lower().split())
    out = options.out or RESULTS / f"gpu-{model}.md"
    report = Report(f"{describe_run('make test-gpu')}\n\n{describe_gpu()}", out)
    tested = [run_tests(name, command) for name, command in TESTS.items()]
    report.add("pytest", 0, lambda: [row for row, _ in tested])
    exit_status = max(status for _, status in tested)
    find_left_s = report.find_left_s
    report.add("in one process", IN_PROCESS_S, measure_in_process)
    report.add("a window and torch's file", FEW_S, compare_window_with_file)
    report.add("windows with shapes", FEW_S, compare_shapes)
    for how in agent_effect.HOWS:
        name = f"steps per second: {how}"
        report.add(name, ARMS_S, partial(compare_arms, name, how, find_left_s))
    report.add("NCCL, two ranks", NCCL_S / 4, lambda: try_nccl(find_left_s()))
    for ranks in (1, NCCL_RANKS):
        report.add(f"NCCL timing, {ranks} ranks", NCCL_S, partial(compare_nccl_timing, ranks, find_left_s))
    report.add("captures", CAPTURES_S, lambda: measure_captures(find_left_s))
    for how in WINDOW_EFFECT_HOWS:
        name = f"us a step: {how}"
        report.add(name, WINDOW_EFFECT_S, partial(describe_effects, name, how, find_left_s))
    print(f"written to {out}")
    return exit_status


if __name__ == "__main__":
    sys.exit(main())
