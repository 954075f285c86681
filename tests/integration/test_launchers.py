"""Ranks that Accelerate starts itself are measured as the ranks that they are (docs/launchers.md)."""

from tests.integration.listening_collector import listening
from tests.integration.torchrun import OFTEN, python, run


def test_ranks_that_accelerate_starts_report_every_step() -> None:
    with listening() as collector:
        environment = {**OFTEN, "RANKSCOPE": "1", "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(python("accelerate_ranks.py"), environment)
        lives = collector.lives
    assert (ended.exit_code, ended.heard_of_agent, ended.left) == (0, [], ()), ended.stderr
    known = [life.hello.identity for life in lives]
    assert [(one.rank, one.local_rank, one.world_size) for one in known] == [(0, 0, 2), (1, 1, 2)]
    assert len({one.run for one in known}) == 1
    # 48 rows over two ranks, four to a batch.
    assert [[record.backwards for record in life.steps] for life in lives] == [[1] * 6] * 2
