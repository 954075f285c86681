"""The command line of a pre-flight."""

import argparse
import tempfile
from collections.abc import Sequence
from typing import Final

DESCRIPTION: Final = """\
Check all nodes of a training before it starts, in less than a minute: matrix products, memory, copies, disk, the
network between ranks, counters of errors, clocks. Name the nodes that are slower than their peers.

example:
  torchrun --nnodes 4 --nproc-per-node 8 ... -m rankscope.agent.preflight --exclude-file exclude.txt"""
EPILOG: Final = """\
exit status, of every rank: 0 no node was named, 1 a node or a link was named, 2 wrong usage, 3 nothing could be
compared, or a rank did not answer. torchrun itself ends with 1 for each of 1 to 3: --json-file has which."""
BUDGET_S: Final = 50.0
BUDGET_S_MIN: Final = 2.0
BUDGET_S_MAX: Final = 3600.0
WAIT_S: Final = 30.0
WAIT_S_MIN: Final = 1.0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options. A mistake ends the process with exit status 2 (SystemExit)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.history and options.forget_past:
        parser.error(f"--forget-past is for the store of a collector; delete the file {options.history} instead")
    return options


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="rankscope.agent.preflight",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--budget-s", type=_budget, default=BUDGET_S, metavar="S",
        help=f"time for all checks, after the ranks have met [{BUDGET_S:g}]",
    )  # fmt: skip
    parser.add_argument(
        "--wait-s", type=_wait, default=WAIT_S, metavar="S",
        help=f"how long to wait for a rank that does not answer [{WAIT_S:g}]",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print everything measured and concluded as JSON instead of the text"
    )
    parser.add_argument("--json-file", default="", metavar="FILE", help="write the JSON to this file, besides")
    parser.add_argument(
        "--exclude-file", default="", metavar="FILE", help="write the hosts of the named nodes to it, one a line"
    )
    parser.add_argument(
        "--history", default="", metavar="FILE",
        help="compare with the earlier pre-flights in it instead of the collector's, and add this one",
    )  # fmt: skip
    parser.add_argument(
        "--collector", default=None, metavar="ADDRESS",
        help="compare with the earlier pre-flights in the store of this collector, and let it keep this one; empty: "
        "none [RANKSCOPE_COLLECTOR]",
    )  # fmt: skip
    parser.add_argument(
        "--forget-past",
        action="store_true",
        help="compare with no earlier pre-flights, and let the collector delete those of these nodes: after a change "
        "that makes nodes slower for good",
    )
    parser.add_argument(
        "--disk-folder", default=tempfile.gettempdir(), metavar="FOLDER",
        help="where to write for the check of the disk [the folder for temporary files]",
    )  # fmt: skip
    return parser


def _budget(text: str) -> float:
    return _number(text, BUDGET_S_MIN, BUDGET_S_MAX)


def _wait(text: str) -> float:
    return _number(text, WAIT_S_MIN, BUDGET_S_MAX)


def _number(text: str, smallest: float, largest: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not smallest <= value <= largest:
        raise argparse.ArgumentTypeError(f"{text} is not between {smallest:g} and {largest:g} seconds")
    return value
