"""The keys of a relay towards collector and ranks, and the settings it refuses."""

from pathlib import Path

import pytest

from rankscope.collector.keys import make_keys
from rankscope.collector.relay.config import RelayConfig, read_config
from rankscope.collector.relay.relay_auth import RelayKeys, read_keys
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError

CLOCK = SystemClock()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The files that `rankscope keys` writes for a collector, an agent and a relay."""
    make_keys(tmp_path, ["agent"], relays=["node"], force=False)
    return tmp_path


def relay_settings(keys: Path) -> dict[str, str]:
    return {"key_file": f"{keys}/node.key", "collector_key_file": f"{keys}/collector.pub"}


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "ipc:///run/rankscope/relay"])
def test_relay_on_its_own_machine_needs_no_keys(listen: str) -> None:
    assert read_keys(RelayConfig(listen=listen), CLOCK) == RelayKeys(None, None)


def test_relay_with_keys_accepts_ranks_without(keys: Path) -> None:
    found = read_keys(RelayConfig(**relay_settings(keys)), CLOCK)  # type: ignore[arg-type]
    assert found.collector is not None
    assert found.collector.collector in (keys / "collector.pub").read_text()
    assert found.collector.own.public in (keys / "allowed" / "relays" / "node.pub").read_text()
    assert found.ranks is None


def test_relay_with_allowed_keys_accepts_only_those(keys: Path) -> None:
    config = RelayConfig(**relay_settings(keys), allowed_keys=f"{keys}/allowed")  # type: ignore[arg-type]
    found = read_keys(config, CLOCK)
    assert found.ranks is not None
    assert found.collector is not None
    assert found.ranks.pair == found.collector.own
    agent = (keys / "agent.key").read_text().split('"')[1]
    assert found.ranks.is_allowed(agent)
    assert not found.ranks.is_allowed("x" * 40)


def test_open_relay_on_all_addresses_needs_insecure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingError, match=r"listen is tcp://0\.0\.0\.0:0 .* other machines can reach"):
        read_keys(RelayConfig(listen="tcp://0.0.0.0:0"), CLOCK)
    assert read_keys(RelayConfig(listen="tcp://0.0.0.0:0", insecure=True), CLOCK) == RelayKeys(None, None)
    assert "insecure is set: any client that can reach tcp://0.0.0.0:0 can send reports" in caplog.text


@pytest.mark.parametrize("given", ["key_file", "collector_key_file"])
def test_one_key_without_the_other_is_named(given: str) -> None:
    with pytest.raises(SettingError, match=f"{given} is 'x' .* is empty: encrypted connections need both"):
        read_keys(RelayConfig(**{given: "x"}), CLOCK)  # type: ignore[arg-type]


def test_ranks_with_keys_need_a_relay_with_keys(keys: Path) -> None:
    with pytest.raises(SettingError, match="and key_file is empty: ranks with keys must know the relay's"):
        read_keys(RelayConfig(allowed_keys=f"{keys}/allowed"), CLOCK)


def test_relay_without_a_collector_is_refused() -> None:
    with pytest.raises(SettingError, match="it must name a collector"):
        RelayConfig(collector=" , ")
    with pytest.raises(SettingError, match="it must be tcp://HOST:PORT"):
        RelayConfig(collector="tcp://a:1,b:1")


def test_settings_come_from_file_environment_and_caller(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text('name = "from the file"\ncollector = "tcp://file:1"\nlisten = "ipc:///file"\n')
    environment = {"RANKSCOPE_RELAY_CONFIG": str(file), "RANKSCOPE_RELAY_LISTEN": "ipc:///variable"}
    config = read_config(environment, overrides={"collector": "tcp://caller:1"})
    assert (config.name, config.listen, config.collector) == ("from the file", "ipc:///variable", "tcp://caller:1")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--config is .*which cannot be read"):
        read_config({}, file_name=str(tmp_path / "none.toml"))
