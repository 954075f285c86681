"""`rankscope keys`: make the keys with which agents, relays and the collector authenticate each other."""

import argparse
from pathlib import Path

from rankscope.collector.keys import ALLOWED, COLLECTOR, DEFAULT_CLIENT, complete_keys, make_keys


class Keys:
    """Make the keys and print who needs which."""

    name = "keys"
    summary = "make the keys that encrypt and authenticate the agents' connections"
    example = """\
rankscope keys /etc/rankscope/keys         once; agents get agent.key and collector.pub
rankscope keys /etc/rankscope/keys --client team-b"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder, the names to make keys for, and what to do with existing keys."""
        parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for the keys; created if missing")
        parser.add_argument(
            "--client",
            action="append",
            default=[],
            metavar="NAME",
            help=f"make keys for this client, a user or a team; may be repeated [{DEFAULT_CLIENT}]",
        )
        parser.add_argument(
            "--relay",
            action="append",
            default=[],
            metavar="NAME",
            help="make keys for this relay, which may report for many ranks; may be repeated",
        )
        present = parser.add_mutually_exclusive_group()
        present.add_argument("--force", action="store_true", help="replace existing keys")
        present.add_argument("--keep", action="store_true", help="keep existing keys, and make only missing ones")

    def run(self, options: argparse.Namespace) -> int:
        """Make the keys and return 0. Raises SettingError for a bad name, UnavailableError for existing keys."""
        folder: Path = options.folder
        if options.keep:
            written = complete_keys(folder, options.client, relays=options.relay)
        else:
            written = make_keys(folder, options.client, relays=options.relay, force=options.force)
        for path in written:
            print(f"wrote {path}")
        if not written:
            print(f"kept the keys in {folder}")
        public = f"{folder}/{COLLECTOR}.pub"
        print(f"collector:  rankscope serve --key-file {folder}/{COLLECTOR}.key --allowed-keys {folder}/{ALLOWED}")
        for relay in options.relay:
            print(f"relay:      rankscope relay --key-file {folder}/{relay}.key --collector-key-file {public}")
        if options.client or not options.relay:
            client = (options.client or [DEFAULT_CLIENT])[0]
            print(f"agents:     RANKSCOPE_KEY_FILE={folder}/{client}.key RANKSCOPE_COLLECTOR_KEY_FILE={public}")
        return 0
