"""Check that configs/*.toml match the code.

After a change of a setting: `python -m tests.contract.test_configs` from the repository's root rewrites them.
"""

import re
from pathlib import Path

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.collector.client_config import ClientConfig
from rankscope.collector.config import CollectorConfig
from rankscope.collector.relay.config import RelayConfig
from rankscope.measure.settings import Settings, find_settings, read
from tests.contract.settings_file import document

CONFIGS = Path(__file__).parents[2] / "configs"
FILES: list[tuple[str, type[Settings]]] = [
    ("agent.toml", AgentConfig),
    ("client.toml", ClientConfig),
    ("collector.toml", CollectorConfig),
    ("relay.toml", RelayConfig),
]

each_file = pytest.mark.parametrize(("name", "config_class"), FILES)


@each_file
def test_the_file_is_the_document_of_the_code(name: str, config_class: type[Settings]) -> None:
    assert (CONFIGS / name).read_text() == document(config_class)


@each_file
def test_the_file_loads_to_the_defaults(name: str, config_class: type[Settings]) -> None:
    assert read(config_class, file_text=(CONFIGS / name).read_text(), file_name=name) == config_class()


@each_file
def test_the_file_sets_every_key(name: str, config_class: type[Settings]) -> None:
    config = read(config_class, file_text=(CONFIGS / name).read_text(), file_name=name)
    assert dict(config.sources) == {key: f"from {name}" for key, _, _ in find_settings(config_class)}


@each_file
def test_every_example_can_be_used(name: str, config_class: type[Settings]) -> None:
    for example in (CONFIGS / "examples").glob(f"*{name}"):
        read(config_class, file_text=example.read_text(), file_name=example.name)


@pytest.mark.parametrize("config_class", [config_class for _, config_class in FILES])
def test_meanings_are_sentences_and_numbers_have_limits(config_class: type[Settings]) -> None:
    for key, default, known in find_settings(config_class):
        assert re.fullmatch(r"[A-Z].*\.", known.meaning), key
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            assert known.smallest is not None, key
            assert known.largest is not None, key


def write_configs() -> None:
    """Write configs/*.toml from the code."""
    for name, config_class in FILES:
        (CONFIGS / name).write_text(document(config_class))


if __name__ == "__main__":
    write_configs()
