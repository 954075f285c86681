"""`rankscope memory`: read a memory snapshot of torch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankscope.collector.commands.command import add_json, give_json
from rankscope.collector.memory.snapshot_process import read_snapshot
from rankscope.collector.reports.trace_cells import MISSING
from rankscope.collector.traces.report import TraceReport
from rankscope.measure.errors import SettingError
from rankscope.measure.memory_flow import MemoryFlow
from rankscope.measure.output_files import write_output

TOP: Final = 20
FLOWS_MAX: Final = 16
NO_HISTORY: Final = (
    "rankscope: nothing is drawn: the snapshot has no history with times; call torch.cuda.memory."
    "_record_memory_history(stacks='python', max_entries=100_000) before the allocations"
)
NO_EVENTS: Final = (
    "rankscope: no memory flow is drawn: no trace has memory events with addresses; record with profile_memory=True, "
    "or capture with --memory"
)
"""Charts in one file: each has a MB or so."""


class Memory:
    """Print what holds the memory of each device, how fragmented it is, and what was there at the peak."""

    name = "memory"
    summary = "read a memory snapshot of torch: what holds it, fragmentation, the peak"
    example = """\
rankscope memory snapshot.pickle --flow memory.svg
rankscope memory snapshot.pickle --json > memory.json"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the snapshot and the outputs."""
        parser.add_argument("path", metavar="FILE", help="written by torch.cuda.memory._dump_snapshot")
        add_json(parser, "everything, with stacks of up to 20 frames,")
        parser.add_argument(
            "--flow", type=Path, default=None, metavar="FILE", help="draw time by address into this SVG file"
        )
        parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"rows per table [{TOP}]")

    def run(self, options: argparse.Namespace) -> int:
        """Read, print and draw, and return 0, 1 where nothing can be drawn. Raises UnavailableError for a file that
        cannot be read or is refused.
        """
        from rankscope.collector.reports.snapshot_text import render_snapshot  # noqa: PLC0415 - no other command needs it

        if options.top < 1:
            raise SettingError(f"--top is {options.top}; it must be 1 or more")
        result = read_snapshot(options.path, with_flow=options.flow is not None)
        if give_json(options, result.report):
            print(render_snapshot(result.report, options.top))
        if options.flow is not None:
            if result.flows:
                write_flow(options.flow, "--flow", [(name_device(one.device), one) for one in result.flows])
            else:
                print(NO_HISTORY, file=sys.stderr)
                return 1
        return 0


def write_flow(path: Path, option: str, flows: Sequence[tuple[str, MemoryFlow]]) -> None:
    """Write charts and what they are of, below each other, as SVG. Raises UnavailableError where the file cannot be
    written.
    """
    from rankscope.collector.reports.memory_flow import render_flow  # noqa: PLC0415 - only with the option

    write_output(path, option, render_flow(flows).encode())


def write_flows_of(report: TraceReport, path: Path) -> None:
    """Write the charts of a report of traces, at most FLOWS_MAX, and say where some are left out or none is there."""
    found = [
        (f"rank {MISSING if rank.rank is None else rank.rank}, {name_device(one.device)}", one.flow)
        for rank in report.ranks
        for one in rank.memory
        if one.flow is not None
    ]
    if not found:
        print(NO_EVENTS, file=sys.stderr)
        return
    write_flow(path, "--memory-flow", found[:FLOWS_MAX])
    if len(found) > FLOWS_MAX:
        left_out = len(found) - FLOWS_MAX
        print(f"rankscope: {path} has {FLOWS_MAX} charts; {left_out} are left out: choose --rank", file=sys.stderr)


def name_device(device: int | None) -> str:
    """Return the name of an allocator's device.

    >>> name_device(None), name_device(0)
    ('CPU', 'device 0')
    """
    return "CPU" if device is None else f"device {device}"
