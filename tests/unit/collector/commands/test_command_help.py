"""Help, examples and group options of the commands."""

import pytest

from rankscope.collector.commands.command import Command, read_run
from rankscope.collector.commands.main import COMMANDS, EPILOG, build_parser, main
from rankscope.collector.commands.serve import SERVE_GROUPS
from rankscope.collector.config import CollectorConfig
from rankscope.measure.settings import find_settings

EACH_COMMAND = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
EXAMPLES = [line for command in COMMANDS for line in command.example.splitlines()]


def read_help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@EACH_COMMAND
def test_help_has_description_example_and_address(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    text = read_help(capsys, command.name)
    description, _, rest = text.partition("\nexample")
    assert description.rstrip().endswith(f"{command.summary[1:]}.")
    assert f"  rankscope {command.name}" in rest
    assert rest.index(f"  rankscope {command.name}") < rest.index("\noptions:") < rest.index(EPILOG)


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    words = read_help(capsys).split()
    text = " ".join(words)
    assert [command.name for command in COMMANDS if f"{command.name} {command.summary}" not in text] == []


def test_names_of_commands_are_unique() -> None:
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names) == 23


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_parses(line: str) -> None:
    typed = line.partition("      ")[0].partition(" > ")[0].split()
    words = typed[typed.index("rankscope") + 1 :]
    assert build_parser().parse_args(words).command.name == words[0]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["status"], 0),
        (["-v", "status"], 1),
        (["status", "-v"], 1),
        (["status", "-vv"], 2),
        (["-v", "status", "--verbose"], 2),
    ],
)
def test_verbose_counts_before_and_after_the_command(words: list[str], count: int) -> None:
    options = build_parser().parse_args(words)
    assert options.verbose + options.verbose_after == count


def test_verbose_prints_the_traceback_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["top", "--interval", "0", "--url", "http://127.0.0.1:9"]
    said = "rankscope: --interval is 0; it must be from 0.1 to 60 seconds\n"
    assert main(command) == 2
    assert capsys.readouterr().err == said
    assert main(["-v", *command]) == 2
    traceback = capsys.readouterr().err
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.endswith(said)


def test_serve_has_its_settings_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = read_help(capsys, "serve", "--help-all")
    titles = [line.removesuffix(":") for line in text.splitlines() if line.removesuffix(":") in SERVE_GROUPS]
    assert titles == list(SERVE_GROUPS)
    assert text.index("\naddresses:") < text.index("  --listen VALUE") < text.index("\naccess (")
    assert text.index("\nlimits and intervals:") < text.index("  --runs-max VALUE")


def test_serve_help_fits_two_screens_and_says_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = read_help(capsys, "serve")
    assert len(text.splitlines()) < 80
    assert "--help-all" in text
    every = read_help(capsys, "serve", "--help-all")
    hidden = [key for key, _, _ in find_settings(CollectorConfig) if f"--{key.replace('_', '-')} " not in text]
    assert len(hidden) > 10
    assert all(f"--{key.replace('_', '-')} " in every for key in hidden)


def test_every_key_of_a_group_is_a_setting() -> None:
    grouped = [key for keys in SERVE_GROUPS.values() for key in keys]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= {key for key, _, _ in find_settings(CollectorConfig)}


@pytest.mark.parametrize("option", ["--announce", "--embedded", "--parent-pid", "--fresh-keys"])
def test_help_of_serve_hides_options_for_programs(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert option not in read_help(capsys, "serve")


def test_bare_command_lists_all_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{title}:\n") for title in ("watch", "investigate", "run", "check")]
    assert places == sorted(places)
    assert all(f"\n  {command.name} " in text for command in COMMANDS)


@pytest.mark.parametrize("words", [["bert"], ["--run", "bert"]])
@pytest.mark.parametrize("name", ["status", "top", "incidents"])
def test_run_is_the_first_word(name: str, words: list[str]) -> None:
    assert read_run(build_parser().parse_args([name, *words])) == "bert"
    assert read_run(build_parser().parse_args([name])) is None
