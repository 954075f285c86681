"""The sentence for a stalled rank."""

import msgspec
import pytest

from rankscope.collector.reports.status_text import describe_stall
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.identity import RankIdentity
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.stalls import (
    KernelThread,
    PendingCollective,
    StackFrame,
    Stall,
    StallSamples,
    ThreadStack,
    find_script_frame,
)
from tests.unit.collector.reports.whole_run import render_run

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


def test_rank_without_stall_has_no_sentence() -> None:
    assert describe_stall(rank_of(stalled=False)) is None
    assert describe_stall(rank_of(stall=stall_of())) is None


def test_stalled_rank_has_script_line_and_collective() -> None:
    assert describe_stall(rank_of(stalled=True, stall=stall_of(pending_of(11), pending_of(12)))) == (
        "rank 1 (n0) is stalled in collective at train.py:74 (main), pending for 31.0 s: all_reduce 11 of default_pg, "
        "3108 bytes and 1 more"
    )


def test_rank_without_pending_collective_is_described() -> None:
    assert describe_stall(rank_of(stalled=True, stall=stall_of(frames=()))) == (
        "rank 1 (n0) is stalled in collective, no collective is pending"
    )


def test_receive_that_is_not_recorded_has_no_number() -> None:
    receives = PendingCollective(group="default_pg", op="recv 1<-0", sequence=0, age_ns=31 * S)
    assert describe_stall(rank_of(stalled=True, stall=stall_of(receives))) == (
        "rank 1 (n0) is stalled in collective at train.py:74 (main), pending for 31.0 s: recv 1<-0 of default_pg"
    )


@pytest.mark.parametrize(
    ("frame", "place"), [(StackFrame("/home/me/train.py", 55, "evaluate"), " at train.py:55 (evaluate)"), (None, "")]
)
def test_busy_rank_is_not_called_stalled(frame: StackFrame | None, place: str) -> None:
    samples = StallSamples(count=15, span_ns=15 * S, changes=4, cpu_ns=0, frame=frame)
    busy = msgspec.structs.replace(stall_of(), activity="other", samples=samples)
    assert describe_stall(rank_of(stalled=True, stall=busy)) == f"rank 1 (n0) is busy without training{place}"


def test_stall_without_details_is_still_reported() -> None:
    assert describe_stall(rank_of(stalled=True)) == "rank 1 (n0) is stalled"


def test_unresponsive_rank_has_the_kernels_thread_state() -> None:
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


def test_stack_without_script_line_has_no_place() -> None:
    assert find_script_frame(FRAMES[:1]) is None
    assert find_script_frame(FRAMES) == FRAMES[1]


def test_status_shows_stall_above_the_table() -> None:
    run = RunSnapshot(run="bert", world_size=4, restart_count=0, ranks=(rank_of(stalled=True, stall=stall_of()),))
    lines = render_run(run).splitlines()
    assert lines[2].startswith("  rank 1 (n0) is stalled in collective at train.py:74 (main)")
    assert lines[4].endswith("  stalled    n0")
