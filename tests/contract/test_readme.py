"""Check that the README, CONTRIBUTING.md, the architecture and the decisions match the code."""

import re
from pathlib import Path

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import DEBUG_VARIABLE
from rankscope.collector.client_config import ClientConfig
from rankscope.collector.commands.main import COMMANDS, main
from rankscope.collector.config import CollectorConfig
from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.measure.settings import find_settings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDES = (README, ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md")
DOCUMENTS = (*GUIDES, *sorted((ROOT / "docs" / "decisions").glob("*.md")))

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


@each_document
def test_every_file_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:agent|collector|measure|uplink|tests|bench|docs|configs|deploy|\.github)/[\w./-]*)`", text)
    )
    assert named or path not in GUIDES
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@each_document
def test_every_setting_a_document_names_exists(path: Path) -> None:
    keys = {f"RANKSCOPE_{key.upper()}" for key, _, _ in find_settings(AgentConfig)}
    keys |= {f"RANKSCOPE_SERVE_{key.upper()}" for key, _, _ in find_settings(CollectorConfig)}
    keys |= {f"RANKSCOPE_{key.upper()}" for key, _, _ in find_settings(ClientConfig)}
    keys |= {
        "RANKSCOPE_CONSTANT_NAME",
        "RANKSCOPE_SERVE_CONSTANT_NAME",
        "RANKSCOPE_CONFIG",
        "RANKSCOPE_SERVE_CONFIG",
        "RANKSCOPE_CLIENT_CONFIG",
        DEBUG_VARIABLE,
    }
    named = set(re.findall(r"\bRANKSCOPE_[A-Z_]+\b", path.read_text(encoding="utf-8")))
    assert named - keys == set()


@each_document
def test_every_make_target_a_document_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (?:[A-Z]+=\S+ )*([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert named - targets == set()


def test_every_loss_in_the_path_of_a_record_is_a_metric() -> None:
    known = {measure.name.removeprefix("rankscope_") for measure in CATALOG}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:rankscope_)?([a-z_]+_(?:total|dropped))(?:\{[^`]*)?`", text))
    assert named
    assert named - known == set()


def test_every_command_the_readme_shows_is_one() -> None:
    shown = set(re.findall(r"^rankscope (\w+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert shown
    for command in shown:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0


def test_page_of_commands_has_each_once() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    table = text.partition("## What is the same")[0]
    shown = [
        name
        for row in re.findall(r"^\| [^|]*\| (`[^|]*`) \|", table, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    ]
    assert sorted(shown) == sorted(command.name for command in COMMANDS)


def test_number_of_alerts_is_that_of_the_rules() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml").read_text(encoding="utf-8")
    count = len(set(re.findall(r"^ +- alert: (\w+)", rules, re.MULTILINE)))
    assert f"{count} alerts with runbooks" in README.read_text(encoding="utf-8")
    assert f"{count} alerts" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_number_of_settings_is_that_of_the_files() -> None:
    files = (ROOT / "configs").glob("*.toml")
    count = sum(len(re.findall(r"^\w+ = ", file.read_text(encoding="utf-8"), re.MULTILINE)) for file in files)
    assert f"{count} settings in `configs/`" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
