"""The tables of docs/faults.md, from what the tests have measured: `python -m tests.integration.fault_tables FILE...`.

    cd tests/integration; FAULT_FIGURES=FILE SOAK=1 python -m pytest test_faults_*.py test_relay.py test_bad_peers.py

writes FILE. Each table stands between two marks of the page, and only what is between them is written.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.integration.fault_figures import FaultFigure, Figure, InputFigure, read_figures

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
COMMAND: Final = (
    "cd tests/integration; FAULT_FIGURES=FILE SOAK=1 python -m pytest test_faults_*.py test_relay.py test_bad_peers.py"
)
MIB: Final = 1 << 20
MS_PER_S: Final = 1_000
END: Final = "<!-- end -->\n"


def render_faults(figures: Iterable[FaultFigure]) -> str:
    """A line for every fault."""
    lines = [
        "| fault | what happens | ranks | steps made | lost, counted | unaccounted | delivered after | memory | test |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in figures:
        lost = ", ".join(f"{count:,} {reason}" for reason, count in one.lost.items() if count) or "none"
        peak = "-" if one.peak_bytes is None else f"{one.peak_bytes / MIB:.0f} MiB"
        after = "-" if one.delivered_s is None else f"{one.delivered_s:.1f} s"
        lines.append(
            f"| {one.fault} | {one.outcome} | {one.ranks} | {one.made:,} | {lost} | {one.unaccounted} | {after} "
            f"| {peak} | `{_name_test(one)}` |"
        )
    return "\n".join([*lines, ""])


def render_inputs(figures: Iterable[InputFigure]) -> str:
    """A line for every bad input."""
    lines = [
        "| sent | refused as | counted | memory grew by | good rank waited at most | test |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.sent} | {one.refused} | {one.count:,} | {max(0, one.grown_bytes) / MIB:.1f} MiB "
        f"| {one.answer_s * MS_PER_S:.0f} ms | `{_name_test(one)}` |"
        for one in figures
    ]
    return "\n".join([*lines, ""])


def replace_between(text: str, begin: str, block: str) -> str:
    """The text with another block between the line `begin` and the next END. Raises ValueError without those marks."""
    before, mark, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE} has no {begin.strip()} with an {END.strip()} behind it")
    return f"{before}{begin}{block}{END}{after}"


def write(text: str, figures: Sequence[Figure], head: str) -> str:
    """The page with these figures in its tables."""
    # By test, and those of one test in the order in which it has noted them.
    ordered = sorted(figures, key=_name_test)
    faults = [one for one in ordered if isinstance(one, FaultFigure)]
    inputs = [one for one in ordered if isinstance(one, InputFigure)]
    for name, block in (
        ("machine", f"{head}\n"), ("faults", render_faults(faults)), ("inputs", render_inputs(inputs))
    ):  # fmt: skip
        text = replace_between(text, f"<!-- {name}: written by `python -m tests.integration.fault_tables` -->\n", block)
    return text


def _name_test(one: Figure) -> str:
    return one.command.rpartition("tests/integration/")[2]


def main() -> None:
    """Read the figures, write the page."""
    from bench.machine import describe_run  # noqa: PLC0415 - loads torch

    parser = argparse.ArgumentParser(description="Write the tables of docs/faults.md.")
    parser.add_argument("files", type=Path, nargs="+", help="what FAULT_FIGURES named when the tests ran")
    figures = [figure for file in parser.parse_args().files for figure in read_figures(file)]
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), figures, describe_run(COMMAND)), encoding="utf-8")


if __name__ == "__main__":
    main()
