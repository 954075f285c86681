"""Find processes whose memory on the host grows steadily, and compute when that will end the run.

A process's memory is known as the least of each block of time since its begin (`runs/level_ring.py`). Of these blocks
the first third is left out: programs load, compile and fill caches then. On the others, with y the levels and T the
time between the first and the last of them:

    rise      y(last) - y(first), at least 256 MiB
    steady    the second and the last third of it each have at least half of the mean of the thirds: a cache that fills
              levels off, and a single jump is in one third
    only up   no level is below an earlier one by more than a fifth of the rise: a cache that is emptied comes down
    rate      rise / T; of a machine the sum over its processes that grow so
    left      memory that is available on the machine / rate: at most 3 T, as nothing is said about a future that is
              more than three times as long as what has been seen

Growth up to a quarter of what was available at the start of the judged part is therefore not reported, unless other
processes take memory meanwhile: a loader's cache may be that large. The machine's memory is what the kernel calls
available, or what is left to the limit of the control group, whichever is less.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import LEFT_S, Abstain, Finding
from rankscope.collector.detect.finding_words import format_clock
from rankscope.collector.detect.suggestions import suggest
from rankscope.collector.detect.view import Candidate, MemoryLevel, RunView
from rankscope.measure.units import format_bytes, format_length, ns_to_s

MEMORY_GROWTH: Final = "memory_growth"
HOST_MEMORY: Final = "host_memory"
FASTEST: Final = "fastest_rank"
"""Key in the evidence: the rank that grows fastest on the machine that is full first."""

LEVELS_MIN: Final = 12
"""A minute at least, of which the last 40 s are judged."""
RISE_BYTES_MIN: Final = 2**28
"""Heaps that fragment, and worker threads that start, gain some tens of MiB in hours."""
STEADY_SHARE_MIN: Final = 0.5
FALL_RATIO_MAX: Final = 0.2
LOOK_AHEAD: Final = 3.0
"""An even growth is found when a quarter of what was available at the start of the judged part is taken."""
EASE: Final = 0.5
"""An open finding stays at half of the thresholds, up to twice the time ahead."""
LINE_RATIO_MAX: Final = 0.25
"""Share of the rise by which a level may differ from the line of a growth that had begun by then."""
FOLLOWERS_MIN: Final = 0.25
"""A process that grows at less than this share of the fastest rate on its machine is not named."""
CRITICAL_S: Final = 3_600.0
WARNING_S: Final = 86_400.0


class Growth(NamedTuple):
    """A steady growth of one process: bytes in so many ns and steps, and the step from which on it has been so."""

    rise_bytes: int
    length_ns: int
    steps: int
    since_step: int

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.rise_bytes / ns_to_s(self.length_ns)


class _Machine(NamedTuple):
    """A machine that runs out of memory: how its ranks grow, what is available, for how long that is enough, and by how
    many bytes a second all its ranks grow.
    """

    node: str
    growths: Mapping[int, Growth]
    available_bytes: int
    left_s: float
    rate: float


class MemoryGrowth:
    """The detector of processes whose memory on the host grows."""

    kinds = frozenset({MEMORY_GROWTH})

    def find(self, view: RunView, _explained: Sequence[Finding]) -> Sequence[Candidate] | Abstain:
        """Return at most one finding, about all ranks whose machines run out of memory by their growth."""
        if not view.samples.memory_levels:
            return Abstain("how much memory the processes hold is not known")
        growths = find_growths(view, 1.0)
        if not growths:
            return []
        if not any(_find_available(view, node) is not None for node in {view.nodes[rank] for rank in growths}):
            return Abstain("how much memory the machines have left is not known")
        machines = _find_machines(view, growths, LOOK_AHEAD)
        return [Candidate(_describe(machines, view.now_wall_s))] if machines else []

    def has_passed(self, view: RunView, finding: Finding, _explained: Sequence[Finding]) -> bool | Abstain:
        """Return whether none of its ranks grows any more, by the laxer thresholds either, or has long enough."""
        growths = {rank: one for rank, one in find_growths(view, EASE).items() if rank in finding.ranks}
        return not _find_machines(view, growths, LOOK_AHEAD / EASE)


def find_growths(view: RunView, ease: float) -> dict[int, Growth]:
    """Return the ranks whose memory grows steadily. `ease` lowers the thresholds, from 1 to 0."""
    found = {}
    for rank, levels in view.samples.memory_levels.items():
        if levels.rise_bytes < ease * RISE_BYTES_MIN:
            continue
        growth = find_growth(levels.read(), ease)
        if growth is not None:
            found[rank] = growth
    return found


def find_growth(levels: Sequence[MemoryLevel], ease: float = 1.0) -> Growth | None:
    """Return the growth of a process; None where it is not steady, or too little is known.

    >>> minute = 60 * 10**9
    >>> find_growth([MemoryLevel(10 * n, n * minute, 2**30 + n * 2**27) for n in range(12)])
    Growth(rise_bytes=939524096, length_ns=420000000000, steps=70, since_step=0)
    """
    if len(levels) < LEVELS_MIN:
        return None
    judged = levels[len(levels) // 3 :]
    first, last = judged[0], judged[-1]
    rise = last.held_bytes - first.held_bytes
    if rise < ease * RISE_BYTES_MIN or last.steps <= first.steps:
        return None
    if _share_of_thirds(judged) < ease * STEADY_SHARE_MIN or _find_fall(judged) > FALL_RATIO_MAX / ease * rise:
        return None
    growth = Growth(rise, last.host_ns - first.host_ns, last.steps - first.steps, first.steps)
    return growth._replace(since_step=_find_begin(levels, growth))


def _share_of_thirds(judged: Sequence[MemoryLevel]) -> float:
    """Return the lesser rate of the last two thirds over the mean rate."""
    marks = [judged[len(judged) // 3], judged[2 * len(judged) // 3], judged[-1]]
    mean = _rate_between(judged[0], judged[-1])
    return min(_rate_between(marks[0], marks[1]), _rate_between(marks[1], marks[2])) / mean


def _rate_between(one: MemoryLevel, other: MemoryLevel) -> float:
    return (other.held_bytes - one.held_bytes) / (other.host_ns - one.host_ns)


def _find_fall(judged: Sequence[MemoryLevel]) -> int:
    """Return by how much a level is below an earlier one at most."""
    highest, fall = judged[0].held_bytes, 0
    for level in judged:
        highest = max(highest, level.held_bytes)
        fall = max(fall, highest - level.held_bytes)
    return fall


def _find_begin(levels: Sequence[MemoryLevel], growth: Growth) -> int:
    """Return the step of the first level since which all are near the line through the last with the growth's rate."""
    last, begin = levels[-1], levels[-1].steps
    for level in reversed(levels):
        expected = last.held_bytes - growth.rate * ns_to_s(last.host_ns - level.host_ns)
        if abs(level.held_bytes - expected) > LINE_RATIO_MAX * growth.rise_bytes:
            break
        begin = level.steps
    return begin


