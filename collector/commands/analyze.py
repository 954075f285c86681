"""`rankscope analyze`: analyze profiler traces of one rank or of many."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankscope.collector.commands.command import add_json, give_json
from rankscope.collector.commands.memory import write_flows_of
from rankscope.collector.commands.progress import ALL_GOOD, NOTHING_USABLE, SOME_FAILED, show_progress
from rankscope.collector.commands.watch import watch
from rankscope.collector.traces import analyze
from rankscope.collector.traces.analysis import ALL_CYCLES
from rankscope.collector.traces.column_table import encode_table
from rankscope.collector.traces.files import STDIN, find_traces
from rankscope.collector.traces.kernel_groups import Patterns, compile_groups, read_groups
from rankscope.collector.traces.kernel_sequences import LENGTH_DEFAULT, LENGTH_MAX
from rankscope.collector.traces.parallel_reading import cores
from rankscope.collector.traces.rank_analysis import StepRange
from rankscope.collector.traces.recognized import check_output, compile_rank_from, recognize
from rankscope.collector.traces.report import TraceReport
from rankscope.collector.traces.spans import Span, read_span
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.output_files import write_output, write_whole

TOP: Final = 20
FROM_STDIN: Final = "-"
RELOAD_S: Final = 30
"""Of a page that is watched. A reload folds tables again, and forgets which step was chosen."""


class Analyze:
    """Print tables and advice for profiler traces, and write them as JSON or as a page."""

    name = "analyze"
    summary = "analyze profiler traces rank by rank, and compare the ranks"
    example = (
        "rankscope analyze traces/ --html analysis.html      first: rankscope analyze traces/ --list\n"
        "rankscope analyze new/ --against old/               why a step takes longer or shorter"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the traces, the selection and the outputs."""
        parser.add_argument(
            "paths", nargs="+", metavar="PATH", help="a trace, a folder, a glob, a URL, or - for standard input"
        )
        add_json(parser, "everything")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained HTML page to this file")
        parser.add_argument(
            "--watch",
            action="store_true",
            help="with --html: write the page again when traces change, until Ctrl-C; the page reloads itself",
        )
        parser.add_argument(
            "--steps", default=None, metavar="A:B", help="only the steps from A up to, not including, B"
        )
        parser.add_argument("--rank", type=int, default=None, metavar="R", help="only this rank's trace")
        add_choice_of_files(parser, all_cycles=", or all of them side by side with `all`")
        parser.add_argument(
            "--against",
            nargs="+",
            default=None,
            metavar="PATH",
            help="compare the time of a step with that of these traces, part by part",
        )
        parser.add_argument(
            "--force", action="store_true", help="with --against: compare also runs of other numbers of ranks"
        )
        parser.add_argument(
            "--calls",
            action="store_true",
            help="with --against: also the calls of a step, matched one by one: which took longer, are new, are gone",
        )
        add_communication_kernels(parser)
        _add_more_tables(parser)
        _add_memory(parser)
        _add_orders(parser)
        parser.add_argument(
            "--source-url",
            default=None,
            metavar="TEMPLATE",
            help="with --html: link places in the code, such as https://HOST/blob/COMMIT/{path}#L{line} or "
            "vscode://file/HOME/PROJECT/{path}:{line}; http, https and vscode only",
        )
        parser.add_argument(
            "--list",
            action="store_true",
            help="only list the files: rank, source of the rank, cycle, world size, host, first event, length, steps",
        )
        parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"rows per table [{TOP}]")
        parser.add_argument(
            "--executor", default=None, metavar="dask://HOST:PORT", help="analyze the traces on a Dask cluster"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Analyze and print, and return 0, 1 when some files failed, 2 when none was usable or a comparison refused."""
        from rankscope.collector.reports.sorted_tables import choose_sort_key  # noqa: PLC0415
        from rankscope.collector.reports.source_links import check_template  # noqa: PLC0415
        from rankscope.collector.reports.trace_text import render_text  # noqa: PLC0415 - no other command needs these

        if options.top < 1:
            raise SettingError(f"--top is {options.top}; it must be 1 or more")
        if options.list:
            _check_list_only(options)
        if options.watch:
            _check_watch(options)
        if options.force and options.against is None:
            raise SettingError("--force is given without --against; there is nothing to compare")
        sort_by = choose_sort_key(options.sort_by)
        check_template(options.source_url)
        if options.source_url is not None and options.html is None:
            raise SettingError("--source-url is given without --html; only the page has links")
        steps = parse_steps(options.steps)
        _check_outputs(options)
        if options.watch:
            return _watch(options, steps, sort_by)
        try:
            if options.list:
                _choose_paths(options)
                return _list_files(options.paths, options.rank_from)
            report = _analyze(options, steps)
        except UnavailableError as error:
            print(f"rankscope: {error}", file=sys.stderr)
            return NOTHING_USABLE
        wants_text = give_json(options, report, encode_table)
        _write_outputs(report, options, sort_by)
        if report.ranks and wants_text:
            print(render_text(report, options.top, sort_by=sort_by))
        return print_errors(report)


def _analyze(options: argparse.Namespace, steps: StepRange | None) -> TraceReport:
    """Return the report that the options ask for."""
    paths, against = _choose_paths(options)
    with show_progress("files") as progress:
        return analyze(
            paths,
            against=against,
            force=options.force,
            calls=options.calls,
            steps=steps,
            rank=options.rank,
            cycle=options.cycle,
            rank_from=options.rank_from,
            communication_kernels=options.communication_kernels,
            shapes=options.shapes,
            arguments=options.arguments,
            critical_path=options.critical_path,
            shorten=_parse_shares(options.shorten),
            all_to_all=options.all_to_all,
            roofline=options.roofline,
            peak_tflops=options.peak_tflops,
            peak_gbps=options.peak_gbps,
            modules=options.modules,
            kernel_groups=_find_groups(options),
            sequences=options.sequences,
            flops=options.flops,
            memory_every=options.memory_every,
            allocations=options.allocations,
            memory_between=options.memory_between,
            memory_flow=options.memory_flow is not None,
            nest=options.nest,
            by_thread=options.by_thread,
            by_frames=options.by_frames,
            launches=options.launches,
            executor=options.executor,
            progress=progress,
        )


def _watch(options: argparse.Namespace, steps: StepRange | None, sort_by: str | None) -> int:
    """Write the page whenever the traces have changed, until Ctrl-C, and return 0."""
    from rankscope.collector.reports.trace_page import render_page  # noqa: PLC0415 - as above

    written: list[TraceReport] = []

    def write(report: TraceReport, reload_s: int | None) -> None:
        page = render_page(report, options.top, options.source_url, sort_by, reload_s)
        write_whole(options.html, "--html", page)

    def act() -> None:
        try:
            report = _analyze(options, steps)
        except UnavailableError as error:
            print(f"rankscope: {error}", file=sys.stderr)
            return
        print_errors(report)
        write(report, RELOAD_S)
        written[:] = [report]
        ranks = "1 rank" if len(report.ranks) == 1 else f"{len(report.ranks)} ranks"
        print(f"{options.html}: {ranks}, {time.strftime('%H:%M:%S')}", flush=True)

    print("Ctrl-C ends it.", flush=True)
    watch(options.paths, act)
    for report in written:  # it is the last one now
        write(report, None)
    return ALL_GOOD


def _choose_paths(options: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """Return the paths of both sides, with standard input for `-`. Raises SettingError where that would be read
    twice, UnavailableError where nothing is piped into it.
    """
    sides: list[list[str]] = [options.paths, options.against or []]
    if FROM_STDIN not in [*sides[0], *sides[1]]:
        return options.paths, options.against
    several = any(FROM_STDIN in side and len(side) > 1 for side in sides) or all(FROM_STDIN in side for side in sides)
    if several or options.list or options.cycle is not None or options.rank_from or options.executor:
        raise SettingError(
            "- is standard input, which is read once: give it as the only trace, without --list, --cycle, --rank-from "
            "and --executor"
        )
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UnavailableError("- is standard input: pipe a trace into it, or redirect it from a file")
    paths, against = ([STDIN if path == FROM_STDIN else path for path in side] for side in sides)
    return paths, against or None


def _write_outputs(report: TraceReport, options: argparse.Namespace, sort_by: str | None) -> None:
    """Write the files that are asked for."""
    from rankscope.collector.reports.table_files import write_tables  # noqa: PLC0415 - as above
    from rankscope.collector.reports.trace_page import render_page  # noqa: PLC0415

    if options.html is not None:
        write_output(options.html, "--html", render_page(report, options.top, options.source_url, sort_by).encode())
    if options.tables is not None:
        write_tables(report, options.tables, options.tables_as)
    if options.memory_flow is not None:
        write_flows_of(report, options.memory_flow)


def _check_list_only(options: argparse.Namespace) -> None:
    """Raise SettingError where `--list`, which makes no analysis, is given with an output of one."""
    for name in ("json", "json_file", "html", "tables", "memory_flow"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise SettingError(f"{option} is given with --list, which analyzes nothing; leave out one of the two")


def _check_watch(options: argparse.Namespace) -> None:
    """Raise SettingError where `--watch` is given without a page, with other outputs, or for what is no file here."""
    if options.html is None:
        raise SettingError("--watch is given without --html; it writes that page again when traces appear or change")
    for name in ("json", "json_file", "tables", "memory_flow", "list"):
        if getattr(options, name):
            raise SettingError(f"--{name.replace('_', '-')} is given with --watch, which writes a page only")
    if any(path == FROM_STDIN or "://" in path for path in options.paths):
        raise SettingError("--watch looks at files and folders of this machine, not at URLs or standard input")


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise SettingError where one file is named for two outputs, UnavailableError where one cannot be written."""
    from rankscope.collector.reports.table_files import choose_format  # noqa: PLC0415 - as above

    choose_format(options.tables_as)
    given: dict[Path, str] = {}
    for path, option in (
        (options.json_file, "--json-file"),
        (options.html, "--html"),
        (options.memory_flow, "--memory-flow"),
    ):
        if path is None:
            continue
        check_output(path, option)
        earlier = given.setdefault(path, option)
        if earlier != option:
            raise SettingError(f"{earlier} and {option} are both {str(path)!r}; name a file for each")


def _add_more_tables(parser: argparse.ArgumentParser) -> None:
    """Add the options for tables that are only made when asked for."""
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="also the operators by the shapes of their inputs, recorded with record_shapes=True; takes longer",
    )
    parser.add_argument(
        "--arguments",
        action="store_true",
        help="also the operators by shapes, strides and values of their inputs, recorded with record_shapes=True; "
        "takes longer",
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help="also the tree of nn.Modules, forward and backward, recorded with with_stack=True or captured with "
        "modules; takes longer",
    )
    _add_kernel_tables(parser)
    parser.add_argument(
        "--critical-path",
        action="store_true",
        help="also the chain of work, across ranks, that makes each step as long as it is",
    )
    parser.add_argument(
        "--shorten",
        action="append",
        default=[],
        metavar="REGEX=SHARE",
        help="with --critical-path: what the steps would be, simulated, if operators and kernels with such names took "
        "this share of their time, such as gemm=0.5; may be given several times",
    )
    parser.add_argument(
        "--all-to-all",
        action="store_true",
        help="also how unevenly ranks send and receive in all-to-alls, by rank and by call",
    )
    _add_rates(parser)


