"""`rankscope merge`: put the profiler traces of all ranks on one timeline."""

import argparse
import sys
from pathlib import Path

from rankscope.collector.commands.analyze import add_choice_of_files, add_communication_kernels, add_sequences
from rankscope.collector.commands.progress import ALL_GOOD, NOTHING_USABLE, SOME_FAILED, show_progress
from rankscope.measure.errors import UnavailableError
from rankscope.measure.units import format_duration


class Merge:
    """Write one trace with the events of all ranks, on aligned clocks."""

    name = "merge"
    summary = "put the traces of all ranks on one timeline, for Perfetto"
    example = "rankscope merge traces/*.json.gz -o merged.json.gz      then: rankscope view merged.json.gz"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the traces and the output."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="traces, folders, globs or URLs")
        add_choice_of_files(parser)
        add_communication_kernels(parser)
        parser.add_argument(
            "--counters",
            action="store_true",
            help="also tracks of GPU utilization, SM efficiency, queue length, memory, and bandwidth of copies and "
            "collectives",
        )
        parser.add_argument(
            "--critical-path", action="store_true", help="also the critical path of each step, through the ranks"
        )
        add_sequences(parser, "also tracks with the sequences of kernels that repeat")
        parser.add_argument(
            "-o", "--output", type=Path, required=True, metavar="FILE", help="output file, for example merged.json.gz"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Merge, and return 0, 1 when some files failed, 2 when none was usable."""
        from rankscope.collector.traces.timeline import merge  # noqa: PLC0415 - no other command needs it

        try:
            with show_progress("readings") as progress:
                merged = merge(
                    options.paths,
                    options.output,
                    cycle=options.cycle,
                    rank_from=options.rank_from,
                    communication_kernels=options.communication_kernels,
                    counters=options.counters,
                    critical_path=options.critical_path,
                    sequences=options.sequences,
                    progress=progress,
                )
        except UnavailableError as error:
            print(f"rankscope: {error}", file=sys.stderr)
            return NOTHING_USABLE
        for warning in merged.warnings:
            print(f"rankscope: {warning}", file=sys.stderr)
        for file, reason in merged.errors:
            print(f"rankscope: {file}: {reason}", file=sys.stderr)
        bound = "" if merged.error_bound_ns is None else f", within {format_duration(merged.error_bound_ns)}"
        if merged.offset_bound_ns:
            bound += f", the offsets wrong by at most {format_duration(merged.offset_bound_ns)}"
        ranks = f"{len(merged.ranks)} rank{'' if len(merged.ranks) == 1 else 's'}"
        print(
            f"{merged.output}: {ranks}, {merged.event_count:,} events, "
            f"{merged.arrow_count:,} arrows; clocks by {merged.how}{bound}"
        )
        return SOME_FAILED if merged.errors else ALL_GOOD
