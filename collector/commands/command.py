"""Define the interface of a command, and share what several need: options of settings, the announced line."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rankscope.measure.output_files import check_place, write_output
from rankscope.measure.settings import Settings, find_settings

RUN: Final = "the run: an id, or a name for its latest run"


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


def add_needed_run(parser: argparse.ArgumentParser) -> None:
    """Add a run without which the command has nothing to do, as `options.run`."""
    parser.add_argument("run", metavar="RUN", help=RUN)


def read_run(options: argparse.Namespace) -> str | None:
    """Return the run that is named; None where none is."""
    named: str | None = options.run_named or options.run
    return named


def add_json(parser: argparse.ArgumentParser, what: str, form: argparse._MutuallyExclusiveGroup | None = None) -> None:
    """Add `--json`, which prints `what` instead of the text, and `--json-file`, which writes it, to a command that has
    an answer; `give_json` does what they ask for. `form` has what `--json` excludes.
    """
    (form or parser).add_argument("--json", action="store_true", help=f"print {what} as JSON instead of the text")
    parser.add_argument(
        "--json-file", type=Path, default=None, metavar="FILE", help="write the JSON to this file, besides"
    )


def check_json_file(options: argparse.Namespace) -> None:
    """Raise UnavailableError where `--json-file` cannot be written, before a work of minutes."""
    if options.json_file is not None:
        check_place(options.json_file, "--json-file")


def asks_for_json(options: argparse.Namespace) -> bool:
    """Return whether JSON is to be printed, or written, or both."""
    return bool(options.json) or options.json_file is not None


def give_json(options: argparse.Namespace, value: object, encode_other: Callable[[Any], object] | None = None) -> bool:
    """Print and write what a command has found as JSON, as far as it is asked to; `encode_other` is a hook of msgspec.
    Return whether the text is wanted. Raises UnavailableError where the file cannot be written.
    """
    if asks_for_json(options):
        content = msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_other), indent=2)
        if options.json_file is not None:
            write_output(options.json_file, "--json-file", content + b"\n")
        if options.json:
            print(content.decode())
    return not options.json


def announce(addresses: Mapping[str, object]) -> None:
    """Print the addresses as one line of JSON for the program that started this one, and nothing after it."""
    print(json.dumps(addresses), flush=True)
    close_stdout()  # the parent reads this one line; a broken pipe must not matter later


def close_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing it when the interpreter ends cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
