"""Render the pages of metrics, family by family.

    /metrics          runs, nodes, findings, the worst ranks, the collector
    /metrics/ranks    the metrics of every rank; ?shard=I/N has every N-th rank, I from 0

While the runs have at most `metrics_ranks_max` ranks together, /metrics has the metrics of every rank too, and
/metrics/ranks has none: every series is on one page only, so scraping both counts nothing twice.

A page has at most SERIES_MAX series. A family that would exceed it is dropped whole: a sum over half of its ranks
would be wrong and look right. `rankscope_series_dropped` counts the series dropped. A value outside the range of its
metric is left out alone, and `rankscope_series_impossible` counts such values.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import (
    RANK,
    Measure,
    OfHistogram,
    OfOverview,
    OfPage,
    OfSnapshot,
    Value,
    split_histogram,
)
from rankscope.collector.publish.metrics.overview import build_overview
from rankscope.collector.publish.metrics.rank_columns import Labels, RankColumns, RowFinder
from rankscope.collector.publish.metrics.text_format import (
    Lines,
    TextFormat,
    render_head,
    render_labels,
    render_samples,
)
from rankscope.collector.publish.metrics.valid_values import ImpossibleValues
from rankscope.collector.runs.snapshot import RankSnapshot, Snapshot

METRICS_PATH: Final = "/metrics"
RANKS_PATH: Final = "/metrics/ranks"

SERIES_MAX: Final = 250_000
"""Prometheus takes 0.8 s to read a page of this size."""
METRICS_RANKS_MAX: Final = 64
"""Eight machines of eight GPUs: about 7,000 series, which Prometheus reads in 20 ms."""
SHARDS_MAX: Final = 256
"""16,384 ranks in shards of 64; also the number of pages to keep."""
BLOCK_RANKS: Final = 128
"""Ranks that are rendered together, in all families: about 2 ms, so that no thread waits longer for the interpreter."""
TEXTS_MAX: Final = 100_000
"""Cached label texts: 16,384 ranks have two each (rank_info, a GPU), and a run some thousand groups."""

_SHARD: Final = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


class PageError(ValueError):
    """A page that does not exist; the text says why, and which pages do."""


class Shard(NamedTuple):
    """Part `part` of `parts` of the ranks, from 0. The part of a rank never changes."""

    part: int
    parts: int

    def choose(self, run: str) -> Callable[[int], bool]:
        """Return the predicate for the ranks of a run in this shard. Runs begin with different shards."""
        first = zlib.crc32(run.encode())
        return lambda rank: (first + rank) % self.parts == self.part


class Page(NamedTuple):
    """A page: its path and shard."""

    path: str
    shard: Shard | None = None

    @property
    def name(self) -> str:
        """Return the value of its label `page`.

        >>> Page(RANKS_PATH, Shard(0, 4)).name
        '/metrics/ranks?shard=0/4'
        """
        return self.path if self.shard is None else f"{self.path}?shard={self.shard.part}/{self.shard.parts}"


def parse_page(path: str, query: str) -> Page:
    """Return the page of metrics for a path and a query. Raises PageError.

    /metrics has no parameters and ignores those a scraper adds.
    """
    return Page(METRICS_PATH) if path == METRICS_PATH else Page(RANKS_PATH, _parse_shard(query))


def _parse_shard(query: str) -> Shard | None:
    """Return the shard. Unknown queries are refused: each shard would be the whole page, and ranks be scraped N
    times.
    """
    asked = parse_qsl(query, keep_blank_values=True)
    for name, _ in asked:
        if name != "shard":
            raise PageError(f"{name[:80]!r} is no parameter of {RANKS_PATH}; use shard, as in ?shard=0/4")
    if not asked:
        return None
    text = asked[0][1]
    found = _SHARD.fullmatch(text)
    if len(asked) > 1 or found is None or not 0 <= int(found[1]) < int(found[2]) <= SHARDS_MAX:
        given = text if len(asked) == 1 else " and ".join(value for _, value in asked)
        raise PageError(
            f"shard is {given[:80]!r}; it must be one I/N, the part I of N parts of the ranks: I from 0 to N-1, N from "
            f"1 to {SHARDS_MAX}, as in ?shard=0/4"
        )
    return Shard(int(found[1]), int(found[2]))


class _Texts:
    """Cache of label texts, kept for the next page: they change only when a rank, a GPU or a group does."""

    def __init__(self) -> None:
        self._of_ranks: dict[str, dict[int, bytes]] = {}
        self._of_rows: dict[Labels, dict[Labels, bytes]] = {}

    def begin(self, runs: Iterable[str]) -> None:
        """Begin a page of these runs: forget other runs, and everything above TEXTS_MAX."""
        self._of_ranks = {run: self._of_ranks.get(run, {}) for run in runs}
        if sum(map(len, self._of_rows.values())) > TEXTS_MAX:
            self._of_rows.clear()

    def find_ranks(self, run: str, ranks: Sequence[RankSnapshot]) -> list[bytes]:
        """Return the text that ends the labels of every series of each rank, with the brace."""
        known = self._of_ranks[run]
        for rank in ranks:
            number = rank.identity.rank
            if number not in known:
                known[number] = render_labels(("rank", "run"), (str(number), run)) + b"} "
        return [known[rank.identity.rank] for rank in ranks]

    def find_rows(self, names: Labels, rows: Sequence[Labels]) -> list[bytes]:
        """Return the text of the other labels of each row, with a comma; `rows` are their values."""
        known = self._of_rows.setdefault(names, {})
        for values in rows:
            if values not in known:
                known[values] = _render_by_name(names, values) + b","
        return [known[values] for values in rows]


class _LabeledRows(NamedTuple):
    """Rows with their labels as text; `left_out` rows were dropped."""

    labels: Sequence[bytes]
    items: Sequence[Any]
    left_out: int


class _Block:
    """Some ranks of a page, and the text that ends the labels of their series."""

    def __init__(self, run: str, ranks: Sequence[RankSnapshot], tails: Sequence[bytes]) -> None:
        self._run = run
        self._ranks = ranks
        self._tails = tails
        self._shared: dict[RowFinder, _LabeledRows] = {}

    def find(self, rows: RowFinder, most: int, names: Labels, texts: _Texts) -> _LabeledRows:
        """Return the rows of a family; rows that several families share are found once.

        `names` are the labels of a row beyond run and rank; a rank has at most `most` rows.
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
            found = _LabeledRows(tails, items, left_out)
            if rows.is_shared:
                self._shared[rows] = found
        return found

    def find_labels(self, rows: RowFinder, most: int, own: Labels, place: int) -> Labels:
        """Return the values of the labels of a row of a column."""
        owners, labels, _, _ = rows.find(self._ranks, most)
        rank = str(self._ranks[owners[place]].identity.rank)
        return (self._run, rank, *(labels[place] if labels else ()), *own)


