"""The points of metrics are the series of the pages."""

import msgspec

from rankscope.collector.publish.metrics.catalog import OF_PAGES, SERIES_DROPPED
from rankscope.collector.publish.metrics.measures import COLLECTIVE_KINDS_MAX
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.points import read_points
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from tests.full_snapshot import full_rank, full_snapshot, with_runs
from tests.otlp_receivers import Series, read_page


def rank_of(rank: int, **known: object) -> RankSnapshot:
    """A rank of which everything is known."""
    full = full_rank(0)
    return msgspec.structs.replace(full, identity=msgspec.structs.replace(full.identity, rank=rank), **known)


def run_of(ranks: int, **known: object) -> Snapshot:
    """A snapshot of a run of so many ranks."""
    run = RunSnapshot(
        run="bert", world_size=ranks, restart_count=0, ranks=tuple(rank_of(rank, **known) for rank in range(ranks))
    )
    return with_runs(full_snapshot(), (run,))


def points_of(snapshot: Snapshot, *, all_ranks: bool = False) -> Series:
    """The points by metric and labels, each of which is there once; without those about the page."""
    series: Series = {}
    for block in read_points(snapshot, metrics_ranks_max=64, all_ranks=all_ranks):
        for measure, points in block.metrics:
            for values, number in points if measure.name not in OF_PAGES else ():
                labels = zip(measure.labels, values, strict=True)
                key = measure.name, tuple(sorted((name, value) for name, value in labels if value))
                assert key not in series
                series[key] = number
    return series


def pages_of(snapshot: Snapshot, *paths: str) -> Series:
    """The series of these pages, without those about the page."""
    series: Series = {}
    for path in paths:
        text = b"".join(MetricPages().render(snapshot, Page(path), TextFormat.CLASSIC)).decode()
        series |= read_page(text)
    return {key: number for key, number in series.items() if key[0] not in OF_PAGES}


def test_points_are_the_series_of_the_page() -> None:
    snapshot = full_snapshot()
    assert points_of(snapshot) == pages_of(snapshot, METRICS_PATH)
    assert len(points_of(snapshot)) > 300


def test_ranks_of_large_runs_are_read_when_asked_for() -> None:
    snapshot = run_of(65)
    assert points_of(snapshot) == pages_of(snapshot, METRICS_PATH)
    assert points_of(snapshot, all_ranks=True) == pages_of(snapshot, METRICS_PATH, RANKS_PATH)


def test_unknown_value_is_no_point_and_zero_is_one() -> None:
    snapshot = run_of(1, clock_error_ns=None, overhead_ratio=0.0, slowdown_ratio=float("nan"))
    names = {name: value for (name, _), value in points_of(snapshot).items()}
    assert "rankscope_clock_error_seconds" not in names
    assert "rankscope_slowdown_ratio" not in names
    assert names["rankscope_agent_overhead_ratio"] == 0.0


def test_rows_beyond_the_limit_of_a_rank_are_counted() -> None:
    kinds = tuple(
        CollectiveTotals(group=f"g{place}", op="all_reduce", count=1, duration_ns=1, bytes=1)
        for place in range(COLLECTIVE_KINDS_MAX + 3)
    )
    blocks = list(read_points(run_of(1, collectives=kinds), metrics_ranks_max=64, all_ranks=False))
    by_name = {measure.name: points for block in blocks for measure, points in block.metrics}
    assert len(by_name["rankscope_collectives_total"]) == COLLECTIVE_KINDS_MAX
    families = sum(name.startswith("rankscope_collective") for name in by_name)
    assert list(by_name[SERIES_DROPPED]) == [(("otlp",), 3.0 * families)]


def test_latest_run_of_a_name_is_read() -> None:
    first, second = (
        RunSnapshot(run="bert", run_id=f"bert@{place}", world_size=1, restart_count=place, ranks=(rank_of(0),))
        for place in (1, 2)
    )
    blocks = list(read_points(with_runs(full_snapshot(), (first, second)), metrics_ranks_max=64, all_ranks=False))
    assert blocks[0].runs == {"bert": "bert@2"}
    infos = [points for block in blocks for measure, points in block.metrics if measure.name == "rankscope_run_info"]
    assert infos == [((("bert", "1", "2", "bert@2"), 1.0),)]


def test_ranks_come_in_blocks_with_their_processes() -> None:
    blocks = list(read_points(run_of(130), metrics_ranks_max=64, all_ranks=True))
    assert [len(block.processes) for block in blocks] == [0, 128, 2, 0]
    assert blocks[2].processes["bert", "129"] == full_rank(0).identity.boot_id


def test_values_that_cannot_be_are_no_points_either() -> None:
    breakdown = full_rank(0).breakdown
    assert breakdown is not None
    snapshot = run_of(2, breakdown=msgspec.structs.replace(breakdown, window_ns=100, idle_ns=125))
    points = points_of(snapshot)
    assert points == pages_of(snapshot, METRICS_PATH)
    assert not any(name == "rankscope_idle_ratio" for name, _ in points)
