"""The same steps of all ranks side by side: a ring of steps, one column per rank.

A step's duration and phases arrive within a report interval, its collectives when the profiler window they were seen in
ends. Until every rank has reported them a step's waiting is not known, and its self time neither: NaN.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers import Floats, StepSeries
from rankscope.collector.detect.waits import KindWaits, RankCollectives, split_waits
from rankscope.measure.records import PHASE_PREFIX, Collectives
from rankscope.measure.table import MISSING, Column, Table

PHASES_MAX = 32
"""Names of phases kept for a run: the five of every step and what its users add."""
COMPUTING_PHASES = ("data", "forward", "optimizer", "other")
"""The phases in which a rank does not wait for others; they stand in for the self time where waiting is not known."""


class Signature(NamedTuple):
    """What a step communicates: sorted (op, group size, bytes)."""

    calls: tuple[tuple[str, int, int], ...]


class StepWindow:
    """The last `steps_kept` steps of `world_size` ranks.

