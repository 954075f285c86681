"""`rankscope relay`: carries the reports of a node's ranks to their collector over one connection."""

import argparse
import json
import logging
import os
import signal
import sys
from typing import Any

from rankscope.collector.relay.config import RelayConfig, read_config
from rankscope.collector.relay.service import Relay
from rankscope.measure.clock import SystemClock
from rankscope.measure.settings import find_settings


def add_relay(parser: argparse.ArgumentParser) -> None:
    """The options of `relay`."""
    parser.set_defaults(command=relay)
    parser.add_argument("--config", default="", metavar="FILE", help="TOML file, see configs/relay.toml")
    for key, default, known in find_settings(RelayConfig):
        shown = f" [{default}]" if default != "" else ""
        text = f"{known.meaning}{shown}".replace("%", "%%")  # argparse puts values in where a % stands alone
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(default, bool) else {}
        parser.add_argument(f"--{key.replace('_', '-')}", default=None, dest=key, metavar="VALUE", help=text, **switch)
    # For programs that start a relay: print the address as one line of JSON once it listens.
    parser.add_argument("--announce", action="store_true", help=argparse.SUPPRESS)


def relay(options: argparse.Namespace) -> int:
    """Carry until SIGINT or SIGTERM."""
    keys = [key for key, _, _ in find_settings(RelayConfig)]
    overrides = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    config = read_config(os.environ, file_name=options.config, overrides=overrides)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    relay = Relay(config, SystemClock())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: relay.stop())
    logging.getLogger("rankscope.relay").info("ranks connect to %s, frames go to %s", relay.endpoint, config.collector)
    if options.announce:
        print(json.dumps({"endpoint": relay.endpoint}), flush=True)
        # Whoever started us reads this one line; later a broken pipe must not matter.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    relay.run()
    return 0
