"""`rankscope selftest`: make faults on purpose in small trainings; check what is said of each, and who is notified."""

import argparse
import logging
import os
import sys
import time
from typing import Final, TextIO

import msgspec

from rankscope.collector.config import read_config
from rankscope.collector.log_lines import start_logging
from rankscope.collector.selftest.cases import CASES
from rankscope.measure.errors import SettingError

ALL: Final = "all"
NOT_REACHED: Final = 3
"""Exit status where nothing was wrong, and some faults could not be tried on this machine at this time."""


class Selftest:
    """Train on this machine with one fault after the other, and compare what is said with the truth. With `--alert`
    send a synthetic incident to those who are notified, and no fault unless one is named.
    """

    name = "selftest"
    summary = "make faults on purpose in small trainings on this machine, and check what is said of each"
    example = """\
rankscope selftest --kind host_sleep --kind crash
rankscope selftest --alert --config collector.toml --alertmanager http://alertmanager:9093"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the choice of faults, the form, and the receivers of the synthetic incident."""
        parser.add_argument(
            "--kind", action="append", choices=(*CASES, ALL), default=None,
            help="a fault to try; may be repeated [all]; the exit status is 0 if each was found with its cause, 1 if "
            f"one was not, {NOT_REACHED} if some could not be tried",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print the results as JSON, and the table on stderr")
        parser.add_argument(
            "--alert", action="store_true",
            help="send a synthetic incident to the receivers of --config and --alertmanager; without --kind no fault",
        )  # fmt: skip
        parser.add_argument(
            "--config", default="", metavar="FILE", help="settings of the collector, with the receivers for --alert"
        )
        parser.add_argument("--alertmanager", default="", metavar="URL", help="address of an Alertmanager for --alert")

    def run(self, options: argparse.Namespace) -> int:
        """Try the faults and the receivers; return 0 where each fault was found with its cause and each receiver
        accepted the incident, NOT_REACHED where nothing was wrong and some faults could not be tried, else 1. Raises
        SettingError for `--alert` without a receiver.
        """
        if (options.alertmanager or options.config) and not options.alert:
            raise SettingError("--alertmanager and --config say where --alert sends its incident; add --alert.")
        out = sys.stderr if options.json else sys.stdout
        is_right = not options.alert or _try_alert(options, out)
        if options.alert and not options.kind:
            return 0 if is_right else 1
        from rankscope.collector.selftest.run import run_selftest  # noqa: PLC0415 - no other command needs it

        chosen = options.kind or [ALL]
        kinds = list(CASES) if ALL in chosen else list(dict.fromkeys(chosen))
        report = run_selftest(kinds, out)
        if options.json:
            print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        if not is_right or report.right + report.not_reached < len(report.kinds):
            return 1
        return NOT_REACHED if report.not_reached else 0


def _try_alert(options: argparse.Namespace, out: TextIO) -> bool:
    """Send the synthetic incident, print what became of it, and return whether all accepted it."""
    from rankscope.collector.commands.notify import read_all_receivers  # noqa: PLC0415 - only --alert needs these
    from rankscope.collector.selftest.alert import (  # noqa: PLC0415
        describe_results,
        send_to_alertmanager,
        send_to_receivers,
    )

    start_logging(logging.WARNING, options.verbose)
    wall_s = time.time()
    config = read_config(os.environ, file_name=options.config)
    receivers = read_all_receivers(config)
    if not receivers and not options.alertmanager:
        raise SettingError(
            "--alert has no receiver: name the settings of the collector by --config FILE, with notify_webhook_url, "
            "notify_command, notify_hooks or otlp, or an Alertmanager by --alertmanager URL."
        )
    results = send_to_receivers(receivers, wall_s)
    if options.alertmanager:
        results.append(send_to_alertmanager(options.alertmanager, wall_s))
    print(describe_results(results), file=out)
    return all(one.is_accepted for one in results)
