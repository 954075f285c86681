"""`rankscope compare`: compare two runs, or steps of one, and say whether B was slower than A."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from rankscope.collector.client import add_url, fetch, find_collector
from rankscope.collector.commands.command import add_json, give_json
from rankscope.collector.comparison.baseline import find_baseline
from rankscope.collector.comparison.compared_runs import FORCE, check_margin, compare_read, note_baseline
from rankscope.collector.comparison.run_comparison import MARGIN, RunComparison
from rankscope.collector.comparison.run_side import (
    RunSide,
    Selection,
    parse_selections,
    read_side,
    write_selection,
)
from rankscope.collector.reports.run_comparison_text import render_comparison, render_comparison_page
from rankscope.collector.reports.terminal_colors import choose_colors
from rankscope.collector.store_address import StoreAddress, read_store_option
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.output_files import write_output

LAST_GOOD: Final = "last-good"
SIDES: Final = 2
SLOWER: Final = 3
"""Exit status of `--fail-above` for a run that was slower; 1 and 2 are errors."""


class Compare:
    """Compare two runs, print the verdict and the tables, and with a limit fail where B was slower."""

    name = "compare"
    summary = "compare the step times of two runs, or of two parts of a run"
    example = """\
rankscope compare bert@20261125T103005Z bert               of a running collector
rankscope compare bert@20261125T103005Z bert --store runs.db
rankscope compare bert@steps 0:5000 bert@steps 5000: --store runs.db
rankscope compare bert --baseline last-good --fail-above 1.05 --store runs.db      exits 3 if slower
rankscope compare bert --baseline last-good --store runs.db --html compared.html"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the two sides, where they are read, the limits and the form."""
        parser.add_argument(
            "runs", nargs="+", metavar="RUN",
            help="A and B: a run's name (the latest of that name) or id, or RUN@steps FIRST:END for some of its steps",
        )  # fmt: skip
        add_url(parser)
        parser.add_argument(
            "--store",
            type=read_store_option,
            default=None,
            metavar="ADDRESS",
            help="read this store instead of asking a collector",
        )
        parser.add_argument(
            "--baseline", choices=[LAST_GOOD], help="name B only, and compare it with the last good run of its name"
        )
        parser.add_argument(
            "--margin", type=float, default=MARGIN, metavar="SHARE",
            help="largest change that does not count: a ratio above 1 + SHARE is slower, one below 1 / (1 + SHARE) "
            f"faster [{MARGIN}]",
        )  # fmt: skip
        parser.add_argument(
            "--fail-above", type=float, default=None, metavar="RATIO",
            help=f"exit with {SLOWER} where a step of B took more than RATIO times as long, beyond its noise",
        )  # fmt: skip
        parser.add_argument("--force", action="store_true", help="compare also where the work was not equal")
        add_json(parser, "it")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained HTML page to this file")

    def run(self, options: argparse.Namespace) -> int:
        """Print the comparison and return 0, or 3. Raises SettingError, and UnavailableError for unequal work."""
        _check_limits(options)
        if options.store is None:
            found = _ask_collector(options)
        else:
            a, b, notes = _read_sides(options, options.store)
            found = compare_read(a, b, margin=options.margin, compares_unequal=options.force, notes=notes)
        if options.html is not None:
            write_output(options.html, "--html", render_comparison_page(found).encode())
        if give_json(options, found):
            print(render_comparison(found, colors=choose_colors(sys.stdout, os.environ)))
        return 0 if options.fail_above is None else find_exit_status(found, options.fail_above)


def find_exit_status(found: RunComparison, fail_above: float) -> int:
    """Return SLOWER where the whole interval of the ratio is above the limit, else 0. Where the interval contains the
    limit that is said on stderr: the run is not known to be within it.
    """
    interval = f"{found.ratio:.3f} times as long, interval {found.ratio_low:.3f} to {found.ratio_high:.3f}"
    if found.ratio_low > fail_above:
        print(f"rankscope: B was slower than allowed: {interval}, limit {fail_above:g}", file=sys.stderr)
        return SLOWER
    if found.ratio_high > fail_above:
        print(f"rankscope: not known whether B was within the limit of {fail_above:g}: {interval}", file=sys.stderr)
    return 0


def _check_limits(options: argparse.Namespace) -> None:
    check_margin(options.margin)
    if options.fail_above is not None and not options.fail_above >= 1:
        raise SettingError(
            f"--fail-above is {options.fail_above:g}; the smallest allowed is 1, for equally long steps."
        )


def _ask_collector(options: argparse.Namespace) -> RunComparison:
    """Return the comparison that a collector makes of runs in its store."""
    if options.baseline is not None:
        raise SettingError("--baseline looks for a run in the store itself: name it with --store.")
    a, b = (write_selection(one) for one in _name_both(options))
    asked = {"a": a, "b": b, "margin": str(options.margin), **({"force": "yes"} if options.force else {})}
    url, credentials = find_collector(options)
    try:
        return fetch(f"{url}/api/v1/compare?{urlencode(asked)}", RunComparison, credentials)
    except UnavailableError as error:
        raise UnavailableError(str(error).replace("force=yes", FORCE)) from error


def _name_both(options: argparse.Namespace) -> tuple[Selection, Selection]:
    selections = parse_selections(options.runs)
    if len(selections) != SIDES:
        named = f"{len(selections)} run{'s' * (len(selections) != 1)}"
        raise SettingError(f"{named} named; compare needs two, A and B, or B and --baseline {LAST_GOOD}.")
    a, b = selections
    return a, b


def _read_sides(options: argparse.Namespace, store: StoreAddress) -> tuple[RunSide, RunSide, tuple[str, ...]]:
    """Return A, B, and notes on how A was chosen, none where it was named."""
    if options.baseline is None:
        a, b = _name_both(options)
        return read_side(store, a), read_side(store, b), ()
    selections = parse_selections(options.runs)
    if len(selections) != 1:
        raise SettingError(f"{len(selections)} runs named; with --baseline name B only.")
    baseline = find_baseline(store, selections[0].run)
    return baseline.side, read_side(store, selections[0]), note_baseline(baseline)
