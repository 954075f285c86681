"""A run whose picture is still to be made."""

from collections.abc import Callable, Iterator

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals


class LazyRun:
    """Its picture is what `make` gives, `made` how often it was made."""

    def __init__(self, make: Callable[[], RunSnapshot], *, run: str = "lazy", size: int = 1) -> None:
        self.run, self.run_id, self.size, self.made = run, run, size, 0
        self._make = make

    def read_totals(self) -> dict[str, Totals]:
        """Nothing: nobody has reported."""
        return {}

    def build(self) -> RunSnapshot:
        """The picture."""
        self.made += 1
        return self._make()

    def summarize(self) -> RunSnapshot:
        """The picture, which is more than an summarize."""
        return self.build()

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """The pictures of some ranks."""
        return self.build().blocks(is_wanted, ranks_max)
