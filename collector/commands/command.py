"""Define the interface of a command, and share what several need: options of settings, the announced line."""

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from rankscope.measure.settings import Settings, find_settings


class Command(Protocol):
    """One command of `rankscope`. `main.py` lists all of them, prepares their parsers and runs the one that was typed.

    `name` is the word after `rankscope`, `summary` the line of `rankscope --help`, as an imperative without a capital
    and without a stop. Each line of `example` is a command line that parses; two spaces and a remark may follow it.
    """

    name: str
    summary: str
    example: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command."""

    def run(self, options: argparse.Namespace) -> int:
        """Run with parsed options and return the exit status. Raises RankscopeError for what the user can cure."""
        ...


class _HelpAll(argparse.Action):
    """Print the help with what the short one leaves out."""

    def __init__(self, *, full: Mapping[argparse.Action, str], **known: Any) -> None:
        super().__init__(nargs=0, **known)
        self._full = full

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for option, text in self._full.items():
            option.help = text
        parser.print_help()
        parser.exit()


def add_settings(
    parser: argparse.ArgumentParser,
    kind: type[Settings],
    groups: Mapping[str, Sequence[str]] | None = None,
    first: Collection[str] = (),
) -> None:
    """Add an option for each setting of `kind`: under the title in `groups` that lists its key, else under the last.
    Where some are `first`, `--help` has those only, each with the first sentence of its meaning, and `--help-all` all.
    """
    titled = [(parser.add_argument_group(title), keys) for title, keys in (groups or {}).items()]
    last = titled[-1][0] if titled else parser
    full: dict[argparse.Action, str] = {}
    for key, default, known in find_settings(kind):
        shown = f" [{default}]" if default != "" else ""
        text = f"{known.meaning}{shown}".replace("%", "%%")  # argparse formats it with %
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(default, bool) else {}  # `--insecure`
        place = next((group for group, keys in titled if key in keys), last)
        option = place.add_argument(
            f"--{key.replace('_', '-')}", default=None, dest=key, metavar="VALUE", help=text, **switch
        )
        if first:
            full[option] = text
            short = f"{known.meaning.partition('. ')[0].removesuffix('.')}{shown}".replace("%", "%%")
            option.help = short if key in first else argparse.SUPPRESS
    if first:
        parser.add_argument(
            "--help-all", action=_HelpAll, full=full, help="show every setting, with all of its meaning"
        )


def read_overrides(options: argparse.Namespace, kind: type[Settings]) -> dict[str, str]:
    """Return the settings of `kind` that the command line gives, by key, as text."""
    keys = [key for key, _, _ in find_settings(kind)]
    return {key: getattr(options, key) for key in keys if getattr(options, key) is not None}


def add_run(parser: argparse.ArgumentParser, text: str) -> None:
    """Add an optional run, which `read_run` returns. `--run RUN` is accepted as well."""
    parser.add_argument("run_named", nargs="?", default=None, metavar="RUN", help=text)
    parser.add_argument("--run", default=None, help=argparse.SUPPRESS)


def read_run(options: argparse.Namespace) -> str | None:
    """Return the run that is named; None where none is."""
    named: str | None = options.run_named or options.run
    return named


def announce(addresses: Mapping[str, object]) -> None:
    """Print the addresses as one line of JSON for the program that started this one, and nothing after it."""
    print(json.dumps(addresses), flush=True)
    close_stdout()  # the parent reads this one line; a broken pipe must not matter later


def close_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing it when the interpreter ends cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
