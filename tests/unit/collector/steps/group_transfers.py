"""Transfers of a few process groups, written down or drawn from a seeded generator."""

from collections.abc import Mapping

import numpy as np

from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.steps.group_transfers import GroupTransfers
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.records import DeviceSample
from tests.unit.collector.steps.step_series import MS, series_of, view_of

STEP_MS = 100.0
TRANSFER_MS = 10.0
MB = 1_000_000.0
LINKS = Thresholds(slowdown_ratio_min=1.25, slowdown_close_ratio=1.125)
"""What the collector's configuration makes of its default."""

Groups = Mapping[str, tuple[int, ...]]


def mesh(tensor: int, data: int) -> dict[str, tuple[int, ...]]:
    """The groups of a mesh in which tensor parallel ranks are neighbors."""
    ranks = np.arange(tensor * data).reshape(data, tensor)
    named = [("mesh_tp", row) for row in ranks.tolist()] + [("mesh_dp", column) for column in ranks.T.tolist()]
    return {f"{name}/{','.join(map(str, members))}": tuple(members) for name, members in named}


def noisy(steps: int, spread: float = 0.03, seed: int = 1) -> Floats:
    """Transfers of one group, shape (steps,), in ms."""
    return TRANSFER_MS * np.exp(np.random.default_rng(seed).normal(0.0, spread, steps))


def draw(groups: Groups, steps: int, spread: float = 0.03, seed: int = 1) -> dict[str, Floats]:
    """Transfers of all groups, in ms."""
    return {group: noisy(steps, spread, seed * 1_000 + number) for number, group in enumerate(sorted(groups))}


def view_with(
    groups: Groups,
    transfers_ms: Mapping[str, Floats],
    *,
    exposed_ms: float = 1_000.0,
    step_ms: Floats | None = None,
    size_bytes: Mapping[str, Floats] | None = None,
    nodes: Mapping[int, str] | None = None,
    samples: Samples | None = None,
    first_step: int = 0,
) -> RunView:
    """Each group moves a megabyte a step, on two ranks as on the bus, unless told otherwise; every rank has a GPU."""
    steps = len(next(iter(transfers_ms.values()), ()))
    world_size = max((rank for members in groups.values() for rank in members), default=1) + 1
    sizes = {group: np.full(steps, MB) for group in transfers_ms} | dict(size_bytes or {})
    transfers = GroupTransfers(
        ns={group: np.asarray(ms, dtype=np.float64) * MS for group, ms in transfers_ms.items()},
        size_bytes=sizes,
        bus_bytes={group: moved.copy() for group, moved in sizes.items()},
        exposed_ns={group: np.full(steps, exposed_ms * MS) for group in transfers_ms},
    )
    lasts_ms = np.full(steps, STEP_MS) if step_ms is None else step_ms
    series = series_of(np.repeat(lasts_ms[:, np.newaxis], world_size, axis=1).tolist(), first_step=first_step)
    gpus = Samples({}, {}, {rank: [DeviceSample(host_ns=0, uuid="", model="")] for rank in range(world_size)})
    return view_of(series, groups=groups, transfers=transfers, nodes=nodes, samples=samples or gpus)
