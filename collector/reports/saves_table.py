"""Build the table of what ranks save, for `status --rank`."""

from collections.abc import Sequence

from rankscope.collector.reports.trace_cells import MISSING, Cell, Section, columns_of, ms, text_cell
from rankscope.measure.records import SavedLine
from rankscope.measure.units import format_bytes, ns_to_s


def build_saves(saves: Sequence[SavedLine]) -> Section:
    """Return the table of one rank's saves, those with the most time first."""
    section = Section(
        "saves", "Saves",
        "What it has saved, by line of the script, in its own time, without waits for others. Speed of the last.",
        columns_of("<line, <call, times, mean ms, longest ms, <in all, <speed"), "None.",
    )  # fmt: skip
    ordered = sorted(saves, key=lambda one: -one.duration_ns)
    rows = [
        (text_cell(one.line or "line not known"), text_cell(_name_call(one)), Cell(f"{one.count:,}", one.count),
         ms(one.duration_ns / max(1, one.count)), ms(one.longest_ns),
         text_cell(MISSING if one.bytes is None else format_bytes(one.bytes)), text_cell(_describe_speed(one)))
        for one in ordered
    ]  # fmt: skip
    return section.of(rows, len(rows))


def _name_call(one: SavedLine) -> str:
    return f"{one.call}, in the background" if one.in_background else one.call


def _describe_speed(one: SavedLine) -> str:
    return f"{format_bytes(one.last_bytes / ns_to_s(one.last_ns))}/s" if one.last_bytes and one.last_ns else MISSING
