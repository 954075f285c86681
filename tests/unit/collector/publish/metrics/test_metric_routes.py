"""The pages of metrics over HTTP, before any socket: format, encoding, shards, and who is refused."""

import gzip
from http import HTTPStatus

import msgspec
import pytest

from rankscope.collector.publish.metrics.pages import MetricPages
from rankscope.collector.publish.routes import Response, Routes
from tests.full_snapshot import full_snapshot

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def ask(target: str, *, metrics_ranks_max: int = 0, accept: str = "", accept_encoding: str = "") -> Response:
    """The answer of a collector that has the full snapshot."""
    snapshot = full_snapshot()
    routes = Routes(
        lambda: snapshot, tuple, is_healthy=lambda: None, is_ready=lambda: None,
        metric_pages=MetricPages(metrics_ranks_max=metrics_ranks_max),
    )  # fmt: skip
    return routes.answer(target, accept=accept, accept_encoding=accept_encoding)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/ranks", "/metrics/ranks?shard=0/2"])
def test_each_page_comes_in_the_requested_format_and_encoding(path: str) -> None:
    classic, modern = ask(path), ask(path, accept=OPENMETRICS, accept_encoding="gzip")
    assert classic.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "Content-Encoding" not in classic.headers
    assert modern.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert modern.headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(modern.body)
    assert text.endswith(b"# EOF\n")
    samples = [[line for line in page.split(b"\n") if not line.startswith(b"#")] for page in (classic.body, text)]
    assert samples[0] == samples[1]


def test_only_ranks_of_large_runs_are_on_a_page_of_their_own() -> None:
    assert b"\nrankscope_rank_up{" not in ask("/metrics").body
    assert b"\nrankscope_rank_up{" in ask("/metrics/ranks").body
    assert b"\nrankscope_rank_up{" in ask("/metrics", metrics_ranks_max=64).body
    assert b"\nrankscope_rank_up{" not in ask("/metrics/ranks", metrics_ranks_max=64).body


@pytest.mark.parametrize("query", ["shard=4/4", "shard=", "shard=0/2&shard=1/2", "part=0/2"])
@pytest.mark.parametrize("accept_encoding", ["", "gzip"])
def test_a_shard_that_is_none_is_400_with_the_reason(query: str, accept_encoding: str) -> None:
    answer = ask(f"/metrics/ranks?{query}", accept_encoding=accept_encoding)
    assert answer.status == HTTPStatus.BAD_REQUEST
    assert "as in ?shard=0/4" in msgspec.json.decode(answer.body)["error"]


@pytest.mark.parametrize("path", ["/metrics/", "/metrics/ranks/", "/metrics/rank", "/metrics/ranks/0"])
def test_there_are_no_other_pages(path: str) -> None:
    assert ask(path).status == HTTPStatus.NOT_FOUND


def test_the_index_names_both() -> None:
    index = ask("/").body.decode()
    assert "\n/metrics " in index
    assert "\n/metrics/ranks " in index
