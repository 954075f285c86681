"""Compare the cost that findings state with the step that would have been: the same run, simulated without the fault.

python -m tests.simulation.cost_truth    prints both for some layouts
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import DRIFTING, STRAGGLER, Finding
from rankscope.collector.detect.stragglers.detector import LEVEL_FROM
from rankscope.collector.detect.stragglers.persistent import Thresholds
from tests.simulation.collector_end import Opened
from tests.simulation.engine import Floats
from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.scenarios import LAYOUTS, slow_rank
from tests.simulation.schedule_matrix import SCHEDULED
from tests.simulation.scoring import is_about
from tests.simulation.world import Outcome, Scenario, World, run
from tests.simulation.wrongs import COST, Wrong

TOLERANCE: Final = 0.1
"""Of the step: a stated cost that is further off is wrong."""
PRESENT_STEPS: Final = Thresholds().steps_min


class CostTold(NamedTuple):
    """The cost that a finding states and the true one, as the step without the slowness over the step."""

    finding: Finding
    stated: float
    true: float

    @property
    def error(self) -> float:
        """Return by how much it is off, as a share of the step; positive where too little is stated."""
        return self.stated - self.true


def compare_costs(outcome: Outcome) -> list[CostTold]:
    """Return every stated cost of findings about a fault with the true one, over the same steps."""
    scenario, real_ns = outcome.scenario, outcome.step_ns.mean(axis=1)
    known: dict[tuple[Fault, ...], Floats] = {}
    found = []
    for opened in outcome.opened:
        without = find_removed(opened, scenario)
        if opened.finding.run_slowdown_ratio is None or not without:
            continue
        if without not in known:
            known[without] = steps_without(scenario, without)
        true = _share(opened, known[without], real_ns)
        if true is not None:
            found.append(CostTold(opened.finding, stated_step_share(opened.finding), true))
    return found


def find_wrong_costs(told: Iterable[CostTold]) -> list[Wrong]:
    """Return the costs that are off by more than TOLERANCE."""
    return [
        Wrong(
            COST,
            f"finding {one.finding.number} ({one.finding.kind}, {one.finding.subject}) states a step without it of "
            f"{one.stated:.3f} of the step, true is {one.true:.3f}",
        )
        for one in told
        if abs(one.error) > TOLERANCE
    ]


def find_removed(opened: Opened, scenario: Scenario) -> tuple[Fault, ...]:
    """Return the faults without which the step would be the one that a finding compares with: those that it is about,
    and those of the ranks whose slowness it adds; of a straggler not those of links.
    """
    ranks = find_added_ranks(opened.finding)
    whenever = opened._replace(opened_step=scenario.steps)  # a fault of the same ranks may begin later
    return tuple(
        fault
        for fault in scenario.faults
        if (is_about(whenever, fault, scenario.topology) or not ranks.isdisjoint(fault.ranks))
        and (opened.finding.kind != STRAGGLER or fault.effect.kind != TRANSFER)
    )


def find_added_ranks(finding: Finding) -> set[int]:
    """Return the ranks whose slowness is in the cost of a finding beside its own."""
    return _read_ranks(finding.cost_of.partition(" ")[2]) if finding.cost_of else set()


def _read_ranks(text: str) -> set[int]:
    """Return the ranks of a text such as `0-2, 5`."""
    ends = [part.split("-") for part in text.split(", ")]
    return {rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1)}


def _share(opened: Opened, ideal_ns: Floats, real_ns: Floats) -> float | None:
    """Return the ideal steps over the steps since the present size of a finding, as sums. None where the last of them
    is before the first. Of a stage or a run that has grown slower gradually the present are the last PRESENT_STEPS.
    """
    finding = opened.finding
    end = len(real_ns) if finding.until_step is None else finding.until_step + 1
    since = finding.since_step or 0
    since = max(since, end - PRESENT_STEPS) if finding.pattern == DRIFTING else since
    begin = round(finding.evidence.get(LEVEL_FROM, since))
    if end <= begin:
        return None
    return float(ideal_ns[begin:end].sum() / real_ns[begin:end].sum())


def steps_without(scenario: Scenario, without: Sequence[Fault]) -> Floats:
    """Return the steps of the same run without these faults, each the mean of all ranks, shape (steps,) in ns.

    Every rank's steps add up to the time that passes. The longest of each step do not: a rank that waits for a stall
    has a part of it in its next step, so both would count.
    """
    others = tuple(fault for fault in scenario.faults if fault not in without)
    step_ns: Floats = World(replace(scenario, faults=others), CollectorConfig()).run_unreported().mean(axis=1)
    return step_ns


def step_share_without(outcome: Outcome, without: Sequence[Fault]) -> float:
    """Return the steps of a run without these faults over those that it had, since the first of them began."""
    begin = min(fault.begin for fault in without)
    ideal_ns, real_ns = steps_without(outcome.scenario, without), outcome.step_ns.mean(axis=1)
    return float(ideal_ns[begin:].sum() / real_ns[begin:].sum())


def stated_step_share(finding: Finding) -> float:
    """Return the ideal step of a finding over the step."""
    return 1.0 / (finding.run_slowdown_ratio or 1.0)


def main() -> None:
    """Print the stated and the true step without one slow rank, as shares of the step."""
    for name, layout in {**LAYOUTS, **SCHEDULED}.items():
        if layout.topology.world_size > 64:  # they take minutes
            continue
        for ratio in (1.3, 2.0):
            scenario = layout.scenario(slow_rank("gpu_compute", ratio), seed=2, steps=150)
            outcome = run(scenario)
            true = step_share_without(outcome, scenario.faults)
            found = [one.finding for one in outcome.opened if one.finding.kind == STRAGGLER]
            said = ", ".join(f"ranks {one.ranks}: {stated_step_share(one):.3f}" for one in found)
            print(f"{name:22} {ratio:4.1f}: true {true:.3f}, stated {said or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
