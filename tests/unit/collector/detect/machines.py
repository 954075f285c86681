"""Samples of machines written down by hand: every ten steps, which are ten seconds, one. Ports are active."""

from collections.abc import Sequence
from typing import Any

from rankscope.collector.detect.machine_growth import NodeCounts
from rankscope.measure.records import NodeSample, PortSample
from rankscope.measure.units import NS_PER_S

STEPS_APART = 10
PORT = "mlx5_0/1"


def machine(*samples: dict[str, Any], first_step: int = 0) -> Sequence[NodeCounts]:
    """Build samples with these fields."""
    return [
        NodeCounts(first_step + STEPS_APART * number, NodeSample(host_ns=10 * NS_PER_S * number, **fields))
        for number, fields in enumerate(samples)
    ]


def growing(total: int, field: str, *, first_step: int = 0, samples: int = 3) -> Sequence[NodeCounts]:
    """Build samples in which one field has grown by `total` from 1000 on."""
    counts = [1000 + total * number // (samples - 1) for number in range(samples)]
    return machine(*({field: count} for count in counts), first_step=first_step)


def port_growing(total: int, field: str, port: str = PORT, first_step: int = 0) -> Sequence[NodeCounts]:
    """Build three samples in which one counter of a port has grown by `total`."""
    counts = (7, 7 + total // 2, 7 + total)
    ports = [PortSample(name=port, is_active=True, **{field: count}) for count in counts]
    return machine(*({"ports": (one,)} for one in ports), first_step=first_step)
