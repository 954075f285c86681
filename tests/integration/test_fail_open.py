"""Whatever breaks in or around the agent, training goes on and ends as it would have."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.measure.key_files import format_key_file
from tests.integration.listening_collector import listening
from tests.integration.torchrun import (
    AGENT,
    ALONE,
    OFTEN,
    SOURCE,
    WHOLE_END,
    Forked,
    forked_ranks,
    python,
    run,
    started,
)

NEVER_ENDING_EPOCHS = ("--epochs", "40", "--steps", "100")
AT_WORK = {**OFTEN, **ALONE, **WHOLE_END}
NOBODY = {"RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1"}
CLOSED_STDERR = ("sh", "-c", 'exec "$@" 2>&-', "sh")


def test_torch_errors_under_the_agent_count_and_cost_no_step() -> None:
    with listening() as collector:
        given = {**AT_WORK, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_CONSTANT_ERROR_BUDGET": "3"}
        ended = run(Forked((*AGENT, "sabotage.py")), given)
    (life,) = collector.lives
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ())
    assert [record.step for record in life.steps] == list(range(200))
    assert life.ending == ("finished", "", None)
    # Each part was given up after its third error; the first and the last of them were said. A window that failed is
    # closed once more at the end, and reduced: those count too.
    assert life.losses.errors["device"] == 3
    assert life.losses.errors["windows"] >= 3
    assert life.losses.errors["groups"] >= 1
    assert f"rankscope: device failed (RuntimeError: not today, at {SOURCE}/sample/torch_device.py:" in ended.stderr
    assert "rankscope: windows is switched off after 3 errors" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_report_that_cannot_be_sent_costs_itself_only() -> None:
    with listening() as collector:
        ended = run(python(*AGENT, "unsendable.py"), {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint})
    (life,) = collector.lives
    assert (ended.exit_code, ended.stdout) == (0, "trained to the end\n"), ended.stderr
    # Numbers without a gap, the goodbye's among them: behind one nothing would be taken.
    assert life.reports
    assert [report.sequence for report in life.reports] == list(range(1, len(life.reports) + 1))
    assert life.goodbye is not None
    assert life.goodbye.sequence == len(life.reports) + 1
    assert ended.stderr.count("agent_thread failed (ValueError: no report can be made of it") == 1


def test_nobody_who_listens_is_nothing_to_wait_for() -> None:
    with listening() as collector:
        gone = collector.endpoint
    given = {**OFTEN, **WHOLE_END, "RANKSCOPE_COLLECTOR": gone, "RANKSCOPE_DRAIN_S": "60"}
    ended = run(forked_ranks(2, *AGENT, "small_ddp.py"), given)
    assert (ended.exit_code, ended.left) == (0, ())
    assert "losses" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert re.findall(r"the collector (\S+) never accepted rank 0; none of its \d+ reports was", ended.stderr) == [gone]


def test_collector_dying_in_the_middle_is_not_felt_by_training() -> None:
    with listening() as collector:
        given = {**AT_WORK, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DRAIN_S": "0.5"}
        with started(Forked((*AGENT, "small_ddp.py", *NEVER_ENDING_EPOCHS)), given) as job:
            collector.wait_until(lambda lives: any(life.steps for life in lives), 60.0)
            collector.kill()
            assert job.launcher.poll() is None
            ended = job.wait()
    assert (ended.exit_code, ended.left) == (0, ())
    assert "losses" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_full_disk_behind_stderr_does_not_hurt() -> None:
    given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1", "RANKSCOPE_CONSTANT_ERROR_BUDGET": "1"}
    ended = run(Forked((*AGENT, "sabotage.py")), given, stderr_path="/dev/full")
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ())


def test_closed_stderr_does_not_hurt_and_nothing_lands_on_stdout() -> None:
    given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1", "RANKSCOPE_CONSTANT_ERROR_BUDGET": "1"}
    ended = run([*CLOSED_STDERR, *python(*AGENT, "sabotage.py")], given)
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ())


MISTAKES = {
    "value": (
        {"RANKSCOPE_REPORT_INTERVAL_S": "0.01"},
        (
            "report_interval_s is 0.01 (from RANKSCOPE_REPORT_INTERVAL_S); the smallest allowed is 0.1. Below that the "
            "agent would cost more than 1 % of a core."
        ),
        " report_interval_s stays 1.0 (the default).",
    ),
    "name": (
        {"RANKSCOPE_REPORT_INTERVALL_S": "1"},
        (
            "RANKSCOPE_REPORT_INTERVALL_S is set in the environment and is no setting. The nearest is "
            "RANKSCOPE_REPORT_INTERVAL_S: correct the name or remove it."
        ),
        " It is ignored.",
    ),
    "collector": (
        {"RANKSCOPE_COLLECTOR": "head:18490"},
        (
            "collector is 'head:18490' (from RANKSCOPE_COLLECTOR); it must be tcp://HOST:PORT, for example "
            "tcp://10.0.0.1:18490."
        ),
        " Training continues without it.",
    ),
    "file": (
        {"RANKSCOPE_CONFIG": "no-such.toml"},
        (
            "RANKSCOPE_CONFIG is 'no-such.toml', which cannot be read: [Errno 2] No such file or directory: "
            "'no-such.toml'. Name a readable file or unset RANKSCOPE_CONFIG."
        ),
        " Training continues without it.",
    ),
    "keys": (
        {"RANKSCOPE_KEY_FILE": "no-such.key", "RANKSCOPE_COLLECTOR_KEY_FILE": "no-such.pub"},
        (
            "collector_key_file is 'no-such.pub', which cannot be read: [Errno 2] No such file or directory: "
            "'no-such.pub'. Name a readable file."
        ),
        " Training continues without it.",
    ),
}
"""The variables, what is wrong with them, and what is made of it."""


def describe(problem: str, outcome: str) -> str:
    start = "not started: " if "without" in outcome else ""
    return f"rankscope: {start}{problem}{outcome}"


@pytest.mark.parametrize(
    ("mistake", "line"), [*((mistake, AGENT) for mistake in MISTAKES), ("value", ()), ("keys", ())]
)
def test_mistake_in_settings_is_told_once_and_training_goes_on(mistake: str, line: tuple[str, ...]) -> None:
    variables, problem, outcome = MISTAKES[mistake]
    given = {**ALONE, **NOBODY, **variables, "RANKSCOPE": "" if line else "1"}
    command = Forked((*line, "ends.py", "return")) if line else python("ends.py", "return")
    ended = run(command, given)
    assert (ended.exit_code, ended.stdout.partition(" ")[0]) == (0, "torch")
    assert ended.stderr.splitlines().count(describe(problem, outcome)) == 1
    assert ended.stderr.count(problem) == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", [(*AGENT, "--strict"), AGENT, ()])
def test_strict_launch_stops_before_the_script_begins(line: tuple[str, ...]) -> None:
    variables, problem, _ = MISTAKES["name"]
    strict = {} if "--strict" in line else {"RANKSCOPE_STRICT": "1"}
    ended = run(python(*line, "ends.py", "return"), {**ALONE, **variables, **strict, "RANKSCOPE": "" if line else "1"})
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == f"rankscope: {problem}\n"


def test_key_that_others_may_read_costs_the_monitor_only(tmp_path: Path) -> None:
    key, public = tmp_path / "agent.key", tmp_path / "collector.pub"
    key.write_text(format_key_file("a" * 40, "b" * 40))
    key.chmod(0o644)
    public.write_text(format_key_file("a" * 40))
    keys = {"RANKSCOPE_KEY_FILE": str(key), "RANKSCOPE_COLLECTOR_KEY_FILE": str(public)}
    ended = run(Forked((*AGENT, "ends.py", "return")), {**ALONE, **NOBODY, **keys})
    assert (ended.exit_code, ended.stdout.partition(" ")[0]) == (0, "torch")
    assert f"has the mode 0644: others could read it. chmod 600 {key} Training continues without it." in ended.stderr


def test_ranks_of_a_node_say_the_same_mistake_once() -> None:
    variables, problem, outcome = MISTAKES["value"]
    ended = run(forked_ranks(2, *AGENT, "small_ddp.py"), {**NOBODY, **variables})
    assert (ended.exit_code, ended.left) == (0, ())
    assert ended.stderr.splitlines().count(describe(problem, outcome)) == 1
    assert ended.stderr.count(problem) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--colector", "tcp://head:1", "ends.py"),
            (
                "--colector is not an option of rankscope.agent. Did you mean --collector? Options of the script "
                "belong after the script."
            ),
        ),
        (
            ("--verbose",),
            "--verbose is not an option of rankscope.agent. Options of the script belong after the script.",
        ),
        (("--run",), "--run needs a value, and after it the script: --run VALUE SCRIPT.py"),
    ],
)
def test_launch_line_without_a_found_script_says_what_is_wrong(words: Sequence[str], said: str) -> None:
    ended = run(python(*AGENT, *words))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"rankscope: {said}\nusage: torchrun ")


def test_script_that_is_not_there_is_named() -> None:
    ended = run(python(*AGENT, "no_such_script.py"))
    assert ended.exit_code == 2
    assert ended.stderr == "rankscope: cannot open the script 'no_such_script.py': No such file or directory\n"
