"""Tests of one pass of the watchdog without a sidecar, and of its errors."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankscope.agent.captures.flight_recorder import FlightRecorder
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.sidecar.beacon import AGENT_ENDED, Beacon, Heartbeat, read_heartbeat
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.watchdog import SIDECAR, STALLS, Watchdog
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import GroupInfo
from tests.no_threads import allow_no_threads
from tests.unit.agent.sidecar.ranks_of_a_node import S, identity_of

CONFIG = AgentConfig(sidecar=False, stall_s=30.0)


def watchdog_of(guard: Guard, events: int | None, groups: Mapping[str, GroupInfo] | None = None) -> Watchdog:
    return Watchdog(
        CONFIG,
        identity_of(0, 1),
        guard,
        SystemClock(),
        find_groups=lambda: groups or {},
        count_events=lambda: events,
        captures=GraphCaptures(),
    )


def test_rank_without_events_is_stalled_after_ten_limits() -> None:
    guard = Guard(3)
    watchdog = watchdog_of(guard, events=0)
    assert watchdog.observe(1_000 * S, ()).stall is None
    assert watchdog.observe(1_300 * S, ()).stalled_since_host_ns is None
    found = watchdog.observe(1_301 * S, ())
    assert found.stall is not None
    assert found.stalled_since_host_ns == found.stall.since_host_ns == 1_000 * S
    assert guard.errors == {}


@pytest.mark.parametrize(
    ("changed", "address"), [({}, "10.0.0.1:9"), ({"nccl_ras": "off"}, ""), ({"sidecar": False}, None)]
)
def test_sidecar_knows_where_nccl_is_asked(
    changed: dict[str, Any], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "10.0.0.1:9")
    config = AgentConfig(**changed)
    watchdog = Watchdog(
        config, identity_of(0, 1), Guard(3), SystemClock(), find_groups=dict, count_events=lambda: 0,
        captures=GraphCaptures(),
    )  # fmt: skip
    link = watchdog._link
    assert (None if link is None else link._descriptor.ras_address) == address


@pytest.mark.parametrize(("enabled", "is_read"), [("1", True), ("0", False)])
def test_sidecar_knows_where_nccl_dumps(
    enabled: str, *, is_read: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NCCL_INSPECTOR_ENABLE", enabled)
    monkeypatch.setenv("NCCL_INSPECTOR_DUMP_DIR", str(tmp_path))
    watchdog = Watchdog(
        AgentConfig(), identity_of(0, 77), Guard(3), SystemClock(), find_groups=dict, count_events=lambda: 0,
        captures=GraphCaptures(),
    )  # fmt: skip
    assert watchdog._link is not None
    place = watchdog._link._descriptor.inspector
    assert (place is not None) == is_read
    if place is not None:
        assert place.path == f"{tmp_path}/{socket.gethostname()}-pid77.log"
        assert place.begin_wall_us == pytest.approx(time.time_ns() // 1_000, abs=60 * 10**6)


def test_no_stall_is_reported_while_hooks_are_off() -> None:
    watchdog = watchdog_of(Guard(3), events=None)
    observed = [watchdog.observe(second * S, ()) for second in (0, 1_000, 100_000)]
    assert [(found.stalled_since_host_ns, found.stall) for found in observed] == [(None, None)] * 3


def test_failing_part_is_counted_and_switched_off() -> None:
    guard = Guard(2)

    def fail() -> int:
        raise RuntimeError("no events")

    watchdog = Watchdog(
        CONFIG, identity_of(0, 1), guard, SystemClock(), find_groups=dict, count_events=fail, captures=GraphCaptures()
    )
    for second in range(5):
        assert watchdog.observe(second * S, ()) == ((), None, None)
    assert guard.errors == {STALLS: 2}
    assert guard.is_off(STALLS)
    assert not guard.is_off(SIDECAR)


def test_progress_is_read_every_4_s_or_each_pass_without_events() -> None:
    reads, events = 0, 0

    def dump(*, includeCollectives: bool) -> str:  # noqa: N803 - torch's own name
        nonlocal reads
        assert not includeCollectives
        reads += 1
        status = f'{{"last_enqueued_collective": {reads}, "last_completed_collective": 0}}'
        return f'{{"pg_status": {{"0": {status}}}}}'

    watchdog = Watchdog(
        CONFIG, identity_of(0, 1), Guard(2), SystemClock(), find_groups=dict, count_events=lambda: events,
        captures=GraphCaptures(), recorder=FlightRecorder(dict, GraphCaptures(), {"_dump_fr_trace_json": dump}),
    )  # fmt: skip
    enqueued = []
    for second in range(10):
        events = min(second, 6)  # it stands still from second 6 on
        enqueued.append(watchdog.observe(second * S, ()).progress[0].enqueued)
    assert enqueued == [1, 1, 1, 1, 2, 2, 2, 3, 4, 5]


def test_switched_off_sidecar_part_is_no_frozen_rank(tmp_path: Path) -> None:
    """No heartbeat follows any more, and the sidecar must not wait for one."""
    guard, identity = Guard(1), identity_of(0, os.getpid())
    watchdog = Watchdog(
        AgentConfig(sidecar=True), identity, guard, SystemClock(),
        find_groups=dict, count_events=lambda: 0, captures=GraphCaptures(),
    )  # fmt: skip
    link = watchdog._link
    assert link is not None
    link._beacon = Beacon(str(tmp_path), link._descriptor, Heartbeat(1))
    watchdog.observe(2 * S, ())
    assert read_heartbeat(str(tmp_path), identity.boot_id) == Heartbeat(2 * S)
    guard.record(SIDECAR, OSError("no room"))
    watchdog.observe(3 * S, ())
    assert read_heartbeat(str(tmp_path), identity.boot_id) == Heartbeat(2 * S, state=AGENT_ENDED)


def test_start_and_stop_without_a_sidecar() -> None:
    guard = Guard(2)
    watchdog = watchdog_of(guard, events=0)
    watchdog.start()
    watchdog.set_collector(CollectorAddress("tcp://collector:1"))
    watchdog.stop(0, is_acknowledged=True)
    assert guard.errors == {}


def test_without_a_thread_stalls_are_seen_and_no_sidecar_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(3)
    watchdog = Watchdog(
        AgentConfig(stall_s=30.0), identity_of(0, 1), guard, SystemClock(), find_groups=dict, count_events=lambda: 0,
        captures=GraphCaptures(),
    )  # fmt: skip
    allow_no_threads(monkeypatch)
    watchdog.start()
    assert guard.errors == {SIDECAR: 1}
    stalls = [watchdog.observe(at_s * S, ()).stall for at_s in (1_000, 1_300, 1_301)]
    assert stalls[-1] is not None
    watchdog.stop(0, is_acknowledged=True)
    assert guard.errors == {SIDECAR: 1}
