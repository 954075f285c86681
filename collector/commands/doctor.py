"""`rankscope doctor`: check what measuring needs on this machine, and print what is missing and how to cure it."""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rankscope.collector.client import add_credentials, open_collector, read_config
from rankscope.collector.commands.command import add_json, give_json
from rankscope.collector.doctor.check import NOTE, OK, PROBLEM, Check, problem
from rankscope.collector.doctor.interpreter import check_interpreter, inspect_interpreter
from rankscope.collector.doctor.machine import check_machine
from rankscope.collector.doctor.reach import check_connections, check_http, check_window_effects
from rankscope.collector.reports.trace_cells import printable
from rankscope.measure.errors import SettingError
from rankscope.measure.inspection import Inspection

SIGNS: Final = {OK: "ok  ", NOTE: "note", PROBLEM: "FAIL"}
WIDTH: Final = 116
INDENT: Final = " " * 8


class Doctor:
    """Check the interpreter, the machine and the way to the collector."""

    name = "doctor"
    summary = "check this machine: what is missing, what does not work without it, and what to do"
    example = "rankscope doctor --collector tcp://collector-host:18490"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the interpreter and the collector to check."""
        parser.add_argument(
            "--python", default=sys.executable, metavar="PROGRAM", help="the Python of the training [this one]"
        )
        parser.add_argument(
            "--collector",
            default="",
            metavar="tcp://HOST:PORT",
            help="check the connection to this collector [RANKSCOPE_COLLECTOR]",
        )
        parser.add_argument(
            "--url",
            default=None,
            help="also check a collector's HTTP address [RANKSCOPE_URL or client.toml]",
        )
        add_credentials(parser)
        add_json(parser, "the checks")

    def run(self, options: argparse.Namespace) -> int:
        """Print every check; return 1 if one found a problem, else 0."""
        checks = list(_run_checks(options, os.environ))
        if give_json(options, checks):
            print(render(checks))
        return int(any(check.state == PROBLEM for check in checks))


def _run_checks(options: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[Check]:
    found = inspect_interpreter(options.python)
    if isinstance(found, Inspection):
        yield from check_interpreter(found, environment)
        spill_dir, port, has_gpus = found.spill_dir, found.embedded_metrics_port, bool(found.torch.gpus)
        keys = (found.key_file, found.collector_key_file)
    else:
        yield found
        spill_dir, port, has_gpus, keys = "", 0, False, ("", "")
    yield from check_machine(environment, spill_dir, port, has_gpus=has_gpus)
    collector = options.collector or (found.collector if isinstance(found, Inspection) else "")
    if collector:
        yield from check_connections(collector, *keys)
    yield from _check_url(options)


def _check_url(options: argparse.Namespace) -> Iterator[Check]:
    """Check the HTTP address, if one is given. A mistake in it becomes a check and does not hide the others."""
    try:
        config = read_config(options)
        if config.is_url_given:
            url, credentials = open_collector(config)
            yield check_http(url, credentials)
            yield from check_window_effects(url, credentials)
    except SettingError as error:
        costs = "status, top, incidents and report fail with this error"
        yield problem("http", str(error), costs, "The error names the setting and its allowed values.")


def render(checks: Sequence[Check]) -> str:
    """Return the checks as lines, and a last line with their counts."""
    lines: list[str] = []
    for check in checks:
        lines.append(f"{SIGNS[check.state]}  {printable(check.name)}: {printable(check.found)}")
        for label, text in (("costs", check.costs), ("do", check.cure)):
            if text:
                wrapped = textwrap.wrap(f"{label}: {printable(text)}", WIDTH - len(INDENT))
                lines += [INDENT + line for line in wrapped]
    states = [check.state for check in checks]
    lines.append(f"{states.count(OK)} ok, {states.count(NOTE)} missing, {states.count(PROBLEM)} not working")
    return "\n".join(lines)
