"""Exceptions of the script's signal handlers amid code of the agent: the script gets each of them once, and the process
ends as without the agent.
"""

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Forked, run


def test_script_gets_each_exception_of_its_handlers_once_and_no_session_is_left() -> None:
    with listening() as collector:
        given = {
            **ALONE,
            **OFTEN,
            "RANKSCOPE_CONSTANT_COLLECTIVE_WINDOW_S": "0.02",
            "RANKSCOPE_COLLECTOR": collector.endpoint,
        }
        ended = run(Forked((*AGENT, "interrupted.py")), given)
    assert (ended.exit_code, ended.stdout) == (0, "twice: 0, missing: []\n"), ended.stderr
    assert "atexit callback: <bound method Session" not in ended.stderr  # torch's own may be met by the handler
    assert not any(collector.lives[0].losses.errors.values())