def _add_orders(parser: argparse.ArgumentParser) -> None:
    """Add the options that order and group operators, and write tables as files."""
    parser.add_argument(
        "--sort-by",
        default=None,
        metavar="KEY",
        help="stages, operators, kernels, copies and ranges with total, mean, most and least, sorted by cpu_total, "
        "cpu_avg, cpu_max, cpu_min, gpu_total, gpu_avg, gpu_max, gpu_min, calls or memory; torch's names too",
    )
    parser.add_argument(
        "--nest", action="store_true", help="also the operators and user ranges with the kernels that each launched"
    )
    parser.add_argument("--by-thread", action="store_true", help="also the operators by the thread they ran on")
    parser.add_argument(
        "--by-frames",
        type=int,
        default=None,
        metavar="N",
        help="also the operators by the N innermost frames of the code around them, recorded with with_stack=True",
    )
    parser.add_argument(
        "--tables", type=Path, default=None, metavar="DIR", help="write every table with rows to a file in this folder"
    )
    parser.add_argument(
        "--tables-as", default="csv", metavar="FORMAT", help="with --tables: csv or parquet (needs pyarrow) [csv]"
    )


def _add_kernel_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel-groups",
        type=Path,
        default=None,
        metavar="FILE",
        help="also the device time by groups of your own: a TOML file with lines NAME = [REGEX, ...]",
    )
    add_sequences(parser, "also the costliest sequences of kernels that repeat")
    parser.add_argument(
        "--launches",
        action="store_true",
        help="also the kernels by operator, grid, block, registers and shared memory of their launches; takes longer",
    )


