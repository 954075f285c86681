"""`rankscope analyze`: analyse profiler traces of one rank or of many."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankscope.collector.commands.progress import ALL_GOOD, NOTHING_USABLE, SOME_FAILED, progress_bar
from rankscope.collector.traces import analyze
from rankscope.collector.traces.files import find_traces
from rankscope.collector.traces.rank_analysis import StepRange
from rankscope.collector.traces.recognised import Recognised, compile_rank_from, recognise
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.errors import SettingError, UnavailableError

TOP: Final = 20


class Analyze:
    """Print tables and advice for profiler traces, and write them as JSON or as a page."""

    name = "analyze"
    summary = "analyse profiler traces rank by rank, and compare the ranks"
    example = (
        "rankscope analyze traces/ --html analysis.html      first: rankscope analyze traces/ --list\n"
        "rankscope analyze new/ --against old/               why a step takes longer or shorter"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the traces, the selection and the outputs."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="a trace, a folder, a glob or a URL")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file as JSON")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained HTML page to this file")
        parser.add_argument(
            "--steps", default=None, metavar="A:B", help="only the steps from A up to, not including, B"
        )
        parser.add_argument("--rank", type=int, default=None, metavar="R", help="only this rank's trace")
        add_choice_of_files(parser)
        parser.add_argument(
            "--against",
            nargs="+",
            default=None,
            metavar="PATH",
            help="compare the time of a step with that of these traces, part by part",
        )
        parser.add_argument(
            "--any-world", action="store_true", help="with --against: compare also runs of other numbers of ranks"
        )
        parser.add_argument(
            "--communication-kernels",
            default=None,
            metavar="REGEX",
            help="also count kernels whose names match this pattern as communication",
        )
        parser.add_argument(
            "--shapes",
            action="store_true",
            help="also the operators by the shapes of their inputs, recorded with record_shapes=True; takes longer",
        )
        parser.add_argument(
            "--list", action="store_true", help="only list the files: rank, source of the rank, cycle, world size, host"
        )
        parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"rows per table [{TOP}]")
        parser.add_argument(
            "--executor", default=None, metavar="dask://HOST:PORT", help="analyze the traces on a Dask cluster"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Analyse and print, and return 0, 1 when some files failed, 2 when none was usable or a comparison refused."""
        from rankscope.collector.reports.trace_page import render_page  # noqa: PLC0415 - no other command needs these
        from rankscope.collector.reports.trace_text import render_text  # noqa: PLC0415

        if options.top < 1:
            raise SettingError(f"--top is {options.top}; it must be 1 or more")
        if options.any_world and options.against is None:
            raise SettingError("--any-world is given without --against; there is nothing to compare")
        steps = parse_steps(options.steps)
        try:
            if options.list:
                return _list_files(options.paths, options.rank_from)
            with progress_bar("files") as progress:
                report = analyze(
                    options.paths,
                    against=options.against,
                    any_world=options.any_world,
                    steps=steps,
                    rank=options.rank,
                    cycle=options.cycle,
                    rank_from=options.rank_from,
                    communication_kernels=options.communication_kernels,
                    shapes=options.shapes,
                    executor=options.executor,
                    progress=progress,
                )
        except UnavailableError as error:
            print(f"rankscope: {error}", file=sys.stderr)
            return NOTHING_USABLE
        if options.json is not None:
            _write(options.json, "--json", msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        if options.html is not None:
            _write(options.html, "--html", render_page(report, top=options.top).encode())
        if report.ranks:
            print(render_text(report, options.top))
        return _print_errors(report)


def add_choice_of_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that say of which rank and cycle a file is."""
    parser.add_argument(
        "--cycle",
        type=int,
        default=None,
        metavar="N",
        help="the cycle to use, from 1, where a schedule has written several files for each rank [the last]",
    )
    parser.add_argument(
        "--rank-from",
        default=None,
        metavar="REGEX",
        help="find the rank in each path by the first group of this pattern, such as 'node(\\d+)/'",
    )


def _list_files(paths: Sequence[str], rank_from: str | None) -> int:
    """Print what each file was recognised as, and return 0, 1 when some cannot be read, 2 when none can."""
    recognised = recognise(find_traces(paths), compile_rank_from(rank_from))
    found = [one for one in recognised if not one.is_no_trace]
    rows = [("RANK", "KNOWN FROM", "CYCLE", "WORLD", "HOST", "FILE"), *map(_describe_file, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for *cells, file in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), file]))
    bad = [one for one in found if one.refusal is not None]
    for one in bad:
        print(f"rankscope: {one.file.path}: {one.refusal}", file=sys.stderr)
    return ALL_GOOD if not bad else NOTHING_USABLE if len(bad) == len(found) else SOME_FAILED


def _describe_file(one: Recognised) -> tuple[str, ...]:
    world = one.origin.world_size if one.origin is not None else None
    host = one.origin.host if one.origin is not None else None
    note = f"  (same content as {one.same_as})" if one.same_as is not None else ""
    texts = ["-" if value is None else str(value) for value in (one.rank, one.rank_from)]
    cycle = f"{one.cycle} of {one.cycles}"
    return (*texts, cycle, "-" if world is None else str(world), host or "-", one.file.path + note)


def _print_errors(report: TraceReport) -> int:
    """Print the files that failed and why nothing was compared, and return the exit status."""
    for error in report.errors:
        print(f"rankscope: {error.file}: {error.reason}", file=sys.stderr)
    refused = report.comparison.refused if report.comparison is not None else None
    if refused is not None:
        print(f"rankscope: not compared: {refused}", file=sys.stderr)
    if not report.ranks or refused is not None:
        return NOTHING_USABLE
    return SOME_FAILED if report.errors else ALL_GOOD


def parse_steps(text: str | None) -> StepRange | None:
    """Return the range of `A:B`, `A:` or `:B`, the end not included; None for all steps. Raises SettingError.

    >>> parse_steps("3:5"), parse_steps("3:"), parse_steps(None)
    ((3, 5), (3, None), None)
    """
    if text is None:
        return None
    first, colon, end = text.partition(":")
    try:
        steps = (int(first) if first else None, int(end) if end else None)
    except ValueError:
        steps = (None, None)
    if not colon or steps == (None, None):
        raise SettingError(f"--steps is {text!r}; it is FIRST:END with one of them at least, such as 3:5, 3: or :5")
    if steps[0] is not None and steps[1] is not None and steps[0] >= steps[1]:
        raise SettingError(f"--steps is {text!r}; the end must come after the first, and is not included")
    return steps


def _write(path: Path, option: str, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UnavailableError(f"{path} (from {option}) cannot be written: {error.strerror}") from error
