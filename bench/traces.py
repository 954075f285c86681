"""How fast a trace is read, beside the tools that people have: `python -m bench.traces --others PYTHON`.

A trace of each size is made by repeating the real events of `tests/traces/a100_nccl_2ranks_r0.json.gz`, each time later
and with new correlation ids. Every tool reads it in a process of its own, one after the other, the whole list
`--rounds` times; time is from the start of the work (not of Python), memory the peak of the process (of its largest,
where several share the work).

    inflate           the gzip file inflated, and thrown away
    floor             inflated and decoded into structs, in blocks, each thrown away
    floor, whole      inflated and decoded into structs as one document: what can be had without cutting it
    read              rankscope: event columns, ready to be worked on
    overlap           rankscope: what HTA's call gives, the trace read by all cores and its overlap
    analyze           rankscope: every table of `rankscope analyze`
    HTA               HolisticTraceAnalysis: TraceAnalysis and get_comm_comp_overlap
    tb-profiler       torch-tb-profiler: the run parsed and its views made

The last two need an environment of their own, named by `--others`:

    python3 -m venv others && others/bin/pip install HolisticTraceAnalysis torch-tb-profiler 'pandas<2.3' 'numpy<2' \
        'setuptools<80'
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.machine import RESULTS, describe_run
from rankscope.measure.units import NS_PER_US

SOURCE = Path(__file__).parents[1] / "tests" / "traces" / "a100_nccl_2ranks_r0.json.gz"
REPEAT_AFTER_NS = 700_000_000
"""The trace is 684 ms long."""
REPEAT_IDS_AFTER = 100_000
"""Its largest id is 62,000."""
SIZES_MB = (50, 200, 1000)
ROUNDS = 3
TIMEOUT_S = 1200

_PROLOGUE = """
import os, sys, time
path = sys.argv[1]
def find_cpu_s(): return sum(os.times()[:4])
"""
_EPILOGUE = """
seconds = time.perf_counter() - begin
cpu_s = find_cpu_s() - cpu_before_s
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print("RESULT", seconds, int(peak) * 1024, cpu_s)
"""
_OURS = {
    "inflate": """
from rankscope.collector.traces.files import read_chunks
begin = time.perf_counter()
for chunk in read_chunks(path): pass
""",
    "floor": """
from rankscope.collector.traces.files import read_chunks
from rankscope.measure.kineto_json import TraceBlocks
begin = time.perf_counter()
blocks = TraceBlocks()
for chunk in read_chunks(path):
    for block in blocks.feed(chunk): pass
for block in blocks.finish(): pass
""",
    "floor, whole": """
import msgspec
from rankscope.collector.traces.files import read_chunks
from rankscope.measure import kineto_json
document = msgspec.defstruct("Document", [("traceEvents", list[kineto_json.CompleteEvent | kineto_json._OTHER])])
begin = time.perf_counter()
msgspec.json.decode(b"".join(read_chunks(path)), type=document)
""",
    "read": """
from rankscope.collector.traces.files import read_chunks
from rankscope.measure.kineto_columns import read_trace
begin = time.perf_counter()
read_trace(read_chunks(path))
""",
    "overlap": """
from rankscope.collector.traces.parallel_reading import cores, read_file
from rankscope.measure.rank_view import RankView
from rankscope.collector.traces.windows import break_down_window
begin = time.perf_counter()
view = RankView(read_file(path, cores()))
break_down_window(view, *view.bounds_ns)["overlap_ratio"]
""",
    "analyze": """
from rankscope.collector.traces.analysis import analyze
begin = time.perf_counter()
analyze(path)
""",
    "analyze, every option": """
from rankscope.collector.traces.analysis import analyze
begin = time.perf_counter()
analyze(
    path, shapes=True, modules=True, critical_path=True, all_to_all=True, roofline=True, flops=True, sequences=8,
    nest=True, by_thread=True, by_frames=2, launches=True,
)
""",
}
_OTHERS = {
    "HTA": """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
TraceAnalysis(trace_files={0: path}, trace_dir="").get_comm_comp_overlap(visualize=False)
""",
    "tb-profiler": """
import logging
logging.disable(logging.CRITICAL)
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.run import RunProfile
from torch_tb_profiler.profiler.run_generator import RunGenerator
import os
begin = time.perf_counter()
profile = RunProfileData.parse("worker0", "1", path, os.path.dirname(path))
profile.process()
profile.analyze()
RunGenerator("worker0", "1", profile).generate_run_profile()
""",
}
WAYS = tuple(way for way in (*_OURS, *_OTHERS) if way != "analyze, every option")
"""Those of the command; the other one is that of trace_pairs.py."""
_ELSEWHERE = {
    "HTA, two tables": """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: path}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
""",
    "TraceLens": """
