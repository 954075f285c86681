"""rankscope beside HolisticTraceAnalysis on one large trace: `python -m bench.trace_pairs --others PYTHON`.

The trace of `--size` MB of JSON is made by `write_trace` of traces.py: the recorded events of
`tests/traces/a100_nccl_2ranks_r0.json.gz` over and over, the same bytes each time.

    HTA           HolisticTraceAnalysis: the trace loaded, get_temporal_breakdown and get_comm_comp_overlap
    rankscope     every table of `rankscope analyze`, without options
    every option  the same with `--shapes --modules --critical-path --all-to-all --roofline --flops --sequences --nest
                  --by-thread --by-frames 2 --launches`

Each reads in a process of its own, one at a time, in the orders A B B A: a pair is two readings next to each other, and
a ratio is of the two of one pair, so that what slows the machine for minutes slows both. Time is wall time from the
start of the work (the imports of neither count), CPU time that of all processes that share it, the peak that of the
main process. The interval is that of Student's t for the mean of the logarithms of the ratios.

Memory at `--large` MB is that of the command `rankscope analyze FILE`: of its processes together, by their proportional
shares (PSS), the largest of samples 0.1 s apart, and the resident peak (VmHWM) of the largest process. `--memory` reads
it alone, and replaces its section in the file that is there.

`--others` is the Python of an environment with HolisticTraceAnalysis (traces.py).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from bench.machine import RESULTS, describe_run
from bench.traces import Cost, describe_others, read_once, write_trace

PAIRS = 10
PAIRS_OF_ALL = 4
SIZE_MB = 226
LARGE_MB = 1_000
SAMPLE_S = 0.1
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t, 95 % between both sides, for 1 to 15 degrees of freedom; more: the last."""
OTHERS = ("HolisticTraceAnalysis", "pandas", "numpy")
MEMORY_TITLE = "## Memory"
OURS, ALL, THEIRS = "analyze", "analyze, every option", "HTA, two tables"


class Interval(NamedTuple):
    """A mean ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float


def find_interval(ratios: Sequence[float]) -> Interval:
    """The geometric mean of ratios, two or more, and its 95 % interval.

    >>> [round(one, 2) for one in find_interval([8.0, 10.0, 12.5])]
    [10.0, 5.75, 17.4]
    """
    logs = [log(ratio) for ratio in ratios]
    half = T_95[min(len(logs) - 1, len(T_95)) - 1] * stdev(logs) / sqrt(len(logs))
    return Interval(exp(mean(logs)), exp(mean(logs) - half), exp(mean(logs) + half))


def measure_pairs(path: Path, way: str, others: Path, pairs: int) -> list[tuple[Cost, Cost]]:
    """The costs of rankscope, read this way, and of HTA, pair by pair, each second one the other way round; pairs in
    which one failed are left out.
    """
    found = []
    for number in range(pairs):
        order = (way, THEIRS) if number % 2 == 0 else (THEIRS, way)
        costs = {one: read_once(one, path, others) for one in order}
        ours, theirs = costs[way], costs[THEIRS]
        if ours is not None and theirs is not None:
            found.append((ours, theirs))
            print(f"{way}: {ours.seconds:.2f} s, HTA {theirs.seconds:.2f} s", flush=True)
    return found


class Memory(NamedTuple):
    """Memory of a command: of all its processes, and of the largest one, in bytes; seconds of all of it."""

    all_bytes: int
    largest_bytes: int
    seconds: float


def measure_memory(path: Path) -> Memory:
    """The memory of `rankscope analyze` of a file. Raises CalledProcessError where the command fails."""
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "rankscope.collector", "analyze", str(path)]
    most, peaks = 0, dict[int, int]()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            pids = find_tree(child.pid)
            most = max(most, sum(read_kb(pid, "smaps_rollup", "Pss:") for pid in pids))
            peaks |= {pid: max(peaks.get(pid, 0), read_kb(pid, "status", "VmHWM:")) for pid in pids}
            time.sleep(SAMPLE_S)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return Memory(most * 1024, max(peaks.values()) * 1024, time.monotonic() - begin_s)


def find_tree(pid: int) -> list[int]:
    """A process and all below it; those that end meanwhile are left out."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        below = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(one for child in below for one in find_tree(child))]


