"""Laws of the rules over a run: units do not matter, and one rank alone never makes a finding about all."""

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.rules import RunRules
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.records import DeviceSample, WindowBreakdown

RANKS = 4
STEPS = 16
MADE = 64
STEP_NS = 1_000_000
RULES = RunRules(STEPS)

Parts = tuple[int, int, int, int, int]
"""Of a window in any unit: computing alone, both, communicating alone, copies, idle."""

HEALTHY: Parts = (750, 200, 30, 10, 10)

parts = st.tuples(*[st.integers(0, 1000)] * 5).filter(any)
ranks = st.tuples(st.lists(parts, min_size=3, max_size=3), st.integers(0, STEP_NS))
"""The windows of a rank, and its data phase."""

Run = Sequence[tuple[Sequence[Parts], int]]


def window_of(first_step: int, part: Parts, scale: int) -> WindowBreakdown:
    alone, both, exposed, copy, idle = (scale * (value * STEP_NS // sum(part)) for value in part)
    return WindowBreakdown(
        first_step=first_step, step_count=1, window_ns=alone + both + exposed + copy + idle, compute_ns=alone + both,
        communication_ns=both + exposed, overlap_ns=both, exposed_communication_ns=exposed, copy_ns=copy, idle_ns=idle,
    )  # fmt: skip


def view_of(run: Run, transfer_ns: int, scale: int = 1) -> RunView:
    count = len(run)
    step_ns = np.full((MADE, count), float(scale * STEP_NS))
    data_ns = np.array([[data * scale for _, data in run]] * MADE, dtype=np.float64)
    everybody = tuple(range(count))
    series = StepSeries(np.arange(MADE), everybody, step_ns, step_ns, step_ns, {"data": data_ns}, own_is_measured=True)
    breakdowns: Mapping[int, Sequence[WindowBreakdown]] = {
        rank: [window_of(20 + 10 * number, part, scale) for number, part in enumerate(windows)]
        for rank, (windows, _) in enumerate(run)
    }
    return RunView(
        now_collector_ns=0,
        world_size=count,
        series=series,
        peer_groups=find_peer_groups(everybody, {}),
        nodes={},
        samples=Samples(breakdowns, {}, {rank: [DeviceSample(host_ns=0, uuid="GPU")] for rank in everybody}),
        groups={"all": everybody},
        transfers=GroupTransfers(exposed_ns={"all": np.full(MADE, float(scale * transfer_ns))}),
    )


def findings_in(view: RunView) -> list[Finding]:
    found = RULES.find(view, ())
    assert not isinstance(found, Abstain)
    return [one.finding for one in found if not isinstance(one, Abstain)]


@given(st.lists(ranks, min_size=1, max_size=RANKS), st.integers(0, STEP_NS))
def test_findings_name_no_rank_are_in_range_and_not_over(run: Run, transfer_ns: int) -> None:
    view = view_of(run, transfer_ns)
    for finding in findings_in(view):
        assert finding.ranks == ()
        assert finding.severity in {"info", "warning"}
        assert all(0 <= value <= 1 for name, value in finding.evidence.items() if "ratio" in name)
        assert not RULES.has_passed(view, finding, ())


@given(st.lists(ranks, min_size=1, max_size=RANKS), st.integers(0, STEP_NS), st.integers(2, 10**6))
def test_unit_of_time_does_not_matter(run: Run, transfer_ns: int, scale: int) -> None:
    one, other = view_of(run, transfer_ns), view_of(run, transfer_ns, scale)
    assert [finding.kind for finding in findings_in(one)] == [finding.kind for finding in findings_in(other)]


@given(ranks, st.integers(0, RANKS - 1), st.integers(0, STEP_NS // 30))
def test_one_different_rank_makes_no_finding_about_the_run(
    unlike: tuple[Sequence[Parts], int], rank: int, transfer_ns: int
) -> None:
    run: list[tuple[Sequence[Parts], int]] = [([HEALTHY] * 3, STEP_NS // 100)] * RANKS
    run[rank] = unlike
    assert findings_in(view_of(run, transfer_ns)) == []
