"""Analyze trace files. Each file is reduced on a worker, then the ranks are compared here."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rankscope.collector.traces.advice import advise
from rankscope.collector.traces.asked import (
    NOTHING_ASKED,
    Asked,
    check_every,
    check_length,
    check_shares,
    choose_flops,
    choose_groups,
    choose_peaks,
)
from rankscope.collector.traces.cycles import build_cycle_rows
from rankscope.collector.traces.files import Paths, Progress, TraceFile, find_traces
from rankscope.collector.traces.kernel_groups import Patterns
from rankscope.collector.traces.memory_stretch import parse_stretch
from rankscope.collector.traces.net import attempt
from rankscope.collector.traces.operator_groups import choose_operator_groups
from rankscope.collector.traces.origin import ByRank
from rankscope.collector.traces.parallel_reading import cores, process_context, read_file
from rankscope.collector.traces.rank_analysis import RankAnalysis, StepRange, reduce_trace
from rankscope.collector.traces.rank_comparison import RanksSideBySide as RankComparison
from rankscope.collector.traces.rank_comparison import compare_ranks
from rankscope.collector.traces.recognized import choose_files, compile_kernels, find_cycles
from rankscope.collector.traces.report import Comparison, FileError, TraceReport
from rankscope.collector.traces.step_comparison import compare_steps
from rankscope.measure.errors import NotATraceError, RankscopeError, SettingError, TraceError, UnavailableError
from rankscope.measure.flops import Count

ALL_CYCLES: Final = "all"
RANKS_SHOWN_MAX: Final = 16
PART_OF_READING: Final = 0.8
"""Of the time of one file; the rest is that of its tables."""
ALIVE_S: Final = 1.0
"""Progress is told at least so often while workers have the files."""


class FileFailure(NamedTuple):
    """Reason why a file could not be analyzed. `is_no_trace`: it is no trace, and was not named by the user."""

    file: str
    reason: str
    is_no_trace: bool


def analyze(
    paths: Paths,
    *,
    against: Paths | None = None,
    force: bool = False,
    calls: bool = False,
    steps: StepRange | None = None,
    rank: int | None = None,
    cycle: int | Literal["all"] | None = None,
    rank_from: str | None = None,
    communication_kernels: str | None = None,
    shapes: bool = False,
    critical_path: bool = False,
    shorten: Mapping[str, float] | None = None,
    all_to_all: bool = False,
    roofline: bool = False,
    peak_tflops: float | None = None,
    peak_gbps: float | None = None,
    modules: bool = False,
    kernel_groups: Patterns | None = None,
    sequences: int | None = None,
    flops: bool = False,
    flop_formulas: Mapping[str, Count] | None = None,
    memory_every: int | None = None,
    memory_flow: bool = False,
    nest: bool = False,
    by_thread: bool = False,
    by_frames: int | None = None,
    launches: bool = False,
    arguments: bool = False,
    allocations: bool = False,
    memory_between: str | None = None,
    events: bool = False,
    executor: Executor | str | None = None,
    progress: Progress | None = None,
) -> TraceReport:
    """Return the analysis of the traces behind these paths: files, folders, globs, URLs.

    `against` are the paths of other traces to compare the time of a step with, of as many ranks unless `force`, `calls`
    matches the calls of a step of both one by one; the same choice of steps, rank and cycle applies to them. `steps`
    keeps only the steps from the first number up to, not including, the second; `rank` only that rank's file. `cycle`
    is the number, from 1, of the cycle of a profiler's schedule where ranks have a file for each; None is the last;
    "all" sets all of them side by side (`cycles`), and the rest of the report is of the highest number. `rank_from` is
    a regular expression whose first group finds the rank in a file's path; it goes before what the trace says.
    `communication_kernels` is one that finds the names of kernels that communicate, beside those known. `shapes` adds
    the operators by the shapes of their inputs, where they were recorded, `arguments` by strides and values, too; it
    takes longer. `critical_path` adds the chain of work that makes each step as long as it is, across ranks, `shorten`
    what the steps would be with operators and kernels shorter: by patterns for their names, such as {"gemm": 0.5}, the
    share of their time that is left. `all_to_all` adds how unevenly the ranks send and receive in all-to-alls.
    `roofline` adds the rates of operations and memory traffic of operators on the device, against `peak_tflops` and
    `peak_gbps`, or where these are None against the rates of its data sheet. `modules` adds the tree of nn.Modules,
    where the trace was recorded with stacks; it takes longer. `kernel_groups` adds device time by groups of one's own:
    patterns for the names of kernels, by the group's name; the first that is found decides. `sequences` adds the
    costliest sequences of kernels that repeat, of up to so many each. `flops` adds the floating-point operations of the
    model, by phase, operator and module, and MFU and HFU against `peak_tflops`, else the data sheet; it takes longer.
    `flop_formulas` are functions for operators of one's own, by name: from the recorded inputs
    (`rankscope.measure.flops.Inputs`) to the FLOPs of a call; with several files they must be importable.
    `memory_every` gives the curves of memory a point after every n-th operator, `memory_flow` adds pictures of memory
    flow. `nest` adds the operators and the user ranges with the kernels that each launched, `by_thread` the operators
    by their thread, `by_frames` by so many innermost frames around them, `launches` the kernels by operator and by how
    they were launched; it takes longer. `allocations` adds each allocation of memory, `memory_between` sums the memory
    of a stretch of time, `3:5` (steps) or `120ms:450ms`, and limits the allocations to it. `events` adds every event,
    with what it is in: for DataFrames. `executor` is a `concurrent.futures` executor, or `dask://HOST:PORT` for a Dask
    cluster that sees the same files; None uses the cores of this machine. A file that cannot be used is listed in
    `errors`. Raises UnavailableError when a path has no file, SettingError for what cannot be asked for.
    """
    if calls and against is None:
        raise SettingError("--calls is given without --against; there is nothing to match calls with")
    asked = Asked(
        shapes, critical_path, all_to_all, choose_peaks(peak_tflops, peak_gbps, roofline=roofline), modules,
        choose_groups(kernel_groups), check_length(sequences),
        choose_flops(peak_tflops, flop_formulas, flops=flops, roofline=roofline),
        check_every(memory_every), memory_flow,
        choose_operator_groups(nests=nest, by_thread=by_thread, frames=by_frames), launches, arguments,
        allocations, parse_stretch(memory_between), events,
        check_shares(shorten, critical_path=critical_path), calls,
    )  # fmt: skip
    job = _Job(steps, compile_kernels(communication_kernels), divides_steps=against is not None, asked=asked)
    if cycle == ALL_CYCLES:
        if against is not None:
            raise SettingError("--cycle is all, and --against compares one cycle: choose it by its number")
        return _analyze_cycles(paths, job, _Choice(rank, None, rank_from), executor, progress)
    choice = _Choice(rank, cycle, rank_from)
    analyses, errors = _analyze_side(paths, job, choice, executor, progress)
    compared = compare_ranks(analyses, job.asked)
    report = _build_report(compared, errors)
    if against is None:
        return report
    others, other_errors = _analyze_side(against, job.of_other_side, choice, executor, progress)
    comparison = attempt(
        lambda: compare_steps(
            analyses, others, force=force, waits=compared.waits, against_waits=compare_ranks(others).waits
        ),
        lambda reason: Comparison(against_files=[other.report.file for other in others], refused=reason),
    )
    return msgspec.structs.replace(report, errors=[*errors, *other_errors], comparison=comparison)


def _analyze_cycles(
    paths: Paths,
    job: "_Job",
    choice: "_Choice",
    executor: Executor | str | None,
    progress: Progress | None,
) -> TraceReport:
    """Return the report of the last cycle, with the rows of all."""
    files = find_traces(paths)
    reports: dict[int, TraceReport] = {}
    for number in find_cycles(files, choice.rank, choice.rank_from):
        found, errors = _analyze_side(paths, job, choice._replace(cycle=number), executor, progress)
        reports[number] = _build_report(compare_ranks(found, job.asked), errors)
    errors = [error for report in reports.values() for error in report.errors]
    return msgspec.structs.replace(reports[max(reports)], cycles=build_cycle_rows(reports), errors=errors)


class _Choice(NamedTuple):
    """Which files of the paths to use; see `analyze`."""

    rank: int | None
    cycle: int | None
    rank_from: str | None


def _analyze_side(
    paths: Paths,
    job: "_Job",
    choice: _Choice,
    executor: Executor | str | None,
    progress: Progress | None,
) -> tuple[list[RankAnalysis], list[FileError]]:
    """Return the analyses by rank, and the files that cannot be used."""
    files = find_traces(paths)
    files, notes = choose_files(files, choice.rank, choice.cycle, choice.rank_from)
    found, failures = _analyze_files(files, job, executor, progress)
    found, repeated = _one_for_each_rank(found)
    ranks = [one.report.rank for one in found]
    if choice.rank is not None:
        found = [one for one in found if one.report.rank == choice.rank]
    failures += repeated
    errors = [FileError(file=f.file, reason=f.reason) for f in failures if not f.is_no_trace]
    if not found and not errors:
        if choice.rank is not None:
            raise UnavailableError(f"no trace of rank {choice.rank}{_name_others(ranks)}")
        errors = [FileError(file=f.file, reason=f.reason) for f in failures]
    return [_add_note(one, notes) for one in found], errors


def _name_others(ranks: Sequence[int | None]) -> str:
    known = [str(rank) for rank in ranks if rank is not None]
    left = len(known) - RANKS_SHOWN_MAX
    more = f" and {left:,} more" if left > 0 else ""
    return f"; there are those of {', '.join(known[:RANKS_SHOWN_MAX])}{more}" if known else " among these files"


def _add_note(one: RankAnalysis, notes: Mapping[str, str]) -> RankAnalysis:
    note = notes.get(one.report.file)
    if note is None:
        return one
    return one._replace(report=msgspec.structs.replace(one.report, warnings=[*one.report.warnings, note]))


# -- one file ---------------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What to make of each file."""

    steps: StepRange | None = None
    communication_kernels: re.Pattern[str] | None = None
    divides_steps: bool = False
    asked: Asked = NOTHING_ASKED

    @property
    def of_other_side(self) -> "_Job":
        """Return what to do with the traces to compare with. Operators are matched by the shapes read."""
        return self._replace(asked=Asked(shapes=self.asked.options.every_shape, calls=self.asked.calls))


