"""Check the example of a receiver of OTLP: every part that is used is there, on the ports of the documents."""

from pathlib import Path

import yaml

from rankscope.collector.otlp.endpoint import INTERVAL_MS

ROOT = Path(__file__).parents[2]
EXAMPLE = yaml.safe_load((ROOT / "deploy/opentelemetry/collector.yaml").read_text())


def test_pipelines_use_exactly_the_configured_parts() -> None:
    pipelines = EXAMPLE["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert {name for pipeline in pipelines for name in pipeline[kind]} == set(EXAMPLE[kind])


def test_ended_series_expire_after_missed_pushes_before_default() -> None:
    expiration = EXAMPLE["exporters"]["prometheus"]["metric_expiration"]
    assert expiration.endswith("m")
    assert 3 * INTERVAL_MS < 60_000 * int(expiration[:-1]) < 300_000  # the exporter's default is 5m


def test_metrics_and_logs_are_taken_on_the_usual_ports() -> None:
    assert set(EXAMPLE["service"]["pipelines"]) == {"metrics", "logs"}
    protocols = EXAMPLE["receivers"]["otlp"]["protocols"]
    assert {name: known["endpoint"] for name, known in protocols.items()} == {
        "grpc": "0.0.0.0:4317",
        "http": "0.0.0.0:4318",
    }