def read_kb(pid: int, file: str, field: str) -> int:
    """A field in kB of a file of /proc; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


# -- the result -------------------------------------------------------------------------------------------------------


def render_pairs(title: str, found: Sequence[tuple[Cost, Cost]]) -> list[str]:
    """A table of all pairs, and what follows from them."""
    lines = [
        f"## {title}", "",
        "| pair | rankscope s | HTA s | ratio | rankscope CPU s | HTA CPU s | ratio of CPU | peak MB | HTA peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for number, (ours, theirs) in enumerate(found):
        lines.append(
            f"| {number + 1} | {ours.seconds:.2f} | {theirs.seconds:.2f} | {theirs.seconds / ours.seconds:.1f} "
            f"| {ours.cpu_s:.2f} | {theirs.cpu_s:.2f} | {theirs.cpu_s / ours.cpu_s:.1f} "
            f"| {ours.peak_bytes / 1e6:,.0f} | {theirs.peak_bytes / 1e6:,.0f} |"
        )
    if len(found) > 1:
        lines += ["", describe(found)]
    return [*lines, ""]


def describe(found: Sequence[tuple[Cost, Cost]]) -> str:
    """The ratios of wall and CPU time with their intervals, and the share of HTA's time."""
    wall = find_interval([theirs.seconds / ours.seconds for ours, theirs in found])
    cpu = find_interval([theirs.cpu_s / ours.cpu_s for ours, theirs in found])
    ours_s, theirs_s = (median(pair[place].seconds for pair in found) for place in (0, 1))
    return (
        f"HTA takes {wall.ratio:.1f} times as long ({wall.low:.1f} to {wall.high:.1f}, 95 %), {theirs_s:.1f} s beside "
        f"{ours_s:.1f} s in the median, and {cpu.ratio:.1f} times the CPU time ({cpu.low:.1f} to {cpu.high:.1f}): "
        f"rankscope takes {100 / wall.ratio:.1f} % of the wall time ({100 / wall.high:.1f} to {100 / wall.low:.1f} %)."
    )


def render_memory(size_bytes: int, found: Memory) -> list[str]:
    """What the command of a large file takes."""
    whole, largest = (f"{count / 1e6:,.0f} MB" for count in (found.all_bytes, found.largest_bytes))
    said = f"`rankscope analyze FILE`: {whole} of all processes together, {largest} resident in the largest one, "
    said += f"{found.seconds:.0f} s with the start of Python and all printing."
    return [f"{MEMORY_TITLE} at {size_bytes / 1e6:,.0f} MB", "", said, ""]


def replace_section(text: str, title: str, section: str) -> str:
    """The text with the section of this title, to the next of its level or the end, replaced. Raises ValueError where
    it is not there.

    >>> replace_section("# a\\n\\n## b 1\\n\\nold\\n\\n## c\\n", "## b", "## b 2\\n\\nnew\\n")
    '# a\\n\\n## b 2\\n\\nnew\\n\\n## c\\n'
    """
    begin = text.index(f"\n{title}") + 1
    end = text.find("\n## ", begin)
    return text[:begin] + section + (text[end:] if end >= 0 else "")


def measure_memory_alone(size_mb: int, out: Path) -> None:
    """Measure the memory of a trace of this size, and replace its section in the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rank0_{size_mb}mb.pt.trace.json.gz"
        size_bytes = write_trace(path, size_mb)
        head = describe_run(f"python -m bench.trace_pairs --memory --large {size_mb}")
        lines = render_memory(size_bytes, measure_memory(path))
    section = "\n".join([*lines, head, ""])
    out.write_text(replace_section(out.read_text(), MEMORY_TITLE, section))
    print(section)


def main() -> None:
    """Make the traces, measure, and write the result."""
    parser = argparse.ArgumentParser(description="rankscope beside HolisticTraceAnalysis.")
    parser.add_argument("--others", type=Path, help="the Python that has HolisticTraceAnalysis")
    parser.add_argument("--memory", action="store_true", help="measure the memory alone, without other tools")
    parser.add_argument("--size", type=int, default=SIZE_MB, metavar="MB", help=f"size of the trace [{SIZE_MB}]")
    parser.add_argument("--large", type=int, default=LARGE_MB, metavar="MB", help=f"of that of memory [{LARGE_MB}]")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"readings by both [{PAIRS}]")
    parser.add_argument("--pairs-of-all", type=int, default=PAIRS_OF_ALL, help=f"with every option [{PAIRS_OF_ALL}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "traces-beside-hta.md", help="the file to write")
    options = parser.parse_args()
    if options.memory:
        measure_memory_alone(options.large, options.out)
        return
    if options.others is None:
        parser.error("--others is needed, but for --memory")
    command = f"python -m bench.trace_pairs --others PYTHON --size {options.size} --large {options.large}"
    command += f" --pairs {options.pairs} --pairs-of-all {options.pairs_of_all}"
    head = f"{describe_run(command)}\n\nBeside it: {describe_others(options.others, OTHERS)}."
    lines = ["# rankscope beside HolisticTraceAnalysis", "", head, "", (__doc__ or "").partition("\n\n")[2].strip(), ""]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rank0_{options.size}mb.pt.trace.json.gz"
        size_bytes = write_trace(path, options.size)
        title = f"{size_bytes / 1e6:,.0f} MB ({path.stat().st_size / 1e6:.1f} MB compressed)"
        lines += render_pairs(f"{title}: all tables", measure_pairs(path, OURS, options.others, options.pairs))
        found = measure_pairs(path, ALL, options.others, options.pairs_of_all)
        lines += render_pairs(f"{title}: all tables with every option", found)
        path.unlink()
        size_bytes = write_trace(path, options.large)
        lines += render_memory(size_bytes, measure_memory(path))
    text = "\n".join(lines)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
