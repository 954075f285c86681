"""Whatever breaks in or around the agent, training goes on and ends as it would have."""

import pytest

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, SOURCE, python, run, started, torchrun

NEVER_ENDING_EPOCHS = ("--epochs", "40", "--steps", "100")
CLOSED_STDERR = ("sh", "-c", 'exec "$@" 2>&-', "sh")


def test_torch_that_breaks_under_the_agent_is_counted_and_costs_no_step() -> None:
    with listening() as collector:
        given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_ERROR_BUDGET": "3"}
        ended = run(python(*AGENT, "sabotage.py"), given)
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


def test_nobody_who_listens_is_nothing_to_wait_for() -> None:
    with listening() as collector:
        gone = collector.endpoint
    ended = run(torchrun(2, *AGENT, "small_ddp.py"), {**OFTEN, "RANKSCOPE_COLLECTOR": gone, "RANKSCOPE_DRAIN_S": "60"})
    assert (ended.exit_code, ended.left) == (0, ())
    assert "losses" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_collector_that_dies_in_the_middle_is_not_noticed_by_training() -> None:
    with listening() as collector:
        given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DRAIN_S": "0.5"}
        with started(python(*AGENT, "small_ddp.py", *NEVER_ENDING_EPOCHS), given) as job:
            collector.wait_until(lambda lives: any(life.steps for life in lives), 60.0)
            collector.kill()
            assert job.launcher.poll() is None
            ended = job.wait()
    assert (ended.exit_code, ended.left) == (0, ())
    assert "losses" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_full_disk_behind_stderr_does_not_hurt() -> None:
    given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1", "RANKSCOPE_ERROR_BUDGET": "1"}
    ended = run(python(*AGENT, "sabotage.py"), given, stderr_path="/dev/full")
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ())


def test_closed_stderr_does_not_hurt_and_nothing_lands_on_stdout() -> None:
    given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": "tcp://127.0.0.1:1", "RANKSCOPE_ERROR_BUDGET": "1"}
    ended = run([*CLOSED_STDERR, *python(*AGENT, "sabotage.py")], given)
    assert (ended.exit_code, ended.stdout, ended.left) == (0, "trained to the end\n", ())


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RANKSCOPE_REPORT_INTERVAL_S", "0.01", "report_interval_s is 0.01 (from RANKSCOPE_REPORT_INTERVAL_S)"),
        ("RANKSCOPE_REPORT_INTERVALL_S", "1", "The nearest is RANKSCOPE_REPORT_INTERVAL_S"),
        ("RANKSCOPE_CONFIG", "no-such.toml", "RANKSCOPE_CONFIG is 'no-such.toml', which cannot be read"),
    ],
)
def test_wrong_setting_stops_the_launch_before_the_script_begins(variable: str, value: str, said: str) -> None:
    ended = run(python(*AGENT, "ends.py", "return"), {**ALONE, variable: value})
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("rankscope: ")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_wrong_setting_under_the_switch_is_said_once_and_training_goes_on() -> None:
    given = {**ALONE, "RANKSCOPE": "1", "RANKSCOPE_REPORT_INTERVAL_S": "0.01"}
    ended = run(python("ends.py", "return"), given)
    assert ended.exit_code == 0
    assert ended.stderr.startswith("rankscope: not started: report_interval_s is 0.01")
    assert ended.stderr.count("\n") == 1


def test_script_that_is_not_there_is_named() -> None:
    ended = run(python(*AGENT, "no_such_script.py"))
    assert ended.exit_code == 2
    assert ended.stderr == "rankscope: cannot open the script 'no_such_script.py': No such file or directory\n"
