"""A rank of a real job hangs: the facts that tell which one, where, and in front of which collective."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.sidecar.directory import find_root, folder_name
from rankscope.collector.detect.finding import HANG, Finding
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.stalls import PendingCollective
from tests.integration.serving import Served, find_rank, have_ended, serving
from tests.integration.torchrun import Job, forked_ranks, line_of, started

STALL_S = "1.0"
HANGS_AT = 10
"""The step in front of whose all_reduce, the 11th, rank 1 hangs."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


@contextlib.contextmanager
def hanging(served: Served, run: str, what: str, ranks: int, *options: str) -> Iterator[Job]:
    """A job whose rank 1 hangs in that way. At the end the launcher is told to end it, and nothing may be left."""
    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": run,
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_STALL_S": STALL_S,
    }
    command = forked_ranks(ranks, "-m", "rankscope.agent", "hangs.py", "--what", what, "--at", str(HANGS_AT), *options)
    with started(command, environment) as job:
        yield job
        identity = find_rank(served.wait_for_run(run, lambda _: True), 0).identity
        job.launcher.send_signal(signal.SIGTERM)
        assert job.wait().left == ()
        assert not Path(find_root(), folder_name(identity)).exists()


def is_stalled_there(rank: RankSnapshot) -> bool:
    """Whether it is stalled where it should be: on a busy machine a start or a step may look like a stall before."""
    return rank.stalled is True and rank.stall is not None and rank.stall.last_step == HANGS_AT


def are_stalled(run: RunSnapshot) -> bool:
    return len(run.ranks) == run.world_size and all(is_stalled_there(rank) for rank in run.ranks)


def is_held(run: RunSnapshot) -> bool:
    """Whether rank 0 waits, and the sidecar has seen rank 1 where it hangs."""
    if len(run.ranks) < run.world_size or not is_stalled_there(run.ranks[0]):
        return False
    found = run.ranks[1].unresponsive
    return found is not None and [status.enqueued for status in found.progress] == [HANGS_AT]


def find_hang(run: RunSnapshot, cause: str, *said: str) -> Finding | None:
    """The open finding about a hang at that step, of that cause and with all that in its sentence.

    On a busy machine there may have been another before, and this one begins with what is known then: in its first
    second one of two ranks waits.
    """
    hangs = [one for one in run.open_findings if one.kind == HANG and one.since_step == HANGS_AT + 1]
    found = [one for one in hangs if one.cause == cause and all(text in one.sentence for text in said)]
    return found[0] if found and found[0].ranks else None


def has_ended_in(run: RunSnapshot, number: int, ends: list[str]) -> bool:
    """Whether the ranks have ended like this, and that finding is told with the end of the run: that is done by the
    first look after it, which may be put off on a busy machine.
    """
    told = [one for one in run.findings if one.number == number and ", until the run ended: " in one.headline]
    return bool(told) and [rank.ended for rank in run.ranks] == ends


def described(pending: tuple[PendingCollective, ...]) -> list[tuple[str, str, int, int | None]]:
    return [(one.group, one.op, one.sequence, one.bytes) for one in pending]


# What the ranks wait for: 777 floats of 4 bytes.
ALL_REDUCE = ("default_pg", "all_reduce", HANGS_AT + 1, 3_108)


def waits_for_the_collective(rank: RankSnapshot) -> bool:
    """Whether the rank has enqueued what the others have not, and says so with its op, group, sequence and size."""
    assert rank.stall is not None
    (status,) = rank.progress
    main = rank.stall.stacks[0]
    return (
        described(rank.stall.pending) == [ALL_REDUCE]
        and rank.stall.pending[0].sizes == ((777,),)
        and (status.group, status.enqueued, status.completed) == ("default_pg", HANGS_AT + 1, HANGS_AT)
        and (rank.stall.activity, rank.stall.last_step) == ("collective", HANGS_AT)
        and (main.name, main.frames[0].function) == ("MainThread", "all_reduce")
        and ("main", line_of("hangs.py", "dist.all_reduce(numbers)")) in [(f.function, f.line) for f in main.frames]
    )


