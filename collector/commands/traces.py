"""`rankscope analyze | merge`: profiler traces from files."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankscope.collector.traces import analyze
from rankscope.collector.traces.files import Progress
from rankscope.collector.traces.rank_analysis import StepRange
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.units import format_duration

TOP = 20
ALL_GOOD, SOME_FAILED, NOTHING_USABLE = 0, 1, 2


def add_analyze(parser: argparse.ArgumentParser) -> None:
    """The options of `analyze`."""
    parser.set_defaults(command=run_analyze)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a trace, a folder, a glob or a URL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page there that needs nothing else")
    parser.add_argument("--steps", default=None, metavar="A:B", help="only the steps from A up to, not including, B")
    parser.add_argument("--rank", type=int, default=None, metavar="R", help="only this rank's trace")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"rows of each table [{TOP}]")
    parser.add_argument("--executor", default=None, metavar="dask://HOST:PORT", help="use a Dask cluster")


def run_analyze(options: argparse.Namespace) -> int:
    """Analyse and print; 0 all good, 1 some files failed, 2 nothing usable."""
    from rankscope.collector.reports.trace_page import render_page  # noqa: PLC0415 - other commands need none of it
    from rankscope.collector.reports.trace_text import render_text  # noqa: PLC0415

    if options.top < 1:
        raise SettingError(f"--top is {options.top}; it must be 1 or more")
    steps = parse_steps(options.steps)
    try:
        with _progress("files") as progress:
            report = analyze(
                options.paths, steps=steps, rank=options.rank, executor=options.executor, progress=progress
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
    return _finish(report)


def _finish(report: TraceReport) -> int:
    for error in report.errors:
        print(f"rankscope: {error.file}: {error.reason}", file=sys.stderr)
    if not report.ranks:
        return NOTHING_USABLE
    return SOME_FAILED if report.errors else ALL_GOOD


def parse_steps(text: str | None) -> StepRange | None:
    """`A:B`, `A:` or `:B`; None for all steps. Raises SettingError.

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


@contextlib.contextmanager
def _progress(unit: str) -> Iterator[Progress | None]:
    """A bar on stderr for more than one file, when somebody sits there and tqdm is installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an optional extra
    except ImportError:
        yield None
        return
    with tqdm(unit=f" {unit}", disable=None, leave=False) as bar:

        def move(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        yield move


# -- merge ------------------------------------------------------------------------------------------------------------


def add_merge(parser: argparse.ArgumentParser) -> None:
    """The options of `merge`."""
    parser.set_defaults(command=run_merge)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="traces, folders, globs or URLs")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="merged.json.gz")


def run_merge(options: argparse.Namespace) -> int:
    """One timeline of all ranks; 0 all good, 1 some files failed, 2 nothing usable."""
    from rankscope.collector.traces.timeline import merge  # noqa: PLC0415 - other commands need none of it

    try:
        with _progress("readings") as progress:
            merged = merge(options.paths, options.output, progress=progress)
    except UnavailableError as error:
        print(f"rankscope: {error}", file=sys.stderr)
        return NOTHING_USABLE
    for warning in merged.warnings:
        print(f"rankscope: {warning}", file=sys.stderr)
    for file, reason in merged.errors:
        print(f"rankscope: {file}: {reason}", file=sys.stderr)
    bound = "" if merged.error_bound_ns is None else f", within {format_duration(merged.error_bound_ns)}"
    print(
        f"{merged.output}: {len(merged.ranks)} ranks, {merged.event_count:,} events, {merged.arrow_count:,} arrows; "
        f"clocks by {merged.how}{bound}"
    )
    return SOME_FAILED if merged.errors else ALL_GOOD