@dataclass(slots=True)
class _Family:
    """The text of a family in pieces, its number of series, and the rows dropped from it."""

    texts: list[bytes] = field(default_factory=list)
    series: int = 0
    left_out: int = 0

    def add(self, lines: Lines, most: int) -> None:
        """Add lines. Above `most` series the text is discarded: the family will be dropped."""
        self.series += lines.series
        self.texts.append(lines.text)
        if self.series > most:
            self.texts.clear()


_NOTHING: Final = _Family()


class MetricPages:
    """Renderer of pages, one at a time, with a cache of label texts."""

    def __init__(self, *, series_max: int = SERIES_MAX, metrics_ranks_max: int = METRICS_RANKS_MAX) -> None:
        self._series_max = series_max
        self._metrics_ranks_max = metrics_ranks_max
        self._texts = _Texts()

    def copy(self) -> "MetricPages":
        """Return another renderer with the same limits, for another thread."""
        return MetricPages(series_max=self._series_max, metrics_ranks_max=self._metrics_ranks_max)

    def render(self, snapshot: Snapshot, page: Page, text_format: TextFormat) -> Iterator[bytes]:
        """Yield the page, a family at a time, in the order of the catalogue. Of several runs of one name it has the
        latest.
        """
        snapshot = snapshot.keep_latest()
        self._texts.begin(snapshot.names)
        is_summary = page.path == METRICS_PATH
        # By world size, so that series do not move between pages while ranks join.
        is_small = sum(snapshot.sizes.values()) <= self._metrics_ranks_max
        shown = snapshot.summarize() if is_summary and not is_small else snapshot
        overview = build_overview(shown) if is_summary else ()
        impossible = ImpossibleValues()
        of_ranks = self._render_ranks(snapshot, page, impossible) if is_summary == is_small else {}
        room, left_out = self._series_max, 0
        for measure in CATALOG:
            family = _NOTHING
            match measure.read:
                case RankColumns():
                    family = of_ranks.pop(measure.name, _NOTHING)
                case OfPage(read):
                    family = _render_values(measure, read(page.name, left_out, impossible.count), impossible)
                case OfOverview(read) if is_summary:
                    family = _render_values(measure, read(overview), impossible)
                case OfSnapshot(read) if is_summary:
                    family = _render_values(measure, read(shown), impossible)
                case OfHistogram(read) if is_summary:
                    parts = [_render_values(*part, impossible) for part in split_histogram(measure, read(shown))]
                    texts = [text for part in parts for text in part.texts]
                    family = _Family(texts, sum(part.series for part in parts))
            left_out += family.left_out
            if family.series > room and not isinstance(measure.read, OfPage):
                left_out += family.series
            elif family.series:
                room -= family.series
                yield render_head(measure, text_format)
                yield from family.texts
        yield text_format.end

    def _render_ranks(self, snapshot: Snapshot, page: Page, impossible: ImpossibleValues) -> dict[str, _Family]:
        """Return the families of every rank, by name. The snapshots of a block are released before the next block."""
        families = {measure.name: _Family() for measure in CATALOG if isinstance(measure.read, RankColumns)}
        choose = _choose_all if page.shard is None else page.shard.choose
        for run, ranks in snapshot.blocks(choose, BLOCK_RANKS):
            block = _Block(run, ranks, self._texts.find_ranks(run, ranks))
            for measure in CATALOG:
                if isinstance(measure.read, RankColumns):
                    self._render_columns(measure, measure.read, block, families[measure.name], impossible)
            del ranks, block
        return families

    def _render_columns(
        self, measure: Measure, read_columns: RankColumns, block: _Block, family: _Family, impossible: ImpossibleValues
    ) -> None:
        """Add the lines of a block of ranks to a family."""
        rows, columns = read_columns
        own, most = len(next(iter(columns))), measure.rows_per_rank_max
        names = measure.labels[len(RANK) : len(measure.labels) - own]
        found = block.find(rows, most, names, self._texts)
        family.left_out += found.left_out * len(columns)
        for values, read in columns.items():
            head = f"{measure.name}{{".encode()
            if own:
                head += render_labels(measure.labels[-own:], values) + b","
            find_labels = partial(block.find_labels, rows, most, values)
            numbers = impossible.without(measure, list(map(read, found.items)), find_labels)
            family.add(render_samples(head, found.labels, numbers), self._series_max)


def _choose_all(_run: str) -> Callable[[int], bool]:
    return lambda _rank: True


def _render_values(measure: Measure, values: Iterable[Value], impossible: ImpossibleValues) -> _Family:
    """Return a family with each series once, where the value is a number: a series twice makes the page invalid."""
    known = impossible.keep_known(measure, values)
    if measure.labels:
        head, labels = f"{measure.name}{{", [_render_by_name(measure.labels, each) + b"} " for each in known]
    else:
        head, labels = measure.name, [b" "] * len(known)
    lines = render_samples(head.encode(), labels, list(known.values()))
    return _Family([lines.text], lines.series)


def _render_by_name(names: Labels, values: Labels) -> bytes:
    """Return labels sorted by name, as the client library of Prometheus does."""
    return render_labels(*zip(*sorted(zip(names, values, strict=True)), strict=True))
