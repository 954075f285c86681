"""`rankscope report`: how a run went, also long after it, from a running collector or from the file it keeps."""

import argparse
from pathlib import Path
from urllib.parse import quote

import msgspec

from rankscope.collector.client import add_url, fetch, find_collector
from rankscope.collector.reports.run_page import render_page
from rankscope.collector.reports.run_report import RunReport, read_report
from rankscope.collector.reports.run_sections import TOP
from rankscope.collector.reports.run_text import render_text
from rankscope.collector.storage.parquet_export import write_parquet
from rankscope.collector.storage.run_reader import opening_run
from rankscope.measure.errors import SettingError


def add_report(parser: argparse.ArgumentParser) -> None:
    """The options of `report`."""
    parser.set_defaults(command=show_report)
    parser.add_argument("run", help="the run's name, as `rankscope status` shows it")
    add_url(parser)
    parser.add_argument(
        "--store", type=Path, default=None, metavar="FILE", help="read the file a collector keeps it in, and ask none"
    )
    parser.add_argument("--top", type=int, default=TOP, metavar="ROWS", help=f"rows of each table [{TOP}]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--html", action="store_true", help="print it as one page, to be kept or sent")
    form.add_argument(
        "--parquet", default="", metavar="FOLDER", help="with --store: write every step there, a path or a URL"
    )


def show_report(options: argparse.Namespace) -> int:
    """Print the report, or write the history."""
    if options.top < 1:
        raise SettingError(f"--top is {options.top}; the smallest allowed is 1.")
    if options.parquet:
        return _write_history(options)
    report = _find_report(options)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(render_page(report, options.top) if options.html else render_text(report, options.top))
    return 0


def _write_history(options: argparse.Namespace) -> int:
    if options.store is None:
        raise SettingError("--parquet reads the file itself: name it with --store.")
    with opening_run(options.store, options.run) as history:
        for name in write_parquet(history, options.parquet):
            print(name)
    return 0


def _find_report(options: argparse.Namespace) -> RunReport:
    if options.store is not None:
        return read_report(options.store, options.run)
    url, credentials = find_collector(options)
    return fetch(f"{url}/api/v1/runs/{quote(options.run, safe='')}/report", RunReport, credentials)