def _analyze_file(
    file: TraceFile, job: _Job, workers: int = 1, on_part: Callable[[float], None] | None = None
) -> RankAnalysis | FileFailure:
    """Return the analysis of one file, decoded by `workers` processes; `on_part` is told how much is done. Runs on a
    worker; a bad file is a FileFailure.
    """
    try:
        return attempt(
            lambda: _read_and_reduce(file, job, workers, on_part),
            lambda reason: FileFailure(file.path, reason, is_no_trace=False),
        )
    except RankscopeError as error:
        return FileFailure(file.path, str(error), is_no_trace=isinstance(error, NotATraceError) and not file.named)
    except MemoryError:
        return FileFailure(file.path, "not enough memory to read it", is_no_trace=False)


def _read_and_reduce(file: TraceFile, job: _Job, workers: int, on_part: Callable[[float], None] | None) -> RankAnalysis:
    return reduce_trace(
        read_file(file.path, workers, job.asked.options, on_part=_scale(on_part, 0.0, PART_OF_READING)),
        file.path,
        job.steps,
        file.rank,
        job.communication_kernels,
        divides_steps=job.divides_steps,
        asked=job.asked,
        may_guess=file.may_guess,
        on_part=_scale(on_part, PART_OF_READING, 1.0),
    )


def _scale(on_part: Callable[[float], None] | None, first: float, end: float) -> Callable[[float], None] | None:
    """Return what to tell of a piece of the work that is from one part of it to another."""
    return None if on_part is None else lambda part: on_part(first + (end - first) * part)


