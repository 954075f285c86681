"""torch's profiler with stacks, and code that is freed before a session ends."""

from pathlib import Path

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, Forked, run


def test_names_of_freed_code_are_read_as_they_were(tmp_path: Path) -> None:
    # Without the agent none of them is there, or the process crashes: torch reads memory that has been used again.
    with listening() as collector:
        given = {**ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(Forked((*AGENT, "executed_code.py", str(tmp_path))), given)
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "200 of 200"
