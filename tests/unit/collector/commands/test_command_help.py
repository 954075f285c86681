"""What `--help` says of each command."""

import pytest

from rankscope.collector.commands.main import EXAMPLES, SERVE_GROUPS, build_parser, main
from rankscope.collector.config import CollectorConfig
from rankscope.measure.settings import find_settings


def read_help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_of_every_command_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, examples = read_help(capsys, command).partition("\nexample")
    assert f"  rankscope {command}" in examples


@pytest.mark.parametrize("line", [line for text in EXAMPLES.values() for line in text.splitlines()])
def test_every_example_can_be_typed(line: str) -> None:
    typed = line.partition("      ")[0].partition(" > ")[0].split()
    words = typed[typed.index("rankscope") + 1 :]
    assert build_parser().parse_args(words).command


def test_serve_has_its_settings_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = read_help(capsys, "serve")
    titles = [line.removesuffix(":") for line in text.splitlines() if line.removesuffix(":") in SERVE_GROUPS]
    assert titles == list(SERVE_GROUPS)
    assert text.index("\nwhere it listens:") < text.index("  --listen VALUE") < text.index("\nwho may connect")
    assert text.index("\nlimits and times:") < text.index("  --runs-max VALUE")


def test_every_setting_of_a_group_is_one() -> None:
    grouped = [key for keys in SERVE_GROUPS.values() for key in keys]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= {key for key, _, _ in find_settings(CollectorConfig)}


@pytest.mark.parametrize("option", ["--announce", "--embedded", "--parent-pid", "--fresh-keys", "--no-summary"])
def test_help_of_serve_leaves_out_what_other_programs_use(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert option not in read_help(capsys, "serve")
