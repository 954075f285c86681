"""The laws of the search for slow links: what must not matter does not."""

from collections.abc import Mapping

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.links.detector import SlowLinks
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.group_transfers import sum_groups
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.wait_times import split_waits
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of
from tests.unit.collector.steps.group_transfers import LINKS, mesh, view_with
from tests.unit.collector.steps.step_series import series_of, view_of

MESH = mesh(2, 4)


@st.composite
def transfers(draw: st.DrawFn, *, missing_ratio_max: float = 0.0) -> dict[str, Floats]:
    """Transfers of a mesh in ms, with some noise; some groups are slower from some step on."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, spread = draw(st.integers(1, 80)), draw(st.sampled_from([0.0, 0.05, 0.3]))
    found = {group: 10.0 * np.exp(random.normal(0.0, spread, steps)) for group in MESH}
    for group in sorted(draw(st.sets(st.sampled_from(sorted(MESH)), max_size=3))):  # the order of a set differs
        found[group][draw(st.integers(0, steps)) :] *= draw(st.sampled_from([0.5, 1.2, 1.5, 3.0]))
    missing_ratio = draw(st.floats(0.0, missing_ratio_max))
    return {group: np.where(random.random(steps) < missing_ratio, np.nan, ms) for group, ms in found.items()}


def found(view: RunView) -> list[Finding]:
    verdict = SlowLinks(LINKS).find(view, ())
    return [] if isinstance(verdict, Abstain) else [candidate.finding for candidate in verdict]


def scaled(transfers_ms: Mapping[str, Floats], factor: float) -> RunView:
    """Return the same run with every time multiplied."""
    steps = len(next(iter(transfers_ms.values())))
    view = view_with(MESH, {group: ms * factor for group, ms in transfers_ms.items()}, exposed_ms=1_000.0 * factor)
    return view_of(series_of([[100.0 * factor] * 8] * steps), groups=MESH, transfers=view.transfers)


def members_of(name: str) -> set[int]:
    """Return the ranks of a group, or of all siblings where they are found together, as `mesh_tp/*0`."""
    siblings = [group for group in MESH if group == name or name.partition("*")[0] == group.partition("/")[0] + "/"]
    return {rank for group in siblings for rank in MESH[group]}


TWO_EQUAL_EXCESSES = {
    **{group: np.full(24, 5.0 if group in {"mesh_tp/0,1", "mesh_tp/2,3"} else 10.0) for group in MESH},
    "mesh_dp/0,2,4,6": np.repeat([10.0, 15.0], [12, 12]),
}
"""One group has 5 ms more than its siblings, another one 5 ms more than before, by a mean of logarithms."""


@given(transfers(), st.integers(-6, 30))
@example(TWO_EQUAL_EXCESSES, 1)
def test_unit_of_time_does_not_matter(transfers_ms: dict[str, Floats], power: int) -> None:
    # Powers of two, so that the scaled numbers are exactly what they were; the past is a mean of logarithms.
    for one, other in zip(found(scaled(transfers_ms, 1.0)), found(scaled(transfers_ms, 2.0**power)), strict=True):
        assert (one.groups, one.ranks, one.since_step) == (other.groups, other.ranks, other.since_step)
        np.testing.assert_allclose(one.slowdown_ratio or 0.0, other.slowdown_ratio or 0.0, rtol=1e-6)


ALL_SIBLINGS_SLOW = {
    group: np.repeat([10.0, 30.0 if group.startswith("mesh_tp/") else 10.0], [40, 40]) for group in MESH
}


@given(transfers(missing_ratio_max=1.0))
@example(ALL_SIBLINGS_SLOW)
def test_verdict_is_given_or_abstained_from_whatever_is_missing(transfers_ms: dict[str, Floats]) -> None:
    for finding in found(view_with(MESH, transfers_ms)):
        assert (finding.slowdown_ratio or 0.0) >= LINKS.slowdown_ratio_min * (1 - 1e-12)
        assert finding.evidence["robust_z"] >= LINKS.robust_z_min
        assert set(finding.ranks) <= {rank for group in finding.groups for rank in members_of(str(group))}


@given(transfers())
def test_every_group_is_in_at_most_one_finding(transfers_ms: dict[str, Floats]) -> None:
    groups = [group for finding in found(view_with(MESH, transfers_ms)) for group in finding.groups]
    assert len(groups) == len(set(groups))


@given(st.lists(st.integers(0, 10**10), min_size=2, max_size=6), st.integers(1, 10**9))
def test_transfer_does_not_depend_on_arrival_of_members(arrivals: list[int], transfer_ns: int) -> None:
    end_ns = max(arrivals) + transfer_ns
    by_rank = {rank: reduce_of(arrival_ns, end_ns) for rank, arrival_ns in enumerate(arrivals)}
    sizes = {"dp": len(arrivals)}
    assert sum_groups(split_waits(step_of(by_rank), sizes).kinds, sizes)["dp"][0] == transfer_ns


def reduce_of(start_ns: int, end_ns: int) -> RankCollectives:
    numbers = (0, 0, 1, start_ns, end_ns - start_ns, 64, MISSING)
    return RankCollectives(["dp"], ["all_reduce"], *(np.array([number], dtype=np.int64) for number in numbers))
