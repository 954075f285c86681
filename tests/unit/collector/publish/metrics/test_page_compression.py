"""How a page of metrics is compressed, with and without isal."""

import gzip
import sys
from collections.abc import Iterator

import pytest

from rankscope.collector.publish.metrics import page_cache
from rankscope.collector.publish.metrics.page_cache import decompress


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compressing with either library: without isal its import fails, as it does where it is not installed."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    page_cache._load_library.cache_clear()
    yield request.param
    page_cache._load_library.cache_clear()


def test_a_page_is_one_gzip_member_that_anybody_can_read(library: str) -> None:
    compressed = page_cache._compress([b"one ", b"", b"two"])
    assert gzip.decompress(compressed) == decompress(compressed) == b"one two"
    assert page_cache._load_library().decompress.__module__ == page_cache.__name__, library
