"""Simulate the clocks of the ranks: each has an offset and a drift, and may jump."""

from dataclasses import dataclass

import numpy as np

from rankscope.measure.units import NS_PER_S

DRIFT_STREAM = 1
"""Random stream of the drift, apart from all others of the same seed."""


@dataclass(frozen=True, kw_only=True)
class ClockJump:
    """Jump of the clocks of these ranks by `by_s`, forward or back, in the report that holds `step`."""

    ranks: tuple[int, ...]
    step: int
    by_s: float


@dataclass(frozen=True, kw_only=True)
class ClockNoise:
    """Errors of clocks. `offset_s_max`: the largest offset at the start; `drift_s_max`: the largest drift per second
    (both ways). Quartz clocks are good to 1e-4.
    """

    offset_s_max: float = 1000.0
    drift_s_max: float = 0.0
    jumps: tuple[ClockJump, ...] = ()


CLOCKS: dict[str, ClockNoise] = {
    "drifting": ClockNoise(drift_s_max=1e-4),
    "jumping_forward": ClockNoise(jumps=(ClockJump(ranks=(2, 5), step=60, by_s=3600.0),)),
    "jumping_back": ClockNoise(jumps=(ClockJump(ranks=(2, 5), step=60, by_s=-3600.0),)),
}


class Clocks:
    """The clocks of all ranks. Durations are short and no clock is wrong within them: within one report a clock is off
    by the same amount, so that steps and collectives keep their lengths, as on a monotonic clock.
    """

    def __init__(self, noise: ClockNoise, ranks: int, random: np.random.Generator, seed: int) -> None:
        self._jumps = list(noise.jumps)
        apart_ns = round(noise.offset_s_max * NS_PER_S)
        self._offset_ns = random.integers(-apart_ns, apart_ns, ranks)
        # A random stream of its own: clocks that drift change nothing else of a run.
        self._drift = np.random.default_rng((DRIFT_STREAM, seed)).uniform(-1, 1, ranks) * noise.drift_s_max

    def pass_step(self, step: int) -> None:
        """Apply the jumps up to this step."""
        for jump in [jump for jump in self._jumps if jump.step <= step]:
            self._offset_ns[list(jump.ranks)] += round(jump.by_s * NS_PER_S)
            self._jumps.remove(jump)

    def offset_ns(self, rank: int, now_ns: int) -> int:
        """By how much a rank's clock is ahead of the true one."""
        return int(self._offset_ns[rank]) + round(float(self._drift[rank]) * now_ns)
