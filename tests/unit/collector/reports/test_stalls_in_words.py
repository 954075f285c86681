"""The sentence on a rank that does not move."""

from rankscope.collector.reports.stalls import describe_stall
from rankscope.collector.reports.status_text import render_run
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import RankUnresponsive
from rankscope.measure.stalls import (
    KernelThread,
    PendingCollective,
    StackFrame,
    Stall,
    ThreadStack,
    find_script_frame,
)

S = 1_000_000_000
IDENTITY = RankIdentity(
    run="bert", rank=1, local_rank=1, world_size=4, node="n0", restart_count=0, boot_id="boot-of-1", pid=7
)
FRAMES = (
    StackFrame("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    StackFrame("/home/me/train.py", 74, "main"),
    StackFrame("<frozen runpy>", 88, "_run_code"),
)


def pending_of(sequence: int) -> PendingCollective:
    return PendingCollective(group="default_pg", op="all_reduce", sequence=sequence, age_ns=31 * S, bytes=3_108)


def rank_of(**known: object) -> RankSnapshot:
    return RankSnapshot(identity=IDENTITY, up=True, **known)  # type: ignore[arg-type]


def stall_of(*pending: PendingCollective, frames: tuple[StackFrame, ...] = FRAMES) -> Stall:
    stacks = (ThreadStack(name="MainThread", frames=frames),)
    return Stall(
        number=1, since_host_ns=0, taken_host_ns=31 * S, limit_ns=30 * S, activity="collective", stacks=stacks,
        pending=pending,
    )  # fmt: skip


def test_a_rank_that_moves_needs_no_sentence() -> None:
    assert describe_stall(rank_of(stalled=False)) is None
    assert describe_stall(rank_of(stall=stall_of())) is None


def test_a_stalled_rank_is_told_with_the_line_of_the_script_and_what_it_waits_for() -> None:
    assert describe_stall(rank_of(stalled=True, stall=stall_of(pending_of(11), pending_of(12)))) == (
        "rank 1 (n0) is stalled in collective at train.py:74 (main), pending for 31.0 s: all_reduce 11 of default_pg, "
        "3108 bytes and 1 more"
    )


def test_a_rank_that_waits_for_nobody_says_so() -> None:
    assert describe_stall(rank_of(stalled=True, stall=stall_of(frames=()))) == (
        "rank 1 (n0) is stalled in collective, no collective is pending"
    )


def test_of_a_stall_that_was_not_described_it_is_said_that_there_is_one() -> None:
    assert describe_stall(rank_of(stalled=True)) == "rank 1 (n0) is stalled"


def test_a_rank_that_does_not_answer_is_told_as_the_kernel_sees_it() -> None:
    thread = KernelThread(thread=7, name="python", state="D", wait_channel="nfs_wait")
    found = RankUnresponsive(
        sequence=1,
        identity=IDENTITY,
        host_ns=1,
        since_host_ns=0,
        state="D",
        threads=(thread,),
        pending=(pending_of(11),),
    )
    assert describe_stall(rank_of(stalled=True, unresponsive=found, stall=stall_of())) == (
        "rank 1 (n0) does not answer: its main thread waits for a device in nfs_wait, its interpreter does not run, "
        "pending for 31.0 s: all_reduce 11 of default_pg, 3108 bytes"
    )


def test_a_stack_without_a_line_of_the_script_has_none() -> None:
    assert find_script_frame(FRAMES[:1]) is None
    assert find_script_frame(FRAMES) == FRAMES[1]


def test_status_shows_it_above_the_table() -> None:
    run = RunSnapshot(run="bert", world_size=4, restart_count=0, ranks=(rank_of(stalled=True, stall=stall_of()),))
    lines = render_run(run).splitlines()
    assert lines[2].startswith("  rank 1 (n0) is stalled in collective at train.py:74 (main)")
    assert lines[4].endswith("  stalled    n0")
