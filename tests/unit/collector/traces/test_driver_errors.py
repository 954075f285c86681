"""Errors of the drivers behind URLs, whatever their kind: one line, with what to check."""

import re
from collections.abc import Callable
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from rankscope.collector.traces.files import find_traces, read_chunks
from rankscope.measure.errors import UnavailableError

SAID = r"no token for you\. Check the address, the network and the credentials of odd://$"


class OddError(Exception):
    """Of no kind that anybody could know, as those of botocore, google.auth and azure.core."""


class OddFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A file system of which one call fails."""

    protocol = "odd"
    failing = ""

    def __getattribute__(self, name: str) -> Any:
        if name == type(self).failing:
            raise OddError("no token for you.\nlots of detail")
        return super().__getattribute__(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        entry = {"name": f"{path.rstrip('/')}/rank0.json", "size": 2, "type": "file"}
        return [entry if detail else entry["name"]]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        kind = "file" if path.endswith(".json") else "directory"
        return {"name": path, "size": 2, "type": kind}


fsspec.register_implementation("odd", OddFileSystem, clobber=True)


@pytest.mark.parametrize(
    ("call", "path"),
    [("glob", "odd://a/*.json"), ("isdir", "odd://a"), ("ls", "odd://a"), ("exists", "odd://a/rank0.json")],
)
def test_url_that_cannot_be_listed(call: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OddFileSystem, "failing", call)
    with pytest.raises(UnavailableError, match=f"^{re.escape(path)} cannot be listed: {SAID}"):
        find_traces(path)


def test_object_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OddFileSystem, "failing", "open")
    with pytest.raises(UnavailableError, match=f"^it cannot be read: {SAID}"):
        list(read_chunks("odd://a/rank0.json"))


def test_driver_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OddError("no token for you.")

    monkeypatch.setattr(OddFileSystem, "__init__", fail)
    for use in (find_traces, lambda path: list(read_chunks(path))):
        with pytest.raises(UnavailableError, match=SAID):
            _call(use, "odd://uncached/rank0.json")


def _call(use: Callable[[str], object], path: str) -> None:
    OddFileSystem.clear_instance_cache()
    use(path)


def test_s3_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UnavailableError) as raised:
        find_traces("s3://some-bucket/traces")
    assert str(raised.value) == (
        "s3://some-bucket/traces cannot be listed: Unable to locate credentials. Check the address, the network and "
        "the credentials: AWS_PROFILE, or AWS_ACCESS_KEY_ID with its secret"
    )


def fail_without_driver(*_: Any, **__: Any) -> None:
    raise ImportError("it needs a driver")


@pytest.mark.parametrize(
    ("scheme", "cure"), [("sftp", ""), ("gs", ": pip install 'rankscope[gcs]'")], ids=["one of others", "one of ours"]
)
def test_driver_that_is_absent_has_a_cure_that_brings_it(
    scheme: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", fail_without_driver)
    with pytest.raises(UnavailableError) as raised:
        find_traces(f"{scheme}://a/rank0.json")
    assert str(raised.value) == f"{scheme}://a/rank0.json: no driver for {scheme}:// (it needs a driver){cure}"
