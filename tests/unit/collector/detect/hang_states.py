"""Hand-written states of stalled ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.detector import Hangs
from rankscope.collector.detect.view import Candidate, RunView
from rankscope.measure.identity import RankIdentity
from rankscope.measure.node_messages import RankUnresponsive
from rankscope.measure.stalls import (
    GroupStatus,
    KernelThread,
    PendingCollective,
    StackFrame,
    Stall,
    StallSamples,
    ThreadStack,
)
from tests.unit.collector.steps.step_series import series_of, view_of

S = 1_000_000_000
STALLED_NS = 40 * S
LIMIT_NS = 30 * S
NOW_NS = 1_000 * S
BEGAN_NS = NOW_NS - STALLED_NS
WORLD = "default_pg"

Counters = Mapping[str, tuple[int | None, int | None]]
"""By group the last sequence enqueued and completed."""


def progress_of(counters: Counters) -> tuple[GroupStatus, ...]:
    return tuple(
        GroupStatus(group=group, enqueued=enqueued, completed=completed)
        for group, (enqueued, completed) in counters.items()
    )


def call(group: str = WORLD, sequence: int = 8, op: str = "all_reduce", size: int | None = 4_096) -> PendingCollective:
    return PendingCollective(group=group, op=op, sequence=sequence, age_ns=STALLED_NS, bytes=size)


def stall_of(
    activity: str = "other",
    pending: Sequence[PendingCollective] = (),
    *,
    line: int | None = 74,
    absent: Mapping[str, str] | None = None,
    samples: StallSamples | None = None,
) -> Stall:
    frames = () if line is None else (StackFrame("/home/me/train.py", line, "main"),)
    return Stall(
        number=1,
        since_host_ns=0,
        taken_host_ns=LIMIT_NS,
        limit_ns=LIMIT_NS,
        activity=activity,
        stacks=(ThreadStack(name="MainThread", frames=frames),) if frames else (),
        pending=tuple(pending),
        absent=absent or {},
        samples=samples,
    )


def still(
    counters: Counters | None = None,
    *pending: PendingCollective,
    activity: str = "other",
    stalled_ns: int | None = STALLED_NS,
    since_collector_ns: int | None = None,
    last_step: int | None = 6,
    stall: Stall | None = None,
) -> RankHangState:
    """A rank that is stalled; by default not in a collective, at a line of its script."""
    return RankHangState(
        is_stalled=True,
        stalled_ns=stalled_ns,
        since_collector_ns=since_collector_ns,
        last_step=last_step,
        progress=progress_of(counters or {}),
        stall=stall or stall_of(activity, pending),
    )


EVALUATES = StackFrame("/home/me/train.py", 55, "evaluate")
MOVES = StallSamples(count=15, span_ns=15 * S, changes=3, cpu_ns=0, frame=EVALUATES)
COMPUTES = StallSamples(count=15, span_ns=15 * S, changes=0, cpu_ns=15 * S, frame=EVALUATES)
STANDS = StallSamples(count=15, span_ns=15 * S, changes=0, cpu_ns=S // 10, frame=EVALUATES)


def busy(
    samples: StallSamples = MOVES, *, counters: Counters | None = None, stalled_ns: int = STALLED_NS, **changes: Any
) -> RankHangState:
    """A rank without hook events, by default in work of its script in front of the collective that others wait in."""
    stall = stall_of(**changes, samples=samples)
    return still(counters or {WORLD: (7, 7)}, stall=stall, stalled_ns=stalled_ns)


def waits(group: str = WORLD, sequence: int = 8, *, op: str = "all_reduce", size: int | None = 4_096) -> RankHangState:
    """A rank that is stalled in a collective, the one behind the last that has completed there."""
    counters = {group: (sequence, sequence - 1)}
    return still(counters, call(group, sequence, op, size), activity="collective")


def moving(counters: Counters | None = None) -> RankHangState:
    """A rank that is not stalled."""
    return RankHangState(is_stalled=False, progress=progress_of(counters or {WORLD: (7, 7)}))


def dead(
    reason: str = "killed", ended_collector_ns: int | None = BEGAN_NS, counters: Counters | None = None
) -> RankHangState:
    """A rank that ended badly by itself, by default when the others came to a standstill."""
    return RankHangState(
        ended=reason,
        ended_detail="SIGKILL",
        ended_collector_ns=ended_collector_ns,
        failed_collector_ns=ended_collector_ns,
        progress=progress_of(counters or {WORLD: (7, 7)}),
    )


def ended(reason: str, ended_collector_ns: int | None = BEGAN_NS, counters: Counters | None = None) -> RankHangState:
    """A rank whose end others have caused, or that ended well."""
    progress = progress_of(counters or {WORLD: (7, 7)})
    return RankHangState(ended=reason, ended_collector_ns=ended_collector_ns, progress=progress)


def silent(counters: Counters | None = None, *, is_stalled: bool | None = False) -> RankHangState:
    """A rank that is not heard of any more."""
    return RankHangState(ended="silent", is_stalled=is_stalled, progress=progress_of(counters or {WORLD: (7, 7)}))


def frozen(
    counters: Counters | None = None,
    *pending: PendingCollective,
    threads: Sequence[KernelThread] = (),
    state: str = "S",
    reported: Counters | None = None,
    absent: Mapping[str, str] | None = None,
) -> RankHangState:
    """A rank whose interpreter is held, as its sidecar sees it; its own older report has other counters."""
    identity = RankIdentity(
        run="story", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-of-it", pid=7
    )
    seen = RankUnresponsive(
        sequence=1,
        identity=identity,
        host_ns=STALLED_NS,
        since_host_ns=0,
        state=state,
        threads=tuple(threads),
        progress=progress_of(counters or {}),
        pending=tuple(pending),
        absent=absent or {},
    )
    reported = {WORLD: (7, 7)} if reported is None else reported
    return RankHangState(is_stalled=True, stalled_ns=STALLED_NS, unresponsive=seen, progress=progress_of(reported))


def stopped(reported: Counters, state: str = "T") -> RankHangState:
    """A rank whose process runs nothing, so that only its last report has counters."""
    return frozen(state=state, reported=reported, absent={"pending": "timed out"})


def view_on(
    hang_states: Mapping[int, RankHangState],
    groups: Mapping[str, tuple[int, ...]] | None = None,
    world: int | None = None,
) -> RunView:
    """Build a run at NOW_NS, whose ranks are all in one group unless stated otherwise."""
    world = max(hang_states, default=0) + 1 if world is None else world
    return view_of(
        series_of([[10.0] * world]),
        groups=groups or {WORLD: tuple(range(world))},
        nodes=dict.fromkeys(range(world), "node-a"),
        now_collector_ns=NOW_NS,
        hang_states=hang_states,
    )


def find_hang(view: RunView) -> Finding:
    """The hang that is found in a view; fails where detection abstains."""
    found = Hangs().find(view, ())
    assert not isinstance(found, Abstain), found
    (candidate,) = found
    assert isinstance(candidate, Candidate)
    return candidate.finding
