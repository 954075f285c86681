"""`rankscope serve | relay | top | status | incidents | report | keys | analyze | merge | doctor | files | demo`."""

import argparse
import dataclasses
import difflib
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankscope.collector.commands.doctor import add_doctor
from rankscope.collector.commands.files import add_files
from rankscope.collector.commands.incidents import add_incidents
from rankscope.collector.commands.keys import add_keys
from rankscope.collector.commands.relay import add_relay
from rankscope.collector.commands.report import add_report
from rankscope.collector.commands.status import add_status
from rankscope.collector.commands.top import add_top
from rankscope.collector.commands.traces import add_analyze, add_merge
from rankscope.collector.config import CollectorConfig, read_config
from rankscope.collector.embedded import Lifetime
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.keys import RunKeys
from rankscope.collector.process_tuning import (
    limit_malloc_arenas,
    raise_gc_threshold,
    shorten_switch_interval,
    start_malloc_trim,
)
from rankscope.collector.reports.summary import summarise
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.service import Service
from rankscope.measure import __version__
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import RankscopeError, SettingError, UnavailableError
from rankscope.measure.settings import find_settings

USAGE_ERROR = 2

EXAMPLES: Final[Mapping[str, str]] = {
    "serve": """\
  rankscope serve                                            for this machine only: no keys, nothing kept on disk
  rankscope serve --store runs.db --http-listen 0.0.0.0:18491 --http-token-file token
  rankscope serve --config /etc/rankscope/collector.toml      configs/collector.toml has every key
  rankscope serve --listen tcp://0.0.0.0:18490 --key-file keys/collector.key --allowed-keys keys/allowed""",
    "relay": "  rankscope relay --collector tcp://collector-host:18490 --listen ipc:///run/rankscope/relay",
    "top": "  rankscope top --run bert --url http://collector-host:18491",
    "status": """\
  rankscope status                           all runs, each with its verdict and its worst ranks
  rankscope status --run bert --all          every rank of one run
  rankscope status --run bert --rank 17      one rank beside those it is compared with
  RANKSCOPE_URL=https://collector-host:18491 RANKSCOPE_TOKEN_FILE=token rankscope status""",
    "incidents": """\
  rankscope incidents --open                 those that are open now
  rankscope incidents --run bert --store runs.db --json""",
    "keys": """\
  rankscope keys /etc/rankscope/keys         once; agents get agent.key and collector.pub
  rankscope keys /etc/rankscope/keys --client team-b""",
    "report": """\
  rankscope report bert                      of a running collector
  rankscope report bert --store runs.db --html > bert.html""",
    "analyze": "  rankscope analyze traces/ --html analysis.html",
    "merge": "  rankscope merge traces/*.json.gz -o merged.json.gz      open it at https://ui.perfetto.dev",
    "doctor": "  rankscope doctor --collector tcp://collector-host:18490",
    "files": """\
  rankscope files --list 'docs/*'            what this release brings
  rankscope files --copy . 'deploy/grafana/*'""",
    "demo": "  rankscope demo --fault data --slow-rank 1",
}
"""What each command's help ends with."""
SERVE_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "where it listens": ("listen", "http_listen"),
    "who may connect (docs/keys.md)": (
        "key_file", "allowed_keys", "insecure", "http_token_file", "http_certificate_file", "http_key_file",
    ),
    "what is kept (docs/history.md)": ("store", "history_kept_s", "history_bytes_max", "history_interval_s"),
    "metrics (docs/metrics.md)": ("tick_s", "metrics_ranks_max", "series_max"),
    "what is called slow (docs/detection.md)": (
        "detect_steps", "detect_steps_min", "steps_kept", "slowdown_ratio_min", "slowdown_close_ratio", "robust_z_min",
        "persistence_ratio", "link_slowdown_ratio_min", "imbalance_ratio_min", "uneven_work_ratio_min",
    ),
    "incidents (docs/incidents.md)": (
        "incidents_max", "incident_reopen_s", "incident_escalate_s", "incident_escalate_rank_s",
        "incident_restart_grace_s",
    ),
    "limits and times": (),
}  # fmt: skip
"""The options of `serve` in its help. The last group has all that stand in no other one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 good, 1 it failed, 2 it was asked for wrongly."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser, commands = _build()
        _check_command(given, commands)
        return _carry_out(parser.parse_args(given))
    except SettingError as error:
        print(f"rankscope: {error}", file=sys.stderr)
        return USAGE_ERROR
    except RankscopeError as error:
        print(f"rankscope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head` has seen enough; Python would say so again at its end
        _write_no_more()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _write_no_more()
        print(f"rankscope: the output cannot be written: {error.strerror}. Free some room there.", file=sys.stderr)
        return 1


def _write_no_more() -> None:
    """Send what stdout still holds nowhere: Python writes it at its end, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _carry_out(options: argparse.Namespace) -> int:
    status = int(options.command(options))
    sys.stdout.flush()  # now, while a reader that has gone is expected, and not at the end of the interpreter
    return status


