"""`rankscope set`: change settings of a run while it goes on, show what is changed, and change it back."""

import argparse
import getpass
import re
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from rankscope.collector.client import (
    Collector,
    add_control,
    fetch,
    find_collector,
    find_controlled,
    post,
    read_config,
)
from rankscope.collector.commands.command import add_json, add_needed_run, give_json
from rankscope.collector.publish.api.setting_routes import SETTINGS_SUFFIX, SettingOptions, ShownSettings
from rankscope.collector.publish.routes import RUNS_PATH
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.live_settings import CHANGEABLE, OF_RANKS, SettingChange
from rankscope.measure.errors import SettingError

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
PAST_SHOWN: Final = 5
INDENT: Final = "  "


class SetSettings:
    """Change settings of a run by its collector, or show which are changed."""

    name = "set"
    summary = "change thresholds and sampling of a running training, or show what is changed"
    example = """\
rankscope set bert                                       what is changed, by whom, until when
rankscope set bert slowdown_ratio_min=1.2 --for 30m      only slower ranks are findings
rankscope set bert full_window_interval_s=5 line_samples=off
rankscope set bert --reset                               all as it was"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the run, the settings, for how long, and the address."""
        add_needed_run(parser)
        parser.add_argument(
            "settings",
            nargs="*",
            metavar="NAME=VALUE",
            help=f"new values as in a settings file, of {', '.join(CHANGEABLE)}; none: show what is changed",
        )
        parser.add_argument(
            "--for",
            dest="for_text",
            default=None,
            metavar="TIME",
            help="go back after this time, such as 45s, 30m, 2h or 1d [until it is changed again]",
        )
        parser.add_argument(
            "--reset", nargs="*", default=None, metavar="NAME", help="change these back; without a name all"
        )
        parser.add_argument("--by", default=None, metavar="NAME", help="who changes it [your login name]")
        add_control(parser)
        parser.add_argument(
            "--token-file", default=None, metavar="FILE",
            help="file with the collector's token, to show what is changed [RANKSCOPE_TOKEN_FILE]",
        )  # fmt: skip
        add_json(parser, "the settings of the run that are and were changed")

    def run(self, options: argparse.Namespace) -> int:
        """Change or show, and return 0. Raises SettingError, and UnavailableError where the collector refuses."""
        order = read_order(options)
        collector = _find_reader(options) if order is None else find_controlled(options)
        url = f"{collector.url}{RUNS_PATH}/{quote(options.run, safe='')}{SETTINGS_SUFFIX}"
        if order is None:
            shown = fetch(url, ShownSettings, collector.credentials)
            lines = describe_settings(options.run, shown)
        else:
            shown = post(url, order, ShownSettings, collector.credentials)
            lines = describe_changes(options.run, order, shown)
        if give_json(options, shown):
            print("\n".join(map(printable, lines)))
        return 0


def read_order(options: argparse.Namespace) -> SettingOptions | None:
    """Return what is to change by these options; None: nothing. Raises SettingError for what cannot be read."""
    values: dict[str, str] = {}
    for text in options.settings:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise SettingError(f"{text[:80]!r} is no NAME=VALUE, such as slowdown_ratio_min=1.2.")
        values[name.strip().replace("-", "_")] = value.strip()
    names = None if options.reset is None else [name.replace("-", "_") for name in options.reset]
    if not values and names is None:
        if options.for_text is not None:
            raise SettingError("--for is given without a setting. Give NAME=VALUE before it.")
        return None
    return SettingOptions(
        set={**values},
        reset=() if names is None else tuple(names or CHANGEABLE),
        for_s=None if options.for_text is None else read_time(options.for_text),
        by=_find_user() if options.by is None else options.by,
        host=socket.gethostname(),
    )


def read_time(text: str) -> float:
    """Return a time, as 45s, 30m, 2h or 1d, in seconds. Raises SettingError.

    >>> read_time("30m"), read_time("1.5h"), read_time("90")
    (1800.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text.strip())
    if found is None:
        raise SettingError(f"--for is {text[:80]!r}; it must be a time such as 45s, 30m, 2h or 1d.")
    return float(found[1]) * UNITS_S[found[2] or "s"]


def describe_settings(run: str, shown: ShownSettings) -> list[str]:
    """Return what is changed now, and the last changes before."""
    if not shown.changed:
        lines = [f"run {run}: no setting is changed; these can: {', '.join(shown.changeable)}"]
    else:
        lines = [f"run {run}:", *(INDENT + one.text for one in shown.changed)]
    lines += [f"{INDENT}of the ranks' settings: {shown.ranks.text}"] if shown.ranks.text else []
    before = [one for one in shown.past if one not in shown.changed][-PAST_SHOWN:]
    return [*lines, *(["before:"] if before else []), *(INDENT + one.text for one in reversed(before))]


def describe_changes(run: str, order: SettingOptions, shown: ShownSettings) -> list[str]:
    """Return what an order has changed, the last changes of its names."""
    made = _find_made(order, shown.past)
    if not made:
        return [f"run {run}: nothing has changed"]
    lines = [f"run {run}: {one.text}" for one in made]
    asks_ranks = any(one.name in OF_RANKS for one in made)
    return [
        *lines,
        *([f"its ranks take it with their next answer; `rankscope set {run}` says which have"] * asks_ranks),
    ]


def _find_made(order: SettingOptions, past: Sequence[SettingChange]) -> list[SettingChange]:
    """Return the changes of the last order: they have one time."""
    names = {*order.set, *order.reset}
    return [one for one in past if one.name in names and one.wall_s == past[-1].wall_s and one.by == order.by]


def _find_reader(options: argparse.Namespace) -> Collector:
    """Return the collector with the token that reads, or with the control token, which reads too."""
    config = read_config(options)
    return find_collector(options) if config.token_file or not config.control_token_file else find_controlled(options)


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, in a container
        return ""
