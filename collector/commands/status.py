"""`rankscope status`: print the runs of a collector, the verdict first, in a few lines even for thousands of ranks."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from rankscope.collector.client import Collector, add_url, choose_run, fetch, fetch_runs, find_collector
from rankscope.collector.commands.command import add_json, add_run, asks_for_json, give_json, read_run
from rankscope.collector.commands.incidents import fetch_incidents, to_plain
from rankscope.collector.detect.finding import place_run
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.store import read_store
from rankscope.collector.publish.api.rank_views import RankAnswer
from rankscope.collector.reports.incident_table import render_incidents
from rankscope.collector.reports.rank_table import render_times
from rankscope.collector.reports.status_text import render_all_ranks, render_one_rank, render_overview, render_status
from rankscope.collector.reports.stored_runs_table import render_runs
from rankscope.collector.reports.terminal_colors import Colors, choose_colors
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.run_ids import name_run
from rankscope.collector.runs.run_status import RunStatus
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.storage.stored_runs import read_runs
from rankscope.collector.store_address import read_store_option
from rankscope.measure.errors import SettingError

WORST: Final = 10
"""Ranks listed of each run."""

T = TypeVar("T")


class Status:
    """Print all runs of a collector, one of them, or one rank, and the open incidents."""

    name = "status"
    summary = "print the runs of a collector, each with its verdict and its worst ranks"
    example = """\
rankscope status                           all runs, each with its verdict and its worst ranks
rankscope status bert --all                every rank of one run
rankscope status bert --rank 17            one rank compared with its peer ranks
rankscope status --store postgresql://db/rankscope      the runs of all collectors that share a store
RANKSCOPE_URL=https://collector-host:18491 RANKSCOPE_TOKEN_FILE=token rankscope status"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address, the run, and the form."""
        add_url(parser)
        add_run(parser, "show only this run: an id, or a name for its latest run")
        form = parser.add_mutually_exclusive_group()
        form.add_argument(
            "--rank", type=int, default=None, metavar="N", help="show one rank compared with its peer ranks"
        )
        form.add_argument("--all", action="store_true", help=f"list every rank, not only the {WORST} worst of each run")
        form.add_argument(
            "--store", type=read_store_option, default=None, metavar="ADDRESS",
            help="list the runs of this store instead, of all its collectors",
        )  # fmt: skip
        add_json(parser, "the runs, each with its open incidents, or the rank,")

    def run(self, options: argparse.Namespace) -> int:
        """Print the status and return 0. Raises SettingError, and UnavailableError without a collector or the run."""
        if options.store is not None:
            return _show_stored(options)
        collector = find_collector(options)
        wanted = read_run(options)
        ids = fetch_runs(*collector) if wanted is None else (choose_run(wanted, *collector),)
        if options.rank is not None:
            return _show_rank(collector, ids, options)
        incidents = [one for one in fetch_incidents(*collector, only_open=True) if one.run_id in ids]
        if asks_for_json(options) and not give_json(options, _read_runs(collector, ids, incidents)):
            return 0
        colors = choose_colors(sys.stdout, os.environ)
        for text in _render_runs(collector, ids, colors, with_all=options.all, is_chosen=wanted is not None):
            print(text, end="\n\n")
        if not ids:
            print("no run has reported to this collector")
        if incidents:
            print(f"open incidents:\n{render_incidents(incidents, time.time(), with_sentences=False)}")
        return 0


def _show_stored(options: argparse.Namespace) -> int:
    """Print the runs of a store and their open incidents, and return 0."""
    found = read_runs(options.store, read_run(options))
    ids = {one.run_id for one in found.runs}
    incidents = [one for one in read_store(options.store).incidents if one.is_open and one.run_id in ids]
    if asks_for_json(options):
        by_run = {run_id: to_plain([one for one in incidents if one.run_id == run_id]) for run_id in ids}
        runs = [{**msgspec.to_builtins(one), "open_incidents": by_run[one.run_id]} for one in found.runs]
        if not give_json(options, runs):
            return 0
    print(render_runs(found))
    if incidents:
        print(f"\nopen incidents:\n{render_incidents(incidents, time.time(), with_sentences=False)}")
    return 0


def _read_runs(collector: Collector, ids: Sequence[str], incidents: Sequence[Incident]) -> list[dict[str, Any]]:
    by_run = {run_id: to_plain([one for one in incidents if one.run_id == run_id]) for run_id in ids}
    runs = {run_id: _fetch_run(collector, run_id, "", dict[str, Any]) for run_id in ids}
    return [{**run, "open_incidents": by_run[run_id]} for run_id, run in runs.items()]


def _render_runs(
    collector: Collector, ids: Sequence[str], colors: Colors, *, with_all: bool, is_chosen: bool
) -> list[str]:
    """Return an overview of several runs, and the text of each, those first that need somebody most."""
    statuses = [_fetch_run(collector, run_id, f"/status?worst={WORST}", RunStatus) for run_id in ids]
    named = Counter(one.run.run for one in statuses)
    statuses = [_name_by_id(one) if named[one.run.run] > 1 else one for one in statuses]
    statuses.sort(key=lambda one: place_run(one.run.open_findings, is_over=one.run.end is not None))
    texts = [render_overview(statuses, colors)] if len(statuses) > 1 else []
    for one in statuses:
        if with_all:
            run = _fetch_run(collector, one.run.run_id, "", RunSnapshot)
            texts.append(render_all_ranks(one, run, colors))
        else:
            texts.append(render_status(one, colors, with_ranks=is_chosen or one.run.end is None))
    return texts


def _name_by_id(status: RunStatus) -> RunStatus:
    """Return the status with the run's id in its name, for runs that share a name."""
    named = msgspec.structs.replace(status.run, run=name_run(status.run.run, status.run.run_id))
    return msgspec.structs.replace(status, run=named)


def _show_rank(collector: Collector, ids: Sequence[str], options: argparse.Namespace) -> int:
    number: int = options.rank
    if number < 0:
        raise SettingError(f"--rank is {number}; ranks are whole numbers from 0.")
    if len(ids) != 1:
        known = ", ".join(map(printable, ids)) or "none"
        raise SettingError(f"--rank is {number}; name its run in front of it. This collector knows: {known}.")
    run = _fetch_run(collector, ids[0], "?ranks=none", RunSnapshot)
    found = _fetch_run(collector, ids[0], f"/ranks/{number}", RankAnswer)
    if not give_json(options, found):
        return 0
    peers = None
    if found.peers is not None:
        medians = found.peers
        peers = medians.count, render_times(medians.step_ns_median, medians.phases_ns_median, medians.own_ns_median)
    print(render_one_rank(run, found.rank, peers, choose_colors(sys.stdout, os.environ)))
    return 0


def _fetch_run(collector: Collector, run: str, suffix: str, kind: type[T]) -> T:
    return fetch(f"{collector.url}/api/v1/runs/{quote(run, safe='')}{suffix}", kind, collector.credentials)
