"""`rankscope incidents`: what has gone wrong, from a running collector or from the file it keeps."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from rankscope.collector.client import ANONYMOUS, Credentials, add_url, fetch, find_collector
from rankscope.collector.incidents.incident import OPEN, Incident
from rankscope.collector.incidents.store import read_store
from rankscope.collector.reports.incident_table import count_incidents, render_incidents


class _Page(msgspec.Struct, frozen=True):
    incidents: tuple[Incident, ...]


def add_incidents(parser: argparse.ArgumentParser) -> None:
    """The options of `incidents`."""
    parser.set_defaults(command=show_incidents)
    add_url(parser)
    parser.add_argument("--run", default=None, help="only this run's")
    parser.add_argument("--open", action="store_true", help="only those that still go on")
    parser.add_argument("--json", action="store_true", help="print them as JSON, with their evidence and all changes")
    parser.add_argument(
        "--store", type=Path, default=None, metavar="FILE", help="read the file a collector keeps them in, and ask none"
    )


def show_incidents(options: argparse.Namespace) -> int:
    """Print the incidents, those that are open first, the newest of each first."""
    if options.store is None:
        url, credentials = find_collector(options)
        found = fetch_incidents(url, credentials, run=options.run, only_open=options.open)
    else:
        found = _keep(read_store(options.store).incidents, run=options.run, only_open=options.open)
    found = sorted(found, key=lambda incident: (not incident.is_open, -incident.id))
    if options.json:
        print(json.dumps(to_plain(found), indent=2))
        return 0
    if found:
        print(render_incidents(found, time.time()))
    print(count_incidents(found))
    return 0


def fetch_incidents(
    url: str, credentials: Credentials = ANONYMOUS, *, run: str | None = None, only_open: bool = False
) -> Sequence[Incident]:
    """The incidents that the collector at this address knows, newest first."""
    asked = {name: value for name, value in (("run", run), ("state", OPEN if only_open else None)) if value is not None}
    return fetch(f"{url}/api/v1/incidents{'?' if asked else ''}{urlencode(asked)}", _Page, credentials).incidents


def to_plain(incidents: Sequence[Incident]) -> list[object]:
    """Incidents as JSON has them."""
    return [msgspec.to_builtins(incident) for incident in incidents]


def _keep(incidents: Sequence[Incident], *, run: str | None, only_open: bool) -> Sequence[Incident]:
    return [incident for incident in incidents if incident.is_of_run(run) and (incident.is_open or not only_open)]
