"""Export a snapshot with the prometheus-client library, whose page ours must equal."""

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import Measure, OfHistogram, OfOverview, OfPage, OfSnapshot, Value
from rankscope.collector.publish.metrics.overview import build_overview
from rankscope.collector.publish.metrics.rank_columns import RankColumns
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.valid_answers import ROUNDING

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily


class SnapshotExporter(Collector):
    """Exporter of every family of the catalogue that has samples, complete and on one page."""

    def __init__(self, read_snapshot: Callable[[], Snapshot], *, page: str = "/metrics") -> None:
        self._read_snapshot = read_snapshot
        self._page = page

    def describe(self) -> Iterator[Family]:
        """Yield every family without samples, so that registering needs no snapshot."""
        return (_build_family(measure, ()) for measure in CATALOG)

    def collect(self) -> Iterator[Family]:
        """Yield the families, in the order of the catalogue."""
        snapshot = self._read_snapshot()
        impossible = 0
        for measure in CATALOG:
            if isinstance(measure.read, OfHistogram):
                yield from _build_histogram(measure, measure.read, snapshot)
                continue
            values = _read(measure, snapshot, self._page, impossible)
            numbers = {labels: value for labels, value in values if value is not None and math.isfinite(value)}
            known = {labels: value for labels, value in numbers.items() if _can_be(value, *measure.valid_range)}
            impossible += len(numbers) - len(known)
            if known:
                yield _build_family(measure, known.items())


def render_by_library(snapshot: Snapshot, text_format: TextFormat, *, page: str = "/metrics") -> str:
    """Return the page as the library writes it."""
    registry = CollectorRegistry()
    registry.register(SnapshotExporter(lambda: snapshot, page=page))
    if text_format is TextFormat.CLASSIC:
        return generate_latest(registry).decode()
    text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


def _can_be(value: float, smallest: float | None, largest: float | None) -> bool:
    return (smallest is None or value >= smallest - ROUNDING) and (largest is None or value <= largest + ROUNDING)


def _read(measure: Measure, snapshot: Snapshot, page: str, impossible: int) -> Iterable[Value]:
    match measure.read:
        case RankColumns() as columns:
            return _read_ranks(measure, columns, snapshot)
        case OfOverview(read):
            return read(build_overview(snapshot))
        case OfPage(read):
            return read(page, 0, impossible)
        case OfSnapshot(read):
            return read(snapshot)
        case OfHistogram():
            return ()


def _build_histogram(measure: Measure, reader: OfHistogram, snapshot: Snapshot) -> Iterator[Family]:
    found = list(reader.read(snapshot))
    family = HistogramMetricFamily(measure.name, measure.help, labels=measure.labels, unit=measure.unit)
    for labels, one in found:
        bounds = [*(str(float(bound)) for bound in one.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, (*one.at_most, one.total), strict=True)), one.sum)
    if found:
        yield family


def _read_ranks(measure: Measure, read_columns: RankColumns, snapshot: Snapshot) -> Iterator[Value]:
    rows, columns = read_columns
    for run in snapshot.runs:
        owners, labels, items, _ = rows.find(run.ranks, measure.series_per_rank_max)
        for row, (owner, item) in enumerate(zip(owners, items, strict=True)):
            own = labels[row] if labels else ()
            for last, read in columns.items():
                yield (run.run, str(run.ranks[owner].identity.rank), *own, *last), read(item)


def _build_family(measure: Measure, values: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    if measure.kind == "info":
        # The library sets the `_info` at the end of the name itself, as it does with `_total`.
        info = InfoMetricFamily(measure.name.removesuffix("_info"), measure.help, labels=measure.labels)
        for labels, _ in values:
            info.add_metric(labels, {})
        return info
    make = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = make(measure.name, measure.help, labels=measure.labels, unit=measure.unit)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
