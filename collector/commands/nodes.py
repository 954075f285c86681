"""`rankscope nodes`: list the nodes by how often they have held up a run, and write those to exclude to a file; tell
who holds GPUs that do nothing.
"""

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import Final

from rankscope.collector.client import Collector, add_url, fetch, find_collector
from rankscope.collector.commands.command import add_json, give_json
from rankscope.collector.incidents.kept_nodes import read_nodes
from rankscope.collector.incidents.nodes import RATIO_MIN, RUNS_MIN, NodeList, NodeRecord
from rankscope.collector.reports.held_gpu_table import render_held
from rankscope.collector.reports.incident_table import format_utc
from rankscope.collector.reports.trace_cells import align, printable
from rankscope.collector.runs.held_gpus import HeldGpus
from rankscope.collector.store_address import read_store_option
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.output_files import write_whole
from rankscope.measure.preflights import NAMED, NOT_JUDGED, NOT_NAMED, LastPreflight

HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""Names come from the ranks: one with a space or a line break would be more than one host, or an option."""
HEADS: Final = (
    "node", "held up", "runs", "at least", "incidents", "rank-hours", "last (UTC)", "pre-flight (UTC)", "causes",
)  # fmt: skip
STATUS_WORDS: Final = {NAMED: "named", NOT_NAMED: "not named", NOT_JUDGED: "not judged"}
NODE_LENGTH_MAX: Final = 40


class Nodes:
    """Print the nodes that have held up most first. With a file, write the names of those to exclude."""

    name = "nodes"
    summary = "list nodes, those with the highest share of runs held up first"
    example = """\
rankscope nodes                                      those of a running collector with a store
rankscope nodes --store runs.db --exclude-file exclude.txt
rankscope nodes --gpus                               GPUs that are held and do nothing, of nodes with a relay"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the address or the store, and the limits."""
        add_url(parser)
        parser.add_argument(
            "--store", type=read_store_option, default=None, metavar="ADDRESS", help="read this store instead"
        )
        add_json(parser, "them, with GPU UUIDs,")
        parser.add_argument(
            "--gpus", action="store_true", help="list the GPUs that are held and do nothing, and who holds them"
        )
        parser.add_argument(
            "--exclude-file",
            type=Path,
            default=None,
            metavar="FILE",
            help="write hosts to exclude to it, one a line",
        )
        parser.add_argument(
            "--runs-min", type=int, default=RUNS_MIN, metavar="N",
            help=f"exclude nodes that have held up at least so many runs [{RUNS_MIN}]",
        )  # fmt: skip
        parser.add_argument(
            "--ratio-min", type=float, default=RATIO_MIN, metavar="RATIO",
            help=f"and at least this share of their runs, by the lower end of its interval [{RATIO_MIN}]",
        )  # fmt: skip

    def run(self, options: argparse.Namespace) -> int:
        """Print the nodes and return 0. Raises UnavailableError without a collector or a store, SettingError for limits
        that cannot be.
        """
        if not 0.0 <= options.ratio_min <= 1.0:
            raise SettingError(f"--ratio-min is {options.ratio_min:g}; it must be a share from 0 to 1.")
        if options.runs_min < 1:
            raise SettingError(f"--runs-min is {options.runs_min}; it must be 1 or more.")
        if options.gpus:
            if options.store is not None or options.exclude_file is not None:
                raise SettingError("--gpus is about now: it goes with neither --store nor --exclude-file.")
            held = _fetch_gpus(find_collector(options))
            if give_json(options, held):
                print(render_held(held))
            return 0
        if options.store is None:
            url, credentials = collector = find_collector(options)
            found = fetch(f"{url}/api/v1/nodes", NodeList, credentials)
        else:
            found, collector = read_nodes(options.store), None
        if give_json(options, found):
            print(render_nodes(found))
            with contextlib.suppress(UnavailableError):  # no relay tells of GPUs
                if collector is not None:
                    print("\n".join(["", render_held(_fetch_gpus(collector))]))
        if options.exclude_file is not None:
            names = choose_excluded(found, options.runs_min, options.ratio_min)
            write_whole(options.exclude_file, "--exclude-file", "".join(f"{name}\n" for name in names))
            limits = f"held up at least {options.runs_min} runs, ratio at least {options.ratio_min:g}"
            print(f"{len(names)} node{'s' * (len(names) != 1)} ({limits}) in {options.exclude_file}", file=sys.stderr)
        return 0


def _fetch_gpus(collector: Collector) -> HeldGpus:
    return fetch(f"{collector.url}/api/v1/gpus", HeldGpus, collector.credentials)


def choose_excluded(found: NodeList, runs_min: int, ratio_min: float) -> list[str]:
    """Return the names of the nodes at or above both limits. What is no host name is left out, and said on stderr."""
    names = []
    for record in found.nodes:
        if record.runs_held_up < runs_min or record.ratio_low < ratio_min:
            continue
        if HOST_NAME.fullmatch(record.node):
            names.append(record.node)
        else:
            print(f"rankscope: left out {record.node!a}, which is no host name", file=sys.stderr)
    return names


def render_nodes(found: NodeList) -> str:
    """Return the table of the nodes that have held up a run or that the last pre-flight named, why it did, and how many
    other nodes there are.
    """
    shown = [record for record in found.nodes if record.incidents or _is_named(record)]
    lines = align([HEADS, *map(_build_cells, shown)]) if shown else []
    others = len(found.nodes) - len(shown)
    notes = [f"{others} other node{'s' * (others != 1)} held up none of {found.runs} run{'s' * (found.runs != 1)}"]
    if found.incidents_unplaced:
        notes.append(f"{found.incidents_unplaced} incidents about ranks of attempts that are no longer kept")
    if found.runs_left_out:
        notes.append(f"{found.runs_left_out} earlier runs were not read: too many ranks")
    return "\n".join([*lines, *(line for record in shown for line in _list_reasons(record)), *notes])


def _is_named(record: NodeRecord) -> bool:
    return record.preflight is not None and record.preflight.status == NAMED


def _list_reasons(record: NodeRecord) -> list[str]:
    """Return a line for each reason why the last pre-flight named a node."""
    if record.preflight is None or not _is_named(record):
        return []
    when = format_utc(record.preflight.wall_s)
    return [f"{_shorten(record.node)}: pre-flight of {when} UTC: {printable(why)}" for why in record.preflight.reasons]


def _describe_preflight(preflight: LastPreflight | None) -> str:
    if preflight is None:
        return "-"
    return f"{STATUS_WORDS.get(preflight.status, printable(preflight.status))} {format_utc(preflight.wall_s)}"


def _shorten(node: str) -> str:
    node = printable(node)
    return node if len(node) <= NODE_LENGTH_MAX else f"{node[: NODE_LENGTH_MAX - 3]}..."


def _build_cells(record: NodeRecord) -> tuple[str, ...]:
    return (
        _shorten(record.node),
        str(record.runs_held_up),
        str(record.runs),
        f"{record.ratio_low:.2f}",
        str(record.incidents),
        "-" if record.lost_rank_hours is None else f"{record.lost_rank_hours:.2f}",
        "-" if record.last_wall_s is None else format_utc(record.last_wall_s),
        _describe_preflight(record.preflight),
        printable(", ".join(f"{cause} {count}" for cause, count in record.causes.items())),
    )
