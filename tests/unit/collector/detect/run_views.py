"""Jobs as the rules over them see them, written down by hand: shares of steps of 100 ms, most of them in percent."""

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.rules import RunRules
from rankscope.collector.detect.view import AllocatorCounts, Candidate, RunView, Samples, TimeCount
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.records import AllocatorSample, DeviceSample, HostCopies, HostSample, WindowBreakdown
from tests.unit.collector.steps.step_series import MS, series_of, view_of

STEPS = 32
STEP_MS = 100
MADE = 100
RULE = RunRules(STEPS)
GROUP = "default_pg"

Shares = Mapping[str, float]
"""Of one rank's windows, in percent of the step: compute, exposed, overlap; copied, and of it pageable: from the host
while no kernel runs. What is left is idle."""

COPIED_BYTES = 30 * 2**20

BUSY: Shares = {"compute": 95, "exposed": 3, "overlap": 20}


def window_of(
    first_step: int, shares: Shares, *, step_ms: float = STEP_MS, idle_ms: float | None = None
) -> WindowBreakdown:
    window_ns = round(step_ms * MS)
    compute, exposed, overlap, copied, pageable = (
        round(shares.get(name, 0.0) / 100 * STEP_MS * MS)
        for name in ("compute", "exposed", "overlap", "copied", "pageable")
    )
    idle_ns = window_ns - compute - exposed - copied if idle_ms is None else round(idle_ms * MS)
    return WindowBreakdown(
        first_step=first_step, step_count=1, window_ns=window_ns, compute_ns=compute,
        communication_ns=exposed + overlap, overlap_ns=overlap, exposed_communication_ns=exposed,
        copy_ns=window_ns - compute - exposed - idle_ns, idle_ns=idle_ns,
        host_copies=HostCopies(
            count=2, duration_ns=2 * copied, exposed_ns=copied, bytes=COPIED_BYTES, pageable_ns=2 * pageable,
            pageable_exposed_ns=pageable,
        ),
    )  # fmt: skip


def job_of(
    *ranks: Shares,
    data_ms: Sequence[float] | float = 1.0,
    moved_ms: float | None = 3.0,
    gpus: int | None = None,
    windows: int = 3,
    made: int = MADE,
    allocators: Mapping[int, Sequence[AllocatorCounts]] | None = None,
    phases: bool = True,
    core_wait_ms: Sequence[float] = (),
    process_ms: Sequence[float] = (),
    throttled: Sequence[float | None] = (),
    nodes: Mapping[int, str] | None = None,
) -> RunView:
    """Build a run. `moved_ms` is the transfer of its one group a step, `gpus` how many ranks have a GPU;
    `core_wait_ms` and `process_ms` are each rank's wait for a CPU core and CPU time a step, `throttled`
    how often a CPU limit stops it; not known where empty.
    """
    count = len(ranks)
    rows = min(made, 64)
    data = [data_ms] * count if isinstance(data_ms, int | float) else list(data_ms)
    series = series_of(
        [[float(STEP_MS)] * count] * rows,
        phases_ms={"data": [data] * rows} if phases else {},
        first_step=made - rows,
    )
    return view_of(
        series,
        nodes=nodes,
        groups={GROUP: tuple(range(count))},
        transfers=exposed_of({} if moved_ms is None else {GROUP: np.full(rows, moved_ms * MS)}),
        samples=Samples(
            breakdowns={
                rank: [window_of(40 + 20 * number, shares) for number in range(windows)]
                for rank, shares in enumerate(ranks)
            },
            gc_pauses={},
            devices={rank: [DeviceSample(host_ns=0, uuid="GPU")] for rank in range(count if gpus is None else gpus)},
            allocators=allocators or {},
            core_waits=_count(core_wait_ms),
            process_cpu=_count(process_ms),
            hosts={rank: HostSample(host_ns=0, throttled_ratio=ratio) for rank, ratio in enumerate(throttled)},
            host_clock=_count([STEP_MS] * count),
        ),
    )


def _count(ms_per_step: Sequence[float]) -> dict[int, list[TimeCount]]:
    """Count a time of each rank at the steps 40 and 90."""
    return {
        rank: [TimeCount(steps, round(steps * ms * MS)) for steps in (40, 90)] for rank, ms in enumerate(ms_per_step)
    }


def exposed_of(exposed_ns: Mapping[str, Floats]) -> GroupTransfers:
    """Build transfers of which only the exposed part is known."""
    return GroupTransfers(exposed_ns=exposed_ns)


def with_samples(view: RunView, samples: Samples) -> RunView:
    return view_of(view.series, groups=view.groups, transfers=view.transfers, samples=samples)


def finding_of(kind: str, cause: str | None = None, since_step: int = 7) -> Finding:
    return Finding(kind=kind, cause=cause or kind, sentence="", since_step=since_step)


def findings_in(view: RunView, *explained: Finding) -> list[Finding]:
    found = candidates_in(view, *explained)
    assert all(candidate.lost_ns is None for candidate in found if candidate.finding.run_slowdown_ratio is None)
    return [candidate.finding for candidate in found]


def candidates_in(view: RunView, *explained: Finding) -> list[Candidate]:
    found = RULE.find(view, explained)
    assert not isinstance(found, Abstain)
    return [one for one in found if not isinstance(one, Abstain)]


def unjudged_in(view: RunView) -> dict[str, str]:
    """The rules that cannot judge, with the reason."""
    found = RULE.find(view, ())
    assert not isinstance(found, Abstain)
    return {one.kind: one.reason for one in found if isinstance(one, Abstain)}


def kinds_in(view: RunView, *explained: Finding) -> list[str]:
    return [finding.kind for finding in findings_in(view, *explained)]


def counts_of(*samples: tuple[int, int], first_steps: int = STEPS, apart: int = 10) -> list[AllocatorCounts]:
    """Build samples of (retries, driver calls each way), every so many steps."""
    return [
        AllocatorCounts(
            first_steps + apart * number,
            AllocatorSample(host_ns=0, retries=retries, device_allocs=100 + calls, device_frees=calls),
        )
        for number, (retries, calls) in enumerate(samples)
    ]


STEADY = [(2, 0)] * 9
RETRYING = [(number, 0) for number in range(9)]
CHURNING = [(0, number) for number in range(9)]
