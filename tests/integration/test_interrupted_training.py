"""Exceptions of the script's signal handlers amid code of the agent: the script gets each of them once, and the process
ends as without the agent.
"""

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, WHOLE_END, Forked, run

RAISED = 40
"""How often the handler raises, at most: `ENOUGH` of the script."""
MERGED_MAX = 3


def test_script_gets_each_exception_once_and_no_session_is_left() -> None:
    with listening() as collector:
        given = {
            **ALONE,
            **OFTEN,
            **WHOLE_END,
            "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.02",
            "RANKSCOPE_COLLECTOR": collector.endpoint,
        }
        ended = run(Forked((*AGENT, "interrupted.py")), given)
    steps, _, rest = ended.stdout.partition("\n")
    assert (ended.exit_code, rest) == (0, "twice: 0, missing: []\n"), ended.stderr
    # One that the handler leaves may have been made; one amid whose count it raises may be counted with the next.
    returned = int(steps.removeprefix("steps: "))
    assert returned - MERGED_MAX <= len(collector.lives[0].steps) <= returned + RAISED
    assert "atexit callback: <bound method Session" not in ended.stderr  # torch's own may be met by the handler
    assert not any(collector.lives[0].losses.errors.values())
