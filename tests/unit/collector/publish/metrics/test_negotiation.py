"""Which text format and which encoding a client gets, by its headers."""

import pytest

from rankscope.collector.publish.metrics.text_format import TextFormat, accepts_gzip, choose_format

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
NATIVE_HISTOGRAMS = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    "accept",
    [
        PROMETHEUS_2, PROMETHEUS_3, NATIVE_HISTOGRAMS, "application/openmetrics-text", "APPLICATION/OpenMetrics-Text",
        "text/plain,application/openmetrics-text", 'application/openmetrics-text; version="1.0.0" ; q=0.001',
    ],
)  # fmt: skip
def test_openmetrics_for_whoever_likes_it_no_less(accept: str) -> None:
    assert choose_format(accept) is TextFormat.OPENMETRICS


@pytest.mark.parametrize(
    "accept",
    [
        "", "*/*", BROWSER, "text/plain", "text/plain;version=0.0.4", "application/json", ",;,=", ";q=1",
        "application/openmetrics-text;q=0", "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;q=0.4,text/plain;q=0.5", "application/openmetrics-text;q=high",
        "application/openmetrics-text;q=nan", "application/openmetrics-text;q=7", "application/openmetrics-texts",
    ],
)  # fmt: skip
def test_the_classic_text_for_everybody_else(accept: str) -> None:
    assert choose_format(accept) is TextFormat.CLASSIC


@pytest.mark.parametrize(("offer", "is_accepted"), [("gzip", True), ("br, gzip;q=0.1", True), ("gzip;q=0.0", False)])
def test_gzip_for_whoever_takes_it(offer: str, is_accepted: bool) -> None:
    assert accepts_gzip(offer) is is_accepted
