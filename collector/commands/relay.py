"""`rankscope relay`: forward the reports of a node's ranks to their collector over one connection."""

import argparse
import logging
import os
import signal

from rankscope.collector.commands.command import add_settings, announce, read_overrides
from rankscope.collector.log_lines import start_logging
from rankscope.collector.relay.config import RelayConfig, read_config
from rankscope.collector.relay.service import Relay
from rankscope.measure.clock import SystemClock


class RelayReports:
    """Forward reports until SIGINT or SIGTERM."""

    name = "relay"
    summary = "forward the reports of a node's ranks to their collector over one connection"
    example = "rankscope relay --collector tcp://collector-host:18490 --listen ipc:///run/rankscope/relay"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add `--config` and an option for each setting."""
        parser.add_argument("--config", default="", metavar="FILE", help="TOML file, see configs/relay.toml")
        add_settings(parser, RelayConfig)
        # For programs that start a relay: print the address as one line of JSON once it listens.
        parser.add_argument("--announce", action="store_true", help=argparse.SUPPRESS)

    def run(self, options: argparse.Namespace) -> int:
        """Forward, and return 0 when it was stopped. Raises SettingError and UnavailableError before it listens."""
        config = read_config(os.environ, file_name=options.config, overrides=read_overrides(options, RelayConfig))
        start_logging(logging.INFO, options.verbose)
        relay = Relay(config, SystemClock())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: relay.stop())
        log = logging.getLogger("rankscope.relay")
        log.info("ranks connect to %s, frames go to %s", relay.endpoint, config.collector)
        if options.announce:
            announce({"endpoint": relay.endpoint})
        relay.run()
        return 0
