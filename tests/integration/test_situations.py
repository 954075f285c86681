"""What goes wrong, or only takes long, in jobs over gloo, told as it is: who is named, why, and how severe it is."""

import contextlib
from collections.abc import Iterator

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import Served, have_ended, serving
from tests.integration.torchrun import SCRIPTS, Job, started, torchrun

STALL_S = "1.0"
AT = 10
"""The step in which it happens."""
STEP = AT + 1
COLLECTIVE = 2 * AT + 1
"""The collective of all ranks in front of which it happens: each step before has had two."""
SCRIPT = "situations.py"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


@contextlib.contextmanager
def training(served: Served, what: str, *options: str) -> Iterator[Job]:
    """A job of three ranks, in whose step AT this happens; a run of the same name."""
    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": what,
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_STALL_S": STALL_S,
    }
    command = torchrun(3, "-m", "rankscope.agent", SCRIPT, "--what", what, "--at", str(AT), *options)
    with started(command, environment) as job:
        yield job


def wait_for_hang(served: Served, run: str, cause: str, *said: str, ranks: tuple[int, ...] | None = None) -> Finding:
    """The open finding of that cause with all that in its sentence, once there is one."""

    def find(run: RunSnapshot) -> list[Finding]:
        hangs = [one for one in run.open_findings if one.kind == "hang" and one.cause == cause]
        right = [one for one in hangs if ranks is None or one.ranks == ranks]
        return [one for one in right if all(text in one.sentence for text in said)]

    return find(served.wait_for_run(run, lambda run: bool(find(run))))[0]


def line_of(text: str) -> int:
    """The number of the only line of the script that ends with the text."""
    lines = (SCRIPTS / SCRIPT).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return found


def finish(served: Served, run: str) -> RunSnapshot:
    """The run once it is over and has closed its findings."""
    return served.wait_for_run(run, lambda run: have_ended(run) and not run.open_findings)


def causes(run: RunSnapshot) -> set[tuple[str, tuple[int, ...], str]]:
    """Cause, ranks and severity of every hang that was found. A start on a busy machine may look like a stall."""
    hangs = [one for one in run.findings if one.kind == "hang" and one.since_step == STEP]
    return {(one.cause, one.ranks, one.severity) for one in hangs}


def test_evaluation_on_rank_0_is_a_pause_and_no_hang(served: Served) -> None:
    said = ("Rank 0", "is busy without training for", f"in evaluate at {SCRIPT}:", "The run pauses in step 11.")
    with training(served, "evaluate") as job:
        pause = wait_for_hang(served, "evaluate", "busy_rank", *said, ranks=(0,))
        assert job.wait().exit_code == 0
    assert (pause.severity, pause.group) == ("warning", "default_pg")
    run = finish(served, "evaluate")
    assert causes(run) == {("busy_rank", (0,), "warning")}
    (told,) = [one for one in run.findings if one.number == pause.number]
    assert "was busy without training in evaluate" in told.sentence
    assert told.sentence.endswith("s, and then went on."), told.sentence
    assert "The run paused in step 11 for" in told.sentence


def test_endless_loop_is_busy_first_and_a_hang_after_ten_limits(served: Served) -> None:
    with training(served, "loop"):
        pause = wait_for_hang(served, "loop", "busy_rank", f"in loop_for_ever at {SCRIPT}:", ranks=(1,))
        hang = wait_for_hang(
            served, "loop", "missing_rank", "is busy without training for", "The run hangs", ranks=(1,)
        )
    assert (pause.severity, hang.severity, hang.number) == ("warning", "critical", pause.number)
    assert hang.evidence["stalled_ns"] > 9 * float(STALL_S) * 1e9


def test_loader_that_never_returns_is_told_at_the_first_limit(served: Served) -> None:
    line = line_of("time.sleep(FOR_EVER_S)  # the storage")
    said = ("Rank 1", "waits for data for", f"in __getitem__ at {SCRIPT}:{line}, and 2 ranks wait for it in all_reduce")
    with training(served, "load"):
        pause = wait_for_hang(served, "load", "data_wait", *said, ranks=(1,))
    assert pause.severity == "warning"
    assert pause.evidence["stalled_ns"] < 10 * float(STALL_S) * 1e9
