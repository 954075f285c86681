"""Build runs by name and from command-line arguments. An invalid argument raises ValueError with the valid ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.simulation.clocks import CLOCKS
from tests.simulation.faults import EFFECTS, Fault
from tests.simulation.network import NETWORKS
from tests.simulation.noise import NOISES
from tests.simulation.topology import Topology
from tests.simulation.world import Death, Scenario

BEGIN = 100
"""Default first step of a fault: by then a rank's healthy level is known."""
STEPS = 200
SLOW_RANK = 5
RATIO_MAX = 1000.0
"""Largest ratio. Times are whole nanoseconds in 64 bits; a step of 0.1 s leaves room for far more than this."""


class Layout(NamedTuple):
    """Layout of a run: the program of its steps, its groups, and the work of its stages over their mean."""

    kind: str
    topology: Topology
    stage_shares: tuple[float, ...] | None = None

    def scenario(self, *faults: Fault, noise: str = "usual", seed: int = 0, steps: int = STEPS) -> Scenario:
        """Return a run of this layout."""
        return Scenario(
            topology=self.topology,
            kind=self.kind,
            stage_shares=self.stage_shares,
            noise=NOISES[noise],
            faults=faults,
            seed=seed,
            steps=steps,
        )


UNEQUAL_STAGES = (1.15, 1.0, 1.0, 0.85)
"""Work of unequal stages: the first has the embedding; the last has fewer layers to compensate, and too few."""

LAYOUTS: Mapping[str, Layout] = {
    "dp 8": Layout("dp", Topology.mesh(dp=8)),
    "fsdp 16": Layout("fsdp", Topology.mesh(dp=16)),
    "tp 4 x dp 4": Layout("tp", Topology.mesh(tp=4, dp=4)),
    "pp 2 x dp 8": Layout("pp", Topology.mesh(pp=2, dp=8)),
    "unequal pp 4 x dp 4": Layout("pp", Topology.mesh(pp=4, dp=4), UNEQUAL_STAGES),
    "unequal pp 4 x dp 2": Layout("pp", Topology.mesh(pp=4, dp=2), UNEQUAL_STAGES),
    "ep 4, dp 32": Layout("ep", Topology.mesh(dp=32, ep=4)),
    "tp 2 x pp 2 x dp 8": Layout("pp", Topology.mesh(tp=2, pp=2, dp=8)),
    "fsdp 64": Layout("fsdp", Topology.mesh(dp=64)),
    "tp 4 x pp 4 x dp 16": Layout("pp", Topology.mesh(tp=4, pp=4, dp=16)),
    "fsdp 256": Layout("fsdp", Topology.mesh(dp=256)),
    "dp 1024": Layout("dp", Topology.mesh(dp=1024)),
}

