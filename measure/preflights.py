"""What a collector keeps of pre-flights: the rates of each node by check, and how the node came out."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import ShortName
from rankscope.measure.identity import Label

COLLECTOR_KEY: Final = "preflight"
"""Stands for the name of a run where one of several collectors is chosen (shards.py): one of them has the past of all
nodes, whatever run uses them next.
"""
NODES_MAX: Final = 32
"""Nodes in a message. With all texts at their limits, in ASCII, a message is below 64 KiB, the smallest
`message_bytes_max` of a collector; an answer has 20 pre-flights of each node, some 200 KiB.
"""
PAST_MAX: Final = 20
"""Earlier pre-flights of a node that are compared with, the latest ones."""
CHECKS_MAX: Final = 16
"""Checks of a node; there are 9."""
REASONS_MAX: Final = 4
"""Reasons why a node is named; more are left out."""
REASON_LENGTH_MAX: Final = 256
DEVICE_LENGTH_MAX: Final = 128

NAMED: Final = "named"
NOT_NAMED: Final = "not_named"
NOT_JUDGED: Final = "not_judged"
STATUSES: Final = (NAMED, NOT_NAMED, NOT_JUDGED)
"""How a node comes out of a pre-flight: it failed a check; it failed none; nothing could be compared at all."""

Device = Annotated[str, msgspec.Meta(max_length=DEVICE_LENGTH_MAX)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
Rates = Annotated[Mapping[ShortName, float], msgspec.Meta(max_length=CHECKS_MAX)]
"""The rate of a node's slowest rank by the name of the check, in the check's unit; above 0."""


class NodeDevice(msgspec.Struct, frozen=True, array_like=True):
    """A node, and the model of the GPUs or CPUs of its ranks: rates of another device are no past of it."""

    node: Label
    device: Device


class NodeOutcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one pre-flight says of a node. `status` is one of STATUSES, `reasons` are sentences why it is named."""

    node: Label
    device: Device
    status: ShortName
    rates: Rates = {}
    reasons: Annotated[tuple[Reason, ...], msgspec.Meta(max_length=REASONS_MAX)] = ()


class NodePast(msgspec.Struct, frozen=True, array_like=True):
    """The rates of earlier pre-flights of a node in which it was not named, the latest last."""

    node: Label
    rates: Annotated[tuple[Rates, ...], msgspec.Meta(max_length=PAST_MAX)] = ()


class LastPreflight(msgspec.Struct, frozen=True, kw_only=True):
    """The last pre-flight of a node. `wall_s` is when the collector received it, `status` is `named`, `not_named` or
    `not_judged` (nothing could be compared), `reasons` are sentences why the node was named, at most 4.
    """

    wall_s: float
    status: str
    device: str
    reasons: tuple[str, ...] = ()
