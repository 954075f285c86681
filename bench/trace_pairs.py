"""rankscope beside HolisticTraceAnalysis on one trace: `python -m bench.trace_pairs FILE --others PYTHON`.

Both give the overlap of communication and compute, each in a process of its own, in turn; a ratio is of the two of one
pair, so that a busy machine holds up both. Time and CPU time are from the start of the work (not of Python); CPU time
is of all processes that share it. `--others` is the Python of an environment with HolisticTraceAnalysis (traces.py).
"""

import argparse
import statistics
from pathlib import Path

from bench.machine import RESULTS, describe_run
from bench.traces import Cost, describe_others, read_once

PAIRS = 5


def measure_pairs(path: Path, others: Path, pairs: int) -> list[tuple[Cost, Cost]]:
    """The costs of rankscope and of HTA, pair by pair; pairs in which one failed are left out."""
    found = []
    for _ in range(pairs):
        ours, theirs = read_once("overlap", path, None), read_once("HTA", path, others)
        if ours is not None and theirs is not None:
            found.append((ours, theirs))
            print(f"{ours.seconds:.2f} s, {theirs.seconds:.2f} s", flush=True)
    return found


def render(head: str, file: str, found: list[tuple[Cost, Cost]]) -> str:
    """The result file."""
    lines = [
        "# rankscope beside HolisticTraceAnalysis", "", head, "", (__doc__ or "").partition("\n\n")[2].strip(), "",
        f"Trace: {file}.", "",
        "| pair | rankscope s | HTA s | ratio | rankscope CPU s | HTA CPU s | ratio of CPU | peak MB | HTA peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for number, (ours, theirs) in enumerate(found):
        lines.append(
            f"| {number + 1} | {ours.seconds:.2f} | {theirs.seconds:.2f} | {theirs.seconds / ours.seconds:.1f} "
            f"| {ours.cpu_s:.2f} | {theirs.cpu_s:.2f} | {theirs.cpu_s / ours.cpu_s:.1f} "
            f"| {ours.peak_bytes / 1e6:,.0f} | {theirs.peak_bytes / 1e6:,.0f} |"
        )
    times = [theirs.seconds / ours.seconds for ours, theirs in found]
    cpus = [theirs.cpu_s / ours.cpu_s for ours, theirs in found]
    said = (
        f"HTA takes {statistics.median(times):.1f} times as long ({min(times):.1f} to {max(times):.1f}) and "
        f"{statistics.median(cpus):.1f} times the CPU time ({min(cpus):.1f} to {max(cpus):.1f})."
    )
    return "\n".join([*lines, "", said, ""])


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description="rankscope beside HolisticTraceAnalysis.")
    parser.add_argument("file", type=Path, help="the trace")
    parser.add_argument("--others", type=Path, required=True, help="the Python that has HolisticTraceAnalysis")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"readings by both [{PAIRS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "traces-beside-hta.md", help="the file to write")
    options = parser.parse_args()
    command = f"python -m bench.trace_pairs {options.file.name} --others PYTHON --pairs {options.pairs}"
    head = f"{describe_run(command)}\n\nBeside it: {describe_others(options.others)}."
    size_mb = options.file.stat().st_size / 1e6
    found = measure_pairs(options.file, options.others, options.pairs)
    text = render(head, f"`{options.file.name}`, {size_mb:.1f} MB compressed", found)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
