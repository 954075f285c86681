"""One look of the watchdog, without a sidecar; what fails in it costs nothing else."""

import os
from collections.abc import Mapping
from pathlib import Path

from rankscope.agent.capture.flight_recorder import FlightRecorder
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.sidecar.beacon import LEFT, Beacon, Heartbeat, read_heartbeat
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.watchdog import SIDECAR, STALLS, Watchdog
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import GroupInfo
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of

CONFIG = AgentConfig(sidecar=False, stall_s=30.0)


def watchdog_of(guard: Guard, moments: int | None, groups: Mapping[str, GroupInfo] | None = None) -> Watchdog:
    return Watchdog(
        CONFIG,
        identity_of(0, 1),
        guard,
        SystemClock(),
        find_groups=lambda: groups or {},
        read_moments=lambda: moments,
        captures=GraphCaptures(),
    )


def test_a_rank_without_moments_for_ten_limits_is_stalled_from_its_start_on() -> None:
    guard = Guard(3)
    watchdog = watchdog_of(guard, moments=0)
    assert watchdog.look(1_000 * S, ()).stall is None
    assert watchdog.look(1_300 * S, ()).stalled_since_host_ns is None
    look = watchdog.look(1_301 * S, ())
    assert look.stall is not None
    assert look.stalled_since_host_ns == look.stall.since_host_ns == 1_000 * S
    assert guard.errors == {}


def test_where_the_hooks_are_off_nobody_knows_and_no_stall_is_made_up() -> None:
    watchdog = watchdog_of(Guard(3), moments=None)
    looks = [watchdog.look(second * S, ()) for second in (0, 1_000, 100_000)]
    assert [(look.stalled_since_host_ns, look.stall) for look in looks] == [(None, None)] * 3


def test_what_fails_is_counted_and_switched_off_and_the_report_goes_out() -> None:
    guard = Guard(2)

    def fail() -> int:
        raise RuntimeError("no moments")

    watchdog = Watchdog(
        CONFIG, identity_of(0, 1), guard, SystemClock(), find_groups=dict, read_moments=fail, captures=GraphCaptures()
    )
    for second in range(5):
        assert watchdog.look(second * S, ()) == ((), None, None)
    assert guard.errors == {STALLS: 2}
    assert guard.is_off(STALLS)
    assert not guard.is_off(SIDECAR)


def test_progress_is_read_every_four_seconds_while_training_moves_and_at_each_look_when_it_does_not() -> None:
    reads, moments = 0, 0

    def dump(*, includeCollectives: bool) -> str:  # noqa: N803 - torch's own name
        nonlocal reads
        assert not includeCollectives
        reads += 1
        status = f'{{"last_enqueued_collective": {reads}, "last_completed_collective": 0}}'
        return f'{{"pg_status": {{"0": {status}}}}}'

    watchdog = Watchdog(
        CONFIG, identity_of(0, 1), Guard(2), SystemClock(), find_groups=dict, read_moments=lambda: moments,
        captures=GraphCaptures(), recorder=FlightRecorder(dict, GraphCaptures(), {"_dump_fr_trace_json": dump}),
    )  # fmt: skip
    enqueued = []
    for second in range(10):
        moments = min(second, 6)  # it stands still from second 6 on
        enqueued.append(watchdog.look(second * S, ()).progress[0].enqueued)
    assert enqueued == [1, 1, 1, 1, 2, 2, 2, 3, 4, 5]


def test_a_sidecar_part_that_is_switched_off_is_not_taken_for_a_frozen_rank(tmp_path: Path) -> None:
    """No heartbeat follows any more, and the sidecar must not wait for one."""
    guard, identity = Guard(1), identity_of(0, os.getpid())
    watchdog = Watchdog(
        AgentConfig(sidecar=True), identity, guard, SystemClock(),
        find_groups=dict, read_moments=lambda: 0, captures=GraphCaptures(),
    )  # fmt: skip
    link = watchdog._link
    assert link is not None
    link._beacon = Beacon(str(tmp_path), link._descriptor, Heartbeat(1))
    watchdog.look(2 * S, ())
    assert read_heartbeat(str(tmp_path), identity.boot_id) == Heartbeat(2 * S)
    guard.record(SIDECAR, OSError("no room"))
    watchdog.look(3 * S, ())
    assert read_heartbeat(str(tmp_path), identity.boot_id) == Heartbeat(2 * S, state=LEFT)


def test_starting_and_stopping_without_a_sidecar_leaves_nothing() -> None:
    guard = Guard(2)
    watchdog = watchdog_of(guard, moments=0)
    watchdog.start()
    watchdog.set_collector(CollectorAddress("tcp://collector:1"))
    watchdog.stop(0, is_acknowledged=True)
    assert guard.errors == {}
