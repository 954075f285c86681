"""The pages of metrics: which family stands on which, and their text, family by family.

    /metrics          runs, nodes, findings, the worst ranks, the collector
    /metrics/ranks    the families of which every rank has series; ?shard=I/N has every N-th rank, I counts from 0

While the runs have at most `metrics_ranks_max` ranks together, /metrics has the families of ranks too, and
/metrics/ranks has none: every series is on one page only, so that whoever scrapes both counts nothing twice.

A page has at most `series_max` series. A family that would bring it beyond that is left out whole, for a sum over half
of its ranks would be wrong and look right; how many series that costs stands in `rankscope_series_dropped`.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from rankscope.collector.pacing import no_yield
from rankscope.collector.publish.metrics.collector_metrics import READERS, Value
from rankscope.collector.publish.metrics.node_metrics import OVERVIEW_READERS, Overview, build_overview
from rankscope.collector.publish.metrics.rank_metrics import RANK_READERS, Labels, Rows
from rankscope.collector.publish.metrics.text_format import (
    Lines,
    TextFormat,
    render_head,
    render_labels,
    render_samples,
)
from rankscope.collector.runs.snapshot import RankSnapshot, Snapshot
from rankscope.measure.catalog import CATALOG, SERIES_DROPPED
from rankscope.measure.exported import RANK, Measure

METRICS_PATH: Final = "/metrics"
RANKS_PATH: Final = "/metrics/ranks"

SERIES_MAX: Final = 250_000
"""Here Prometheus takes 0.8 s to read a page."""
METRICS_RANKS_MAX: Final = 64
"""Eight machines of eight GPUs: about 7,000 series, of which Prometheus reads a page in 20 ms."""
SHARDS_MAX: Final = 256
"""16,384 ranks in shards of 64; there are that many pages to keep."""
BLOCK_RANKS: Final = 128
"""Ranks whose pictures are made, and whose lines of all families are written, before the next ones': in 2 ms, so that
nobody waits longer for the interpreter, and with 4 to 8 % less CPU than those of a whole page at once."""
TEXTS_MAX: Final = 100_000
"""Texts of labels that are kept: 16,384 ranks have two each (rank_info, a GPU), and a job some thousand groups."""

_SHARD: Final = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


class PageError(ValueError):
    """A page that cannot be asked for; the text says why and what can."""


class Shard(NamedTuple):
    """One of so many parts of the ranks, counted from 0; which part a rank belongs to never changes."""

    part: int
    parts: int

    def choose(self, run: str) -> Callable[[int], bool]:
        """What says whether a rank of that run belongs to it. Small runs begin with different shards."""
        first = zlib.crc32(run.encode())
        return lambda rank: (first + rank) % self.parts == self.part


class Page(NamedTuple):
    """What is asked for."""

    path: str
    shard: Shard | None = None

    @property
    def name(self) -> str:
        """What stands in its own series.

        >>> Page(RANKS_PATH, Shard(0, 4)).name
        '/metrics/ranks?shard=0/4'
        """
        return self.path if self.shard is None else f"{self.path}?shard={self.shard.part}/{self.shard.parts}"


def parse_page(path: str, query: str) -> Page:
    """The page of metrics at one of the two paths that a query asks for. Raises PageError. /metrics has no parameters,
    and lets whatever a scraper adds be.
    """
    return Page(METRICS_PATH) if path == METRICS_PATH else Page(RANKS_PATH, _parse_shard(query))


def _parse_shard(query: str) -> Shard | None:
    """What is not understood is refused: each shard would be the whole page, and every rank scraped N times."""
    asked = parse_qsl(query, keep_blank_values=True)
    for name, _ in asked:
        if name != "shard":
            raise PageError(f"{name[:80]!r} is no parameter of {RANKS_PATH}; use shard, as in ?shard=0/4")
    if not asked:
        return None
    text = asked[0][1]
    found = _SHARD.fullmatch(text)
    if len(asked) > 1 or found is None or not 0 <= int(found[1]) < int(found[2]) <= SHARDS_MAX:
        said = text if len(asked) == 1 else " and ".join(value for _, value in asked)
        raise PageError(
            f"shard is {said[:80]!r}; it must be one I/N, the part I of N parts of the ranks: I from 0 to N-1, N from "
            f"1 to {SHARDS_MAX}, as in ?shard=0/4"
        )
    return Shard(int(found[1]), int(found[2]))


class _Texts:
    """Labels as text, kept for the next page: they change only when a rank, a GPU or a group does."""

    def __init__(self) -> None:
        self._of_ranks: dict[str, dict[int, bytes]] = {}
        self._of_rows: dict[Labels, dict[Labels, bytes]] = {}

    def begin(self, runs: Iterable[str]) -> None:
        """A page of these runs begins: others are forgotten, and so is all when it has become too much."""
        self._of_ranks = {run: self._of_ranks.get(run, {}) for run in runs}
        if sum(map(len, self._of_rows.values())) > TEXTS_MAX:
            self._of_rows.clear()

    def find_ranks(self, run: str, ranks: Sequence[RankSnapshot]) -> list[bytes]:
        """What the labels of every series of these ranks end with, the brace included."""
        known = self._of_ranks[run]
        for rank in ranks:
            number = rank.identity.rank
            if number not in known:
                known[number] = render_labels(("rank", "run"), (str(number), run)) + b"} "
        return [known[rank.identity.rank] for rank in ranks]

    def find_rows(self, names: Labels, rows: Sequence[Labels]) -> list[bytes]:
        """The labels that come before those, with a comma: of each row, whose values are given."""
        known = self._of_rows.setdefault(names, {})
        for values in rows:
            if values not in known:
                known[values] = _render_by_name(names, values) + b","
        return [known[values] for values in rows]


class _LabelledRows(NamedTuple):
    """Rows with their labels as text."""

    labels: Sequence[bytes]
    items: Sequence[Any]
    left_out: int


class _Block:
    """Some ranks of a page, and the text that the labels of all their series end with."""

    def __init__(self, ranks: Sequence[RankSnapshot], tails: Sequence[bytes]) -> None:
        self._ranks = ranks
        self._tails = tails
        self._shared: dict[Rows, _LabelledRows] = {}

    def find(self, rows: Rows, most: int, names: Labels, texts: _Texts) -> _LabelledRows:
        """The rows of a family; those that several families have are found once. `names` are those of the labels that
        a row has beyond run and rank, of which no rank may have more than `most`.
        """
        found = self._shared.get(rows)
        if found is None:
            owners, labels, items, left_out = rows.find(self._ranks, most)
            tails = self._tails
            if labels:
                heads = texts.find_rows(names, labels)
                tails = list(map(add, heads, map(tails.__getitem__, owners)))
            elif len(owners) < len(tails):
                tails = [tails[owner] for owner in owners]
            found = _LabelledRows(tails, items, left_out)
            if rows.is_shared:
                self._shared[rows] = found
        return found


@dataclass(slots=True)
class _Family:
    """The lines of a family, in pieces, how many there are, and how many rows were left out of it."""

    texts: list[bytes] = field(default_factory=list)
    series: int = 0
    left_out: int = 0

    def add(self, lines: Lines, most: int) -> None:
        """More lines; of more than `most` series no text is kept, for it will not be asked for."""
        self.series += lines.series
        self.texts.append(lines.text)
        if self.series > most:
            self.texts.clear()


_NOTHING: Final = _Family()


class MetricPages:
    """Writes pages, one at a time: it keeps the text of labels from one to the next."""

    def __init__(self, *, series_max: int = SERIES_MAX, metrics_ranks_max: int = METRICS_RANKS_MAX) -> None:
        self._series_max = series_max
        self._metrics_ranks_max = metrics_ranks_max
        self._texts = _Texts()

    def render(
        self, snapshot: Snapshot, page: Page, text_format: TextFormat, rest: Callable[[], None] = no_yield
    ) -> Iterator[bytes]:
        """The page, a family at a time, in the order of the catalogue. `rest` is called between any two blocks of work
        of up to some 0.5 ms, for a thread that others must not wait for. Of several runs of one name it has the latest.
        """
        snapshot = snapshot.keep_latest()
        self._texts.begin(snapshot.names)
        is_summary = page.path == METRICS_PATH
        # By the ranks the runs are to have, so that nothing moves while they join.
        is_small = sum(snapshot.sizes.values()) <= self._metrics_ranks_max
        told = snapshot.summarize() if is_summary and not is_small else snapshot
        overview = build_overview(told, rest) if is_summary else ()
        of_ranks = self._render_ranks(snapshot, page, rest) if is_summary == is_small else {}
        room, left_out = self._series_max, 0
        for measure in CATALOG:
            if measure.name == SERIES_DROPPED:
                family = _render_values(measure, [((page.name,), left_out)])
            elif measure.is_per_rank:
                family = of_ranks.pop(measure.name, _NOTHING)
            else:
                family = _render_values(measure, _read(measure, told, overview)) if is_summary else _NOTHING
            rest()
            left_out += family.left_out
            if family.series > room and measure.name != SERIES_DROPPED:
                left_out += family.series
            elif family.series:
                room -= family.series
                yield render_head(measure, text_format)
                yield from family.texts
        yield text_format.end

    def _render_ranks(self, snapshot: Snapshot, page: Page, rest: Callable[[], None]) -> dict[str, _Family]:
        """The families of which every rank has series, by name. The pictures of a block are let go of before those of
        the next one are made.
        """
        families = {measure.name: _Family() for measure in CATALOG if measure.is_per_rank}
        choose = _choose_all if page.shard is None else page.shard.choose
        for run, ranks in snapshot.blocks(choose, BLOCK_RANKS):
            rest()
            block = _Block(ranks, self._texts.find_ranks(run, ranks))
            for measure in CATALOG:
                if measure.is_per_rank:
                    self._render_columns(measure, block, families[measure.name])
                    rest()
            del ranks, block
        return families

    def _render_columns(self, measure: Measure, block: _Block, family: _Family) -> None:
        """What a block of ranks has of a family."""
        rows, columns = RANK_READERS[measure.name]
        own = len(next(iter(columns)))
        names = measure.labels[len(RANK) : len(measure.labels) - own]
        found = block.find(rows, max(1, measure.series_per_rank_max // len(columns)), names, self._texts)
        family.left_out += found.left_out * len(columns)
        for values, read in columns.items():
            head = f"{measure.name}{{".encode()
            if own:
                head += render_labels(measure.labels[-own:], values) + b","
            family.add(render_samples(head, found.labels, list(map(read, found.items))), self._series_max)


def _choose_all(_run: str) -> Callable[[int], bool]:
    return lambda _rank: True


def _read(measure: Measure, snapshot: Snapshot, overview: Overview) -> Iterable[Value]:
    read = OVERVIEW_READERS.get(measure.name)
    return READERS[measure.name](snapshot) if read is None else read(overview)


def _render_values(measure: Measure, values: Iterable[Value]) -> _Family:
    """A family of which there are some series in all. Each once, where the value is a number: one series twice would
    spoil the page for all.
    """
    known = {labels: value for labels, value in values if value is not None and math.isfinite(value)}
    if measure.labels:
        head, labels = f"{measure.name}{{", [_render_by_name(measure.labels, each) + b"} " for each in known]
    else:
        head, labels = measure.name, [b" "] * len(known)
    lines = render_samples(head.encode(), labels, list(known.values()))
    return _Family([lines.text], lines.series)


def _render_by_name(names: Labels, values: Labels) -> bytes:
    """Labels in the order of their names, as the library of Prometheus has them: a reader finds them faster so."""
    return render_labels(*zip(*sorted(zip(names, values, strict=True)), strict=True))
