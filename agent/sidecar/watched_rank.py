"""What the sidecar knows of a rank process that it watches, and the notice about its end."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rankscope.agent.captures.crash_stacks import CAUGHT, parse_crash
from rankscope.agent.captures.stacks import find_torch_folder
from rankscope.agent.sidecar.beacon import Descriptor, Heartbeat
from rankscope.agent.sidecar.endings import EndEvidence, classify_ending
from rankscope.agent.sidecar.exit_status import ExitStatus
from rankscope.agent.sidecar.oom_kills import OomKills
from rankscope.measure.clock import Clock
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.stalls import PendingCollective
from rankscope.measure.units import NS_PER_S

EARLY_NS_MAX: Final = NS_PER_S
"""Tolerance of timeouts: the recorder's age of a collective and the watchdog's timeout start slightly apart."""


@dataclass
class WatchedRank:
    """A running rank. `inspected_ns` is the time of the last inspection in the present freeze."""

    descriptor: Descriptor
    pidfd: int | None
    ooms: OomKills
    inspected_ns: int | None = None
    pending: tuple[PendingCollective, ...] = ()
    deadline_ns: int | None = None

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.descriptor.identity.pid

    def describe_end(
        self, clock: Clock, heartbeat: Heartbeat, status: ExitStatus | None, crash: str, absent: Mapping[str, str]
    ) -> RankEnded:
        """Return the notice about its end, by its last heartbeat, its exit status and what faulthandler wrote."""
        now_ns = clock.monotonic_ns()
        number = None if status is None else status.signal
        may_be_killed = status is None or number == signal.SIGKILL
        deadlines_ns = (heartbeat.deadline_host_ns, self.deadline_ns)
        evidence = EndEvidence(
            oom_kills=self.ooms.claim(now_ns) if may_be_killed else None,
            oom_place=self.ooms.place,
            overdue=any(at is not None and now_ns >= at - EARLY_NS_MAX for at in deadlines_ns),
            stalled=heartbeat.stalled_since_host_ns is not None,
            frozen=self.inspected_ns is not None,
            crashed=bool(crash),
        )
        ending = classify_ending(status, evidence)
        return RankEnded(
            sequence=1,
            identity=self.descriptor.identity,
            host_ns=now_ns,
            wall_ns=clock.wall_ns(),
            reason=ending.reason,
            detail=ending.detail[:1024],
            exit_code=None if status is None else status.exit_code,
            signal=number,
            core_dumped=None if status is None else status.core_dumped,
            oom_kills=evidence.oom_kills,
            last_step=heartbeat.last_step,
            pending=self.pending,
            stacks=parse_crash(crash, find_torch_folder()) if status is None or number in CAUGHT else (),
            absent=dict(absent),
        )
