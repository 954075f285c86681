"""An elastic restart: one run, two lives of each rank, told apart."""

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, OFTEN, run, torchrun


def test_restart_begins_a_new_life_of_the_same_run_at_step_zero() -> None:
    with listening() as collector:
        command = torchrun(2, *AGENT, "crash_once.py", options=("--max-restarts", "1"))
        ended = run(command, {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint})
    assert (ended.exit_code, ended.left) == (0, ())
    lives = collector.lives
    identities = [(life.hello.identity.restart_count, life.rank) for life in lives]
    assert identities == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({life.hello.identity.run for life in lives}) == 1
    assert len({life.hello.identity.boot_id for life in lives}) == 4
    for life in lives[2:]:
        assert [record.step for record in life.steps] == list(range(8))
        assert life.ending == ("finished", "", None)
    assert [record.step for record in lives[1].steps] == list(range(6))
    assert lives[1].ending == ("failed", "RuntimeError: the first life ends here", 1)
