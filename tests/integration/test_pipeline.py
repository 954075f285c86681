"""A pipeline of four stages over gloo, whose only communication are isend and irecv: who keeps it waiting is named."""

import contextlib
import re
from collections.abc import Iterator

import pytest

from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.served_training import reporting_to
from tests.integration.serving import Served, have_ended, serving
from tests.integration.torchrun import AGENT, SCRIPTS, Job, forked_ranks, started

SCRIPT = "pipeline.py"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


@contextlib.contextmanager
def training(served: Served, run: str, *options: str) -> Iterator[Job]:
    environment = reporting_to(served, run, stall_s="1.0")
    with started(forked_ranks(4, *AGENT, SCRIPT, *options), environment) as job:
        yield job


HELD_UP_MAX = 1.2
"""A busy machine does hold up a stage by some per cent, for a dozen steps of 0.1 s. Waits taken for work would show as
1.5 times and more."""


def find_accused(run: RunSnapshot) -> list[Finding]:
    """The findings that name ranks, but for what the machine may have done to them."""
    return [
        one
        for one in run.findings
        if one.ranks and one.kind != "hang" and (one.slowdown_ratio is None or one.slowdown_ratio >= HELD_UP_MAX)
    ]


def test_stage_that_becomes_twice_as_slow_is_named(served: Served) -> None:
    # A step of stage 2 has 2 forwards and 2 backwards of 10 ms, then of 20 ms: 40 ms of its own become 80 ms.
    with training(served, "slow-stage", "--steps", "1000", "--slow", "2", "--from", "100"):
        run = served.wait_for_run("slow-stage", lambda run: bool(find_accused(run)))
    (found,) = find_accused(run)
    assert (found.kind, found.ranks) == (STRAGGLER, (2,)), found.sentence
    assert found.since_step is not None
    first, last = found.since_range or (found.since_step, found.since_step)
    assert first - 20 <= 100 <= last + 20  # what else runs on the machine may hold it up some steps before
    assert found.slowdown_ratio is not None
    assert 1.6 < found.slowdown_ratio < 2.4


def test_no_stage_of_a_healthy_pipeline_is_accused(served: Served) -> None:
    with training(served, "healthy-stages", "--steps", "150") as job:
        ended = job.wait()
    assert (ended.exit_code, ended.heard_of_agent) == (0, [])
    run = served.wait_for_run("healthy-stages", have_ended)
    assert find_accused(run) == []
    assert not any("transfers_unknown" in rank.losses.windows_skipped for rank in run.ranks)


def test_stage_that_never_sends_is_named_and_no_receiver(served: Served) -> None:
    (line,) = [
        number
        for number, text in enumerate((SCRIPTS / SCRIPT).read_text().splitlines(), 1)
        if text.endswith("# in front of the send")
    ]
    said = (
        rf"^Hang in step 20 .*: rank 1 .* stalled at {SCRIPT}:{line} \(step\)\. "
        r"1 rank waiting for it in recv [02]<-1 of default_pg\b"
        r".*\. 2 more ranks waiting in other collectives\."
    )

    def find(run: RunSnapshot) -> list[str]:
        hangs = [one for one in run.open_findings if (one.kind, one.cause, one.ranks) == ("hang", "missing_rank", (1,))]
        return [one.sentence for one in hangs if re.search(said, one.sentence)]

    with training(served, "silent-stage", "--silent-at", "20"):
        run = served.wait_for_run("silent-stage", lambda run: bool(find(run)))
    assert {one.ranks for one in run.findings if one.kind == "hang" and (one.since_step or 0) >= 20} == {(1,)}
