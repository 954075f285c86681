"""Provide a run whose snapshot is built on demand."""

from collections.abc import Callable, Iterator

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals


class LazyRun:
    """Run whose snapshot `make` builds; `made` counts how often."""

    def __init__(self, make: Callable[[], RunSnapshot], *, run: str = "lazy", size: int = 1) -> None:
        self.run, self.run_id, self.size, self.made = run, run, size, 0
        self._make = make

    def read_totals(self) -> dict[str, Totals]:
        """Return no totals: no rank has reported."""
        return {}

    def build(self) -> RunSnapshot:
        """Return the full snapshot."""
        self.made += 1
        return self._make()

    def summarize(self) -> RunSnapshot:
        """Return the full snapshot in place of a summary."""
        return self.build()

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """Yield the snapshots of some ranks."""
        return self.build().blocks(is_wanted, ranks_max)
