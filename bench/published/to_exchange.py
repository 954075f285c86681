"""Import recorded jobs of others into the format of docs/scoring.md, so that any tool can be scored on them.

    python -m bench.published.to_exchange TRACES FOLDER       with pyarrow installed
    python -m tests.simulation.exchange score FOLDER

TRACES is the folder `data` of ByteDance's StragglerAnalysis (straggler_jobs.py says what is in it). Each job becomes a
file of step records; `truth.json` has what is labeled of it, and `answers-rankscope.json` what our collector says of
the same operations. Of the three jobs one has a fault that was injected: in AR a worker was slowed on purpose. The
others are slow by their work: they have no fault, so that who accuses one of their workers is wrong.

    step_ns            the longest worker of the step, as all wait for each other
    forward, backward, optimizer     the compute of the phase alone: the host's own time is not recorded
    data_ns            0, not recorded
    communication_ns   with the gaps before it, in which the worker waited
    kernel_ns          the sum of the computing
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.published.straggler_jobs import COLLECTIVES, PHASES, Job, find_opened, read_job
from tests.simulation.engine import Floats
from tests.simulation.exchange import (
    ANSWERS,
    COLUMNS,
    TRUTH,
    Answers,
    DataSet,
    InjectedFault,
    RunTruth,
    list_answers,
    write_columns,
    write_file,
)

MADE_BY: Final = "ByteDance-Seed/StragglerAnalysis (Apache-2.0)"
LABELS: Final[dict[str, tuple[str, tuple[InjectedFault, ...]]]] = {
    "AR": (
        "4 stages x 4 workers; one worker was slowed on purpose",
        (InjectedFault(ranks=(0,), cause="gpu_compute", ratio=2.36, begin=0),),
    ),
    "ST": ("4 stages x 2 workers; the last stage has more work", ()),
    "SE": ("64 workers; sequences of different lengths, so another worker is the slowest in each step", ()),
}
"""What each job is, and its faults. `ratio` of AR is that of the worker's compute to its peers' in the trace itself."""


def build_columns(job: Job) -> dict[str, Floats]:
    """Return the step records of a job, in ns, shape (steps, workers) each, by the name of the column."""
    shape = (len(job.steps), len(job.stages))
    found = {name: np.zeros(shape) for name in COLUMNS}
    for step, workers in enumerate(job.steps):
        found["step_ns"][step] = max(one.end_ns for operations in workers for one in operations)
        for rank, operations in enumerate(workers):
            for one in operations:
                if one.kind in PHASES:
                    found[f"{PHASES[one.kind]}_ns"][step, rank] += one.duration_ns
                    found["kernel_ns"][step, rank] += one.duration_ns
                elif one.kind in COLLECTIVES:
                    found["communication_ns"][step, rank] += one.duration_ns
    return found


def import_jobs(traces: Path, folder: Path) -> DataSet:
    """Write the jobs of a folder of traces, their truth and our answers, and return the truth. Raises OSError where a
    trace is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    truths, ours = [], {}
    for name, (about, faults) in LABELS.items():
        job = read_job(traces / f"trace-{name}.parquet")
        ranks = len(job.stages)
        write_columns(folder / f"{name}.csv.gz", list(build_columns(job).values()))
        truths.append(
            RunTruth(
                name=name,
                world_size=ranks,
                steps=len(job.steps),
                nodes=tuple(f"node{rank:03}" for rank in range(ranks)),  # which worker was on which is not recorded
                faults=faults,
                about=about,
            )
        )
        ours[name] = list_answers(find_opened(job), ranks)
    data = DataSet(made_by=MADE_BY, runs=tuple(truths))
    write_file(folder / TRUTH, data)
    write_file(folder / ANSWERS.format(tool="rankscope"), Answers(tool="rankscope", runs=ours))
    return data


def main(words: Sequence[str] | None = None) -> int:
    """Carry out the command; 1 where a trace cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="the folder with trace-AR.parquet and the others")
    parser.add_argument("folder", type=Path, help="where the files are written")
    options = parser.parse_args(words)
    try:
        data = import_jobs(options.traces, options.folder)
    except (OSError, ImportError) as error:
        sys.stderr.write(f"to_exchange: {error}\n")
        return 1
    sys.stdout.write(f"{len(data.runs)} jobs; python -m tests.simulation.exchange score {options.folder} scores them\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
