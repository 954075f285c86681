"""Compare two runs of a store, from their names to the verdict: what `rankscope compare` and the API have in common."""

from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.collector.comparison.baseline import BASELINE_RUNS_MAX, Baseline
from rankscope.collector.comparison.run_comparison import MARGIN, RunComparison, compare_sides
from rankscope.collector.comparison.run_side import RunSide, parse_selection, read_side
from rankscope.collector.comparison.verdict import describe_comparison
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import SettingError, UnavailableError

MARGIN_MAX: Final = 0.5
FORCE: Final = "--force"
"""What compares unequal work; the API says it in its own way."""


def compare_selections(
    address: StoreAddress, a: str, b: str, *, margin: float = MARGIN, compares_unequal: bool = False
) -> RunComparison:
    """Return the comparison of two runs of a store, each a name, an id, or `RUN@steps FIRST:END`. Raises SettingError
    for words that are no such and a margin that is none, UnavailableError for no such run, too few steps and, unless
    `compares_unequal`, unequal work.
    """
    check_margin(margin, "margin")
    first, second = parse_selection(a), parse_selection(b)
    return compare_read(
        read_side(address, first), read_side(address, second), margin=margin, compares_unequal=compares_unequal
    )


def compare_read(
    a: RunSide, b: RunSide, *, margin: float, compares_unequal: bool, notes: Sequence[str] = ()
) -> RunComparison:
    """Return the comparison of two sides with its verdict and these further notes. Raises UnavailableError for unequal
    work, unless `compares_unequal`.
    """
    found = compare_sides(a, b, margin)
    if found.unequal and not compares_unequal:
        raise UnavailableError(
            f"The runs are not compared, as their work was not equal: {'; '.join(found.unequal)}. "
            f"{FORCE} compares them."
        )
    return msgspec.structs.replace(found, verdict=describe_comparison(found), notes=(*found.notes, *notes))


def check_margin(margin: float, setting: str = "--margin") -> None:
    """Raise SettingError for a margin that is none; `setting` is what the user gave it by."""
    if not 0 < margin <= MARGIN_MAX:
        raise SettingError(f"{setting} is {margin:g}; allowed is more than 0, up to {MARGIN_MAX:g}.")


def note_baseline(baseline: Baseline) -> tuple[str, ...]:
    """Return notes on how a baseline was chosen."""
    run_id = baseline.side.run_id
    if not baseline.findings:
        return (f"A is the last good run of this name, {run_id}",)
    # Two notes, since the table cuts what is wider than a line.
    earlier = f"of the last {BASELINE_RUNS_MAX} earlier runs"
    return (
        f"{earlier}, all that could be compared had findings of severity warning or critical",
        f"A is the one with the fewest, {baseline.findings}: {run_id}",
    )
