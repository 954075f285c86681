"""`rankscope selftest`: make faults on purpose in small trainings; check what is said of each."""

import argparse
import sys
from typing import Final

from rankscope.collector.commands.command import add_json, check_json_file, give_json
from rankscope.collector.selftest.cases import CASES

ALL: Final = "all"
NOT_REACHED: Final = 3
"""Exit status where nothing was wrong, and some faults could not be tried on this machine at this time."""


class Selftest:
    """Train on this machine with one fault after the other, and compare what is said with the truth."""

    name = "selftest"
    summary = "make faults on purpose in small trainings on this machine, and check what is said of each"
    example = """\
rankscope selftest --kind host_sleep --kind crash"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the choice of faults, and the form."""
        parser.add_argument(
            "--kind", action="append", choices=(*CASES, ALL), default=None,
            help="a fault to try; may be repeated [all]; the exit status is 0 if each was found with its cause, 1 if "
            f"one was not, {NOT_REACHED} if some could not be tried",
        )  # fmt: skip
        add_json(parser, "the results")

    def run(self, options: argparse.Namespace) -> int:
        """Try the faults; return 0 where each was found with its cause, NOT_REACHED where nothing was wrong and some
        could not be tried, else 1.
        """
        check_json_file(options)
        out = sys.stderr if options.json else sys.stdout
        from rankscope.collector.selftest.run import run_selftest  # noqa: PLC0415 - no other command needs it

        chosen = options.kind or [ALL]
        kinds = list(CASES) if ALL in chosen else list(dict.fromkeys(chosen))
        report = run_selftest(kinds, out)
        give_json(options, report)
        if report.right + report.not_reached < len(report.kinds):
            return 1
        return NOT_REACHED if report.not_reached else 0