def _check_command(given: Sequence[str], commands: Sequence[str]) -> None:
    """Raise SettingError for a first word that is no command, with the one that is spelt most like it."""
    if not given or given[0].startswith("-") or given[0] in commands:
        return
    near = difflib.get_close_matches(given[0], commands, n=1)
    meant = f"Did you mean `rankscope {near[0]}`?" if near else f"The commands are {', '.join(commands)}."
    raise SettingError(f"{given[0][:80]!r} is not a command. {meant} `rankscope --help` says what each does.")


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    return _build()[0]


def _build() -> tuple[argparse.ArgumentParser, Sequence[str]]:
    """Return the whole command line, and the names of its commands."""
    parser = argparse.ArgumentParser(
        prog="rankscope", description="Watch a distributed PyTorch job rank by rank: who is slow, since when, and why."
    )
    parser.add_argument("--version", action="version", version=f"rankscope {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run a collector for many jobs"))
    add_relay(commands.add_parser("relay", help="carry the reports of a node's ranks over one connection"))
    add_top(commands.add_parser("top", help="watch a run's ranks live in the terminal"))
    add_status(commands.add_parser("status", help="show what a collector knows"))
    add_incidents(commands.add_parser("incidents", help="show what has gone wrong, and what still does"))
    add_keys(commands.add_parser("keys", help="make the keys of the encrypted wire"))
    add_report(commands.add_parser("report", help="say how a run went, also long after it"))
    add_analyze(commands.add_parser("analyze", help="say what profiler traces show, rank by rank"))
    add_merge(commands.add_parser("merge", help="put the traces of all ranks on one timeline, for Perfetto"))
    add_doctor(commands.add_parser("doctor", help="say what is missing here, what that costs, and what to do"))
    add_files(commands.add_parser("files", help="list or copy the docs, configurations and deployment files"))
    _add_demo(commands.add_parser("demo", help="train a small model on four ranks, make one slow, and find it"))
    for name, command in commands.choices.items():
        command.epilog = f"example{'s' if EXAMPLES[name].count(chr(10)) else ''}:\n{EXAMPLES[name]}"
        command.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser, tuple(commands.choices)


# -- serve ------------------------------------------------------------------------------------------------------------


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=serve)
    parser.add_argument("--config", default="", metavar="FILE", help="TOML file, see configs/collector.toml")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also log joins, ends, forgotten runs and the CPU time of each snapshot",
    )
    parser.usage = "rankscope serve [--config FILE] [-v] [--OPTION VALUE ...]"
    groups = {title: parser.add_argument_group(title) for title in SERVE_GROUPS}
    group_of = {key: groups[title] for title, keys in SERVE_GROUPS.items() for key in keys}
    *_, others = groups.values()
    for key, default, known in find_settings(CollectorConfig):
        shown = f" [{default}]" if default != "" else ""
        text = f"{known.meaning}{shown}".replace("%", "%%")  # argparse puts values in where a % stands alone
        switch: dict[str, Any] = (
            {"nargs": "?", "const": "true"} if isinstance(default, bool) else {}
        )  # `--insecure` alone says yes
        option = f"--{key.replace('_', '-')}"
        group_of.get(key, others).add_argument(option, default=None, dest=key, metavar="VALUE", help=text, **switch)
    _add_internals(parser)


def _add_internals(parser: argparse.ArgumentParser) -> None:
    """Add the options of those that start a collector for themselves: rank 0, deploy/slurm/train.sbatch, tests."""
    hidden = argparse.SUPPRESS
    # Print the addresses as one line of JSON once it listens.
    parser.add_argument("--announce", action="store_true", help=hidden)
    # End with the one run that it was started for, or with this process; make keys for the run and announce the ranks'
    # ones; print no summary at the end.
    parser.add_argument("--embedded", action="store_true", help=hidden)
    parser.add_argument("--parent-pid", type=int, default=None, help=hidden)
    parser.add_argument("--fresh-keys", action="store_true", help=hidden)
    parser.add_argument("--no-summary", action="store_true", help=hidden)


