"""Tests of the agent's settings, their limits and sources."""

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.agent.config import NEEDED, AgentConfig, read_config, read_launch_config
from rankscope.measure.errors import SettingError
from rankscope.measure.identity import LABEL_LENGTH_MAX
from rankscope.measure.records import PHASES, STEP_COLUMNS
from rankscope.measure.settings import find_constants, find_settings
from rankscope.measure.table import COLUMNS_MAX


def test_nothing_set_gives_the_defaults() -> None:
    assert read_config({}) == AgentConfig()


def test_the_file_is_named_by_the_environment_which_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("report_interval_s = 2\nstall_s = 9\n")
    config = read_config({"RANKSCOPE_CONFIG": str(file), "RANKSCOPE_STALL_S": "7"})
    assert (config.report_interval_s, config.stall_s) == (2.0, 7.0)
    assert config.source("report_interval_s") == f"from {file}"


def test_missing_file_is_an_error_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read_config({"RANKSCOPE_CONFIG": str(tmp_path / "gone.toml")})
    text = str(caught.value)
    assert text.startswith(f"RANKSCOPE_CONFIG is '{tmp_path}/gone.toml', which cannot be read: ")
    assert text.endswith(" Name a readable file or unset RANKSCOPE_CONFIG.")


def test_a_file_that_is_no_text_stops_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="which cannot be read: 'utf-8' codec"):
        read_config({"RANKSCOPE_CONFIG": str(file)})


def test_foreign_variables_are_no_settings() -> None:
    environment = {"RANKSCOPE": "1", "RANKSCOPE_PID": "42", "RANKSCOPE_SERVE_LISTEN": "x", "RANKSCOPE_SERVE_ODD": "y"}
    assert read_config(environment) == AgentConfig()


def test_too_short_an_interval_is_refused_with_the_reason() -> None:
    with pytest.raises(SettingError) as caught:
        read_config({"RANKSCOPE_REPORT_INTERVAL_S": "0.01"})
    assert str(caught.value) == (
        "report_interval_s is 0.01 (from RANKSCOPE_REPORT_INTERVAL_S); the smallest allowed is 0.1. "
        "Below that the agent would cost more than 1 % of a core."
    )


def test_the_collector_is_an_address_or_empty() -> None:
    assert AgentConfig(collector="").collector == ""
    assert AgentConfig(collector="tcp://head:18490").collector == "tcp://head:18490"
    with pytest.raises(SettingError, match="it must be tcp://HOST:PORT"):
        AgentConfig(collector="head:18490")


def test_pattern_of_kernels_is_a_regular_expression_or_empty() -> None:
    assert AgentConfig(communication_kernels="^my_ring|^my_tree").communication_kernels == "^my_ring|^my_tree"
    with pytest.raises(SettingError, match="it must be a regular expression: missing"):
        AgentConfig(communication_kernels="(")


def test_mistake_in_a_pattern_is_told_and_training_is_measured() -> None:
    launch = read_launch_config({"RANKSCOPE_COMMUNICATION_KERNELS": "("}, {})
    assert (launch.is_usable, launch.config.communication_kernels) == (True, "")
    (told,) = launch.mistakes
    assert told.startswith("communication_kernels is '(' (from RANKSCOPE_COMMUNICATION_KERNELS); it must be")


def test_a_run_may_be_as_long_as_a_label() -> None:
    assert len(AgentConfig(run="r" * LABEL_LENGTH_MAX).run) == LABEL_LENGTH_MAX
    with pytest.raises(SettingError, match="it has 129 characters, the most allowed is 128"):
        AgentConfig(run="r" * (LABEL_LENGTH_MAX + 1))


def test_the_most_phases_allowed_fit_into_the_columns_of_a_table() -> None:
    most = {key: known.largest for key, _, known in find_constants(AgentConfig)}["phases_max"]
    assert most is not None
    assert len(STEP_COLUMNS) + len(PHASES) + most <= COLUMNS_MAX


def test_overrides_win_over_the_environment() -> None:
    config = read_config({"RANKSCOPE_GPU": "0"}, {"gpu": True})
    assert (config.gpu, config.source("gpu")) == (True, "from the command line")


def test_reading_the_settings_loads_nothing_heavy() -> None:
    script = (
        "import sys; from rankscope.agent.config import read_config; read_config({});"
        "print(*sorted({'msgspec', 'numpy', 'tomllib', 'torch', 'zmq', 'difflib', 'textwrap'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500)
    assert done.stdout.split() == []


# -- at launch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable",
    ["RANKSCOPE_GPU", "RANKSCOPE_STALL_S", "RANKSCOPE_CONSTANT_WARMUP_STEPS", "RANKSCOPE_SPILL_DIR", "RANKSCOPE_GPPU"],
)
def test_mistake_in_how_to_measure_leaves_the_process_measured(variable: str) -> None:
    found = read_launch_config({variable: "many"}, {})
    assert found.is_usable
    assert found.config == AgentConfig()
    assert (len(found.mistakes), len(found.notes)) == (1, 1)


@pytest.mark.parametrize("variable", ["RANKSCOPE_ENABLED", "RANKSCOPE_COLLECTOR", "RANKSCOPE_COLECTOR"])
def test_mistake_in_a_needed_setting_prevents_measuring(variable: str) -> None:
    found = read_launch_config({variable: "maybe"}, {})
    assert not found.is_usable
    assert found.notes == (f"not started: {found.mistakes[0]} Training continues without it.",)


def test_settings_that_are_needed_are_settings() -> None:
    assert {key for key, _, _ in find_settings(AgentConfig)} >= NEEDED


def test_strictness_is_known_also_when_the_file_cannot_be_read(tmp_path: Path) -> None:
    found = read_launch_config({"RANKSCOPE_STRICT": "1"}, {"config": str(tmp_path / "gone.toml")})
    assert (found.is_usable, found.config.strict) == (False, True)


def test_launch_line_overrides_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("stall_s = 9\n")
    found = read_launch_config({"RANKSCOPE_RUN": "a", "RANKSCOPE_CONFIG": "gone"}, {"run": "b", "config": str(file)})
    assert (found.config.run, found.config.stall_s, found.mistakes) == ("b", 9.0, ())
