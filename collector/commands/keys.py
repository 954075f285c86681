"""`rankscope keys`: makes the keys with which agents and collector know each other."""

import argparse
from pathlib import Path

from rankscope.collector.keys import ALLOWED, COLLECTOR, DEFAULT_CLIENT, complete_keys, make_keys


def add_keys(parser: argparse.ArgumentParser) -> None:
    """The options of `keys`."""
    parser.set_defaults(command=show_keys)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write them; made when it is not there")
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
        help="make keys for this relay, which may speak for many ranks; may be repeated",
    )
    present = parser.add_mutually_exclusive_group()
    present.add_argument("--force", action="store_true", help="replace keys that are there")
    present.add_argument(
        "--keep", action="store_true", help="keep keys that are there, and make only those that are not"
    )


def show_keys(options: argparse.Namespace) -> int:
    """Make the keys, and say who needs which."""
    folder: Path = options.folder
    if options.keep:
        written = complete_keys(folder, options.client, relays=options.relay)
    else:
        written = make_keys(folder, options.client, relays=options.relay, force=options.force)
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"kept the keys in {folder}")
    print(f"collector:  rankscope serve --key-file {folder}/{COLLECTOR}.key --allowed-keys {folder}/{ALLOWED}")
    for relay in options.relay:
        print(
            f"relay:      rankscope relay --key-file {folder}/{relay}.key --collector-key-file {folder}/{COLLECTOR}.pub"
        )
    if options.client or not options.relay:
        client = (options.client or [DEFAULT_CLIENT])[0]
        print(
            f"agents:     RANKSCOPE_KEY_FILE={folder}/{client}.key "
            f"RANKSCOPE_COLLECTOR_KEY_FILE={folder}/{COLLECTOR}.pub"
        )
    return 0
