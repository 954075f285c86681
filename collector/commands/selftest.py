"""`rankscope selftest`: make faults on purpose in small trainings, and check what is said of each."""

import argparse
import sys
from typing import Final

from rankscope.collector.selftest.cases import CASES

ALL: Final = "all"


class Selftest:
    """Train on this machine with one fault after the other, and compare what is said with the truth."""

    name = "selftest"
    summary = "make faults on purpose in small trainings on this machine, and check what is said of each"
    example = "rankscope selftest --kind host_sleep --kind crash"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the choice of faults."""
        parser.add_argument(
            "--kind", action="append", choices=(*CASES, ALL), default=None, help="a fault to try; may be repeated [all]"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Try the faults; return 0 where each was found with its cause, else 1."""
        from rankscope.collector.selftest.run import run_selftest  # noqa: PLC0415 - no other command needs it

        chosen = options.kind or [ALL]
        kinds = list(CASES) if ALL in chosen else list(dict.fromkeys(chosen))
        return run_selftest(kinds, sys.stdout)
