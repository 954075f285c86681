"""The collector of the commands, from the default, a file, the environment or the command line."""

from pathlib import Path

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.agent.config import read_config as read_agent_config
from rankscope.collector.client import Collector, Credentials, open_collector
from rankscope.collector.client_config import ClientConfig, read_client_config
from rankscope.measure.errors import SettingError
from rankscope.measure.settings import find_settings


def write_user_file(home: Path, text: str) -> Path:
    file = home / ".config" / "rankscope" / "client.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_default_is_the_collector_of_this_machine(tmp_path: Path) -> None:
    config = read_client_config({"HOME": str(tmp_path)})
    assert (config.url, config.is_url_given) == ("http://127.0.0.1:18491", False)


def test_file_of_the_user_gives_address_and_token(tmp_path: Path) -> None:
    write_user_file(tmp_path, 'url = "https://gpu:18491"\ntoken_file = "~/token"\n')
    config = read_client_config({"HOME": str(tmp_path)})
    assert (config.url, config.token_file, config.is_url_given) == ("https://gpu:18491", "~/token", True)


def test_xdg_folder_stands_before_the_home(tmp_path: Path) -> None:
    write_user_file(tmp_path, 'url = "http://home:1"')
    (tmp_path / "xdg" / "rankscope").mkdir(parents=True)
    (tmp_path / "xdg" / "rankscope" / "client.toml").write_text('url = "http://xdg:1"')
    assert read_client_config({"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}).url == "http://xdg:1"


def test_variable_wins_over_the_file_and_the_option_over_both(tmp_path: Path) -> None:
    write_user_file(tmp_path, 'url = "http://file:1"')
    environment = {"HOME": str(tmp_path), "RANKSCOPE_URL": "http://variable:1"}
    assert read_client_config(environment).url == "http://variable:1"
    assert read_client_config(environment, {"url": "http://option:1"}).url == "http://option:1"


def test_empty_variable_is_as_none(tmp_path: Path) -> None:
    assert not read_client_config({"HOME": str(tmp_path), "RANKSCOPE_URL": ""}).is_url_given


def test_file_that_a_variable_names_must_be_there(tmp_path: Path) -> None:
    gone = f"{tmp_path}/gone.toml"
    with pytest.raises(SettingError, match=f"^RANKSCOPE_CLIENT_CONFIG is '{gone}', which cannot be read: .* Name a "):
        read_client_config({"RANKSCOPE_CLIENT_CONFIG": gone})


def test_user_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = write_user_file(tmp_path, "")
    file.write_bytes(b"\xff")
    with pytest.raises(SettingError, match=f"^{file} cannot be read: .* Make it readable, or remove it.$"):
        read_client_config({"HOME": str(tmp_path)})


def test_misspelt_key_of_the_file_is_named_with_the_right_one(tmp_path: Path) -> None:
    file = write_user_file(tmp_path, 'ulr = "http://gpu:1"')
    with pytest.raises(SettingError) as raised:
        read_client_config({"HOME": str(tmp_path)})
    assert str(raised.value) == f"ulr is no setting (from {file}). The nearest is url: correct the name or remove it."


def test_address_of_agents_is_told_from_that_of_http(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as raised:
        read_client_config({"HOME": str(tmp_path), "RANKSCOPE_URL": "tcp://gpu:18490"})
    assert str(raised.value) == (
        "url is 'tcp://gpu:18490' (from RANKSCOPE_URL); an HTTP address begins with http:// or https://."
    )


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://gpu:99999", ": Port out of range 0-65535"),
        ("http://[::1", ": Invalid IPv6 URL"),
        ("http://", ", without a user, a query or a fragment"),
        ("http://gpu:0", ", without a user, a query or a fragment"),
        ("http://me:word@gpu:1", ", without a user, a query or a fragment"),
        ("http://gpu:1?x", ", without a user, a query or a fragment"),
    ],
)
def test_unusable_address_is_refused(tmp_path: Path, url: str, problem: str) -> None:
    with pytest.raises(SettingError) as raised:
        read_client_config({"HOME": str(tmp_path)}, {"url": url})
    shown = url.replace("me:word", "***")
    assert str(raised.value) == (
        f"url is {shown!r} (from the command line); it must be http://HOST:PORT or https://HOST:PORT{problem}."
    )


def test_token_of_the_printed_address_is_the_credential(tmp_path: Path) -> None:
    config = read_client_config({"HOME": str(tmp_path), "RANKSCOPE_URL": "http://127.0.0.1:7/?token=abcdefghijklmnop"})
    assert open_collector(config) == Collector(
        "http://127.0.0.1:7", Credentials("abcdefghijklmnop", None, "the address")
    )


@pytest.mark.parametrize("url", ["http://[::1]:18491", "https://gpu", "https://gpu:443/rankscope/"])
def test_address_may_have_a_path_and_need_no_port(tmp_path: Path, url: str) -> None:
    assert read_client_config({"HOME": str(tmp_path)}, {"url": url}).url == url


def test_variables_of_agents_do_not_disturb_the_commands(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "RANKSCOPE_RUN": "bert", "RANKSCOPE_COLLECTOR": "tcp://gpu:18490"}
    assert read_client_config(environment) == ClientConfig()


def test_variables_of_the_commands_do_not_disturb_agents() -> None:
    names = [f"RANKSCOPE_{key.upper()}" for key, _, _ in find_settings(ClientConfig)]
    assert read_agent_config(dict.fromkeys([*names, "RANKSCOPE_CLIENT_CONFIG"], "any")) == AgentConfig()
