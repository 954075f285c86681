"""The collector's settings, the rules between them and where they are read from."""

from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig, read_config
from rankscope.measure.codec import FRAME_BYTES_MAX
from rankscope.measure.errors import SettingError
from rankscope.measure.settings import Value


def test_nothing_set_gives_the_defaults() -> None:
    assert read_config({}) == CollectorConfig()


def test_by_default_only_this_machine_reaches_the_collector() -> None:
    config = CollectorConfig()
    assert (config.listen, config.http_listen) == ("tcp://127.0.0.1:18490", "127.0.0.1:18491")


def test_file_of_the_command_line_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("runs_max = 1")
    (tmp_path / "b.toml").write_text("runs_max = 2")
    environment = {"RANKSCOPE_SERVE_CONFIG": str(tmp_path / "a.toml")}
    assert read_config(environment).runs_max == 1
    assert read_config(environment, file_name=str(tmp_path / "b.toml")).runs_max == 2


@pytest.mark.parametrize(("given", "named_by"), [(True, "--config"), (False, "RANKSCOPE_SERVE_CONFIG")])
def test_missing_file_is_named_with_its_setting(tmp_path: Path, given: bool, named_by: str) -> None:
    gone = str(tmp_path / "gone.toml")
    with pytest.raises(SettingError) as caught:
        read_config({} if given else {"RANKSCOPE_SERVE_CONFIG": gone}, file_name=gone if given else "")
    text = str(caught.value)
    assert text.startswith(f"{named_by} is '{gone}', which cannot be read: ")
    assert text.endswith(f" Name a readable file or leave {named_by} out.")


def test_variables_of_agents_are_ignored() -> None:
    assert read_config({"RANKSCOPE_COLLECTOR": "x", "RANKSCOPE": "1"}) == CollectorConfig()


def test_overrides_win_over_the_environment() -> None:
    config = read_config({"RANKSCOPE_SERVE_RUNS_MAX": "2"}, overrides={"runs_max": "5"})
    assert (config.runs_max, config.source("runs_max")) == (5, "from the command line")


@pytest.mark.parametrize("listen", ["tcp://*:0", "tcp://0.0.0.0:*", "tcp://[::]:18490"])
def test_it_may_listen_everywhere_and_on_any_free_port(listen: str) -> None:
    assert CollectorConfig(listen=listen).listen == listen


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"listen": "127.0.0.1:18490"}, "it must be tcp://HOST:PORT"),
        ({"http_listen": "http://127.0.0.1:18491"}, "it must be HOST:PORT"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_the_reason(overrides: dict[str, Value], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_config({}, overrides=overrides)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"MESSAGE_BYTES_MAX": FRAME_BYTES_MAX + 1}, "No larger frame can be decoded."),
        ({"DETECT_STEPS": 8}, "a verdict cannot require more steps than it uses."),
        ({"DETECT_STEPS": 64, "STEPS_KEPT": 63}, "a verdict cannot use steps that are not kept."),
    ],
)
def test_a_constant_that_cannot_work_is_refused_with_the_reason(given: dict[str, int], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_config({f"RANKSCOPE_SERVE_CONSTANT_{key}": str(value) for key, value in given.items()})
    assert problem in str(caught.value)


def test_the_largest_message_is_the_largest_frame() -> None:
    assert CollectorConfig().message_bytes_max == FRAME_BYTES_MAX
