"""`rankscope report`: print the report of a run, from a running collector or from its store."""

import argparse
import os
import sys
from urllib.parse import quote

from rankscope.collector.client import add_url, fetch, find_collector
from rankscope.collector.commands.command import add_json, add_needed_run, give_json
from rankscope.collector.reports.run_page import render_page
from rankscope.collector.reports.run_report import RunReport, read_report
from rankscope.collector.reports.run_sections import TOP, render_text
from rankscope.collector.reports.terminal_colors import choose_colors
from rankscope.collector.storage.parquet_export import write_parquet
from rankscope.collector.storage.run_reader import opening_run
from rankscope.collector.store_address import read_store_option
from rankscope.measure.errors import SettingError


class Report:
    """Print the report of one run, or write its history as Parquet."""

    name = "report"
    summary = "print the report of a finished or running run"
    example = """\
rankscope report bert                      of a running collector
rankscope report bert --store runs.db --html > bert.html"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the run, where it is read, and the form."""
        add_needed_run(parser)
        add_url(parser)
        parser.add_argument(
            "--store",
            type=read_store_option,
            default=None,
            metavar="ADDRESS",
            help="read this store instead of asking a collector",
        )
        parser.add_argument("--top", type=int, default=TOP, metavar="ROWS", help=f"rows per table [{TOP}]")
        form = parser.add_mutually_exclusive_group()
        add_json(parser, "it", form)
        form.add_argument("--html", action="store_true", help="print it as a self-contained HTML page")
        form.add_argument(
            "--parquet", default="", metavar="FOLDER", help="with --store: write every step to this path or URL"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Print the report or write the history, and return 0. Raises SettingError and UnavailableError."""
        if options.top < 1:
            raise SettingError(f"--top is {options.top}; the smallest allowed is 1.")
        if options.parquet:
            return _write_history(options)
        report = _find_report(options)
        if give_json(options, report):
            colors = choose_colors(sys.stdout, os.environ)
            print(render_page(report, options.top) if options.html else render_text(report, options.top, colors=colors))
        return 0


def _write_history(options: argparse.Namespace) -> int:
    if options.store is None:
        raise SettingError("--parquet reads the store itself: name it with --store.")
    if options.json_file is not None:
        raise SettingError("--json-file is given with --parquet, which writes no report; call `report` once for each.")
    with opening_run(options.store, options.run) as history:
        for name in write_parquet(history, options.parquet):
            print(name)
    return 0


def _find_report(options: argparse.Namespace) -> RunReport:
    if options.store is not None:
        return read_report(options.store, options.run)
    url, credentials = find_collector(options)
    return fetch(f"{url}/api/v1/runs/{quote(options.run, safe='')}/report", RunReport, credentials)
