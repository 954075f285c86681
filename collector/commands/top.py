"""`rankscope top`: a run's ranks live in a terminal."""

import argparse
import importlib.util
import sys

from rankscope.collector.client import add_url, find_collector
from rankscope.measure.errors import SettingError, UnavailableError

INTERVAL_S = 1.0
INTERVALS_S = (0.1, 60.0)


def add_top(parser: argparse.ArgumentParser) -> None:
    """The options of `top`."""
    parser.set_defaults(command=show_top)
    add_url(parser)
    parser.add_argument("--run", default="", help="the run to begin with; n and p go to the others [the first]")
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help=f"between two looks [{INTERVAL_S:.0f}]"
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end; needs no terminal")


def show_top(options: argparse.Namespace) -> int:
    """Watch until `q`, or print once. Raises SettingError without a terminal, UnavailableError without a collector."""
    url, credentials = find_collector(options)
    smallest, largest = INTERVALS_S
    if not smallest <= options.interval <= largest:
        raise SettingError(f"--interval is {options.interval:g}; it must be from {smallest:g} to {largest:g} seconds")
    if importlib.util.find_spec("rich") is None:
        raise UnavailableError("top draws with the package rich, which is missing: pip install 'rankscope[top]'")
    if not options.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingError("top needs a terminal; `--once` prints one picture, `rankscope status` a plain table")

    from rankscope.collector.top.board import Board  # noqa: PLC0415 - the other commands need no rich
    from rankscope.collector.top.loop import Asking, print_once, watch  # noqa: PLC0415

    asking, board = Asking(url, credentials, options.run, options.interval), Board(run=options.run)
    asking.start()
    try:
        if options.once:
            print_once(asking.latest, board)
        else:
            watch(asking, board)
    finally:
        asking.stop()
    return 0