# -- many files -------------------------------------------------------------------------------------------------------


def _analyze_files(
    files: Sequence[TraceFile],
    job: _Job,
    executor: Executor | str | None,
    progress: Progress | None,
) -> tuple[list[RankAnalysis], list[FileFailure]]:
    """Return the analyses and the failures, each in the order of the files."""
    by_path: dict[str, RankAnalysis | FileFailure] = {}
    with _open_executor(executor, len(files)) as pool:
        tell = partial(_tell, progress, by_path, len(files))
        results = _analyze_here(files, job, progress) if pool is None else _analyze_on(pool, files, job, tell)
        for path, result in results:
            by_path[path] = result
            tell()
    in_order = [by_path[file.path] for file in files]
    found = [one for one in in_order if isinstance(one, RankAnalysis)]
    return found, [one for one in in_order if isinstance(one, FileFailure)]


def _tell(progress: Progress | None, done: Sized, count: int) -> None:
    if progress is not None:
        progress(len(done), count)


def _analyze_here(
    files: Sequence[TraceFile], job: _Job, progress: Progress | None
) -> Iterator[tuple[str, RankAnalysis | FileFailure]]:
    for place, file in enumerate(files):
        on_part = partial(_tell_part, progress, place, len(files)) if progress is not None else None
        yield file.path, _analyze_file(file, job, cores(), on_part)


