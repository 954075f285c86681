"""`rankscope incidents`: list the incidents of a running collector, or of its store."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from rankscope.collector.captures.capture import Capture, find_captures_folder
from rankscope.collector.captures.incident_views import IncidentView, link_incidents
from rankscope.collector.captures.store import read_kept
from rankscope.collector.client import ANONYMOUS, Credentials, add_url, choose_run, fetch, find_collector
from rankscope.collector.commands.command import add_json, add_run, give_json, read_run
from rankscope.collector.incidents.incident import OPEN, Incident
from rankscope.collector.incidents.kept_nodes import read_histories
from rankscope.collector.incidents.store import read_store
from rankscope.collector.publish.api.capture_routes import CAPTURES_PATH, CaptureList
from rankscope.collector.reports.capture_text import describe_link
from rankscope.collector.reports.incident_table import count_incidents, render_incidents
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.storage.stored_runs import read_runs
from rankscope.collector.store_address import read_store_option


class _Page(msgspec.Struct, frozen=True):
    incidents: tuple[IncidentView, ...]


class _Found(NamedTuple):
    """Incidents, the captures that may be theirs, and where the files of one are, with a slash at the end."""

    incidents: Sequence[IncidentView]
    captures: Sequence[Capture]
    locate: Callable[[str], str]


class Incidents:
    """Print incidents, the open ones first, then by number from the newest on."""

    name = "incidents"
    summary = "list incidents, the open ones first"
    example = """\
rankscope incidents --open                 those that are open now
rankscope incidents bert --store runs.db --json"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address or the store, and the filters."""
        add_url(parser)
        add_run(parser, "only those of this run")
        parser.add_argument("--open", action="store_true", help="only those that are open")
        add_json(parser, "them, with their evidence and all changes,")
        parser.add_argument(
            "--store",
            type=read_store_option,
            default=None,
            metavar="ADDRESS",
            help="read this store instead of asking a collector",
        )

    def run(self, options: argparse.Namespace) -> int:
        """Print the incidents and return 0. Raises UnavailableError without a collector or a store, or the run."""
        found = _ask_collector(options) if options.store is None else _read_folder(options)
        incidents = sorted(found.incidents, key=lambda incident: (not incident.is_open, -incident.id))
        if not give_json(options, incidents):
            return 0
        if incidents:
            print(render_incidents(incidents, time.time(), notes=_describe_more(found)))
        print(count_incidents(incidents))
        return 0


def _ask_collector(options: argparse.Namespace) -> _Found:
    url, credentials = find_collector(options)
    run = read_run(options)
    found = fetch_incidents(url, credentials, run=run, only_open=options.open)
    if run is not None and not found:
        choose_run(run, url, credentials)  # a run without incidents is not a name that nobody knows
    captures: Sequence[Capture] = ()
    if not options.json and any(one.captures for one in found):
        captures = fetch(f"{url}{CAPTURES_PATH}", CaptureList, credentials).captures
    return _Found(found, captures, lambda name: f"{url}{CAPTURES_PATH}/{quote(name, safe='')}/files/")


def _read_folder(options: argparse.Namespace) -> _Found:
    run = read_run(options)
    found = _filter(read_store(options.store).incidents, run=run, only_open=options.open)
    if run is not None and not found:
        read_runs(options.store, run)
    histories = read_histories(options.store)
    if not isinstance(options.store, Path):  # the captures of each collector are in its own folder
        return _Found(link_incidents(found, (), histories), (), str)
    folder = find_captures_folder(options.store)
    captures = [one.capture for one in reversed(read_kept(folder, _say_unreadable))]
    return _Found(link_incidents(found, captures, histories), captures, lambda name: f"{folder / name}/")


def _say_unreadable(folder: Path) -> None:
    print(f"rankscope: the capture in {printable(str(folder))} cannot be read, and is left out", file=sys.stderr)


def _describe_more(found: _Found) -> dict[int, list[str]]:
    """Return a line for the history of each node and for each capture of an incident, by the id of the incident. A
    capture that was deleted since has none.
    """
    by_id = {one.id: one for one in found.captures}
    return {
        one.id: [
            *(f"node: {printable(text)}" for text in one.node_history),
            *(describe_link(by_id[name], found.locate(name)) for name in one.captures if name in by_id),
        ]
        for one in found.incidents
    }


def fetch_incidents(
    url: str, credentials: Credentials = ANONYMOUS, *, run: str | None = None, only_open: bool = False
) -> Sequence[IncidentView]:
    """Return the incidents of the collector at `url`, newest first. Raises UnavailableError."""
    asked = {name: value for name, value in (("run", run), ("state", OPEN if only_open else None)) if value is not None}
    return fetch(f"{url}/api/v1/incidents{'?' if asked else ''}{urlencode(asked)}", _Page, credentials).incidents


def to_plain(incidents: Sequence[Incident]) -> list[object]:
    """Return incidents as lists and dicts, for JSON."""
    return [msgspec.to_builtins(incident) for incident in incidents]


def _filter(incidents: Sequence[Incident], *, run: str | None, only_open: bool) -> Sequence[Incident]:
    return [incident for incident in incidents if incident.is_of_run(run) and (incident.is_open or not only_open)]
