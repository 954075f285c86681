"""Convert points of metrics to the data model of OpenTelemetry, in requests of bounded size.

Names are those of Prometheus: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/ has
them unchanged, and a receiver that converts them back finds unit and type in them and adds nothing. A counter is a
monotonic cumulative sum, an info metric a cumulative sum that is not monotonic, and a gauge a gauge.

Importing this file imports the SDK, which only the extra `otlp` installs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankscope.collector.publish.metrics.measures import Measure
from rankscope.collector.publish.metrics.points import Point, PointBlock
from rankscope.collector.publish.metrics.rank_columns import Labels
from rankscope.measure import __version__

REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
"""Most bytes of the points of a request. A receiver of gRPC accepts 4 MiB unless it is set otherwise."""
READINGS_KEPT: Final = 240
"""For so many pushes, an hour by the default interval, the start of a counter is kept that a failed push did not come
to: it may have ended, or the receiver be away."""
SCOPE: Final = "rankscope"
UNITS: Final = {
    "": "", "seconds": "s", "bytes": "By", "ratio": "1", "watts": "W", "joules": "J", "hertz": "Hz", "celsius": "Cel",
    "second": "s",
}  # fmt: skip
"""Units of the metrics as UCUM writes them (https://ucum.org)."""

_POINT_BYTES: Final = 40
_LABEL_BYTES: Final = 12
"""Most bytes of a point without its labels, and of a label without its name and value."""


def find_unit(unit: str) -> str:
    """Return a unit of Prometheus as UCUM writes it. Raises KeyError for an unknown one.

    >>> find_unit("bytes_per_second"), find_unit("ratio"), find_unit("")
    ('By/s', '1', '')
    """
    return "/".join(UNITS[part] for part in unit.split("_per_"))


class _Counted(NamedTuple):
    """Since when a counter, or those of a process, count, in ns since 1970; the reading in which that was last needed;
    and its value then.
    """

    start_ns: int
    reading: int
    value: float = 0.0


class Starts:
    """Since when counters count: since they were first read, or since the reading before they fell. A start before that
    is not known; the conventions for it are in https://opentelemetry.io/docs/specs/otel/metrics/data-model/ (Cumulative
    streams: handling unknown start time).

    The counters of a rank begin anew with each of its processes; of them only that is kept. What READINGS_KEPT readings
    did not come to is forgotten, also where none of them was complete.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._last_ns = 0
        self._reading = 0
        self._processes: dict[str, _Counted] = {}
        self._series: dict[tuple[str, str, Labels], _Counted] = {}

    def begin(self, now_ns: int) -> None:
        """Begin to read all counters once more."""
        self._last_ns, self._now_ns = self._now_ns or now_ns, now_ns
        self._reading += 1
        self._forget(self._reading - READINGS_KEPT)

    def end(self) -> None:
        """Forget what was not read since `begin`: the push was complete."""
        self._forget(self._reading)

    def _forget(self, before: int) -> None:
        """Forget what was last read before this reading."""
        self._processes = {key: one for key, one in self._processes.items() if one.reading >= before}
        self._series = {key: one for key, one in self._series.items() if one.reading >= before}

    def find(self, block: PointBlock, name: str, point: Point) -> int:
        """Return since when a counter counts, in ns since 1970."""
        labels, value = point
        boot_id = block.processes.get(labels[:2])
        if boot_id is not None:
            process = self._processes.get(boot_id)
            if process is None or process.reading != self._reading:
                process = _Counted(self._now_ns if process is None else process.start_ns, self._reading)
                self._processes[boot_id] = process
            return process.start_ns
        key = (name, block.runs.get(labels[0], "") if labels else "", labels)
        before = self._series.get(key)
        has_fallen = before is not None and value < before.value
        start_ns = self._last_ns if has_fallen else self._now_ns if before is None else before.start_ns
        self._series[key] = _Counted(start_ns, self._reading, value)
        return start_ns


class Requests:
    """Maker of requests with the points of a snapshot."""

    def __init__(self, resource: Resource, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._resource = resource
        self._bytes_max = bytes_max
        self._scope = InstrumentationScope(SCOPE, __version__)
        self._starts = Starts()

    def build(self, blocks: Iterable[PointBlock], time_ns: int) -> Iterator[MetricsData]:
        """Yield the points of these blocks as of a time, in ns since 1970."""
        self._starts.begin(time_ns)
        for block in blocks:
            for metrics in _split(block, self._bytes_max):
                built = [self._build_metric(block, measure, points, time_ns) for measure, points in metrics]
                scope = ScopeMetrics(self._scope, built, "")
                yield MetricsData([ResourceMetrics(self._resource, [scope], self._resource.schema_url)])
        self._starts.end()

    def _build_metric(self, block: PointBlock, measure: Measure, points: Sequence[Point], time_ns: int) -> Metric:
        names, is_gauge = measure.labels, measure.kind == "gauge"
        built = [
            NumberDataPoint(
                _name(names, point[0]), 0 if is_gauge else self._starts.find(block, measure.name, point), time_ns,
                point[1],
            )
            for point in points
        ]  # fmt: skip
        data = Gauge(built) if is_gauge else Sum(built, AggregationTemporality.CUMULATIVE, measure.kind == "counter")
        return Metric(measure.name, measure.help, find_unit(measure.unit), data)


def _name(names: Labels, values: Labels) -> Mapping[str, str]:
    """Return attributes. An empty label is the same as none to Prometheus, and OpenTelemetry keeps it."""
    return {name: value for name, value in zip(names, values, strict=True) if value}


def _split(block: PointBlock, bytes_max: int) -> Iterator[list[tuple[Measure, list[Point]]]]:
    """Yield the points of a block by metric, each time as many as fit into a request, and at least one."""
    part: list[tuple[Measure, list[Point]]] = []
    size = 0
    for measure, points in block.metrics:
        kept: list[Point] = []
        head = len(measure.name) + len(measure.help) + _POINT_BYTES
        row = _POINT_BYTES + sum(_LABEL_BYTES + len(name) for name in measure.labels)
        size += head if points else 0
        for point in points:
            own = row + sum(map(_count_bytes, point[0]))
            if size + own > bytes_max and (part or kept):
                yield [*part, (measure, kept)] if kept else part
                part, kept, size = [], [], head
            kept.append(point)
            size += own
        if kept:
            part.append((measure, kept))
    if part:
        yield part


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
