"""Steps of a few ranks written down by hand, in ms."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.peer_groups import Peers, find_peer_groups
from rankscope.collector.steps.step_series import Floats, StepSeries

MS = 1_000_000
UNKNOWN = float("nan")

Rows = Sequence[Sequence[float]]
"""One row a step, one column a rank, in ms; UNKNOWN where not known."""


def to_ns(rows: Rows) -> Floats:
    return np.array(rows, dtype=np.float64) * MS


def series_of(
    own_ms: Rows,
    *,
    step_ms: Rows | None = None,
    cpu_ms: Rows | None = None,
    phases_ms: Mapping[str, Rows] | None = None,
    first_step: int = 0,
    own_is_measured: bool = True,
    tokens: Rows | None = None,
    exchanged_bytes: Rows | None = None,
) -> StepSeries:
    """Each step takes as long as its longest own time, unless told otherwise; all else is unknown."""
    own_ns = to_ns(own_ms)
    longest_ns = np.repeat(own_ns.max(axis=1, keepdims=True), own_ns.shape[1], axis=1)
    return StepSeries(
        steps=np.arange(first_step, first_step + len(own_ms)),
        ranks=tuple(range(own_ns.shape[1])),
        step_ns=longest_ns if step_ms is None else to_ns(step_ms),
        own_ns=own_ns,
        cpu_ns=np.full_like(own_ns, np.nan) if cpu_ms is None else to_ns(cpu_ms),
        phases_ns={name: to_ns(rows) for name, rows in (phases_ms or {}).items()},
        own_is_measured=own_is_measured,
        tokens=None if tokens is None else np.array(tokens, dtype=np.float64),
        exchanged_bytes=None if exchanged_bytes is None else np.array(exchanged_bytes, dtype=np.float64),
    )


def view_of(
    series: StepSeries,
    *,
    signatures: Mapping[int, Hashable] | None = None,
    nodes: Mapping[int, str] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
    transfers: GroupTransfers | None = None,
    samples: Samples | None = None,
    now_collector_ns: int = 0,
    hang_states: Mapping[int, RankHangState] | None = None,
    known_usual: Mapping[int, float] | None = None,
    models: Mapping[int, str | None] | None = None,
) -> RunView:
    """All ranks have been heard of, each is on a machine of its own, nothing was sampled."""
    return RunView(
        now_collector_ns=now_collector_ns,
        world_size=len(series.ranks),
        series=series,
        peer_groups=find_peer_groups(series.ranks, signatures or {}, models),
        nodes=nodes or {rank: f"node{rank}" for rank in series.ranks},
        samples=samples or Samples({}, {}, {}),
        groups=groups or {},
        transfers=transfers or GroupTransfers(),
        hang_states=hang_states or {},
        known_usual=known_usual or {},
    )


def slow_of(
    rank: int,
    peers: tuple[int, ...],
    *,
    own_ms: float,
    peers_ms: float,
    since_step: int = 0,
    level_from_step: int = 0,
    do_same_work: bool = True,
) -> SlowRank:
    return SlowRank(
        rank=rank,
        since_step=since_step,
        level_from_step=level_from_step,
        before_step=since_step - 1,
        slowdown_ratio=own_ms / peers_ms,
        robust_z=20.0,
        persistence=1.0,
        own_ns=own_ms * MS,
        steps_judged=32,
        peers=Peers(peers, len(peers), do_same_work),
        pattern="steady",
        slow_steps=np.arange(level_from_step, level_from_step + 1_000),
    )
