"""A real collector pushes by OTLP: the metrics of /metrics, its incidents, and what becomes of a receiver that ends."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.serving import Served, serving, wait_for
from tests.integration.torchrun import python, run
from tests.integration.wire_ranks import telling
from tests.otlp_receivers import (
    Receiver,
    Series,
    find_series,
    list_metrics,
    read_attributes,
    read_page,
    receiving_grpc,
    receiving_http,
)
from tests.unit.collector.runs.run_stories import Story

SLOW_RANK = 2
OWN_LINE = re.compile(r"\d{4}-\d\d-\d\d ")
"""How the collector's own lines begin: libraries write none past them."""
PATIENT = ("--rank-silent-s", "3600")
"""On a slow machine the ranks of the story are silent for long: that would be an incident of its own."""
OWN = (
    "rankscope_series_dropped",
    "rankscope_series_impossible",
    "rankscope_otlp_",
    "rankscope_ingest_stall",
    "rankscope_http_refused",
)
"""Metrics about the page or the push itself, and one that changes with time."""


@dataclass
class Pushed:
    """What a receiver got of a run with a slow rank, and the page of the collector once nothing changed any more."""

    receiver: Receiver
    page: Series
    pushed: Series
    stderr: str


def pushing(receiver: Receiver, *arguments: str, **variables: str) -> contextlib.AbstractContextManager[Served]:
    """A collector that pushes to a receiver once a second."""
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.protocol, "OTEL_METRIC_EXPORT_INTERVAL": "1000", **variables
    }  # fmt: skip
    return serving("--otlp", "--otlp-endpoint", receiver.url, *arguments, environment=environment)


def last_push(receiver: Receiver) -> list[Any]:
    """The requests of the last complete push: those of one time, of which the last one is about the page."""
    by_time: dict[int, list[Any]] = {}
    for request in list(receiver.received.metrics):
        (metric, *_rest) = list_metrics([request])
        points = metric.sum.data_points if metric.WhichOneof("data") == "sum" else metric.gauge.data_points
        by_time.setdefault(points[0].time_unix_nano, []).append(request)
    complete = [
        requests
        for requests in by_time.values()
        if any(metric.name == "rankscope_series_dropped" for metric in list_metrics(requests))
    ]
    return complete[-1] if complete else []


def comparable(series: Series) -> Series:
    return {key: value for key, value in series.items() if not key[0].startswith(OWN)}


def wait_until_equal(served: Served, receiver: Receiver) -> tuple[Series, Series]:
    """The page and the last push, once they are equal: the run stands still, and both are of any tick of it."""
    seen: list[Series] = [{}, {}]

    def compare() -> tuple[Series, Series] | None:
        seen[:] = comparable(read_page(served.read_metrics())), comparable(find_series(last_push(receiver)))
        return (
            (seen[0], seen[1])
            if seen[0] == seen[1] and ("rankscope_run_info" in {name for name, _ in seen[0]})
            else None
        )

    return wait_for(
        compare,
        lambda: str(
            [
                (key, seen[0].get(key), seen[1].get(key))
                for key in {*seen[0], *seen[1]}
                if seen[0].get(key) != seen[1].get(key)
            ][:20]
        ),
    )


def wait_for_line(served: Served, text: str) -> None:
    """Wait until the collector has said so."""
    wait_for(lambda: True if text in served.read_stderr() else None, served.read_stderr)


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def pushed(request: pytest.FixtureRequest) -> Iterator[Pushed]:
    """A run with a slow rank, from its first step to its end, pushed over each protocol."""
    with receiving_grpc() if request.param == "grpc" else receiving_http() as receiver:
        arguments = (*PATIENT, "--notify-interval-s", "0")
        with pushing(receiver, *arguments) as served, telling(Story(4), served.endpoint) as story:
            story.train(40).train(60, forward={SLOW_RANK: 30.0})
            receiver.received.wait_for_logs(1)
            for rank in range(4):
                story.say_goodbye(rank)
            receiver.received.wait_for_logs(2)
            page, series = wait_until_equal(served, receiver)
            served.end(signal.SIGTERM)
            yield Pushed(receiver, page, series, served.read_stderr())


def test_values_are_those_of_the_page(pushed: Pushed) -> None:
    assert pushed.pushed == pushed.page
    assert pushed.pushed["rankscope_rank_up", (("rank", "2"), ("run", "story"))] == 0.0


def test_incident_is_a_record_when_it_opens_and_when_it_is_over(pushed: Pushed) -> None:
    opened, *_changed, resolved = (
        (record.severity_text, record.body.string_value, read_attributes(record.attributes))
        for record in pushed.receiver.received.log_records
    )
    assert opened[0] == "WARN"
    assert opened[1].startswith("incident 1 of run story is opened (warning): Rank 2 ")
    assert opened[2]["rankscope.ranks"] == [SLOW_RANK]
    assert opened[2]["rankscope.incident.runbook"] == "docs/runbooks/RankscopeStragglerRank.md"
    assert (resolved[0], resolved[2]["rankscope.incident.event"]) == ("INFO", "resolved")


def test_nothing_is_said_where_all_is_well(pushed: Pushed) -> None:
    assert "OTLP" not in pushed.stderr
    assert "OpenTelemetry" not in pushed.stderr
    assert "grpc" not in pushed.stderr.lower()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("receiving", [receiving_grpc, receiving_http])
def test_receiver_that_ends_and_comes_back_is_said_and_counted(receiving: Any) -> None:
    port = free_port()
    with contextlib.ExitStack() as ends:
        with receiving(port) as receiver:
            served = ends.enter_context(pushing(receiver, OTEL_EXPORTER_OTLP_TIMEOUT="1"))
            receiver.received.wait_for_metrics(1)
        wait_for_line(served, f"OTLP: metrics are not pushed to 127.0.0.1:{port}: ")
        failed = re.compile(r'^rankscope_otlp_pushes_total{outcome="failed"} [1-9]', re.MULTILINE)
        wait_for(lambda: failed.search(served.read_metrics()), lambda: "no failed push is counted")
        with receiving(port) as again:
            again.received.wait_for_metrics(1)
            wait_for_line(served, f"OTLP: metrics are pushed to 127.0.0.1:{port} again")
            served.end(signal.SIGTERM)
        lines = served.read_stderr().splitlines()
        assert sum("OTLP: metrics are not pushed" in line for line in lines) == 1
        assert [line for line in lines if not OWN_LINE.match(line)] == []


def test_wrong_setting_is_said_once_and_the_collector_serves() -> None:
    with serving("--otlp", "--otlp-endpoint", "otel.example:4317") as served:
        served.wait_for_metrics("rankscope_collector_info")
        served.end(signal.SIGTERM)
        said = served.read_stderr()
    assert said.count("otlp_endpoint is 'otel.example:4317'") == 1
    assert "Until the collector is started again, nothing is pushed by OTLP." in said


def test_test_event_reaches_the_receiver() -> None:
    with receiving_http() as receiver:
        ended = run(python("-m", "rankscope.collector", "notify", "--otlp", "--otlp-endpoint", receiver.url))
        (record,) = receiver.received.log_records
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "otlp: delivered\n", "")
    assert record.body.string_value == "This is a test of the notifications, and no incident."
    assert record.event_name == "rankscope.incident.test"