def _tell_part(progress: Progress, place: int, count: int, part: float) -> None:
    progress(place + part, count)


def _analyze_on(
    pool: Executor, files: Sequence[TraceFile], job: _Job, tell: Callable[[], None]
) -> Iterator[tuple[str, RankAnalysis | FileFailure]]:
    """Yield path and result of each file as it completes; `tell` is called meanwhile."""
    paths: dict[Future[Any], str] = {pool.submit(_analyze_file, file, job): file.path for file in files}
    waiting = set(paths)
    while waiting:
        done, waiting = wait(waiting, timeout=ALIVE_S, return_when=FIRST_COMPLETED)
        if not done:
            tell()
        for future in done:
            try:
                yield paths[future], future.result()
            except Exception as error:  # noqa: BLE001 - a worker that died costs its file, not the others
                yield paths[future], FileFailure(paths[future], f"its worker failed: {error!r}", is_no_trace=False)


@contextlib.contextmanager
def _open_executor(executor: Executor | str | None, file_count: int) -> Iterator[Executor | None]:
    """Yield the given executor, else a pool for the cores of this machine; None to use this process."""
    if isinstance(executor, str):
        with _open_dask(executor) as pool:
            yield pool
    elif executor is not None:
        yield executor
    elif file_count < 2 or cores() < 2:  # noqa: PLR2004 - one file, or one core
        yield None
    else:
        with ProcessPoolExecutor(min(file_count, cores()), mp_context=process_context()) as pool:
            yield pool


@contextlib.contextmanager
def _open_dask(address: str) -> Iterator[Executor]:
    if not address.startswith("dask://"):
        raise UnavailableError(f"executor {address!r} is not known: it is dask://HOST:PORT")
    try:
        from distributed import Client  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise UnavailableError(f"{address} needs Dask: pip install 'rankscope[dask]'") from None
    try:
        client = Client(f"tcp://{address.removeprefix('dask://')}", timeout=10)
    except (OSError, TimeoutError) as error:
        raise UnavailableError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        yield client.get_executor(pure=False)


def _one_for_each_rank(found: list[RankAnalysis]) -> tuple[list[RankAnalysis], list[FileFailure]]:
    """Return the analyses by rank, and failures for files that repeat a rank."""
    kept = ByRank[RankAnalysis]()
    failures = []
    for one in found:
        try:
            kept.add(one.report.rank, one.report.file, one)
        except TraceError as error:
            failures.append(FileFailure(one.report.file, str(error), is_no_trace=False))
    return kept.in_order(), failures


# -- all ranks --------------------------------------------------------------------------------------------------------


def _build_report(compared: RankComparison, errors: list[FileError]) -> TraceReport:
    advice, abstained = advise(compared.reports, compared.across)
    return TraceReport(
        ranks=compared.reports,
        cross_rank=compared.across,
        advice=advice,
        abstained=abstained,
        errors=errors,
        collective_sizes=compared.collective_sizes,
        critical_path=compared.critical_path,
        all_to_all=compared.all_to_all,
    )
