"""Generate the noise of a healthy run: jitter, bursts, neighbors on a node, checkpoints, warm-up."""

from dataclasses import dataclass

import numpy as np

from tests.simulation.engine import Conditions, Floats
from tests.simulation.program import HOST, KERNEL, READ
from tests.simulation.topology import Topology

KINDS = (READ, HOST, KERNEL)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Amounts of noise. `jitter` is the standard deviation of the log of a rank's work in a step, `node_jitter` the
    same of a whole node's, which changes slowly (`node_correlation` from step to step). With `burst_probability` a rank
    loses in a step `burst_ratio` of it or more (Pareto, shape 2.5). `batch_jitter` is work that differs with the batch.
    Every `checkpoint_every` steps all ranks write for `checkpoint_ratio` steps, every `evaluate_every` steps they
    evaluate for `evaluate_ratio` steps, which is no step of its own.
    """

    jitter: float = 0.02
    node_jitter: float = 0.0
    node_correlation: float = 0.9
    burst_probability: float = 0.0
    burst_ratio: float = 0.5
    batch_jitter: float = 0.0
    checkpoint_every: int = 0
    checkpoint_ratio: float = 2.0
    evaluate_every: int = 0
    evaluate_ratio: float = 5.0
    warmup_steps: int = 2
    warmup_ratio: float = 5.0


NOISES = {
    "quiet": Noise(jitter=0.005),
    "usual": Noise(),
    "jittery": Noise(jitter=0.1),
    "bursts": Noise(burst_probability=0.02),
    "shared_nodes": Noise(node_jitter=0.05),
    "checkpoints": Noise(checkpoint_every=50),
    "evaluations": Noise(evaluate_every=40),
    "uneven_batches": Noise(batch_jitter=0.15),
    "rough": Noise(
        jitter=0.05, node_jitter=0.02, burst_probability=0.01, checkpoint_every=50, evaluate_every=40, warmup_steps=5
    ),
}


class Weather:
    """Draws the conditions of step after step."""

    def __init__(self, noise: Noise, topology: Topology, work_ns: int, random: np.random.Generator) -> None:
        self._noise = noise
        self._topology = topology
        self._work_ns = work_ns
        self._random = random
        self._nodes = np.zeros(int(topology.node[-1]) + 1)

    def draw(self, step: int) -> Conditions:
        """Return the conditions of the step before any fault."""
        noise, random, ranks = self._noise, self._random, self._topology.world_size
        factor = np.exp(random.normal(0.0, noise.jitter, ranks)) * self._draw_nodes()
        if step < noise.warmup_steps:
            factor *= noise.warmup_ratio
        work = {kind: factor * np.exp(random.normal(0.0, noise.jitter, ranks)) for kind in KINDS}
        if noise.batch_jitter:
            work[KERNEL] *= np.exp(random.normal(0.0, noise.batch_jitter, ranks))
        pause_ns = np.where(
            random.random(ranks) < noise.burst_probability,
            self._work_ns * noise.burst_ratio * (1 + random.pareto(2.5, ranks)),
            0.0,
        )
        for every, ratio in (
            (noise.checkpoint_every, noise.checkpoint_ratio),
            (noise.evaluate_every, noise.evaluate_ratio),
        ):
            if every and step and step % every == 0:
                pause_ns += self._work_ns * ratio * np.exp(random.normal(0.0, 0.1, ranks))
        transfer = np.exp(np.abs(random.normal(0.0, noise.jitter, ranks)))
        return Conditions(work, pause_ns, transfer)

    def _draw_nodes(self) -> Floats:
        kept = self._noise.node_correlation
        fresh = self._random.normal(0.0, self._noise.node_jitter, len(self._nodes))
        self._nodes = kept * self._nodes + np.sqrt(1 - kept**2) * fresh
        return np.exp(self._nodes)[self._topology.node]
