"""Simulate data parallel training over gloo, of which the parts of every step on every rank are given.

Apart from `engine.py`: one all_reduce a step, at the end of backward, in which each rank waits for the last one; or
others, at the begin or the end of the phases in `meets`. Windows see few steps, as those of the agent do on a CPU.
Ranks report once a second.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.records import PHASES, CollectiveRecord, GroupInfo, HostSample, StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.simulation.collector_end import CollectorEnd

Parts = dict[str, npt.NDArray[np.float64]]
"""The own time of each rank in each phase of a step, shape (ranks,) in ms."""
RUN: Final = "host-job"
GROUP: Final = "dp"
TRANSFER_MS: Final = 0.5
REPORT_NS: Final = NS_PER_S
MEETS: Final[Mapping[str, str]] = {"backward": "end"}


def see_few(step: int) -> bool:
    """Return whether a window sees this step: four in 64, as on a CPU."""
    return step % 64 in {20, 21, 22, 23}


class HostJob:
    """A job and its collector. `parts` gives the own times of a step, `sees` whether a window sees it; `paused` the
    pauses of Python's garbage collector in it, shape (ranks,) in ms, which are within the parts. `order`: the phases as
    they come in a step; `meets`: `{phase: "begin" or "end"}` where all ranks wait for each other. What a rank does
    itself in backward is on its CPU.
    """

    def __init__(
        self,
        ranks: int,
        parts: Callable[[int], Parts],
        *,
        sees: Callable[[int], bool] = see_few,
        paused: Callable[[int], npt.NDArray[np.float64]] | None = None,
        order: Sequence[str] = PHASES,
        meets: Mapping[str, str] = MEETS,
    ) -> None:
        self._order, self._meets, self._sequence = order, meets, 0
        self._parts, self._sees, self._paused = parts, sees, paused
        self.end = CollectorEnd(RUN, ranks, CollectorConfig())
        self._group = GroupInfo(label=GROUP, description="dp", ranks=tuple(range(ranks)), backend="gloo")
        self._builders = [ReportBuilder() for _ in range(ranks)]
        self._now_ns = np.zeros(ranks, dtype=np.int64)
        self._pause_ns = np.zeros(ranks, dtype=np.int64)
        self._pending: list[list[StepRecord]] = [[] for _ in range(ranks)]
        self._calls: list[list[CollectiveRecord]] = [[] for _ in range(ranks)]
        self._seen: list[int] = []
        self._reported_ns = 0
        self.step = 0
        self.passes: list[tuple[int, tuple[Finding, ...]]] = []
        """The open findings of every pass, after how many steps."""
        for rank in range(ranks):
            identity = RankIdentity(
                run=RUN, rank=rank, local_rank=rank, world_size=ranks, node="vm", restart_count=0,
                boot_id=f"host-job-{rank}", pid=100 + rank,
            )  # fmt: skip
            hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=REPORT_NS)
            self.end.receive(identity.boot_id, encode(hello), 0)

    def run(self, steps: int) -> Sequence[Finding]:
        """Make so many steps and return the findings that are open then."""
        for _ in range(steps):
            self._make_step()
            if int(self._now_ns.max()) - self._reported_ns >= REPORT_NS:
                self._report()
        self._report()
        return self.end.run.open_findings

    @property
    def now_ns(self) -> int:
        """The time of the rank that is ahead."""
        return int(self._now_ns.max())

    def _make_step(self) -> None:
        own_ns = {name: (NS_PER_MS * ms).astype(np.int64) for name, ms in self._parts(self.step).items()}
        begin_ns = self._now_ns
        lasted_ns: dict[str, npt.NDArray[np.int64]] = {}
        for name in self._order:
            entered_ns = self._now_ns
            if self._meets.get(name) == "begin":
                self._meet()
            self._now_ns = self._now_ns + own_ns[name]
            if self._meets.get(name) == "end":
                self._meet()
            lasted_ns[name] = self._now_ns - entered_ns
        if self._paused is not None:
            self._pause_ns = self._pause_ns + (NS_PER_MS * self._paused(self.step)).astype(np.int64)
        if self._sees(self.step):
            self._seen.append(self.step)
        for rank, records in enumerate(self._pending):
            phases_ns = {name: int(lasted_ns[name][rank]) for name in self._order}
            records.append(
                StepRecord(
                    step=self.step, start_host_ns=int(begin_ns[rank]), duration_ns=sum(phases_ns.values()),
                    phases_ns=phases_ns, batches=1, backwards=1,
                    backward_cpu_ns=int(own_ns["backward"][rank]),
                )
            )  # fmt: skip
        self.step += 1

    def _meet(self) -> None:
        """Make all ranks wait for the last one."""
        called_ns, left_ns = self._now_ns, int(self._now_ns.max()) + int(NS_PER_MS * TRANSFER_MS)
        self._now_ns = np.full_like(called_ns, left_ns)
        self._sequence += 1
        for rank, calls in enumerate(self._calls if self._sees(self.step) else ()):
            calls.append(
                CollectiveRecord(
                    step=self.step, group=GROUP, op="all_reduce", start_host_ns=int(called_ns[rank]),
                    duration_ns=left_ns - int(called_ns[rank]), sequence=self._sequence, bytes=1 << 20,
                )
            )  # fmt: skip

    def _report(self) -> None:
        self._reported_ns = self.now_ns
        covered = [(step, step) for step in self._seen]
        for rank, builder in enumerate(self._builders):
            host = HostSample(host_ns=self.now_ns, gc_pause_ns=int(self._pause_ns[rank]))
            interval = Interval(
                steps=self._pending[rank], collectives=self._calls[rank], covered_steps=covered,
                groups={GROUP: self._group}, host=host,
            )  # fmt: skip
            self.end.receive(f"host-job-{rank}", encode(builder.build(interval, self.now_ns)), self.now_ns)
            self._pending[rank], self._calls[rank] = [], []
        self._seen = []
        self.end.run_pass(self.step, self.now_ns)
        self.passes.append((self.step, self.end.run.open_findings))
