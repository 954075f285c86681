"""Whatever breaks in or around the agent, training goes on and ends as it would have."""

import pytest

from tests.integration.listening_collector import listening
from tests.integration.test_launch import AGENT, QUICK
from tests.integration.torchrun import python, run, started, torchrun


def test_torch_that_breaks_under_the_agent_is_counted_and_training_ends_well() -> None:
    with listening() as collector:
        given = {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_ERROR_BUDGET": "3"}
        ended = run(torchrun(1, *AGENT, "sabotage.py"), given)
        (life,) = collector.lives
    assert (ended.exit_code, ended.left) == (0, ())
    assert "trained to the end" in ended.stdout
    assert len(life.steps) == 200
    assert life.losses.errors.get("windows", 0) >= 1
    assert "rankscope: windows failed (RuntimeError" in ended.stderr


def test_nobody_who_listens_is_nothing_to_wait_for() -> None:
    with listening() as collector:
        gone = collector.endpoint
    ended = run(torchrun(2, *AGENT, "small_ddp.py"), {**QUICK, "RANKSCOPE_COLLECTOR": gone})
    assert (ended.exit_code, ended.left) == (0, ())
    assert "Traceback" not in ended.stderr


def test_collector_that_dies_in_the_middle_is_not_noticed_by_training() -> None:
    with listening() as collector:
        given = {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DRAIN_S": "0.5"}
        with started(torchrun(1, *AGENT, "small_ddp.py", "--steps", "2000"), given) as job:
            collector.wait_until(lambda lives: any(life.steps for life in lives), 60.0)
            collector.kill()
            ended = job.wait()
    assert (ended.exit_code, ended.left) == (0, ())
    assert "losses" in ended.stdout


def test_full_disk_behind_stderr_does_not_hurt() -> None:
    with listening() as collector:
        given = {**QUICK, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_ERROR_BUDGET": "1"}
        ended = run(torchrun(1, *AGENT, "sabotage.py"), given, stderr_path="/dev/full")
    assert (ended.exit_code, ended.left) == (0, ())
    assert "trained to the end" in ended.stdout


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RANKSCOPE_REPORT_INTERVAL_S", "0.01", "report_interval_s is 0.01 (from RANKSCOPE_REPORT_INTERVAL_S)"),
        ("RANKSCOPE_REPORT_INTERVALL_S", "1", "RANKSCOPE_REPORT_INTERVALL_S"),
    ],
)
def test_wrong_setting_stops_the_launch_with_its_cure(variable: str, value: str, said: str) -> None:
    ended = run(python(*AGENT, "introspect.py"), {variable: value})
    assert ended.exit_code == 2
    assert said in ended.stderr.replace("'", "")
    assert "Traceback" not in ended.stderr


def test_wrong_setting_under_the_switch_is_said_once_and_training_goes_on() -> None:
    given = {"RANKSCOPE": "1", "RANK": "0", "RANKSCOPE_REPORT_INTERVAL_S": "0.01"}
    ended = run(python("introspect.py"), given)
    assert ended.exit_code == 0
    assert ended.stderr.count("rankscope: not started") == 1
    assert "report_interval_s is 0.01" in ended.stderr


def test_script_that_is_not_there_is_named() -> None:
    ended = run(python(*AGENT, "no_such_script.py"))
    assert ended.exit_code == 2
    assert "no_such_script.py" in ended.stderr
