"""Tests of the collector's address and keys, from the settings and through the rendezvous."""

from pathlib import Path

import pytest

from rankscope.agent.collector_address import CollectorAddress, read_address
from rankscope.agent.config import AgentConfig
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import KEY_LENGTH, ClientKeys, KeyPair, format_key_file
from rankscope.measure.shards import choose_collector

ENDPOINT = "tcp://collector:18490"
KEYS = ClientKeys("c" * KEY_LENGTH, KeyPair("p" * KEY_LENGTH, "s" * KEY_LENGTH))


def write_keys(folder: Path) -> dict[str, str]:
    """The settings of an agent with keys."""
    (folder / "collector.pub").write_text(format_key_file(KEYS.collector))
    (folder / "agent.key").write_text(format_key_file(KEYS.own.public, KEYS.own.secret))
    (folder / "agent.key").chmod(0o600)
    return {"key_file": str(folder / "agent.key"), "collector_key_file": str(folder / "collector.pub")}


@pytest.mark.parametrize("address", [CollectorAddress(ENDPOINT), CollectorAddress(ENDPOINT, KEYS)])
def test_an_address_comes_through_the_rendezvous_as_it_was(address: CollectorAddress) -> None:
    assert CollectorAddress.from_text(address.to_text()) == address


def test_the_announcement_of_a_collector_is_an_address() -> None:
    line = '{"endpoint": "tcp://0.0.0.0:5", "metrics_url": "http://127.0.0.1:6/metrics"}\n'
    assert CollectorAddress.from_text(line) == CollectorAddress("tcp://0.0.0.0:5")


@pytest.mark.parametrize("text", ["", "tcp://h:1", "{}", '{"endpoint": 1}', "[]"])
def test_invalid_address_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CollectorAddress.from_text(text)


def test_keys_that_are_none_are_a_value_error() -> None:
    broken = CollectorAddress(ENDPOINT, ClientKeys("short", KEYS.own)).to_text()
    with pytest.raises(ValueError, match="it contains a malformed key"):
        CollectorAddress.from_text(broken)


def test_an_address_does_not_show_its_secret() -> None:
    assert KEYS.own.secret not in repr(CollectorAddress(ENDPOINT, KEYS))


def test_address_has_the_keys_of_the_files(tmp_path: Path) -> None:
    config = AgentConfig(collector=ENDPOINT, **write_keys(tmp_path))  # type: ignore[arg-type]
    assert read_address(config, "bert") == CollectorAddress(ENDPOINT, KEYS)


def test_without_keys_the_address_is_the_endpoint_alone() -> None:
    assert read_address(AgentConfig(collector=ENDPOINT), "bert") == CollectorAddress(ENDPOINT)


def test_without_a_collector_rank_0_starts_one_whatever_the_keys(tmp_path: Path) -> None:
    assert read_address(AgentConfig(**write_keys(tmp_path)), "bert") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "lacking"), [("key_file", "collector_key_file"), ("collector_key_file", "key_file")])
def test_one_key_file_without_the_other_is_an_error(given: str, lacking: str) -> None:
    with pytest.raises(
        SettingError, match=f"{given} is 'x' .* and {lacking} is empty: an encrypted connection needs both"
    ):
        read_address(AgentConfig(collector=ENDPOINT, **{given: "x"}), "bert")  # type: ignore[arg-type]


def test_run_name_selects_one_of_several_collectors() -> None:
    endpoints = [f"tcp://c{number}:18490" for number in range(8)]
    listed, reversed_ = ", ".join(endpoints), ",".join(reversed(endpoints))
    chosen = {run: read_address(AgentConfig(collector=listed), run) for run in ("bert", "gpt", "t5")}
    assert chosen == {run: read_address(AgentConfig(collector=reversed_), run) for run in chosen}
    assert chosen["bert"] == CollectorAddress(choose_collector("bert", endpoints))


def test_one_of_several_that_is_no_address_is_named() -> None:
    with pytest.raises(SettingError, match="it must be tcp://HOST:PORT"):
        AgentConfig(collector="tcp://a:1,b:1")


def test_a_relay_of_this_machine_may_be_a_unix_socket() -> None:
    assert read_address(AgentConfig(collector="ipc:///run/relay"), "bert") == CollectorAddress("ipc:///run/relay")
    with pytest.raises(SettingError, match="its path must be absolute"):
        AgentConfig(collector="ipc://relay")
