"""Exchange simulated runs with other tools: step records and their truth in files, and the score of a tool's answers.

    python -m tests.simulation.exchange export FOLDER [--every 40]     runs of the matrix, their truth, our answers
    python -m tests.simulation.exchange example FOLDER                 the answers of a simple rule
    python -m tests.simulation.exchange score FOLDER [ANSWERS ...]     a table, of all answers in the folder by default

The format, and how to score another tool on it: docs/scoring.md. The scorer reads files only; it is other code
than `scoring.py`, and test_exchange.py holds the two to the same numbers.
"""

import argparse
import csv
import gzip
import io
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from bench.rivals import STAGES
from rankscope.collector.config import CollectorConfig
from tests.simulation.collector_end import Opened
from tests.simulation.engine import Floats
from tests.simulation.matrix import Trial, trials
from tests.simulation.program import KERNEL
from tests.simulation.scoring import ACCUSING
from tests.simulation.world import Outcome, World
from tests.validated_run import RunValidatedByPass

SCHEMA: Final = 1
TRUTH: Final = "truth.json"
ANSWERS: Final = "answers-{tool}.json"
COLUMNS: Final = ("step_ns", *(f"{phase}_ns" for phase in STAGES), "communication_ns", "kernel_ns")
RANKS_MAX: Final = 64
"""Runs of more ranks are not exported: a file of each is tens of MB."""
EVERY: Final = 40
LAST_STEPS: Final = 32
RATIO: Final = 1.1


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a run: `ranks` are `ratio` times as slow from step `begin` up to `end` (not included; None: to the end
    of the run), in their work of the kind `cause`.
    """

    ranks: tuple[int, ...]
    cause: str
    ratio: float
    begin: int
    end: int | None = None
    pattern: str = "steady"


class RunTruth(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a data set: its name, which is that of its file of step records, its size, the node of each rank, and
    what was wrong in it.
    """

    name: str
    world_size: int
    steps: int
    nodes: tuple[str, ...]
    faults: tuple[InjectedFault, ...] = ()
    about: str = ""


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """What `truth.json` holds."""

    schema: int = SCHEMA
    made_by: str
    runs: tuple[RunTruth, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One accusation of a tool: these ranks (all of the run: the run itself) are slow since a step, which was said
    after `said_after_step`. None: the tool does not say.
    """

    ranks: tuple[int, ...]
    said_after_step: int
    since_step: int | None = None
    cause: str | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool says of each run by its name; a run without an entry is one of which it says nothing."""

    schema: int = SCHEMA
    tool: str
    runs: dict[str, tuple[Answer, ...]]


File = TypeVar("File", DataSet, Answers)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How well a tool did: faults that were found, those of them whose ranks were named exactly, answers that name a
    healthy rank or no faulty one, and the median delay and error of the begin in steps, None without any.
    """

    tool: str
    faults: int
    found: int
    exact: int
    answers: int
    false: int
    delay_steps: float | None = None
    since_error_steps: float | None = None


def export(folder: Path, chosen: Iterable[Trial]) -> None:
    """Simulate these runs, and write a file of step records for each, their truth, and our answers."""
    folder.mkdir(parents=True, exist_ok=True)
    truths, ours = [], {}
    for trial in chosen:
        outcome = World(trial.scenario, CollectorConfig(), RunValidatedByPass).run()
        name = f"run-{trial.scenario.seed:04d}"
        write_steps(folder / f"{name}.csv.gz", outcome)
        truths.append(_describe_truth(name, trial))
        ours[name] = list_answers(outcome.opened, outcome.scenario.topology.world_size)
    write_file(folder / TRUTH, DataSet(made_by="rankscope tests.simulation", runs=tuple(truths)))
    write_file(folder / ANSWERS.format(tool="rankscope"), Answers(tool="rankscope", runs=ours))


def choose_trials(every: int) -> Iterator[Trial]:
    """Yield every so many runs of the matrix, of at most RANKS_MAX ranks, in which nothing but faults is wrong."""
    for trial in list(trials())[::every]:
        scenario = trial.scenario
        if scenario.topology.world_size <= RANKS_MAX and scenario.death is None and not scenario.duties:
            yield trial


def write_steps(path: Path, outcome: Outcome) -> None:
    """Write the step records of a run: a row for each step and rank, times in ns; the same bytes for the same run."""
    columns = [outcome.step_ns, *(outcome.phases_ns[phase] for phase in STAGES), outcome.called_ns,
               outcome.worked_ns[KERNEL]]  # fmt: skip
    write_columns(path, columns)


def write_columns(path: Path, columns: Sequence[Floats]) -> None:
    """Write step records, one array of shape (steps, ranks) in ns for each of COLUMNS."""
    steps, ranks = columns[0].shape
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", "rank", *COLUMNS))
    for step in range(steps):
        for rank in range(ranks):
            writer.writerow((step, rank, *(round(float(column[step, rank])) for column in columns)))
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(text.getvalue().encode())


def read_steps(path: Path) -> dict[str, Floats]:
    """Return the columns of a run in ns by name, shape (steps, ranks) each."""
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    shape = (1 + max(int(row["step"]) for row in rows), 1 + max(int(row["rank"]) for row in rows))
    found = {name: np.full(shape, np.nan) for name in COLUMNS}
    for row in rows:
        for name, values in found.items():
            values[int(row["step"]), int(row["rank"])] = float(row[name])
    return found


def _describe_truth(name: str, trial: Trial) -> RunTruth:
    scenario = trial.scenario
    return RunTruth(
        name=name,
        world_size=scenario.topology.world_size,
        steps=scenario.steps,
        nodes=tuple(scenario.topology.node_names[place] for place in scenario.topology.node),
        faults=tuple(
            InjectedFault(ranks=one.ranks, cause=one.expected_cause, ratio=one.ratio, begin=one.begin, end=one.end,
                          pattern=one.pattern)
            for one in scenario.faults
        ),
        about=trial.name,
    )  # fmt: skip


def list_answers(opened: Iterable[Opened], world_size: int) -> tuple[Answer, ...]:
    """Return what the collector accused: findings that name no rank are about all."""
    everybody = tuple(range(world_size))
    return tuple(
        Answer(
            ranks=one.finding.ranks or everybody,
            said_after_step=one.opened_step,
            since_step=one.finding.since_step,
            cause=one.finding.cause,
        )
        for one in opened
        if one.finding.kind in ACCUSING
    )


def answer_by_example(folder: Path) -> Answers:
    """Return the answers of a simple rule: a rank whose compute kernels take RATIO times as long as those of the median
    rank over the last LAST_STEPS steps is slow, looked at after every eighth step.
    """
    runs = {}
    for run in read_truth(folder).runs:
        kernel_ns = read_steps(folder / f"{run.name}.csv.gz")["kernel_ns"]
        said: dict[int, Answer] = {}
        for end in range(LAST_STEPS, len(kernel_ns) + 1, 8):
            medians = np.median(kernel_ns[end - LAST_STEPS : end], axis=0)
            for rank in np.flatnonzero(medians > RATIO * np.median(medians)).tolist():
                said.setdefault(rank, Answer(ranks=(rank,), said_after_step=end))
        runs[run.name] = tuple(said.values())
    return Answers(tool="kernel-time-1.1", runs=runs)


def score(data: DataSet, answers: Answers) -> Score:
    """Return how well a tool did. A fault is found by an answer that was given after it began and names one of its
    ranks; one of all ranks only by an answer that names all.
    """
    found, exact, false, delays, errors = 0, 0, 0, [], []
    faults = [(run, fault) for run in data.runs for fault in run.faults]
    for run, fault in faults:
        mine = [one for one in answers.runs.get(run.name, ()) if _is_about(one, fault, run)]
        found += bool(mine)
        exact += bool(mine) and {rank for one in mine for rank in one.ranks} == set(fault.ranks)
        if mine:
            first = min(mine, key=lambda one: one.said_after_step)
            delays.append(first.said_after_step - fault.begin)
            errors += [] if first.since_step is None else [abs(first.since_step - fault.begin)]
    for run in data.runs:
        false += sum(_is_false(one, run) for one in answers.runs.get(run.name, ()))
    return Score(
        tool=answers.tool, faults=len(faults), found=found, exact=exact, false=false,
        answers=sum(len(answers.runs.get(run.name, ())) for run in data.runs),
        delay_steps=statistics.median(delays) if delays else None,
        since_error_steps=statistics.median(errors) if errors else None,
    )  # fmt: skip


def _is_about(answer: Answer, fault: InjectedFault, run: RunTruth) -> bool:
    names_all = _names_all(answer, run)
    shares = names_all if len(fault.ranks) == run.world_size else bool(set(answer.ranks) & set(fault.ranks))
    return shares and answer.said_after_step > fault.begin


def _names_all(answer: Answer, run: RunTruth) -> bool:
    return len(set(answer.ranks)) == run.world_size


def _is_false(answer: Answer, run: RunTruth) -> bool:
    """Return whether an answer names a healthy rank, or is about no fault. That the whole run is slow is true once
    a fault has begun.
    """
    faulty = {rank for fault in run.faults for rank in fault.ranks}
    if _names_all(answer, run):
        return all(answer.said_after_step <= fault.begin for fault in run.faults)
    is_about_one = any(_is_about(answer, fault, run) for fault in run.faults)
    return not is_about_one or not set(answer.ranks) <= faulty


def read_truth(folder: Path) -> DataSet:
    """Return the truth of a data set. Raises ValueError for a file of another form, OSError without one."""
    return _read(folder / TRUTH, DataSet)


def read_answers(path: Path, data: DataSet) -> Answers:
    """Return a tool's answers. Raises ValueError for a file of another form, and for an answer about a run or a rank
    that there is not.
    """
    found = _read(path, Answers)
    sizes = {run.name: run.world_size for run in data.runs}
    for name, answers in found.runs.items():
        if name not in sizes:
            raise ValueError(f"{path} answers about {name!r}, which is no run of {TRUTH}")
        for one in answers:
            if not one.ranks or not all(0 <= rank < sizes[name] for rank in one.ranks):
                raise ValueError(f"{path}: ranks are {list(one.ranks)} in {name}, which has 0 to {sizes[name] - 1}")
    return found


def describe(scores: Sequence[Score]) -> str:
    """Return a table of scores."""
    lines = ["| tool | found | exact ranks | answers | false | delay, steps | begin off by, steps |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for one in scores:
        delay, error = ("-" if value is None else f"{value:g}" for value in (one.delay_steps, one.since_error_steps))
        found = f"{one.found} of {one.faults} | {one.exact}"
        lines.append(f"| {one.tool} | {found} | {one.answers} | {one.false} | {delay} | {error} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Carry out the command; 1 where a file is missing or not of its form."""
    options = _parse(words)
    try:
        _carry_out(options)
    except (OSError, ValueError) as error:
        print(f"exchange: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("export", "example", "score"))
    parser.add_argument("folder", type=Path, help="where the files are")
    parser.add_argument("answers", type=Path, nargs="*", help="files that are scored [all answers-*.json of FOLDER]")
    parser.add_argument("--every", type=int, default=EVERY, help=f"export every so many runs of the matrix [{EVERY}]")
    options = parser.parse_args(words)
    if options.every < 1:
        parser.error(f"--every is {options.every}; the smallest allowed is 1, for all runs")
    return options


def _carry_out(options: argparse.Namespace) -> None:
    if options.what == "export":
        chosen = list(choose_trials(options.every))
        print(f"{len(chosen)} runs are simulated; their files go to {options.folder}.", flush=True)
        export(options.folder, chosen)
    elif options.what == "example":
        answers = answer_by_example(options.folder)
        write_file(options.folder / ANSWERS.format(tool=answers.tool), answers)
    else:
        data = read_truth(options.folder)
        files = options.answers or sorted(options.folder.glob(ANSWERS.format(tool="*")))
        if not files:
            raise ValueError(f"{options.folder} has no {ANSWERS.format(tool='TOOL')}; `example` writes one")
        print(describe([score(data, read_answers(path, data)) for path in files]))


def _read(path: Path, form: type[File]) -> File:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=form)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not of the form in docs/scoring.md: {error}") from error
    if found.schema != SCHEMA:
        raise ValueError(f"{path} has schema {found.schema}; this scorer reads {SCHEMA}")
    return found


def write_file(path: Path, what: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