def add_sequences(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option for sequences of kernels; `what` begins its help."""
    parser.add_argument(
        "--sequences",
        type=_parse_length,
        nargs="?",
        const=LENGTH_DEFAULT,
        default=None,
        metavar="LENGTH",
        help=f"{what}, of up to LENGTH kernels, 2 to {LENGTH_MAX} [{LENGTH_DEFAULT}]; give it after PATH, or with "
        "LENGTH",
    )


def _add_rates(parser: argparse.ArgumentParser) -> None:
    """Add the options for tables that compare with the peaks of the device."""
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="also FLOP/s and bytes/s of the operators on the device, against its peaks; needs record_shapes=True",
    )
    parser.add_argument(
        "--flops",
        action="store_true",
        help="also the FLOPs of the model: forward, backward, recomputed, by operator and module, with MFU and HFU; "
        "needs record_shapes=True, for modules also with_stack=True; takes longer",
    )
    parser.add_argument(
        "--peak-tflops",
        type=float,
        default=None,
        metavar="X",
        help="with --roofline or --flops: the device's highest TFLOP/s, for all types [by its data sheet, for each "
        "type]",
    )
    parser.add_argument(
        "--peak-gbps",
        type=float,
        default=None,
        metavar="Y",
        help="with --roofline: the bandwidth of the device's memory in GB/s [by its data sheet]",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    """Add the options for memory over time."""
    parser.add_argument(
        "--memory-flow",
        type=Path,
        default=None,
        metavar="FILE",
        help="draw the memory of each device, time by address, into this SVG file; needs profile_memory=True",
    )
    parser.add_argument(
        "--allocations",
        action="store_true",
        help="also each allocation of memory, the largest first; needs profile_memory=True",
    )
    parser.add_argument(
        "--memory-between",
        default=None,
        metavar="A:B",
        help="also the memory of a stretch of time, the end not included: steps, such as 3:5, or times from the start "
        "of the trace, such as 120ms:450ms; --allocations lists those made or freed in it",
    )
    parser.add_argument(
        "--memory-every",
        type=int,
        default=None,
        metavar="N",
        help="in --json, give the curves of memory a point after every N-th operator [500 points evenly]",
    )


def _parse_length(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; put PATH in front of --sequences") from None


def _parse_shares(texts: Sequence[str]) -> dict[str, float]:
    """Return the share of the time left by pattern. Raises SettingError for what is no REGEX=SHARE."""
    found = {}
    for text in texts:
        pattern, _, share = text.rpartition("=")
        try:
            found[pattern] = float(share)
        except ValueError:
            pattern = ""
        if not pattern:
            raise SettingError(
                f"--shorten is {text!r}; it is a pattern and the share of the time left, such as gemm=0.5"
            )
    return found


def _find_groups(options: argparse.Namespace) -> Patterns | None:
    """Return the groups of kernels of the file of the options; None without one."""
    if options.kernel_groups is None:
        return None
    found = read_groups(options.kernel_groups)
    compile_groups(found, f"{options.kernel_groups} (from --kernel-groups)")
    return found


def add_choice_of_files(parser: argparse.ArgumentParser, all_cycles: str = "") -> None:
    """Add the options that say of which rank and cycle a file is. `all_cycles` is what help says of the cycle `all`."""
    parser.add_argument(
        "--cycle",
        type=_parse_cycle if all_cycles else int,
        default=None,
        metavar="N",
        help=f"the cycle to use, from 1, where a schedule has written several files a rank{all_cycles} [the last]",
    )
    parser.add_argument(
        "--rank-from",
        default=None,
        metavar="REGEX",
        help="find the rank in each path by the first group of this pattern, such as 'node(\\d+)/'",
    )


def _parse_cycle(text: str) -> int | str:
    return text if text == ALL_CYCLES else int(text)


def add_communication_kernels(parser: argparse.ArgumentParser) -> None:
    """Add the option with the names of kernels of one's own that communicate."""
    parser.add_argument(
        "--communication-kernels",
        default=None,
        metavar="REGEX",
        help="also count kernels whose names match this pattern as communication",
    )


def _list_files(paths: Sequence[str], rank_from: str | None) -> int:
    """Print what each file was recognized as, its span and its steps, and return 0, 1 when some cannot be read, 2 when
    none can.
    """
    from rankscope.collector.reports.trace_list import render_list  # noqa: PLC0415 - no other command needs it

    recognized = recognize(find_traces(paths), compile_rank_from(rank_from))
    found = [one for one in recognized if not one.is_no_trace]
    bad = {one.file.path: one.refusal for one in found if one.refusal is not None}
    spans: dict[str, Span] = {}
    with show_progress("files") as progress:
        for place, one in enumerate(found):
            read = one.refusal or read_span(one.file.path, cores())
            if isinstance(read, Span):
                spans[one.file.path] = read
            else:
                bad[one.file.path] = read
            progress(place + 1, len(found))
    print(render_list(found, spans))
    for path, reason in bad.items():
        print(f"rankscope: {path}: {reason}", file=sys.stderr)
    return ALL_GOOD if not bad else NOTHING_USABLE if len(bad) == len(found) else SOME_FAILED


def print_errors(report: TraceReport) -> int:
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