class _PrintableFormatter(logging.Formatter):
    """A line is one line: what a name from the wire would do to a terminal, or pass off as a line of its own, is
    spelled out.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without its traceback, which is ours."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def serve(options: argparse.Namespace) -> int:
    """Receive until SIGINT or SIGTERM, or, embedded, until the run is over."""
    keys = [key for key, _, _ in find_settings(CollectorConfig)]
    overrides = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    config = read_config(os.environ, file_name=options.config, overrides=overrides)
    level = logging.ERROR if options.embedded else logging.INFO
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[to_stderr])
    if options.verbose:
        logging.getLogger("rankscope").setLevel(logging.DEBUG)
    limit_malloc_arenas()
    clock = SystemClock()
    fresh = RunKeys.make() if options.fresh_keys else None
    service = _make_service(config, clock, fresh, may_move=options.embedded)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: service.stop())
    logging.getLogger(__name__).info("ranks connect to %s, metrics at %s", service.endpoint, service.metrics_url)
    if options.announce or options.embedded:
        _announce(service, fresh)
    raise_gc_threshold()
    shorten_switch_interval()
    start_malloc_trim()
    if not options.embedded:
        service.run()
        return 0
    lifetime = Lifetime(options.parent_pid or os.getppid(), config.linger_s, clock)
    service.run(lambda snapshot: service.stop() if lifetime.is_over(snapshot) else None)
    if not options.no_summary:
        _print_summaries(service.snapshot)
    return 0


def _make_service(config: CollectorConfig, clock: SystemClock, keys: RunKeys | None, *, may_move: bool) -> Service:
    """Bind the ports. With `may_move` a free one stands in for an HTTP port that is in use."""

    def make(config: CollectorConfig) -> Service:
        return Service(config, clock, None if keys is None else CurveServer(keys.collector, keys.is_allowed))

    host, _, port = config.http_listen.rpartition(":")
    try:
        return make(config)
    except UnavailableError:
        if not may_move or port == "0":
            raise
        return make(dataclasses.replace(config, http_listen=f"{host}:0"))


def _announce(service: Service, keys: RunKeys | None) -> None:
    announced: dict[str, object] = {"endpoint": service.endpoint, "metrics_url": service.metrics_url}
    if keys is not None:
        announced["keys"] = msgspec.to_builtins(keys.for_ranks())
    print(json.dumps(announced), flush=True)
    # Whoever started us reads this one line; later a broken pipe must not matter.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_summaries(snapshot: Snapshot) -> None:
    for run in (run for run in snapshot.runs if not run.is_awaited):
        for line in summarise(run).splitlines():
            print(f"rankscope: {printable(line)}", file=sys.stderr)


# -- demo -------------------------------------------------------------------------------------------------------------


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=demo)
    parser.add_argument("--ranks", type=int, default=4, help="how many ranks to train on [4]")
    parser.add_argument("--steps", type=int, default=160, help="how many steps to train [160]")
    parser.add_argument(
        "--fault", default="host", choices=("none", "compute", "data", "host"), help="what goes wrong [host]"
    )
    parser.add_argument("--slow-rank", type=int, default=2, help="the rank that becomes slow [2]")
    parser.add_argument("--slow-from", type=int, default=60, metavar="STEP", help="its first slow step, from 0 [60]")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the result there")


def demo(options: argparse.Namespace) -> int:
    """Run the demo, after checking what was asked for."""
    from rankscope.collector.demo.run import DemoOptions, run_demo  # noqa: PLC0415 - the other commands need none of it

    for name, value, smallest, largest in (
        ("--ranks", options.ranks, 1, 64),
        ("--steps", options.steps, 1, 1_000_000),
        ("--slow-rank", options.slow_rank, 0, options.ranks - 1),
        ("--slow-from", options.slow_from, 0, 1_000_000),
    ):
        if not smallest <= value <= largest:
            text = f"{name} is {value}; it must be from {smallest} to {largest}"
            raise SettingError(text)
    return run_demo(
        DemoOptions(
            ranks=options.ranks,
            steps=options.steps,
            fault=options.fault,
            slow_rank=options.slow_rank,
            slow_from=options.slow_from,
            json_path=options.json,
        ),
        sys.stdout,
    )
