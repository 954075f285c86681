"""Compare the cost that findings state with the step that would have been: the same run, simulated without the fault.

python -m tests.simulation.cost_truth    prints both for some layouts
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import STRAGGLER, Finding
from tests.simulation.faults import Fault
from tests.simulation.scenarios import LAYOUTS, slow_rank
from tests.simulation.schedule_matrix import SCHEDULED
from tests.simulation.world import Scenario, World, run

TOLERANCE: Final = 0.1
"""Of the step: a stated cost that is further off is wrong."""


def step_share_without(scenario: Scenario, without: Sequence[Fault]) -> float:
    """Return the median step without these faults over that with all, since the first of them began."""
    begin = min(fault.begin for fault in without)
    others = tuple(fault for fault in scenario.faults if fault not in without)
    ideal_ns, real_ns = (
        World(one, CollectorConfig()).run_unreported()[begin:] for one in (replace(scenario, faults=others), scenario)
    )
    return float(np.median(ideal_ns) / np.median(real_ns))


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
            true = step_share_without(scenario, scenario.faults)
            found = [one.finding for one in run(scenario).opened if one.finding.kind == STRAGGLER]
            said = ", ".join(f"ranks {one.ranks}: {stated_step_share(one):.3f}" for one in found)
            print(f"{name:22} {ratio:4.1f}: true {true:.3f}, stated {said or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