BUILDERS: Mapping[str, tuple[int, Callable[[int], Topology]]] = {
    "dp": (1, lambda ranks: Topology.mesh(dp=ranks)),
    "fsdp": (1, lambda ranks: Topology.mesh(dp=ranks)),
    "tp": (4, lambda ranks: Topology.mesh(tp=4, dp=ranks // 4)),
    "ep": (4, lambda ranks: Topology.mesh(dp=ranks, ep=4)),
    "pp": (2, lambda ranks: Topology.mesh(pp=2, dp=ranks // 2)),
    "1f1b": (4, lambda ranks: Topology.mesh(pp=4, dp=ranks // 4)),
    "interleaved": (4, lambda ranks: Topology.mesh(pp=4, dp=ranks // 4)),
    "zero_bubble": (4, lambda ranks: Topology.mesh(pp=4, dp=ranks // 4)),
    "tp_pp": (4, lambda ranks: Topology.mesh(tp=2, pp=2, dp=ranks // 4)),
}
"""Kinds of run on the command line: the divisor of the number of ranks, and the mesh."""

PATTERNS: Mapping[str, Mapping[str, int]] = {
    "steady": {},
    "intermittent": {"every": 5},
    "bouts": {"every": 24, "bout": 8},
    "drifting": {"drift_steps": 60},
}
"""Patterns of a fault over time; `bouts` is a form of intermittent with whole stretches of steps."""

SLOW_DRIFTS: Mapping[str, Mapping[str, int]] = {
    "slow_drift": {"drift_steps": 200},
    "very_slow_drift": {"drift_steps": 300},
}
"""Patterns on the command line that the score's first matrix does not have."""


def build_layout(kind: str, ranks: int) -> Layout:
    """Return a run of `ranks` ranks. Raises ValueError for an unknown kind or a number that cannot be laid out."""
    if kind not in BUILDERS:
        raise ValueError(f"kind is {kind!r}; known are {', '.join(BUILDERS)}")
    multiple, build = BUILDERS[kind]
    if ranks < 2 or ranks % multiple:
        raise ValueError(f"ranks is {ranks}; a run of kind {kind} has 2 or more, in multiples of {multiple}")
    return Layout("pp" if kind == "tp_pp" else kind, build(ranks))


def parse_fault(text: str, topology: Topology) -> Fault:
    """Return a fault from `cause:who:ratio[:begin[:pattern]]`; `who` is a rank, `nodeN`, `stageN` or `all`.

    Raises ValueError if it is none of this run.

    >>> parse_fault("host_cpu:stage1:1.3", Topology.mesh(pp=2, dp=2)).ranks
    (2, 3)
    """
    cause, who, ratio, begin, pattern, *more = [*text.split(":"), *[""] * (5 - len(text.split(":")))]
    if more or not who or not ratio:
        raise ValueError(f"fault is {text!r}; it is written cause:who:ratio[:begin[:pattern]]")
    if cause not in EFFECTS:
        raise ValueError(f"cause is {cause!r} in {text!r}; known are {', '.join(EFFECTS)}")
    patterns = {**PATTERNS, **SLOW_DRIFTS}
    if pattern and pattern not in patterns:
        raise ValueError(f"pattern is {pattern!r} in {text!r}; known are {', '.join(patterns)}")
    if begin and not begin.isdecimal():
        raise ValueError(f"begin is {begin!r} in {text!r}; it is the number of a step, counted from 0")
    return Fault(
        cause=cause,
        ranks=_parse_ranks(who, topology),
        ratio=_parse_ratio(ratio, text),
        begin=int(begin or BEGIN),
        **patterns[pattern or "steady"],
    )


def _parse_ratio(ratio: str, text: str) -> float:
    try:
        found = float(ratio)
    except ValueError as error:
        raise ValueError(f"ratio is {ratio!r} in {text!r}; it is a number such as 1.3") from error
    if not 1 < found <= RATIO_MAX:
        raise ValueError(f"ratio is {ratio} in {text!r}; it is above 1 and at most {RATIO_MAX:g}")
    return found


def _parse_ranks(who: str, topology: Topology) -> tuple[int, ...]:
    """Return the ranks that `who` means in this run."""
    if who == "all":
        return tuple(range(topology.world_size))
    for prefix, ranks_of, count in (
        ("node", topology.ranks_on_node, len(topology.node_names)),
        ("stage", topology.ranks_in_stage, topology.stages),
        ("", lambda rank: (rank,), topology.world_size),
    ):
        number = who.removeprefix(prefix)
        if who.startswith(prefix) and number.isdecimal():
            if int(number) >= count:
                raise ValueError(f"{who!r} is not in this run; it has {count} {prefix or 'rank'}s, counted from 0")
            return ranks_of(int(number))
    raise ValueError(f"{who!r} is unknown; give a rank, nodeN, stageN or all")


def slow_rank(cause: str, ratio: float, pattern: str = "steady", ranks: Sequence[int] = (SLOW_RANK,)) -> Fault:
    """Return a fault that begins where all do."""
    return Fault(cause=cause, ranks=tuple(ranks), ratio=ratio, begin=BEGIN, **PATTERNS[pattern])


class Named(NamedTuple):
    """A scenario and what it is about."""

    about: str
    scenario: Scenario


def _name_scenarios() -> dict[str, Named]:
    fsdp, stages, large = LAYOUTS["fsdp 16"], LAYOUTS["unequal pp 4 x dp 4"], LAYOUTS["fsdp 64"]
    named = {
        "healthy": Named("nothing is wrong", fsdp.scenario()),
        "healthy_rough": Named("nothing is wrong, and every noise there is", large.scenario(noise="rough")),
        "unequal_stages": Named("stages of unequal work, which is nobody's fault", stages.scenario()),
        "small": Named("3 %, which is too little to report", fsdp.scenario(slow_rank("gpu_compute", 1.03))),
        "two_at_once": Named(
            "two ranks are slow, each for its own reason",
            fsdp.scenario(slow_rank("gpu_compute", 1.3), slow_rank("data_loading", 1.3, ranks=(11,))),
        ),
        "slow_node": Named(
            "all ranks of one node", large.scenario(slow_rank("host_cpu", 1.3, ranks=large.topology.ranks_on_node(3)))
        ),
        "slow_stage": Named(
            "all ranks of one pipeline stage",
            stages.scenario(slow_rank("gpu_compute", 1.3, ranks=stages.topology.ranks_in_stage(1))),
        ),
        "slow_run": Named(
            "all ranks at once", fsdp.scenario(slow_rank("data_loading", 1.3, ranks=range(fsdp.topology.world_size)))
        ),
        "recovers": Named(
            "a rank is slow for a while",
            fsdp.scenario(Fault(cause="host_cpu", ranks=(SLOW_RANK,), ratio=1.5, begin=60, end=120)),
        ),
    }
    slow = fsdp.scenario(slow_rank("gpu_compute", 1.3))
    named["dead_rank"] = Named("a rank dies", replace(fsdp.scenario(), death=Death(rank=SLOW_RANK, step=BEGIN)))
    for name, network in NETWORKS.items():
        named[f"network_{name}"] = Named("a slow rank, on a bad network", replace(slow, network=network))
    for name, clocks in CLOCKS.items():
        named[f"clocks_{name}"] = Named("a slow rank, and clocks that are wrong", replace(slow, clocks=clocks))
    for cause in EFFECTS:
        named[cause] = Named(f"one rank, 1.3 times as slow: {cause}", fsdp.scenario(slow_rank(cause, 1.3)))
    for pattern in PATTERNS:
        about = f"one rank, twice as slow, {pattern}"
        named[f"{pattern}_rank"] = Named(about, fsdp.scenario(slow_rank("gpu_compute", 2.0, pattern)))
    return named


SCENARIOS: Mapping[str, Named] = _name_scenarios()
