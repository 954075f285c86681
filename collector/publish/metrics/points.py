"""Read the metrics as points, for receivers that read no page: the values of the labels, and a number.

What the pages have (`pages.py`) is what is read here, from the same catalogue by the same readers and with the same
limit of rows a rank. There is no limit of all series: points are read and sent in blocks of ranks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import (
    Measure,
    OfHistogram,
    OfOverview,
    OfPage,
    OfSnapshot,
    Value,
    split_histogram,
)
from rankscope.collector.publish.metrics.overview import build_overview
from rankscope.collector.publish.metrics.rank_columns import Labels, RankColumns, RowFinder, RowSet
from rankscope.collector.publish.metrics.valid_values import ImpossibleValues
from rankscope.collector.runs.snapshot import RankSnapshot, Snapshot

BLOCK_RANKS: Final = 128
"""Ranks of a block, some 10,000 points."""
PAGE: Final = "otlp"
"""Value of the label `page` of the metric about the points themselves."""

Point = tuple[Labels, float]
"""Values of the labels, in the order of the metric's, and the number."""


class Points(NamedTuple):
    """Points of one metric, each series once."""

    measure: Measure
    points: Sequence[Point]


class PointBlock(NamedTuple):
    """Points of some metrics. `processes` are the boot ids of the ranks that they are about, by run and rank: a rank's
    counters begin anew with each of its processes. `runs` are the ids of the runs by name.
    """

    metrics: Sequence[Points]
    processes: Mapping[Labels, str] = {}
    runs: Mapping[str, str] = {}


def read_points(snapshot: Snapshot, *, metrics_ranks_max: int, all_ranks: bool) -> Iterator[PointBlock]:
    """Yield the points of a snapshot: what is not per rank first, then every rank, if the runs have at most
    `metrics_ranks_max` ranks together or `all_ranks` is set. Of several runs of one name they are those of the latest.
    """
    snapshot = snapshot.keep_latest()
    is_small = sum(snapshot.sizes.values()) <= metrics_ranks_max
    shown = snapshot if is_small else snapshot.summarize()
    runs = {one.run: one.run_id for one in snapshot.sources}
    impossible = ImpossibleValues()
    yield PointBlock(tuple(_read_summary(shown, impossible)), runs=runs)
    left_out = 0
    if is_small or all_ranks:
        for run, ranks in snapshot.blocks(lambda _run: lambda _rank: True, BLOCK_RANKS):
            metrics, dropped = _read_ranks(run, ranks, impossible)
            left_out += dropped
            yield PointBlock(metrics, {(run, str(one.identity.rank)): one.identity.boot_id for one in ranks}, runs)
            del ranks
    yield PointBlock(tuple(
        _keep_known(measure, measure.read.read(PAGE, left_out, impossible.count), impossible) for measure in CATALOG
        if isinstance(measure.read, OfPage)
    ), runs=runs)  # fmt: skip


def _read_summary(snapshot: Snapshot, impossible: ImpossibleValues) -> Iterator[Points]:
    overview = build_overview(snapshot)
    for measure in CATALOG:
        match measure.read:
            case OfOverview(read):
                yield _keep_known(measure, read(overview), impossible)
            case OfSnapshot(read):
                yield _keep_known(measure, read(snapshot), impossible)
            case OfHistogram(read):
                yield from (_keep_known(*part, impossible) for part in split_histogram(measure, read(snapshot)))


def _keep_known(measure: Measure, values: Iterable[Value], impossible: ImpossibleValues) -> Points:
    known = impossible.keep_known(measure, values)
    return Points(measure, tuple((labels, float(value)) for labels, value in known.items()))


def _read_ranks(run: str, ranks: Sequence[RankSnapshot], impossible: ImpossibleValues) -> tuple[list[Points], int]:
    """Return the points of some ranks of a run, and how many rows were dropped."""
    numbers = [str(rank.identity.rank) for rank in ranks]
    shared: dict[RowFinder, RowSet] = {}
    found, left_out = [], 0
    for measure in CATALOG:
        if not isinstance(measure.read, RankColumns):
            continue
        rows, columns = measure.read
        row_set = shared.get(rows)
        if row_set is None:
            row_set = rows.find(ranks, measure.rows_per_rank_max)
            if rows.is_shared:
                shared[rows] = row_set
        left_out += row_set.left_out * len(columns)
        heads = [
            (run, numbers[owner], *own)
            for owner, own in zip(row_set.owners, row_set.labels or repeat(()), strict=False)  # repeat has no end
        ]
        points: list[Point] = []
        for own, read in columns.items():
            rows_of_own = [(*head, *own) for head in heads]
            known = impossible.without(measure, list(map(read, row_set.items)), rows_of_own.__getitem__)
            values = zip(rows_of_own, known, strict=True)
            points += [(labels, float(value)) for labels, value in values if _is_known(value)]  # type: ignore[arg-type]
        found.append(Points(measure, points))
    return found, left_out


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