def _find_available(view: RunView, node: str) -> int | None:
    counts = view.machines.counts.get(node, ())
    return counts[-1].sample.memory_available_bytes if counts else None


def _find_machines(view: RunView, growths: Mapping[int, Growth], look_ahead: float) -> list[_Machine]:
    """Return the machines that run out of memory within the time that can be said something about, the first first."""
    by_node: dict[str, dict[int, Growth]] = {}
    for rank, growth in growths.items():
        by_node.setdefault(view.nodes[rank], {})[rank] = growth
    found = []
    for node, ranks in by_node.items():
        available = _find_available(view, node)
        if available is None:
            continue
        fastest = max(growth.rate for growth in ranks.values())
        named = {rank: one for rank, one in ranks.items() if one.rate >= FOLLOWERS_MIN * fastest}
        rate = sum(growth.rate for growth in ranks.values())
        left_s = available / rate
        if left_s <= look_ahead * ns_to_s(max(growth.length_ns for growth in named.values())):
            found.append(_Machine(node, named, available, left_s, rate))
    return sorted(found, key=lambda machine: machine.left_s)


def _describe(machines: Sequence[_Machine], now_wall_s: float | None) -> Finding:
    first = machines[0]
    ranks = tuple(sorted(rank for machine in machines for rank in machine.growths))
    fastest = max(first.growths, key=lambda rank: first.growths[rank].rate)
    growth = first.growths[fastest]
    rate = f"{format_bytes(growth.rise_bytes / growth.steps)} per step, {format_bytes(growth.rate * 3_600)} per hour"
    of_whom = "" if len(ranks) == 1 else f", fastest on rank {fastest}"
    machine_rate = first.rate * 3_600
    left_steps = first.left_s * growth.steps / ns_to_s(growth.length_ns)
    full_at = "" if now_wall_s is None else f" ({format_clock(now_wall_s + first.left_s)} UTC)"
    return Finding(
        kind=MEMORY_GROWTH,
        ranks=ranks,
        since_step=min(one.since_step for machine in machines for one in machine.growths.values()),
        cause=HOST_MEMORY,
        pattern="drifting",
        what=f"host memory growing{of_whom} by {rate},",
        why=(
            f"full in about {format_length(first.left_s)}{full_at} or {_format_steps(left_steps)} steps: "
            f"{format_bytes(first.available_bytes)} left on {first.node}, "
            f"{format_bytes(machine_rate)} more needed per hour"
        ),
        suggestion=suggest(MEMORY_GROWTH, HOST_MEMORY),
        severity=_choose_severity(first.left_s),
        evidence={
            "growth_bytes_per_step": growth.rise_bytes / growth.steps,
            "growth_bytes_per_hour": growth.rate * 3_600,
            "machine_growth_bytes_per_hour": machine_rate,
            "available_bytes": float(first.available_bytes),
            LEFT_S: first.left_s,
            "left_steps": left_steps,
            FASTEST: float(fastest),
            "seen_s": ns_to_s(growth.length_ns),
        },
        details={"node": first.node},
    )


def _format_steps(steps: float) -> str:
    """Return a number of steps that is an estimate, by its two first digits.

    >>> _format_steps(1_918.7), _format_steps(7.2)
    ('1,900', '7')
    """
    digits = max(0, len(str(round(steps))) - 2)
    return f"{round(steps, -digits):,.0f}"


def _choose_severity(left_s: float) -> str:
    """Return the severity by the time that is left.

    >>> _choose_severity(1_800), _choose_severity(7_200), _choose_severity(200_000)
    ('critical', 'warning', 'info')
    """
    if left_s < CRITICAL_S:
        return "critical"
    return "warning" if left_s < WARNING_S else "info"
