"""Choose the run that another one is compared with: the last good one of its name.

A good run has the same name and world size, began earlier, ended well on every rank, has enough steps in the history,
and had no finding of severity `warning` or `critical`. Where the last BASELINE_RUNS_MAX have none, it is the one with
the fewest such findings, the latest of those.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rankscope.collector.comparison.run_side import RunSide, Selection, read_side
from rankscope.collector.detect.finding import Finding
from rankscope.collector.run_ids import read_run_name
from rankscope.collector.storage.run_reader import opening_run, read_earlier_runs
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError

BASELINE_RUNS_MAX: Final = 20
"""Earlier runs that are looked through, the latest first."""


class Baseline(NamedTuple):
    """The run that was chosen, and how many findings of severity `warning` or `critical` it had."""

    side: RunSide
    findings: int


def find_baseline(address: StoreAddress, run: str) -> Baseline:
    """Return the last good run before this one. Raises UnavailableError with the reasons where there is none."""
    with opening_run(address, run) as history:
        run_id, world_size = history.kept.run.run, history.kept.run.world_size
    best: Baseline | None = None
    refused: list[str] = []
    for earlier in read_earlier_runs(address, run_id, BASELINE_RUNS_MAX):
        if best is not None and best.findings == 0:
            break
        try:
            found = _read_if_good(address, earlier, world_size)
        except UnavailableError as error:
            refused.append(str(error))
            continue
        if best is None or found.findings < best.findings:
            best = found
    if best is None:
        reasons = f" {refused[0]}" if refused else " There is no earlier run of this name."
        raise UnavailableError(
            f"{address} has no run of the name {read_run_name(run_id)!r} before {run_id} that it can be compared with."
            f"{reasons} Name the other run yourself: rankscope compare A B."
        )
    return best


def count_serious(findings: Sequence[Finding]) -> int:
    """Return how many findings are more than information."""
    return sum(finding.severity != "info" for finding in findings)


def _read_if_good(address: StoreAddress, run_id: str, world_size: int) -> Baseline:
    with opening_run(address, run_id) as history:
        kept = history.kept
    if kept.run.world_size != world_size:
        raise UnavailableError(f"{run_id} had {kept.run.world_size} ranks instead of {world_size}.")
    if kept.run.end is None or not kept.run.end.is_good:
        ended = "is not known to have ended" if kept.run.end is None else f"ended as {kept.run.end.reason}"
        raise UnavailableError(f"{run_id} {ended}.")
    return Baseline(read_side(address, Selection(run_id)), count_serious(kept.story.findings))
