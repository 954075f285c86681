"""Metrics as OpenTelemetry has them: names that survive the way back to Prometheus, types, starts, sizes."""

from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from opentelemetry.sdk.resources import Resource

from rankscope.collector.publish.metrics.catalog import CATALOG, OF_PAGES, SERIES_DROPPED
from rankscope.collector.publish.metrics.pages import METRICS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.points import read_points
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.publish.otlp_metrics import READINGS_KEPT, REQUEST_BYTES_MAX, Requests, find_unit
from rankscope.collector.runs.snapshot import CollectorCounts, RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.identity import LABEL_LENGTH_MAX
from rankscope.measure.units import NS_PER_S
from tests.contract.promql_names import find_series_of
from tests.full_snapshot import full_rank, full_snapshot, with_runs
from tests.otlp_receivers import find_prometheus_name, find_series, list_metrics, read_attributes, read_page

RESOURCE = Resource({"service.name": "of-a-test"})
GRPC_BYTES_MAX = 4 * 1024 * 1024
"""A message that a receiver of gRPC accepts unless it is set otherwise."""


def build(requests: Requests, snapshot: Snapshot, time_s: int = 1_800_000_001) -> list[Any]:
    """The requests of a snapshot, as the exporters encode them."""
    blocks = read_points(snapshot, metrics_ranks_max=64, all_ranks=True)
    return [encode_metrics(data) for data in requests.build(blocks, time_s * NS_PER_S)]


def metrics_of(snapshot: Snapshot) -> dict[str, Metric]:
    return {metric.name: metric for metric in list_metrics(build(Requests(RESOURCE), snapshot))}


def counting(requests: Requests, snapshot: Snapshot, time_s: int, name: str) -> tuple[int, float]:
    """Since when the only point of a counter counts, in s, and its value."""
    (metric,) = (one for one in list_metrics(build(requests, snapshot, time_s)) if one.name == name)
    (point,) = metric.sum.data_points
    assert point.time_unix_nano == time_s * NS_PER_S
    return point.start_time_unix_nano // NS_PER_S, point.as_double


def frames(received: int) -> Snapshot:
    return Snapshot(wall_s=0.0, version="0", counts=CollectorCounts(frames_received=received))


def run_with(*ranks: RankSnapshot, run_id: str = "") -> Snapshot:
    run = RunSnapshot(run="bert", run_id=run_id, world_size=len(ranks), restart_count=0, ranks=ranks)
    return with_runs(full_snapshot(), (run,))


def process(boot_id: str) -> RankSnapshot:
    full = full_rank(0)
    return msgspec.structs.replace(full, identity=msgspec.structs.replace(full.identity, boot_id=boot_id))


@pytest.mark.parametrize("measure", CATALOG, ids=lambda measure: measure.name)
def test_name_survives_the_way_back_to_prometheus(measure: Any) -> None:
    metric = Metric(name=measure.name, unit=find_unit(measure.unit))
    if measure.kind == "gauge":
        metric.gauge.SetInParent()
    else:
        metric.sum.is_monotonic = measure.kind == "counter"
    assert find_prometheus_name(metric) == measure.name


def test_series_are_those_of_the_page() -> None:
    snapshot = full_snapshot()
    page = read_page(b"".join(MetricPages().render(snapshot, Page(METRICS_PATH), TextFormat.CLASSIC)).decode())
    pushed = find_series(build(Requests(RESOURCE), snapshot))
    page = {key: value for key, value in page.items() if key[0] not in OF_PAGES}
    assert {key: value for key, value in pushed.items() if key[0] not in OF_PAGES} == page
    assert pushed[SERIES_DROPPED, (("page", "otlp"),)] == 0.0


def test_types_are_those_of_the_catalogue() -> None:
    metrics = metrics_of(full_snapshot())
    steps, info, up = (metrics[f"rankscope_{name}"] for name in ("steps_total", "rank_info", "rank_up"))
    assert steps.sum.is_monotonic
    assert not info.sum.is_monotonic
    assert {one.sum.aggregation_temporality for one in (steps, info)} == {AGGREGATION_TEMPORALITY_CUMULATIVE}
    assert up.WhichOneof("data") == "gauge"
    assert steps.description == "Training steps finished by the current process of the rank."
    assert metrics["rankscope_step_seconds_total"].unit == "s"


def test_every_metric_of_the_catalogue_is_pushed() -> None:
    page = b"".join(MetricPages().render(full_snapshot(), Page(METRICS_PATH), TextFormat.CLASSIC)).decode()
    shown = [measure for measure in CATALOG if f"\n# TYPE {measure.name} " in f"\n{page}"]
    assert {part.name for measure in shown for part in find_series_of(measure)} == set(metrics_of(full_snapshot()))


