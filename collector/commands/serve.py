"""`rankscope serve`: run a collector."""

import argparse
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.address_token import make_token
from rankscope.collector.commands.command import add_settings, announce, read_overrides
from rankscope.collector.config import CollectorConfig, read_config
from rankscope.collector.embedded import Lifetime
from rankscope.collector.ingest.curve import CurveServer
from rankscope.collector.keys import RunKeys
from rankscope.collector.log_lines import start_logging
from rankscope.collector.process_tuning import (
    limit_malloc_arenas,
    map_large_blocks,
    raise_gc_threshold,
    shorten_switch_interval,
    start_malloc_trim,
)
from rankscope.collector.publish.http_listener import PORT_WAIT_S, listen_http
from rankscope.collector.publish.liveness import answering_liveness
from rankscope.collector.publisher import PublisherProcess, PublisherThread
from rankscope.collector.reports.summary import summarize
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.service import Service
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import UnavailableError

SERVE_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "addresses": ("listen", "http_listen", "health_listen"),
    "access (docs/keys.md)": (
        "key_file", "allowed_keys", "insecure", "http_token_file", "http_certificate_file", "http_key_file",
    ),
    "storage (docs/history.md)": ("store", "store_name", "store_folder", "history_kept_s", "history_bytes_max"),
    "metrics (docs/metrics.md)": ("metrics_ranks_max",),
    "detection (docs/detection.md)": (
        "slowdown_ratio_min",
    ),
    "notifications (docs/notifications.md)": (
        "notify_webhook_url", "notify_webhook_secret_file", "notify_webhook_ca_file",
        "notify_severity_min", "notify_interval_s",
    ),
    "OpenTelemetry (docs/opentelemetry.md)": (
        "otlp", "otlp_endpoint", "otlp_all_ranks", "otlp_incidents",
    ),
    "limits and intervals": (),
}  # fmt: skip
"""Titles in the help of `serve`, each with the keys of its settings. The last one has all other settings."""


FIRST_SETTINGS: Final = frozenset(
    {
        "listen", "http_listen", "key_file", "allowed_keys", "http_token_file", "http_certificate_file",
        "http_key_file", "store", "slowdown_ratio_min", "notify_webhook_url", "otlp", "otlp_endpoint",
        "grafana_url", "runbooks_url", "ranks_max",
    }
)  # fmt: skip
"""What most collectors set: `--help` has these."""


class Serve:
    """Receive reports until SIGINT or SIGTERM or, embedded, until the run is over."""

    name = "serve"
    summary = "run a collector for many runs"
    example = """\
rankscope serve                                            for this machine only: no keys, nothing kept on disk
rankscope serve --store runs.db --http-listen 0.0.0.0:18491 --http-token-file token
rankscope serve --config /etc/rankscope/collector.toml      configs/collector.toml has every key
rankscope serve --listen tcp://0.0.0.0:18490 --key-file keys/collector.key --allowed-keys keys/allowed
rankscope serve -v                                         also log joins, ends, forgotten runs, snapshot CPU time"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add `--config`, an option for each setting, and the hidden ones for programs that start a collector."""
        parser.usage = "rankscope serve [--config FILE] [-v] [--OPTION VALUE ...]"
        parser.add_argument("--config", default="", metavar="FILE", help="TOML file, see configs/collector.toml")
        add_settings(parser, CollectorConfig, SERVE_GROUPS, FIRST_SETTINGS)
        _add_internals(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Serve, and return 0 when it was stopped. Raises SettingError and UnavailableError before it listens."""
        overrides = read_overrides(options, CollectorConfig)
        config = read_config(os.environ, file_name=options.config, overrides=overrides)
        start_logging(logging.ERROR if options.embedded else logging.INFO, options.verbose)
        limit_malloc_arenas()
        map_large_blocks()
        clock = SystemClock()
        fresh = RunKeys.make() if options.fresh_keys else None
        # A token of the settings stays what it is: Prometheus may know it.
        token = make_token() if options.fresh_keys and not config.http_token_file else ""
        has_probes = config.health_listen and not options.embedded
        health = listen_http(config.health_listen, PORT_WAIT_S) if has_probes else None
        service = _make_service(config, clock, fresh, token, is_embedded=options.embedded)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: service.stop())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that has started it may block all
        logging.getLogger(__name__).info("ranks connect to %s, metrics at %s", service.endpoint, service.metrics_url)
        if options.announce or options.embedded:
            keys = {} if fresh is None else {"keys": msgspec.to_builtins(fresh.for_ranks()), "http_token": token}
            announce({"endpoint": service.endpoint, "metrics_url": service.metrics_url, **keys})
        raise_gc_threshold()
        shorten_switch_interval()
        start_malloc_trim()
        if not options.embedded:
            with answering_liveness(health, lambda: service.read_health().find_problem()):
                service.run()
            return 0
        lifetime = Lifetime(options.parent_pid or os.getppid(), config.linger_s, clock)
        service.run(lambda snapshot: service.stop() if lifetime.is_over(snapshot) else None)
        _print_summaries(service.snapshot)
        return 0


def _add_internals(parser: argparse.ArgumentParser) -> None:
    """Add the options of programs that start a collector: rank 0, deploy/slurm/train.sbatch, tests."""
    hidden = argparse.SUPPRESS
    # Print the addresses as one line of JSON once it listens.
    parser.add_argument("--announce", action="store_true", help=hidden)
    # End with the run that it was started for, or with the parent process.
    parser.add_argument("--embedded", action="store_true", help=hidden)
    parser.add_argument("--parent-pid", type=int, default=None, help=hidden)
    # Make keys and a token for the run, and announce those of its ranks and readers.
    parser.add_argument("--fresh-keys", action="store_true", help=hidden)


def _make_service(
    config: CollectorConfig, clock: SystemClock, keys: RunKeys | None, token: str, *, is_embedded: bool
) -> Service:
    """Bind the ports. Of an embedded collector a free HTTP port replaces one that is in use."""

    def make(config: CollectorConfig) -> Service:
        curve = None if keys is None else CurveServer(keys.collector, keys.is_allowed)
        start = PublisherThread if is_embedded else PublisherProcess
        return Service(config, clock, curve, start_publisher=start, http_token=token)

    host, _, port = config.http_listen.rpartition(":")
    try:
        return make(config)
    except UnavailableError:
        if not is_embedded or port == "0":
            raise
        return make(dataclasses.replace(config, http_listen=f"{host}:0"))


def _print_summaries(snapshot: Snapshot) -> None:
    for run in (run for run in snapshot.runs if not run.is_awaited):
        for line in summarize(run).splitlines():
            print(f"rankscope: {printable(line)}", file=sys.stderr)
