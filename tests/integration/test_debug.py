"""RANKSCOPE_DEBUG=1: every error of the agent's leaves its traceback, once; without it the file and the line."""

from pathlib import Path

import pytest

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, SOURCE, Forked, python, run


def test_each_part_that_fails_prints_its_traceback_once() -> None:
    with listening() as collector:
        given = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_DEBUG": "1"}
        ended = run(Forked((*AGENT, "sabotage.py")), given)
    assert (ended.exit_code, ended.stdout) == (0, "trained to the end\n")
    for part in ("device", "groups", "windows"):
        assert ended.stderr.count(f"rankscope: traceback of {part} (RANKSCOPE_DEBUG is set):") == 1, ended.stderr
    assert f'File "{SOURCE}/sample/torch_device.py", line' in ended.stderr


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_start_that_fails_says_where(tmp_path: Path, debug: str) -> None:
    """Here a package that the agent needs is broken."""
    (tmp_path / "msgspec.py").write_text("raise KeyError('broken')\n")
    given = {**ALONE, "RANKSCOPE": "1", "RANKSCOPE_DEBUG": debug, "PYTHONPATH": str(tmp_path)}
    ended = run(python("small_ddp.py", "--epochs", "1"), given)
    assert ended.exit_code == 0, ended.stderr
    assert "losses" in ended.stdout
    (said,) = [line for line in ended.stderr.splitlines() if "not started" in line]
    assert said.startswith(f"rankscope: not started (KeyError: 'broken', at {SOURCE}/")
    assert said.endswith("); training continues without it")
    assert ended.stderr.count("rankscope: traceback of start (RANKSCOPE_DEBUG is set):") == int(debug)
