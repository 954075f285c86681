"""Check that the README matches the code."""

import re
from pathlib import Path

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.collector.client_config import ClientConfig
from rankscope.collector.commands.main import main
from rankscope.collector.config import CollectorConfig
from rankscope.measure.settings import find_settings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_every_file_the_readme_names_exists() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:agent|collector|measure|tests|docs|configs|deploy)/[\w./-]+)`", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_setting_the_readme_names_exists() -> None:
    keys = {f"RANKSCOPE_{key.upper()}" for key, _, _ in find_settings(AgentConfig)}
    keys |= {f"RANKSCOPE_SERVE_{key.upper()}" for key, _, _ in find_settings(CollectorConfig)}
    keys |= {f"RANKSCOPE_{key.upper()}" for key, _, _ in find_settings(ClientConfig)}
    keys |= {"RANKSCOPE_CONFIG", "RANKSCOPE_SERVE_CONFIG", "RANKSCOPE_CLIENT_CONFIG"}
    named = set(re.findall(r"\bRANKSCOPE_[A-Z_]+\b", README.read_text(encoding="utf-8")))
    assert named - keys == set()


def test_every_command_the_readme_shows_is_one() -> None:
    shown = set(re.findall(r"^rankscope (\w+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE))
    for command in shown:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
