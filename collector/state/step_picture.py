"""The last steps of all ranks as the last look of detection saw them: what a heat map of a run is drawn from. Pure.

Nothing is copied: a look takes its own copy of the window, and nobody writes to that afterwards.
"""

from dataclasses import dataclass

from rankscope.collector.detect.series import Floats, Ints, StepSeries
from rankscope.collector.detect.twins import Twins
from rankscope.collector.detect.view import JobView


@dataclass(frozen=True, slots=True)
class StepPicture:
    """`excess` has the shape of the series, (n, ranks): log(own time / median of those the rank is compared with), NaN
    where not known (`detect/excess.py`). `attempt` counts elastic restarts; steps begin anew with each.
    """

    attempt: int
    series: StepSeries
    twins: Twins
    excess: Floats

    @classmethod
    def of(cls, attempt: int, view: JobView) -> "StepPicture":
        """What this look was at."""
        return cls(attempt, view.series, view.twins, view.excess)

    @property
    def steps(self) -> Ints:
        """The numbers of the steps, ascending, shape (n,)."""
        return self.series.steps

    @property
    def latest_step(self) -> int | None:
        """The last of them; None when there is none."""
        return int(self.steps[-1]) if len(self.steps) else None
