"""rankscope beside AMD's TraceLens:

    python -m bench.traces_beside_tracelens --others PYTHON --version COMMIT

First the figures of both for the recorded traces of tests/traces with a device, from the first work of the device to
the last, in us. TraceLens counts memsets as compute, and leaves out work whose launch is not in the trace; rankscope
(as HolisticTraceAnalysis) does neither. With both done its way, rankscope's arithmetic must give TraceLens's figures,
which are sums of floating-point numbers: the last column is the largest difference of the four.

Then the time of `analyze`, which is every table of `rankscope analyze`, beside that of TraceLens's `from_file` (which
builds its tree of calls) and four of its tables (timeline of the device, launchers of kernels, their summary, operators
by shape), each in a process of its own, in turn; a ratio is of the two of one pair.

`--others` is the Python of an environment with TraceLens; the package of that name on the package index is another one:

    python3 -m venv others && others/bin/pip install git+https://github.com/AMD-AGI/TraceLens
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.machine import RESULTS, describe_run
from bench.traces import Cost, read_once
from rankscope.collector.traces.parallel_reading import read_file
from rankscope.collector.traces.windows import break_down_window
from rankscope.measure import intervals
from rankscope.measure.kineto import NONE, Category
from rankscope.measure.rank_view import Bools, RankView

TRACES: Final = Path(__file__).parents[1] / "tests" / "traces"
PAIRS: Final = 5
_FIGURES: Final = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from TraceLens.TreePerf import TreePerfAnalyzer
table = TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
print("FIGURES", json.dumps(dict(zip(table["type"], table["time ms"]))))
"""


class Figures(NamedTuple):
    """Of one trace, in us."""

    window_us: float
    compute_us: float
    communication_us: float
    exposed_us: float

    def differ_us(self, other: "Figures") -> float:
        """Return the largest difference of a figure, us."""
        return max(abs(ours - theirs) for ours, theirs in zip(self, other, strict=True))


class Ours(NamedTuple):
    """The figures as rankscope gives them, and with memsets as compute and without work that has no launch; None where
    no work has one.
    """

    given: Figures
    as_theirs: Figures | None


def find_ours(path: Path) -> Ours | None:
    """Return the figures of rankscope; None of a trace without a device."""
    view = RankView(read_file(str(path), 1))
    bounds = view.bounds_ns
    if bounds is None:
        return None
    found = break_down_window(view, *bounds)
    names = ("window_ns", "compute_ns", "communication_ns", "exposed_communication_ns")
    return Ours(Figures(*(found[name] / 1000 for name in names)), _find_as_theirs(view))


def _find_as_theirs(view: RankView) -> Figures | None:
    """Return the figures with memsets as compute, of the work whose launch is in the trace; None without any."""
    work, category = view.work, view.events.category[view.work.row]
    has_launch = view.launch != NONE
    if not has_launch.any():
        return None
    is_compute = (category == Category.MEMSET) | ((category == Category.KERNEL) & ~work.is_communication)

    def find_set(mask: Bools) -> intervals.Intervals:
        return intervals.union(np.stack([work.start_ns[mask], work.end_ns[mask]], axis=1))

    compute, communication = find_set(is_compute & has_launch), find_set(work.is_communication & has_launch)
    window_ns = int(work.end_ns[has_launch].max() - work.start_ns[has_launch].min())
    exposed = intervals.subtract(communication, compute)
    parts_ns = [intervals.total_ns(found) for found in (compute, communication, exposed)]
    return Figures(*(value_ns / 1000 for value_ns in (window_ns, *parts_ns)))


def find_theirs(path: Path, others: Path) -> Figures | None:
    """Return the figures of TraceLens; None where it ended with an error."""
    command = [str(others), "-W", "ignore", "-c", _FIGURES, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in ended.stdout.splitlines() if line.startswith("FIGURES ")), None)
    if line is None:
        return None
    found = json.loads(line.removeprefix("FIGURES "))
    names = ("total_time", "computation_time", "total_comm_time", "exposed_comm_time")
    return Figures(*(found[name] * 1000 for name in names))


def render_figures(path: Path, ours: Ours, theirs: Figures | None) -> str:
    """Return a row of the table of figures."""
    given = " | ".join(f"{value:,.1f}" for value in ours.given)
    if theirs is None or ours.as_theirs is None:
        return f"| `{path.name}` | {given} | it ended with an error | | |"
    names = f"{theirs.compute_us:,.1f} | {theirs.exposed_us:,.1f}"
    return f"| `{path.name}` | {given} | {names} | {ours.as_theirs.differ_us(theirs):.3f} |"


def measure_pairs(path: Path, others: Path, pairs: int) -> list[tuple[Cost, Cost]]:
    """Return the costs of both, pair by pair; pairs in which one failed are left out."""
    found = [(read_once("analyze", path, None), read_once("TraceLens", path, others)) for _ in range(pairs)]
    return [(ours, theirs) for ours, theirs in found if ours is not None and theirs is not None]


def render_pairs(path: Path, found: list[tuple[Cost, Cost]]) -> str:
    """Return a row of the table of times: medians, and the ratios' median with the smallest and the largest."""
    if not found:
        return f"| `{path.name}` | - | - | - | - | - | - | 0 |"

    def ratio(values: list[float]) -> str:
        return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    ours, theirs = ([pair[place] for pair in found] for place in (0, 1))
    seconds = " | ".join(f"{statistics.median(cost.seconds for cost in costs):.2f}" for costs in (ours, theirs))
    times = ratio([b.seconds / a.seconds for a, b in found])
    cpus = ratio([b.cpu_s / a.cpu_s for a, b in found])
    peaks = " | ".join(f"{max(cost.peak_bytes for cost in costs) / 1e6:,.0f}" for costs in (ours, theirs))
    return f"| `{path.name}` | {seconds} | {times} | {cpus} | {peaks} | {len(found)} |"


def render(head: str, figures: list[str], times: list[str]) -> str:
    """Return the text of the result file."""
    return "\n".join([
        "# rankscope beside TraceLens", "", head, "", (__doc__ or "").partition("\n\n")[2].strip(), "",
        "## Figures", "",
        "| trace | window | compute | communication | exposed | TraceLens: compute | exposed | difference, its way |",
        "|---|---|---|---|---|---|---|---|", *figures, "",
        "## Time", "",
        "| trace | rankscope s | TraceLens s | ratio | ratio of CPU time | peak MB | TraceLens peak MB | pairs |",
        "|---|---|---|---|---|---|---|---|", *times, "",
    ])  # fmt: skip


def main() -> None:
    """Compare, measure, and write the result."""
    parser = argparse.ArgumentParser(description="rankscope beside TraceLens.")
    parser.add_argument("--others", type=Path, required=True, help="the Python that has TraceLens")
    parser.add_argument("--version", required=True, help="the commit of TraceLens")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"readings by both [{PAIRS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "traces-beside-tracelens.md", help="the file to write")
    options = parser.parse_args()
    paths = sorted(TRACES.glob("*.json.gz"))
    figures, times = [], []
    for path in paths:
        ours = find_ours(path)
        if ours is None:
            continue
        figures.append(render_figures(path, ours, find_theirs(path, options.others)))
        print(figures[-1], flush=True)
        times.append(render_pairs(path, measure_pairs(path, options.others, options.pairs)))
        print(times[-1], flush=True)
    command = f"python -m bench.traces_beside_tracelens --others PYTHON --version {options.version}"
    head = f"{describe_run(command)}\n\nBeside it: TraceLens at commit {options.version}."
    options.out.write_text(render(head, figures, times))


if __name__ == "__main__":
    main()
