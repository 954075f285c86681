"""A killed worker of a data loader ends training as without the agent: by torch's error, with status 1."""

import contextlib

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Forked, started

TIMES = 5


def test_script_ends_by_torchs_own_error_each_time() -> None:
    with listening() as collector, contextlib.ExitStack() as jobs:
        given = {**ALONE, **OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        job = Forked((*AGENT, "killed_worker.py"))
        ended = [one.wait() for one in [jobs.enter_context(started(job, given)) for _ in range(TIMES)]]
    assert [one.exit_code for one in ended] == [1] * TIMES, ended
    # Torch's own, or that of a connection to the worker, whichever the main thread meets first.
    assert all("Error" in one.stderr for one in ended), ended
    assert not any("<bound method Session" in one.stderr or "registerClient" in one.stderr for one in ended)
    assert not any(any(life.losses.errors.values()) for life in collector.lives)
