"""Training on other threads than the main one: each session of the profiler is ended on its own, and the process ends
as without the agent, which torch's exit would otherwise crash (SIGSEGV).
"""

import contextlib
from collections.abc import Iterator

import pytest

from tests.integration.listening_collector import listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, WHOLE_END, Ended, Forked, started

SESSIONS = {
    "thread": ["1 on"],
    "raw": ["1 on"],
    "joining": ["1 on"],
    "twice": ["1 on"],
    "changing": ["1 on"],
    "pool": ["1 on"],
    "asyncio": ["1 on"],
    "idle": ["1 on"],  # and is left, as its thread is
    "stopped": ["1 on", "0 on"],
}
"""What the script prints of its sessions, by its argument."""


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Ended]]:
    """How each of them has ended. They run at the same time."""
    with listening() as collector, contextlib.ExitStack() as jobs:
        given = {**ALONE, **OFTEN, **WHOLE_END, "RANKSCOPE_COLLECTOR": collector.endpoint}
        running = {
            shape: jobs.enter_context(started(Forked((*AGENT, "on_threads.py", shape)), given)) for shape in SESSIONS
        }
        yield {shape: job.wait() for shape, job in running.items()}
        assert not any(any(life.losses.errors.values()) for life in collector.lives)


@pytest.mark.parametrize("shape", SESSIONS)
def test_process_ends_as_without_us_wherever_it_trained(shape: str, ended: dict[str, Ended]) -> None:
    job = ended[shape]
    assert (job.exit_code, job.stdout.splitlines()) == (0, [*SESSIONS[shape], "end"]), job.stderr
    assert job.left == ()
    said = [line for line in job.heard_of_agent if "goes from thread to thread" not in line]
    assert (said, len(job.heard_of_agent)) == ([], int(shape == "changing"))
    assert "registerClient" not in job.stderr
    assert "callback" not in job.stderr  # torch: "Requested callback is not found"
