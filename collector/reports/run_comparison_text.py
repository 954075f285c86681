"""Build the tables of a comparison of two runs, for the terminal and as a page. Pure: RunComparison -> text."""

from collections.abc import Callable, Sequence
from typing import Final

from rankscope.collector.comparison.run_comparison import ComparedSide, PartRow, RunComparison
from rankscope.collector.reports.run_page import frame_page
from rankscope.collector.reports.terminal_colors import BOLD, PLAIN, Colors
from rankscope.collector.reports.trace_cells import (
    MISSING,
    Cell,
    Cells,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    printable,
    text_cell,
)
from rankscope.collector.reports.trace_text import WIDTH, render_section
from rankscope.measure.units import format_share

TOP: Final = 40
"""More rows than the tables have, with some phases of a user's own; the incidents beyond are counted."""


def render_comparison(found: RunComparison, width: int = WIDTH, colors: Colors = PLAIN) -> str:
    """Return the verdict, bold on a terminal, and every table, in lines of `width` columns."""
    sections = ("\n".join(render_section(section, width)) for section in build_comparison_sections(found))
    return "\n\n".join([colors.paint(printable(found.verdict), BOLD), *sections])


def render_comparison_page(found: RunComparison) -> str:
    """Return the verdict and every table as a self-contained HTML page without script; all names are escaped."""
    return frame_page(printable(found.verdict), build_comparison_sections(found))


def build_comparison_sections(found: RunComparison) -> list[Section]:
    """Return the tables: the two sides, step time, the parts of the difference, incidents, notes."""
    return [
        _sides(found),
        _step_times(found),
        _parts(
            "uses", "Difference by use of the device", found.uses,
            f"Shares of the time in profiler windows, of all ranks, times the mean of the {found.basis}. They sum to "
            "its difference.",
            f"{found.uses_unknown}." if found.uses_unknown else "None.",
        ),
        _parts(
            "phases", "Difference by phase", found.phases,
            f"Means of the medians over the ranks, by the host's clock. They sum to the difference of the mean of the "
            f"{found.basis}.",
            "None.",
        ),
        _collectives(found),
        _incidents(found),
        _notes(found),
    ]  # fmt: skip


def _sides(found: RunComparison) -> Section:
    section = Section(
        "sides", "The two sides", "A is what B is compared with.", columns_of("<what, <A, <B"), ""
    )  # fmt: skip
    heads: dict[str, Callable[[ComparedSide], Cell]] = {
        "run": lambda side: text_cell(side.run_id),
        "steps": lambda side: text_cell(f"{side.steps:,} from {side.first_step} to {side.last_step}"),
        "ranks": lambda side: text_cell(side.world_size),
        "nodes": lambda side: text_cell(side.nodes),
        "attempts": lambda side: text_cell(side.attempts),
        "long steps": lambda side: text_cell(f"{side.long_steps}, {format_share(side.long_time_ratio)} of the time"),
        "steps/s": lambda side: amount(side.steps_per_s, decimals=3),
        "samples/s per rank": lambda side: amount(side.samples_per_s, decimals=1),
        "tokens/s per rank": lambda side: amount(side.tokens_per_s, decimals=1),
        "MFU": lambda side: _share(side.mfu_ratio),
        "goodput of the run": lambda side: _share(side.goodput_ratio),
        "incidents": lambda side: text_cell(str(len(side.incidents))),
    }
    rows: list[Cells] = [(text_cell(name), build(found.a), build(found.b)) for name, build in heads.items()]
    for name in dict.fromkeys([*found.a.versions, *found.b.versions]):
        values = (", ".join(side.versions.get(name, ())) for side in (found.a, found.b))
        rows.append((text_cell(name), *map(text_cell, values)))
    return section.of(rows, len(rows))


def _share(ratio: float | None) -> Cell:
    return Cell(MISSING) if ratio is None else Cell(format_share(ratio), ratio)


def _step_times(found: RunComparison) -> Section:
    section = Section(
        "step_times", "Step time",
        f"B over A, with its {100 * found.confidence:g} % interval by {found.resamples:,} resamples in blocks.",
        columns_of("<of the steps, A ms, B ms, ratio, from, to"), "",
    )  # fmt: skip
    rows = [
        (text_cell(row.name), ms(row.a_ns), ms(row.b_ns), *(
            amount(value, decimals=4) for value in (row.ratio, row.ratio_low, row.ratio_high)
        ))
        for row in found.step_times
    ]  # fmt: skip
    return section.of(rows, len(rows))


def _parts(key: str, title: str, parts: Sequence[PartRow], explanation: str, reason: str) -> Section:
    section = Section(
        key, title, explanation, columns_of("<part, A ms, B ms, difference ms, from ms, to ms, share %"), reason
    )
    rows = [
        (text_cell(row.name), ms(row.a_ns), ms(row.b_ns), ms(row.difference_ns), ms(row.difference_low_ns),
         ms(row.difference_high_ns), percent(row.share))
        for row in parts
    ]  # fmt: skip
    return section.of(rows, TOP)


def _collectives(found: RunComparison) -> Section:
    section = Section(
        "collectives", "Collectives by group", "Means of a matched call over the whole last attempt: moving data, and "
        "waiting for other ranks. Both may be hidden behind compute.",
        columns_of("<group, <operation, A transfer ms, B transfer ms, A wait ms, B wait ms"),
        "None that both sides have, or only some steps of a run are compared.",
    )  # fmt: skip
    rows = [
        (text_cell(row.group), text_cell(row.op), *map(ms, (
            row.a_transfer_ns, row.b_transfer_ns, row.a_wait_ns, row.b_wait_ns
        )))
        for row in found.collectives
    ]  # fmt: skip
    return section.of(rows, TOP)


def _incidents(found: RunComparison) -> Section:
    section = Section(
        "incidents",
        "Incidents",
        "Those that were opened while the compared steps ran.",
        columns_of("<side, <incident"),
        "None.",
    )
    rows = [
        (text_cell(name), text_cell(one)) for name, side in (("A", found.a), ("B", found.b)) for one in side.incidents
    ]
    return section.of(rows, TOP)


def _notes(found: RunComparison) -> Section:
    section = Section("notes", "What limits it", "What to know before acting on it.", columns_of("<note"), "None.")
    return section.of([(text_cell(note),) for note in found.notes], TOP)
