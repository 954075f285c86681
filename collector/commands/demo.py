"""`rankscope demo`: train a small model on a few ranks, make one slow, and find it."""

import argparse
import os
import sys
from typing import Final

from rankscope.collector.commands.command import add_json, check_json_file, give_json
from rankscope.measure.errors import SettingError

RANKS: Final = 4
RANKS_OF_FEW_CORES: Final = 2
"""Ranks that share a core wait for it, and the machine is what is found."""


class Demo:
    """Train a small model on this machine beside a collector, with one rank slow on purpose."""

    name = "demo"
    summary = "train a small model on this machine, make one rank slow, and find it"
    example = "rankscope demo --fault host --slow-rank 0"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the size of the training and its fault."""
        parser.add_argument("--ranks", type=int, default=None, help="number of ranks [4, or 2 on fewer than 4 cores]")
        parser.add_argument("--steps", type=int, default=160, help="number of steps to train [160]")
        parser.add_argument(
            "--fault", default="data", choices=("none", "compute", "data", "host"), help="what slows the rank [data]"
        )
        parser.add_argument("--slow-rank", type=int, default=None, help="the rank that becomes slow [the last]")
        parser.add_argument(
            "--slow-from", type=int, default=60, metavar="STEP", help="its first slow step, from 0 [60]"
        )
        add_json(parser, "the result")

    def run(self, options: argparse.Namespace) -> int:
        """Run the demo and return 0 when it trained to its end. Raises SettingError for a number out of range."""
        from rankscope.collector.demo.run import run_demo  # noqa: PLC0415 - no other command needs it
        from rankscope.collector.demo.screen import DemoOptions  # noqa: PLC0415

        if options.ranks is None:
            options.ranks = RANKS if len(os.sched_getaffinity(0)) >= RANKS else RANKS_OF_FEW_CORES
        if options.slow_rank is None:
            options.slow_rank = max(0, options.ranks - 1)
        for name, value, smallest, largest in (
            ("--ranks", options.ranks, 1, 64),
            ("--steps", options.steps, 1, 1_000_000),
            ("--slow-rank", options.slow_rank, 0, options.ranks - 1),
            ("--slow-from", options.slow_from, 0, 1_000_000),
        ):
            if not smallest <= value <= largest:
                text = f"{name} is {value}; it must be from {smallest} to {largest}"
                raise SettingError(text)
        check_json_file(options)
        return run_demo(
            DemoOptions(
                ranks=options.ranks,
                steps=options.steps,
                fault=options.fault,
                slow_rank=options.slow_rank,
                slow_from=options.slow_from,
            ),
            sys.stderr if options.json else sys.stdout,
            lambda result: give_json(options, result),
        )
