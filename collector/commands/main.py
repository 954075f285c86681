"""Join the commands to one command line: parse, run one, and turn errors into an exit status."""

import argparse
import difflib
import errno
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.collector.commands.analyze import Analyze
from rankscope.collector.commands.capture import OrderCapture
from rankscope.collector.commands.command import Command, close_stdout
from rankscope.collector.commands.compare import Compare
from rankscope.collector.commands.demo import Demo
from rankscope.collector.commands.doctor import Doctor
from rankscope.collector.commands.files import Files
from rankscope.collector.commands.incidents import Incidents
from rankscope.collector.commands.keys import Keys
from rankscope.collector.commands.log import Log
from rankscope.collector.commands.memory import Memory
from rankscope.collector.commands.merge import Merge
from rankscope.collector.commands.nodes import Nodes
from rankscope.collector.commands.notify import Notify
from rankscope.collector.commands.profile import Profile
from rankscope.collector.commands.profile_model import ProfileModel
from rankscope.collector.commands.relay import RelayReports
from rankscope.collector.commands.report import Report
from rankscope.collector.commands.selftest import Selftest
from rankscope.collector.commands.serve import Serve
from rankscope.collector.commands.set import SetSettings
from rankscope.collector.commands.status import Status
from rankscope.collector.commands.top import Top
from rankscope.collector.commands.view import View
from rankscope.measure import __version__
from rankscope.measure.errors import RankscopeError, SettingError

GROUPS: Final[Mapping[str, Sequence[Command]]] = {
    "watch": (Top(), Status(), Incidents(), Report(), Nodes(), Log()),
    "investigate": (OrderCapture(), Compare(), Analyze(), Merge(), View(), Profile(), ProfileModel(), Memory()),
    "run": (Serve(), SetSettings(), RelayReports(), Keys(), Files()),
    "check": (Demo(), Doctor(), Selftest(), Notify()),
}
"""All commands, in the order of `rankscope --help`, by what they are for."""
COMMANDS: Final[Sequence[Command]] = tuple(command for commands in GROUPS.values() for command in commands)
USAGE_ERROR: Final = 2
DESCRIPTION: Final = """\
Watch a distributed PyTorch training rank by rank: who is slow, since when, and why.

example:
  RANKSCOPE=1 torchrun --nproc-per-node 8 train.py      # train with the agent in every rank
  rankscope top                                         # watch the ranks from another terminal"""
EPILOG: Final = "A report of a problem needs what `rankscope doctor` prints."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 success, 1 failure, 2 wrong usage; 130 and 141 after a signal."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_command(given)
        return _run(build_parser().parse_args(given or ["--help"]))
    except SettingError as error:
        print(f"rankscope: {error}", file=sys.stderr)
        return USAGE_ERROR
    except RankscopeError as error:
        print(f"rankscope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader, as `| head`, has closed its end
        close_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        close_stdout()
        print(f"rankscope: the output cannot be written: {error.strerror}. Free some room there.", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    options.verbose += options.verbose_after
    command: Command = options.command
    try:
        status = command.run(options)
        sys.stdout.flush()  # here, where main() handles a closed pipe, and not when the interpreter ends
    except RankscopeError:
        if options.verbose:
            traceback.print_exc()
        raise
    return status


def _check_command(given: Sequence[str]) -> None:
    """Raise SettingError for a first word that is no command, with the closest one as a suggestion."""
    names = [command.name for command in COMMANDS]
    word = next((word for word in given if not word.startswith("-")), None)
    if word is None or word in names:
        return
    near = difflib.get_close_matches(word, names, n=1)
    meant = f"Did you mean `rankscope {near[0]}`?" if near else f"The commands are {', '.join(names)}."
    raise SettingError(f"{word[:80]!r} is not a command. {meant} `rankscope --help` says what each does.")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="rankscope",
        description=f"{DESCRIPTION}\n\n{list_commands()}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rankscope {__version__}")
    _add_verbose(parser, "verbose")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", help="one of these; COMMAND --help says more")
    for command in COMMANDS:
        one = parsers.add_parser(
            command.name,
            description=describe(command),
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(command=command)
        _add_verbose(one, "verbose_after")
        command.prepare_parser(one)
    return parser


def list_commands() -> str:
    """Return a line for each command, under the titles of GROUPS."""
    lines = []
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *(f"  {command.name:<11} {command.summary}" for command in commands), ""]
    return "\n".join(lines).rstrip()


def _add_verbose(parser: argparse.ArgumentParser, name: str) -> None:
    """Add `-v`, which may stand before and after the command: argparse needs a name for each place."""
    text = "print more: debug lines, and the traceback of an error; -vv also what libraries log"
    parser.add_argument("-v", "--verbose", action="count", default=0, dest=name, help=text)


def describe(command: Command) -> str:
    """Return the description in a command's help: its summary as a sentence, and its examples."""
    examples = "\n".join(f"  {line}" for line in command.example.splitlines())
    plural = "s" if "\n" in examples else ""
    return f"{command.summary[0].upper()}{command.summary[1:]}.\n\nexample{plural}:\n{examples}"
