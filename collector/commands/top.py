"""`rankscope top`: watch the ranks of a run live in a terminal."""

import argparse
import os
import sys
from typing import Final

from rankscope.collector.client import add_url, find_collector
from rankscope.collector.commands.command import add_run, read_run
from rankscope.collector.top.board import Board
from rankscope.collector.top.loop import Poller, print_once, watch
from rankscope.measure.errors import SettingError

INTERVAL_S: Final = 1.0
INTERVALS_S: Final = (0.1, 60.0)
"""The shortest and the longest time between two requests."""


class Top:
    """Draw the ranks of a run until `q`, or print them once."""

    name = "top"
    summary = "watch a run's ranks live in the terminal"
    example = "rankscope top bert --url http://collector-host:18491"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address, the run and the interval."""
        add_url(parser)
        add_run(parser, "the run to show first; n and p switch to the others [the first]")
        parser.add_argument(
            "--interval",
            type=float,
            default=INTERVAL_S,
            metavar="SECONDS",
            help=f"seconds between refreshes [{INTERVAL_S:.0f}]",
        )
        parser.add_argument("--nodes", action="store_true", help="a line for each node instead of each rank (key v)")
        parser.add_argument("--once", action="store_true", help="print all ranks once and exit; needs no terminal")

    def run(self, options: argparse.Namespace) -> int:
        """Watch, and return 0. Raises SettingError without a terminal, UnavailableError without a collector."""
        url, credentials = find_collector(options)
        smallest, largest = INTERVALS_S
        if not smallest <= options.interval <= largest:
            raise SettingError(
                f"--interval is {options.interval:g}; it must be from {smallest:g} to {largest:g} seconds"
            )
        if not options.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise SettingError("top needs a terminal; `--once` prints all ranks once, `rankscope status` a plain table")

        if not options.once and os.environ.get("TERM", "dumb") == "dumb":
            raise SettingError(
                "top needs a terminal that can move its cursor, and TERM says that this one cannot; `--once` prints "
                "all ranks once"
            )
        poller = Poller(url, credentials, (read_run(options) or ""), options.interval)
        board = Board(run=(read_run(options) or ""), is_by_node=options.nodes)
        poller.start()
        try:
            if options.once:
                print_once(poller.latest, board)
            else:
                watch(poller, board)
        finally:
            poller.stop()
        return 0
