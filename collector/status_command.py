"""`rankscope status`: what a collector knows, the verdict first, small also of thousands of ranks."""

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from rankscope.collector.incident_commands import ask_for_incidents, to_plain
from rankscope.collector.inquiry import Collector, add_url, ask_for, ask_for_runs, find_collector
from rankscope.collector.publish.rank_answers import RankAnswer
from rankscope.collector.reports.incident_table import render_incidents
from rankscope.collector.reports.rank_table import render_times
from rankscope.collector.reports.status_text import render_all_ranks, render_one_rank, render_status
from rankscope.collector.reports.terminal_colors import Colors, choose_colors
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.state.run_status import RunStatus
from rankscope.collector.state.snapshot import RunSnapshot
from rankscope.measure.errors import SettingError, UnavailableError

WORST: Final = 10

T = TypeVar("T")


def add_status(parser: argparse.ArgumentParser) -> None:
    """Add the options of `status`."""
    parser.set_defaults(command=show_status)
    add_url(parser)
    parser.add_argument("--run", default=None, metavar="NAME", help="only this run")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--rank", type=int, default=None, metavar="N", help="say what is known of this rank")
    form.add_argument("--all", action="store_true", help=f"list every rank, not only the {WORST} worst of each run")
    form.add_argument("--json", action="store_true", help="print the runs as JSON, each with its open incidents")


def show_status(options: argparse.Namespace) -> int:
    """Print every run that a collector knows, or the one that was asked for, and the incidents that are open."""
    collector = find_collector(options)
    names = _choose_runs(ask_for_runs(*collector), options.run)
    if options.rank is not None:
        return _show_rank(collector, names, options.rank)
    incidents = [one for one in ask_for_incidents(*collector, only_open=True) if one.run in names]
    if options.json:
        by_run = {name: to_plain([one for one in incidents if one.run == name]) for name in names}
        told = {name: _ask(collector, name, "", dict[str, Any]) for name in names}
        print(json.dumps([{**run, "open_incidents": by_run[name]} for name, run in told.items()], indent=2))
        return 0
    colors = choose_colors(sys.stdout, os.environ)
    for text in _render_runs(collector, names, colors, with_all=options.all, is_chosen=options.run is not None):
        print(text, end="\n\n")
    if not names:
        print("no run has reported to this collector")
    if incidents:
        print(f"open incidents:\n{render_incidents(incidents, time.time(), with_sentences=False)}")
    return 0


def _choose_runs(known: Sequence[str], wanted: str | None) -> Sequence[str]:
    if wanted is None:
        return known
    if wanted in known:
        return [wanted]
    near = difflib.get_close_matches(wanted, known, n=1)
    cure = f"Did you mean {printable(near[0])!r}?" if near else "`rankscope status` lists those it knows."
    raise UnavailableError(f"--run is {wanted!r}, a run that this collector does not know. {cure}")


def _render_runs(
    collector: Collector, names: Sequence[str], colors: Colors, *, with_all: bool, is_chosen: bool
) -> list[str]:
    """Return what is to be said of each run: those with something open first, those that are over last."""
    told = [_ask(collector, name, f"/status?worst={WORST}", RunStatus) for name in names]
    told.sort(key=lambda one: (one.run.end is not None, not one.run.open_findings))
    texts = []
    for one in told:
        if with_all:
            run = _ask(collector, one.run.run, "", RunSnapshot)
            texts.append(render_all_ranks(one, run, colors))
        else:
            texts.append(render_status(one, colors, with_ranks=is_chosen or one.run.end is None))
    return texts


def _show_rank(collector: Collector, names: Sequence[str], number: int) -> int:
    if number < 0:
        raise SettingError(f"--rank is {number}; ranks are whole numbers from 0.")
    if len(names) != 1:
        known = ", ".join(map(printable, names)) or "none"
        raise SettingError(f"--rank is {number}, of a run that --run must name; this collector knows: {known}.")
    run = _ask(collector, names[0], "?ranks=none", RunSnapshot)
    found = _ask(collector, names[0], f"/ranks/{number}", RankAnswer)
    peers = None
    if found.twins is not None:
        twins = found.twins
        peers = twins.count, render_times(twins.step_ns_median, twins.phases_ns_median, twins.self_ns_median)
    print(render_one_rank(run, found.rank, peers, choose_colors(sys.stdout, os.environ)))
    return 0


def _ask(collector: Collector, run: str, rest: str, kind: type[T]) -> T:
    return ask_for(f"{collector.url}/api/v1/runs/{quote(run, safe='')}{rest}", kind, collector.credentials)
