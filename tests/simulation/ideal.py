"""Say whether a slow rank can be told from noise at all: by the ideal test, which knows what no monitor does.

It knows the healthy work of the rank, the size and the correlation of its noise, and in which steps the fault lasts. No
test of the rank's own work with as few false alarms finds more than the likelihood ratio of the two levels (Neyman and
Pearson 1933). For normal noise of the logarithms with the covariance C between the n steps of the fault it is, in
standard errors,

    z = u' x / sqrt(u' C u)        u = C^-1 1,   x[step] = log(work of the rank / healthy work)

The work is that of all kinds together, without pauses (stalls, checkpoints), which are no part of the slowness. C has
the noise of the rank, which differs from step to step, and that of its node, which is correlated. Ranks of one node
share that, so who compares a rank with others of its node may find what this test does not.
"""

import numpy as np

from tests.simulation.engine import Floats
from tests.simulation.faults import TRANSFER, Fault
from tests.simulation.noise import Noise
from tests.simulation.program import KERNEL, Scale
from tests.simulation.world import Outcome, Scenario, base_work, build_program

DECIDED_Z = 5.0
"""Standard errors from which the ideal test decides: as many as detection asks for (`robust_z_min`), so that a healthy
rank is as unlikely to be named."""


def find_ideal_z(outcome: Outcome) -> float | None:
    """Return the z of the ideal test for the fault of a run; None where that is not one steady fault of the work of one
    rank that lasts to the end.
    """
    faults = outcome.scenario.faults
    if len(faults) != 1 or len(faults[0].ranks) != 1 or not is_steady(faults[0]):
        return None
    return find_z(outcome, faults[0].ranks[0], faults[0].begin)


def is_steady(fault: Fault) -> bool:
    """Return whether a fault is one of a rank's work, has its full size from its begin on, and never ends."""
    return fault.effect.kind != TRANSFER and fault.pattern == "steady" and fault.end is None


def find_z(outcome: Outcome, rank: int, begin: int) -> float:
    """Return by how many standard errors the work of a rank from step `begin` on exceeds its healthy work."""
    scenario = outcome.scenario
    base_ns = base_work(build_program(scenario, Scale()), scenario.topology.world_size)
    healthy_ns = sum(ns[rank] for ns in base_ns.values())
    shares = {kind: float(ns[rank] / healthy_ns) for kind, ns in base_ns.items()}
    work_ns = sum(outcome.worked_ns[kind][begin:, rank] for kind in base_ns)
    variance, mean = _moments(scenario.noise, shares)
    excess: Floats = np.log(work_ns / healthy_ns) - mean
    covariance = _covariance(scenario, variance, len(excess))
    weights = np.linalg.solve(covariance, np.ones(len(excess)))
    return float(weights @ excess / np.sqrt(weights.sum()))


def _moments(noise: Noise, shares: dict[str, float]) -> tuple[float, float]:
    """Return variance and mean of the log of a rank's work beside the noise of its node, to the second order."""
    own = {kind: noise.jitter**2 + (noise.batch_jitter**2 if kind == KERNEL else 0.0) for kind in shares}
    of_sum = sum(share**2 * own[kind] for kind, share in shares.items())
    of_each = sum(share * own[kind] for kind, share in shares.items())
    return noise.jitter**2 + of_sum, (of_each - of_sum) / 2


def _covariance(scenario: Scenario, variance: float, count: int) -> Floats:
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    of_node = scenario.noise.node_jitter**2 * scenario.noise.node_correlation**apart
    return np.asarray(variance * np.eye(count) + of_node)