def test_resource_is_that_of_each_request() -> None:
    found = [
        read_attributes(one.resource_metrics[0].resource.attributes)
        for one in build(Requests(RESOURCE), full_snapshot())
    ]
    assert found == [{"service.name": "of-a-test"}] * len(found)


def test_counter_keeps_its_start_while_it_grows() -> None:
    requests, name = Requests(RESOURCE), "rankscope_frames_received_total"
    assert counting(requests, frames(5), 100, name) == (100, 5.0)
    assert counting(requests, frames(9), 110, name) == (100, 9.0)


def test_counter_that_fell_counts_since_the_reading_before() -> None:
    requests, name = Requests(RESOURCE), "rankscope_frames_received_total"
    counting(requests, frames(9), 100, name)
    counting(requests, frames(9), 110, name)
    assert counting(requests, frames(2), 120, name) == (110, 2.0)
    assert counting(requests, frames(3), 130, name) == (110, 3.0)


def test_counters_of_a_rank_begin_with_its_process() -> None:
    requests, name = Requests(RESOURCE), "rankscope_steps_total"
    first = counting(requests, run_with(process("boot-one")), 100, name)[0]
    second = counting(requests, run_with(process("boot-one")), 110, name)[0]
    third = counting(requests, run_with(process("boot-two")), 120, name)[0]
    assert (first, second, third) == (100, 100, 120)


def test_counters_of_a_run_begin_with_its_id() -> None:
    requests, name = Requests(RESOURCE), "rankscope_run_info"
    first = counting(requests, run_with(process("boot-one"), run_id="bert@1"), 100, name)[0]
    second = counting(requests, run_with(process("boot-one"), run_id="bert@2"), 110, name)[0]
    assert (first, second) == (100, 110)


def test_push_that_was_cut_off_forgets_no_start() -> None:
    requests, name = Requests(RESOURCE), "rankscope_steps_total"
    counting(requests, run_with(process("boot-one")), 100, name)
    blocks = read_points(run_with(process("boot-one")), metrics_ranks_max=64, all_ranks=True)
    next(requests.build(blocks, 110 * NS_PER_S))
    assert counting(requests, run_with(process("boot-one")), 120, name)[0] == 100


def cut_off(requests: Requests, snapshot: Snapshot, time_s: int) -> None:
    """Read a snapshot as a push does whose first request is not accepted."""
    next(requests.build(read_points(snapshot, metrics_ranks_max=64, all_ranks=True), time_s * NS_PER_S))


@pytest.mark.parametrize(
    ("failed", "starts_s"),
    [(READINGS_KEPT - 1, [100, 100]), (READINGS_KEPT, [101 + READINGS_KEPT] * 2)],
)
def test_what_ended_while_pushes_fail_is_forgotten_later(failed: int, starts_s: list[int]) -> None:
    requests, run = Requests(RESOURCE), run_with(process("boot-one"))
    build(requests, run, 100)
    for number in range(1, failed + 1):
        cut_off(requests, frames(1), 100 + number)
    metrics = list_metrics(build(requests, run, 101 + failed))
    found = {
        one.name: one.sum.data_points[0].start_time_unix_nano // NS_PER_S for one in metrics if one.HasField("sum")
    }
    assert [found[name] for name in ("rankscope_steps_total", "rankscope_run_info")] == starts_s


def test_requests_of_the_longest_labels_fit_into_grpc() -> None:
    text = "\u00fc" * LABEL_LENGTH_MAX
    full = full_rank(0)
    ranks = tuple(
        msgspec.structs.replace(full, identity=msgspec.structs.replace(full.identity, run=text, rank=rank, node=text))
        for rank in range(256)
    )
    run = RunSnapshot(run=text, world_size=256, restart_count=0, ranks=ranks)
    sizes = [request.ByteSize() for request in build(Requests(RESOURCE), with_runs(full_snapshot(), (run,)))]
    assert max(sizes) < REQUEST_BYTES_MAX + 16 * 1024 < GRPC_BYTES_MAX
    assert len(sizes) > 4


def test_point_larger_than_a_request_is_one_of_its_own() -> None:
    requests = build(Requests(RESOURCE, bytes_max=1), frames(5))
    counts = [
        sum(len(one.sum.data_points) + len(one.gauge.data_points) for one in list_metrics([request]))
        for request in requests
    ]
    assert set(counts) == {1}