import logging
logging.disable(logging.CRITICAL)
from TraceLens.TreePerf import TreePerfAnalyzer
begin = time.perf_counter()
found = TreePerfAnalyzer.from_file(path)
found.get_df_gpu_timeline()
launchers = found.get_df_kernel_launchers()
found.get_df_kernel_launchers_summary(launchers)
found.get_df_kernel_launchers_unique_args(launchers)
""",
}
"""Read by other benchmarks, in environments of their own."""


class Cost(NamedTuple):
    """One reading: seconds, the peak of memory, and the CPU time of all its processes."""

    seconds: float
    peak_bytes: float
    cpu_s: float


# -- the traces -------------------------------------------------------------------------------------------------------


def write_trace(path: Path, size_mb: int) -> int:
    """A trace of at least this size; its inflated size in bytes."""
    document = json.loads(gzip.decompress(SOURCE.read_bytes()))
    events = document.pop("traceEvents")
    written = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        written += file.write(
            json.dumps(document, indent=2).rstrip().removesuffix("}").encode() + b',"traceEvents": [\n'
        )
        turn = 0
        while written < size_mb * 1_000_000:
            text = b",\n  ".join(_repeat(events, turn))
            written += file.write((b",\n  " if turn else b"  ") + text)
            turn += 1
        written += file.write(b"\n]}\n")
    return written


def _repeat(events: list[dict[str, Any]], turn: int) -> Iterator[bytes]:
    """The events once more, later. Times stay text with three decimals, as Kineto writes them."""
    for event in events:
        changed = dict(event)
        if "ts" in event:
            time_ns = round(event["ts"] * NS_PER_US) + turn * REPEAT_AFTER_NS
            changed["ts"] = msgspec.Raw(b"%d.%03d" % divmod(time_ns, NS_PER_US))
        if "args" in event:
            changed["args"] = {
                key: value + turn * REPEAT_IDS_AFTER if key in {"correlation", "External id"} else value
                for key, value in event["args"].items()
            }
        if event["ph"] in {"s", "f"}:
            changed["id"] += turn * REPEAT_IDS_AFTER
        if event["name"].startswith("ProfilerStep#"):
            changed["name"] = f"ProfilerStep#{int(event['name'][13:]) + 3 * turn}"
        yield msgspec.json.encode(changed)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_once(way: str, path: Path, others: Path | None) -> Cost | None:
    """One reading; None when the tool is not there, or did not get to the end."""
    python = Path(sys.executable) if way in _OURS else others
    if python is None:
        return None
    work = {**_OURS, **_OTHERS, **_ELSEWHERE}[way].replace("begin = ", "cpu_before_s = find_cpu_s()\nbegin = ")
    script = _PROLOGUE + work + _EPILOGUE
    try:
        ended = subprocess.run(
            [python, "-W", "ignore", "-c", script, str(path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    line = next((line for line in ended.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        print(f"{way} failed on {path.name}: {ended.stderr[-400:]}", file=sys.stderr)
        return None
    _, seconds, peak, cpu_s = line.split()
    return Cost(float(seconds), float(peak), float(cpu_s))


def measure(path: Path, rounds: int, slow_rounds: int, others: Path | None) -> dict[str, list[Cost]]:
    """All ways, round by round; the slow ones less often."""
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            if way in _OTHERS and number >= slow_rounds:
                continue
            cost = read_once(way, path, others)
            if cost is not None:
                found[way].append(cost)
                print(f"{path.name} {way}: {cost.seconds:.2f} s, {cost.peak_bytes / 1e6:,.0f} MB", flush=True)
    return found


# -- the result -------------------------------------------------------------------------------------------------------


def render(head: str, results: dict[str, dict[str, list[Cost]]]) -> str:
    """The result file."""
    explanation = (__doc__ or "").partition("\n\n")[2]
    lines = ["# How fast a trace is read", "", head, "", explanation.strip(), ""]
    for title, found in results.items():
        floor = median_s(found["floor"]) or float("nan")
        whole = median_s(found["floor, whole"]) or float("nan")
        overlap_s = median_s(found["overlap"]) or float("nan")
        lines += [
            f"## {title}",
            "",
            "| | s | x floor | x floor, whole | x overlap | peak MB | readings |",
            "|---|---|---|---|---|---|---|",
        ]
        for way, costs in found.items():
            seconds = median_s(costs)
            if seconds is None:
                lines.append(f"| {way} | - | - | - | - | - | 0 |")
                continue
            peak = max(cost.peak_bytes for cost in costs) / 1e6
            spread = f"{min(c.seconds for c in costs):.2f} to {max(c.seconds for c in costs):.2f}"
            lines.append(
                f"| {way} | {seconds:.2f} ({spread}) | {seconds / floor:.2f} | {seconds / whole:.2f} | "
                f"{seconds / overlap_s:.1f} | {peak:,.0f} | {len(costs)} |"
            )
        lines.append("")
    return "\n".join(lines)


def median_s(costs: list[Cost]) -> float | None:
    """The median time, None without a reading."""
    return statistics.median(cost.seconds for cost in costs) if costs else None


def describe_others(
    others: Path | None, names: Sequence[str] = ("HolisticTraceAnalysis", "torch-tb-profiler", "pandas")
) -> str:
    """The versions of what was compared with."""
    if others is None:
        return "no other tools"
    names = tuple(names)
    code = f"import importlib.metadata as m; print(*(f'{{n}} {{m.version(n)}}' for n in {names}), sep=', ')"
    return subprocess.run([others, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Make the traces, measure, write the result."""
    parser = argparse.ArgumentParser(description="How fast a trace is read.")
    parser.add_argument("--others", type=Path, help="the Python that has the other tools")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MB), metavar="MB", help="sizes to make")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"readings of each [{ROUNDS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "traces.md", help="the file to write")
    options = parser.parse_args()
    sizes = " ".join(map(str, options.sizes))
    command = f"python -m bench.traces --others PYTHON --sizes {sizes} --rounds {options.rounds}"
    head = f"{describe_run(command)}\n\nBeside it: {describe_others(options.others)}."
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for size_mb in options.sizes:
            path = Path(folder) / f"rank0_{size_mb}mb.pt.trace.json.gz"
            inflated = write_trace(path, size_mb)
            slow_rounds = 1 if size_mb > 500 else options.rounds  # minutes each
            results[f"{inflated / 1e6:,.0f} MB"] = measure(path, options.rounds, slow_rounds, options.others)
            path.unlink()
    text = render(head, results)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
