"""A collector with many direct connections names the relays, once."""

import threading

import pytest

from rankscope.collector import service as service_module
from rankscope.collector.config import CollectorConfig
from rankscope.collector.service import Service
from rankscope.measure.clock import SystemClock
from tests.integration.serving import wait_for
from tests.integration.wire_peer import connected


def test_relays_are_named_once_above_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "DIRECT_CONNECTIONS_MAX", 1)
    config = CollectorConfig(listen="tcp://127.0.0.1:0", http_listen="127.0.0.1:0", store="", tick_s=0.25)
    service = Service(config, SystemClock())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        with connected(service.endpoint, "boot-one") as first:
            first.join()
            wait_for(lambda: service.snapshot.counts.connections == 1 or None, lambda: "no connection was counted")
            assert "run a relay on each node" not in caplog.text
            with connected(service.endpoint, "boot-two"):
                wait_for(lambda: "run a relay on each node" in caplog.text or None, lambda: caplog.text)
                assert "2 connections are not those of relays; above 1 run a relay on each node" in caplog.text
                before = service.snapshot.wall_s
                wait_for(lambda: service.snapshot.wall_s > before + 1 or None, lambda: "no further tick")
    finally:
        service.stop()
        thread.join()
    assert caplog.text.count("run a relay on each node") == 1