def test_sleeping_rank_is_told_with_its_line_and_the_waiters(
    served: Served,
) -> None:
    sleeps_at = line_of("hangs.py", "    time.sleep(FOR_EVER_S)")
    said = (
        f"stalled at hangs.py:{sleeps_at} (sleep_for_ever). 2 ranks waiting for it in all_reduce 11 of ",
        "default_pg (3108 bytes)",
    )
    with hanging(served, "sleeps", "sleep", ranks=3):
        run = served.wait_for_run(
            "sleeps", lambda run: are_stalled(run) and find_hang(run, "missing_rank", *said) is not None
        )
        served.wait_for_metrics('rankscope_rank_stalled{rank="1",run="sleeps"} 1.0\n')
    first, sleeper, third = run.ranks
    assert waits_for_the_collective(first), first
    assert waits_for_the_collective(third), third
    assert sleeper.stall is not None
    assert (sleeper.progress[0].enqueued, sleeper.stall.pending) == (HANGS_AT, ())
    innermost = sleeper.stall.stacks[0].frames[0]
    assert (os.path.basename(innermost.file), innermost.function) == ("hangs.py", "sleep_for_ever")  # noqa: PTH119
    assert innermost.line == sleeps_at
    hang = find_hang(run, "missing_rank", *said)
    assert hang is not None
    assert (hang.ranks, hang.group, hang.severity) == ((1,), "default_pg", "critical")
    assert (hang.evidence["missing_sequence"], hang.evidence["group_max_sequence"]) == (HANGS_AT, HANGS_AT + 1)
    assert f"hangs.py:{innermost.line} in sleep_for_ever" in hang.details["stack of rank 1"]
    ended = served.wait_for_run("sleeps", lambda run: has_ended_in(run, hang.number, ["terminated"] * 3))
    (told,) = [one for one in ended.findings if one.number == hang.number]
    assert (told.cause, told.ranks) == ("missing_rank", (1,))
    assert f"stalled at hangs.py:{innermost.line} (sleep_for_ever). 2 ranks waiting for it" in told.sentence
    assert re.match(r"Hang in step 11 for \d+ s .*, until the run ended: ", told.headline), told.headline


def test_rank_holding_the_interpreter_is_told_by_the_sidecar(served: Served) -> None:
    said = ("rank 1", "not responding, its Python interpreter not running (state S)")
    # Two seconds of steps: the names of its groups are in its own reports, of which there is none once it is held.
    with hanging(served, "holds", "hold", 2, "--pause-s", "0.2"):
        run = served.wait_for_run(
            "holds", lambda run: is_held(run) and find_hang(run, "missing_rank", *said) is not None
        )
    hang = find_hang(run, "missing_rank", *said)
    assert hang is not None
    assert (hang.ranks, hang.group) == ((1,), "default_pg")
    waiting, holder = run.ranks
    assert waits_for_the_collective(waiting), waiting
    found = holder.unresponsive
    assert found is not None
    # What torch's worker server said, while no Python could run there: it has not enqueued the 11th.
    assert [(status.group, status.enqueued) for status in found.progress] == [("default_pg", HANGS_AT)]
    assert (found.pending, found.absent) == ((), {})
    main = found.threads[0]
    assert (main.thread, main.state) == (holder.identity.pid, "S")
    # Who is not allowed to see these is told nothing, and must not be told something else.
    assert main.wait_channel in ("hrtimer_nanosleep", None)
    assert any(thread.name == "pt_workerserver" for thread in found.threads)
    assert (holder.ended, holder.up) == (None, True)


def test_killed_rank_is_named_while_another_goes_on_waiting(served: Served) -> None:
    said = "ended: killed (SIGKILL; the OOM killer counted no victim in "
    # Two seconds of steps: the end of a rank is seen by its sidecar, which begins with the rank.
    with hanging(served, "killed", "kill", 2, "--outlive", "--pause-s", "0.2") as job:
        run = served.wait_for_run("killed", lambda run: find_hang(run, "dead_rank", said) is not None)
        # It is deaf to what the launcher sends it.
        os.kill(find_rank(run, 0).identity.pid, signal.SIGKILL)
        job.launcher.wait()
    hang = find_hang(run, "dead_rank", said)
    assert hang is not None
    assert (hang.ranks, hang.severity) == ((1,), "critical")
    ended = served.wait_for_run("killed", lambda run: have_ended(run) and not run.open_findings)
    assert [(one.cause, one.ranks) for one in ended.findings if one.number == hang.number] == [("dead_rank", (1,))]
