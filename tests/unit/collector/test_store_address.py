"""Addresses of stores: what is one, and that none shows a password."""

import argparse
import importlib
import sys
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig, find_beside_store, find_store, read_config
from rankscope.collector.storage.database import reading
from rankscope.collector.store_address import (
    ServerAddress,
    find_store_problem,
    name_host,
    parse_store,
    read_store_option,
)  # fmt: skip
from rankscope.measure.errors import SettingError, UnavailableError

SECRET = "TopSecret"  # noqa: S105 - of no server
URL = f"postgresql://me:{SECRET}@db.example/rankscope"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://db.example/rankscope"),
        (f"postgres://me:{SECRET}@[::1]:5433/a", "postgresql://[::1]:5433/a"),
        (f"postgresql://one,two:1/a?user=me&password={SECRET}", "postgresql://one,two:1/a"),
        ("postgresql:///a?host=/run/postgresql", "postgresql:///a"),
    ],
)
def test_address_of_a_server_shows_host_and_database(url: str, shown: str) -> None:
    assert find_store_problem(url) is None
    address = parse_store(url, "west")
    assert (str(address), SECRET in repr(address)) == (shown, False)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}/x@db/rankscope",
        f"postgresql://me:{SECRET}?x@db/rankscope",
        f"postgresql://me:{SECRET}#x@db/rankscope",
        f"postgresql://me:{SECRET}@db",
        f"postgresql://db/rankscope?password={SECRET}@",
        f"mysql://me:{SECRET}@db/rankscope",
    ],
)
def test_what_is_no_address_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(SettingError, match="it must be postgresql://") as raised:
        read_config({"RANKSCOPE_SERVE_STORE": url})
    assert SECRET not in str(raised.value)
    with pytest.raises(argparse.ArgumentTypeError, match="percent-encoded") as refused:
        read_store_option(url)
    assert SECRET not in str(refused.value) + str(ServerAddress(url))


def test_collector_has_its_name_or_that_of_its_host() -> None:
    named = find_store(CollectorConfig(store=URL, store_name="west"))
    assert named == ServerAddress(URL, "west")
    assert find_store(CollectorConfig(store=URL)) == ServerAddress(URL, name_host())
    with pytest.raises(SettingError, match=r"store_name is 'a b' .* 1 to 40 letters"):
        CollectorConfig(store=URL, store_name="a b")


def test_files_are_beside_a_file_and_in_a_folder_with_a_server() -> None:
    assert find_beside_store(CollectorConfig()) is None
    assert find_beside_store(CollectorConfig(store="/a/runs.db")) == Path("/a/runs.db")
    assert find_beside_store(CollectorConfig(store=URL)) is None
    assert find_beside_store(CollectorConfig(store=URL, store_folder="/a/b")) == Path("/a/b/rankscope")


def test_driver_that_is_missing_is_said_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "rankscope.collector.storage.server"
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(importlib.import_module("rankscope.collector.storage"), "server", raising=False)
    with pytest.raises(UnavailableError, match=r"psycopg is missing.* pip install 'rankscope\[postgres\]'"):
        reading(ServerAddress(URL))
