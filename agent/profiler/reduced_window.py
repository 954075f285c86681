"""The results of a profiler window, without the code that reads it, which takes long to import."""

from typing import Final, NamedTuple

from rankscope.measure.enqueues import Enqueues
from rankscope.measure.records import CollectiveRecord, WindowBreakdown, WindowFlops, WindowSynchronizations


class ReducedWindow(NamedTuple):
    """The results of a window. `covered_steps` are the first and last step whose collectives are complete, if any.
    `synchronizations` are those of a device's full window with a whole step. `timed_steps` are the first and last step
    between windows whose collectives are those that torch's flight recorder has timed. `flops` are those of a step of a
    window with shapes. `enqueues` are times of collectives between windows that torch does not time.
    """

    collectives: list[CollectiveRecord]
    breakdowns: list[WindowBreakdown]
    covered_steps: tuple[int, int] | None
    synchronizations: WindowSynchronizations | None = None
    timed_steps: tuple[int, int] | None = None
    flops: WindowFlops | None = None
    enqueues: Enqueues | None = None


EMPTY_WINDOW: Final = ReducedWindow([], [], None)
