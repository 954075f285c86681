"""The words of `rankscope profile`: what belongs to the script, and what is refused before it starts."""

from pathlib import Path

import pytest

from rankscope.collector.commands.main import build_parser, main

SCRIPT = str(Path(__file__))


@pytest.mark.parametrize("between", [(), ("--",)])
def test_what_follows_the_script_is_its_own(between: tuple[str, ...]) -> None:
    options = build_parser().parse_args(["profile", "--steps", "2", *between, "train.py", "--steps", "9", "-o", "x"])
    assert (options.steps, options.output, options.script) == (2, None, "train.py")
    assert options.arguments == ["--steps", "9", "-o", "x"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "101", SCRIPT], "--steps is 101; it must be from 1 to 100"),
        (["--skip", "1", SCRIPT], "--skip is 1; it must be from 2 to 1000000"),
        (["--skip", "-1", SCRIPT], "--skip is -1; it must be from 2 to 1000000"),
        (["--top", "0", SCRIPT], "--top is 0; it must be 1 or more"),
        (["--nproc-per-node", "0", SCRIPT], "--nproc-per-node is 0; it must be from 1 to 1024"),
        (["--peak-tflops", "0", SCRIPT], "--peak-tflops is 0; it must be above 0"),
        (["absent.py"], "SCRIPT is 'absent.py', which is no file; a module needs -m before it"),
        (["-o", str(Path(__file__).parent), SCRIPT], "is not empty; name a new or an empty folder"),
    ],
)
def test_mistake_is_said_before_the_script_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["profile", *words]) == 2
    assert said in capsys.readouterr().err


def test_under_a_launcher_the_cure_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert main(["profile", SCRIPT]) == 2
    said = capsys.readouterr().err
    assert "RANK is 3, set by a launcher. `rankscope profile --nproc-per-node N SCRIPT` starts torchrun" in said
