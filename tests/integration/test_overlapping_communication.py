"""Communication that outlasts a step: no session ends amid it, which would corrupt the heap, and windows go on."""

import re

from tests.integration.serving import have_ended, serving
from tests.integration.torchrun import OFTEN, forked_ranks, started

COUNTED = re.compile(r"rank [01]: (\d+) sessions, (\d+) amid work")
SESSIONS_MIN = 5
"""1.5 s of steps with windows of 0.1 s; on a machine that is busy fewer are taken."""


def test_no_session_ends_amid_communication_outlasting_its_step() -> None:
    with serving() as served:
        environment = OFTEN | {"RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_RUN": "overlapping"}
        with started(forked_ranks(2, "-m", "rankscope.agent", "overlapping.py"), environment) as job:
            ended = job.wait()
        assert (ended.exit_code, ended.heard_of_agent) == (0, [])
        counted = [(int(sessions), int(amid)) for sessions, amid in COUNTED.findall(ended.stdout)]
        assert [amid for _, amid in counted] == [0, 0], ended.stdout
        assert min(sessions for sessions, _ in counted) >= SESSIONS_MIN
        run = served.wait_for_run("overlapping", have_ended)
    assert not any(any(rank.losses.errors.values()) for rank in run.ranks)
