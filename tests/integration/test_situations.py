"""What goes wrong, or only takes long, in jobs over gloo, told as it is: who is named, why, and how severe it is."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.serving import Served, have_ended, read_url, serving
from tests.integration.torchrun import SCRIPTS, Job, forked_ranks, started

STALL_S = "1.0"
LIMIT_NS = 1_000_000_000
AT = 10
"""The step in which it happens."""
STEP = AT + 1
COLLECTIVE = 2 * AT + 1
"""The collective of all ranks in front of which it happens: each step before has had two."""
ALL_REDUCE = f"all_reduce {COLLECTIVE} of default_pg (3108 bytes)"
"""777 floats of 4 bytes."""
SCRIPT = "situations.py"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


@contextlib.contextmanager
def training(
    served: Served,
    *what: str,
    run: str = "",
    at: int = AT,
    pause_s: float = 0.01,
    go_on: Path | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[Job]:
    """A job of three ranks, in whose step `at` this happens; its run has the name of what happens first. An evaluation
    ends once the file `go_on` exists.
    """
    environment = {
        "RANKSCOPE_COLLECTOR": served.endpoint,
        "RANKSCOPE_RUN": run or what[0],
        "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_STALL_S": STALL_S,
        "SITUATION_GOES_ON": str(go_on),
    }
    options = ("--what", *what, "--at", str(at), "--pause-s", str(pause_s), *options)
    with started(forked_ranks(3, "-m", "rankscope.agent", SCRIPT, *options), environment) as job:
        yield job


def wait_for_hang(served: Served, name: str, cause: str, ranks: tuple[int, ...], said: str) -> Finding:
    """The open finding of that cause about these ranks, once its sentence matches. On a busy machine a start may look
    like a stall, and the first sentence may be of a moment in which not all ranks have stalled.
    """

    def find(run: RunSnapshot) -> list[Finding]:
        hangs = [one for one in run.open_findings if (one.kind, one.cause, one.ranks) == ("hang", cause, ranks)]
        return [one for one in hangs if re.search(said, one.sentence)]

    return find(served.wait_for_run(name, lambda run: bool(find(run))))[0]


def line_of(text: str) -> int:
    """The number of the only line of the script that ends with the text."""
    lines = (SCRIPTS / SCRIPT).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return found


def named(run: RunSnapshot) -> set[tuple[str, tuple[int, ...], str]]:
    """Cause, ranks and severity of every hang that was found from that step on."""
    hangs = [one for one in run.findings if one.kind == "hang" and (one.since_step or 0) >= STEP]
    return {(one.cause, one.ranks, one.severity) for one in hangs}


# -- healthy ranks that others wait for -------------------------------------------------------------------------------


def test_evaluation_on_rank_0_is_a_pause_and_no_hang(served: Served, tmp_path: Path) -> None:
    # Before it rank 0 saves and compiles, each for five limits.
    said = rf"^Pause .*: rank 0 .* busy without training in evaluate at {SCRIPT}:\d+\. 2 ranks waiting for it in "
    with training(served, "save", "compile", "evaluate", go_on=tmp_path / "evaluated") as job:
        pause = wait_for_hang(served, "save", "busy_rank", (0,), said)
        (tmp_path / "evaluated").touch()
        assert job.wait().exit_code == 0
    assert (pause.severity, pause.group, pause.since_step) == ("warning", "default_pg", STEP + 8)
    assert pause.headline.startswith(f"Pause in step {STEP + 8} for ")
    run = served.wait_for_run("save", lambda run: have_ended(run) and not run.open_findings)
    assert named(run) == {("busy_rank", (0,), "warning")}, [one.sentence for one in run.findings]
    (told,) = [one for one in run.findings if one.number == pause.number]
    assert re.search(rf"busy without training in evaluate at {SCRIPT}:\d+$", told.headline)
    assert re.match(rf"Pause in step {STEP + 8} for \d+ s .*, then the run went on: rank 0", told.headline)
    # The first call of torch.compile in a process imports for seconds, then compiles, and then runs what it has
    # compiled: the last stack before the run went on may be of any of these.
    for doing, step in (
        (rf"write at {SCRIPT}:\d+ \(checkpoint\)", STEP),
        (rf"(compile_for_long|backend) at {SCRIPT}:\d+( \((import|compile)\))?", STEP + 4),
    ):
        before = rf"^Pause .*: rank 0 .* busy without training in {doing}\. \d ranks? waiting"
        (sentence,) = [one.sentence for one in run.findings if one.kind == "hang" and one.since_step == step]
        assert re.search(before, sentence), sentence


def test_evaluation_in_small_pieces_is_a_pause_too(served: Served, tmp_path: Path) -> None:
    said = rf"^Pause .*: rank 0 .* busy without training in evaluate_in_pieces at {SCRIPT}:\d+\. 2 ranks waiting for it"
    with training(served, "pieces", go_on=tmp_path / "evaluated") as job:
        pause = wait_for_hang(served, "pieces", "busy_rank", (0,), said)
        (tmp_path / "evaluated").touch()
        assert job.wait().exit_code == 0
    assert pause.severity == "warning"
    run = served.wait_for_run("pieces", lambda run: have_ended(run) and not run.open_findings)
    assert named(run) == {("busy_rank", (0,), "warning")}, [one.sentence for one in run.findings]


def test_loader_that_never_returns_is_told_at_the_first_limit(served: Served) -> None:
    line = line_of("time.sleep(FOR_EVER_S)  # the storage")
    said = rf"^Pause .*: rank 1 .* waiting for data in __getitem__ at {SCRIPT}:{line}\. 2 ranks waiting for it in "
    with training(served, "load"):
        pause = wait_for_hang(served, "load", "data_wait", (1,), said + re.escape(ALL_REDUCE))
    assert pause.severity == "warning"
    assert pause.evidence["stalled_ns"] < 10 * LIMIT_NS


def test_endless_loop_is_a_hang_after_ten_limits(served: Served) -> None:
    busy = (
        rf" in step {STEP} .*: rank 1 .* busy without training in loop_for_ever at {SCRIPT}:\d+\. "
        r"2 ranks waiting for it"
    )
    with training(served, "loop"):
        pause = wait_for_hang(served, "loop", "busy_rank", (1,), f"^Pause{busy}")
        hang = wait_for_hang(served, "loop", "missing_rank", (1,), f"^Hang{busy}")
    assert (pause.severity, hang.severity, hang.number) == ("warning", "critical", pause.number)
    assert hang.evidence["stalled_ns"] > 9 * LIMIT_NS


# -- ranks that others wait for outside of any collective --------------------------------------------------------------

PREPARES = "time.sleep(FOR_EVER_S)  # prepares data"


@pytest.mark.parametrize(
    ("what", "inside", "call"),
    [
        ("store", "store", 'store.wait(["prepared"], timedelta(seconds=FOR_EVER_S))'),
        ("monitored", "collective", "dist.monitored_barrier(timeout=timedelta(seconds=FOR_EVER_S))"),
    ],
)
def test_rank_awaited_in_an_unrecorded_call_is_named(served: Served, what: str, inside: str, call: str) -> None:
    said = (
        rf"^Hang in step {STEP} .*: rank 1 .* stalled at {SCRIPT}:{line_of(PREPARES)} \(prepare_data\)\. "
        rf"Waiting for it: ranks 0, 2 stalled in {inside} at {SCRIPT}:{line_of(call)} \(\w+\)\."
    )
    with training(served, what):
        hang = wait_for_hang(served, what, "missing_rank", (1,), said)
        run = served.wait_for_run(what, lambda run: bool(run.open_findings))
        assert named(run) == {("missing_rank", (1,), "critical")}, [one.sentence for one in run.findings]
    assert (hang.group, hang.evidence["waiting_ranks"]) == (None, 2)


@pytest.mark.parametrize(
    ("what", "call"), [("queue", "queue.Queue[int]().get()"), ("future", "torch.futures.Future[int]().wait()")]
)
def test_rank_that_waits_for_its_own_thread_is_named(served: Served, what: str, call: str) -> None:
    said = rf"^Hang .*: rank 1 .* stalled at {SCRIPT}:{line_of(call)} \(wait_\w+\)\. 2 ranks waiting for it in "
    with training(served, what):
        hang = wait_for_hang(served, what, "missing_rank", (1,), said + re.escape(ALL_REDUCE))
    assert hang.severity == "critical"


# -- stopped processes ------------------------------------------------------------------------------------------------

STOPPED = r"^Hang .*: rank 1 .* not responding, its process stopped \(state T\)\. 2 ranks waiting for it in "


def test_rank_stopped_amid_communication_is_named(served: Served) -> None:
    # Without pauses nearly every report falls into a collective.
    with training(served, "stop", at=400, pause_s=0.0):
        hang = wait_for_hang(served, "stop", "missing_rank", (1,), STOPPED + "all_reduce 801 of default_pg")
    assert (hang.severity, hang.group) == ("critical", "default_pg")


def test_rank_stopped_in_its_first_step_is_named(served: Served) -> None:
    with training(served, "stop", run="stop-early", at=0):
        hang = wait_for_hang(served, "stop-early", "missing_rank", (1,), STOPPED + "all_reduce 1 of default_pg")
    assert hang.severity == "critical"


# -- collectives that do not match ------------------------------------------------------------------------------------


def test_rank_missing_in_a_sub_group_is_named_with_it(served: Served) -> None:
    line = line_of("time.sleep(FOR_EVER_S)  # in front of the sub-group")
    # Rank 0 waits for it in the sub-group, rank 2 in that of all: it depends on their reports which is said first.
    waits = rf"(1 of undefined/0-1 \(12 bytes\)|{COLLECTIVE} of default_pg \(3108 bytes\))"
    said = (
        rf"^Hang in step {STEP} .*: rank 1 .* stalled at {SCRIPT}:{line} \(miss_sub_group\)\. "
        rf"1 rank waiting for it in all_reduce {waits}.*\. 1 more rank waiting in other collectives\."
    )
    with training(served, "sub_group"):
        hang = wait_for_hang(served, "sub_group", "missing_rank", (1,), said)
    assert (hang.severity, hang.group in {"undefined/0-1", "default_pg"}) == ("critical", True)


def test_two_groups_in_crossed_order_are_a_deadlock(served: Served) -> None:
    said = (
        rf"^Hang in step {STEP} .*: ranks 0-1 waiting for each other\. Rank 0 in all_reduce 1 of undefined/0-1 "
        r"for rank 1, rank 1 in all_reduce 1 of undefined/0-1#2 for rank 0\."
    )
    with training(served, "cross"):
        hang = wait_for_hang(served, "cross", "deadlock", (0, 1), said)
    assert hang.severity == "critical"


def test_other_operation_on_one_rank_is_told_once(served: Served) -> None:
    said = (
        rf"^Hang in step {STEP} .*: collective {COLLECTIVE} of default_pg not the same on all ranks\. "
        r"All_reduce of 3108 bytes on ranks 0, 2, all_gather on rank 1\."
    )
    with training(served, "operation"):
        wait_for_hang(served, "operation", "order_mismatch", (), said)
        run = served.wait_for_run("operation", lambda run: bool(run.open_findings))
        assert named(run) == {("order_mismatch", (), "critical")}
        told = json.loads(read_url(f"{served.url}/api/v1/incidents"))["incidents"]
    changes = [one["changes"] for one in told if (one["run"], one["kind"]) == ("operation", "hang")]
    # It was never told by another cause.
    assert [[change["what"] for change in one] for one in changes] == [["opened"]]


def test_receiver_of_what_nobody_sends_is_not_blamed_alone(served: Served) -> None:
    said = (
        rf"^Hang in step {STEP} .*: ranks 0-1 waiting for each other\. Rank 0 in all_reduce {COLLECTIVE} of default_pg "
        r"for rank 1, rank 1 in recv 1<-0 of default_pg for rank 0\."
    )
    with training(served, "send"):
        hang = wait_for_hang(served, "send", "deadlock", (0, 1), said)
    assert hang.severity == "critical"


def test_rank_that_skips_a_collective_is_told_by_what_it_calls(served: Served) -> None:
    said = (
        rf"^Hang in step {STEP} .*: collective {COLLECTIVE} of default_pg not the same on all ranks\. "
        r"All_reduce of 3108 bytes on ranks 0, 2, broadcast of 20 bytes on rank 1\."
    )
    with training(served, "skip"):
        hang = wait_for_hang(served, "skip", "order_mismatch", (), said)
    assert (hang.severity, hang.group) == ("critical", "default_pg")


def test_skipped_collective_explains_the_slower_run(served: Served) -> None:
    # From then on ranks 0 and 2 wait in their last all_reduce for the first one that rank 1 calls in its next step.
    # Before it there are steps enough without what a busy machine does while a job begins, and longer than its noise.
    options, at = ("--equal", "2", "--steps-after", "3000"), 160
    with training(served, "shift", at=at, pause_s=0.03, options=options):
        served.wait_for_run("shift", lambda run: any(one.run_slowdown_ratio for one in find_shifts(run)))
        run = served.wait_for_steps("shift", at + 200)
    (shift,) = find_shifts(run)
    assert (shift.ranks, shift.group, shift.severity) == ((1,), "default_pg", "warning")
    first, last = shift.since_range or (0, 0)
    assert first <= at + 1 <= last + 1
    assert shift.run_slowdown_ratio is not None
    assert shift.run_slowdown_ratio > 1.2, shift.sentence
    # A busy machine may slow the run, or a rank, at another time.
    others = [one for one in run.open_findings if one.kind in {"run_slowdown", "slow_link", "straggler"}]
    since = [(one.kind, one.since_step) for one in others]
    assert [step for _, step in since if step is not None and first - 16 <= step <= last + 16] == [], since


def find_shifts(run: RunSnapshot) -> list[Finding]:
    """The open findings about ranks that are collectives behind."""
    return [one for one in run.open_findings if one.kind == "unmatched_collectives"]


def test_other_size_on_one_rank_ends_the_run_by_that_rank(served: Served) -> None:
    # gloo aborts the process whose buffer is too small for what arrives; the others see their connections close.
    with training(served, "size") as job:
        assert job.wait().exit_code != 0
    run = served.wait_for_run("size", have_ended)
    assert run.ranks[1].ended == "crashed", [(rank.ended, rank.ended_detail) for rank in run.ranks]
    assert named(run) <= {("dead_rank", (1,), "critical")}
