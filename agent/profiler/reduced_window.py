"""What a window tells, once it has been read. Apart from what reads it, which takes long to import."""

from typing import Final, NamedTuple

from rankscope.measure.records import CollectiveRecord, WindowBreakdown


class ReducedWindow(NamedTuple):
    """What a window tells. `covered_steps` are the first and last step all of whose collectives are in it, if any."""

    collectives: list[CollectiveRecord]
    breakdowns: list[WindowBreakdown]
    covered_steps: tuple[int, int] | None


EMPTY_WINDOW: Final = ReducedWindow([], [], None)
