"""`rankscope log`: write the numbers of all nodes and ranks of a run to Weights & Biases or MLflow."""

import argparse
import importlib
import sys
import threading
import time
from typing import Final

from rankscope.collector.client import add_url, choose_run, find_collector
from rankscope.collector.commands.command import add_needed_run
from rankscope.collector.loggers.following import Follower, Sink
from rankscope.collector.top.snapshot_fetch import fetch_run_view
from rankscope.measure.errors import SettingError, UnavailableError

SINKS: Final = {"mlflow": ("mlflow_run", "MlflowRun"), "wandb": ("wandb_run", "WandbRun")}
RANKS_MAX: Final = 64
INTERVAL_S: Final = 10.0
INTERVALS_S: Final = (0.1, 3600.0)


class Log:
    """Follow a run until its end, and write a row of its nodes and ranks at each interval."""

    name = "log"
    summary = "write the numbers of all nodes and ranks of a run to W&B or MLflow"
    example = """\
rankscope log bert --to mlflow --into 0123456789abcdef      into the run that the training logs to
rankscope log bert --to wandb --project nodes"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address, the run and the logger."""
        add_url(parser)
        add_needed_run(parser)
        parser.add_argument(
            "--to", choices=sorted(SINKS), required=True, help="the logger; its own variables say where it writes"
        )
        parser.add_argument("--project", default="rankscope", help="W&B's project, MLflow's experiment [rankscope]")
        parser.add_argument(
            "--into",
            default="",
            metavar="ID",
            help="write into this run instead of a new one; with wandb one of its own",
        )
        parser.add_argument(
            "--ranks", type=int, default=RANKS_MAX, metavar="N",
            help=f"write at most so many ranks, those with the highest slowdown; 0: nodes only [{RANKS_MAX}]",
        )  # fmt: skip
        parser.add_argument(
            "--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help=f"time between rows [{INTERVAL_S:g}]"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Write until the run ends, and return 0. Raises UnavailableError without a collector, the run or the logger,
        and where the last row was not taken.
        """
        smallest, largest = INTERVALS_S
        if not smallest <= options.interval <= largest:
            raise SettingError(
                f"--interval is {options.interval:g}; it must be from {smallest:g} to {largest:g} seconds."
            )
        if options.ranks < 0:
            raise SettingError(f"--ranks is {options.ranks}; the smallest allowed is 0.")
        url, credentials = find_collector(options)
        run_id = choose_run(options.run, url, credentials)
        sink = open_sink(options.to, run_id, options.project, options.into)
        follower = Follower(
            lambda: fetch_run_view(url, credentials, run_id, time.time()), sink,
            ranks_max=options.ranks, interval_s=options.interval, wait=threading.Event().wait,
            say=lambda text: print(f"rankscope: {text}", file=sys.stderr),
        )  # fmt: skip
        try:
            follower.follow()
        finally:
            sink.close()
        if follower.problem:
            raise UnavailableError(f"the logger has not taken the last row ({follower.problem}).")
        print(f"{follower.rows} row{'s' * (follower.rows != 1)} of {run_id} written to {options.to}")
        return 0


def open_sink(to: str, run_id: str, project: str, into: str) -> Sink:
    """Return a run of the logger. Raises UnavailableError where it is not installed or refuses."""
    module, name = SINKS[to]
    try:
        kind = getattr(importlib.import_module(f"rankscope.collector.loggers.{module}"), name)
    except ImportError as error:
        package = {"mlflow": "mlflow-skinny", "wandb": "wandb"}[to]
        raise UnavailableError(f"{to} cannot be imported ({error}); `pip install {package}` installs it.") from error
    try:
        sink: Sink = kind(run_id, project, into)
    except Exception as error:  # whatever its library raises
        raise UnavailableError(f"{to} has not begun a run: {type(error).__name__}: {error}") from error
    return sink
