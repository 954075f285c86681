"""Which collectors start: with keys, on loopback, or open because somebody said so."""

import logging
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig, read_config
from rankscope.collector.keys import make_keys
from rankscope.collector.wire_auth import is_loopback, read_curve, read_http
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError

CLOCK = SystemClock()
EVERYWHERE = "tcp://0.0.0.0:18490"


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("tcp://127.0.0.1:18490", True), ("tcp://127.9.9.9:0", True), ("tcp://localhost:1", True),
        ("tcp://[::1]:18490", True), ("127.0.0.1:18491", True), ("[::1]:80", True),
        ("tcp://0.0.0.0:18490", False), ("tcp://*:18490", False), ("tcp://[::]:1", False), ("tcp://10.0.0.1:1", False),
        ("tcp://node-1:1", False), ("tcp://127.0.0.1.example.org:1", False), ("*:80", False), ("1127.0.0.1:80", False),
    ],
)  # fmt: skip
def test_an_address_is_local_when_only_this_machine_reaches_it(address: str, is_local: bool) -> None:
    assert is_loopback(address) is is_local


def test_on_loopback_no_keys_are_needed() -> None:
    assert read_curve(CollectorConfig(), CLOCK) is None


def test_an_open_collector_that_others_reach_does_not_start() -> None:
    config = read_config({}, overrides={"listen": EVERYWHERE})
    with pytest.raises(SettingError) as raised:
        read_curve(config, CLOCK)
    assert str(raised.value) == (
        "listen is tcp://0.0.0.0:18490 (from the command line), which other machines can reach, and there are no "
        "keys: anybody there could send reports and read those of others. `rankscope keys FOLDER` makes keys for "
        "key_file and allowed_keys; --insecure (insecure = true) starts without."
    )


def test_insecure_starts_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rankscope.collector"):
        assert read_curve(CollectorConfig(listen=EVERYWHERE, insecure=True), CLOCK) is None
    assert "insecure is set: any client that can reach tcp://0.0.0.0:18490 can send reports" in caplog.text


def test_keys_allow_any_address_and_only_known_clients(tmp_path: Path) -> None:
    make_keys(tmp_path, [], force=False)
    config = CollectorConfig(
        listen=EVERYWHERE, key_file=str(tmp_path / "collector.key"), allowed_keys=str(tmp_path / "allowed")
    )
    curve = read_curve(config, CLOCK)
    assert curve is not None
    assert curve.pair.public in (tmp_path / "collector.pub").read_text()
    assert not curve.is_allowed(curve.pair.public)


@pytest.mark.parametrize(
    ("given", "lacking"), [({"key_file": "k"}, "allowed_keys"), ({"allowed_keys": "a"}, "key_file")]
)
def test_one_key_setting_without_the_other_is_refused(given: dict[str, str], lacking: str) -> None:
    with pytest.raises(SettingError, match=f"and {lacking} is empty: encrypted connections need both"):
        read_curve(CollectorConfig(**given), CLOCK)  # type: ignore[arg-type]


def test_http_without_a_token_on_all_addresses_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rankscope.collector"):
        read_http(CollectorConfig())
        assert caplog.text == ""
        read_http(CollectorConfig(http_listen="*:18491"))
    assert "any client that can reach *:18491 can read everything about every run" in caplog.text
