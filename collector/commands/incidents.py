"""`rankscope incidents`: list the incidents of a running collector, or of its store."""

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


class Incidents:
    """Print incidents, the open ones first, then by number from the newest on."""

    name = "incidents"
    summary = "list incidents, the open ones first"
    example = """\
rankscope incidents --open                 those that are open now
rankscope incidents --run bert --store runs.db --json"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address or the store, and the filters."""
        add_url(parser)
        parser.add_argument("--run", default=None, help="only those of this run")
        parser.add_argument("--open", action="store_true", help="only those that are open")
        parser.add_argument(
            "--json", action="store_true", help="print them as JSON, with their evidence and all changes"
        )
        parser.add_argument(
            "--store", type=Path, default=None, metavar="FILE", help="read this store instead of asking a collector"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Print the incidents and return 0. Raises UnavailableError without a collector or a store."""
        if options.store is None:
            url, credentials = find_collector(options)
            found = fetch_incidents(url, credentials, run=options.run, only_open=options.open)
        else:
            found = _filter(read_store(options.store).incidents, run=options.run, only_open=options.open)
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
    """Return the incidents of the collector at `url`, newest first. Raises UnavailableError."""
    asked = {name: value for name, value in (("run", run), ("state", OPEN if only_open else None)) if value is not None}
    return fetch(f"{url}/api/v1/incidents{'?' if asked else ''}{urlencode(asked)}", _Page, credentials).incidents


def to_plain(incidents: Sequence[Incident]) -> list[object]:
    """Return incidents as lists and dicts, for JSON."""
    return [msgspec.to_builtins(incident) for incident in incidents]


def _filter(incidents: Sequence[Incident], *, run: str | None, only_open: bool) -> Sequence[Incident]:
    return [incident for incident in incidents if incident.is_of_run(run) and (incident.is_open or not only_open)]
