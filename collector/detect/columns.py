"""Times that are no rank's, judged as a rank's are: what the search for stragglers knows of noise, of changes and of
persistence holds for any series of times and what it is compared with.
"""

from collections.abc import Sequence

import numpy as np

from rankscope.collector.detect.view import JobView, Samples
from rankscope.collector.steps.peer_groups import Comparison, Twins
from rankscope.collector.steps.step_series import Floats, StepSeries


def view_columns(view: JobView, columns: Sequence[Floats], comparisons: Sequence[Comparison]) -> JobView:
    """The same steps with columns, shape (n,) each in ns, in the place of the ranks' self times.

    The comparisons name columns by number. A column that is a member of none is only compared with.
    """
    ns = np.stack(columns, axis=1) if columns else np.empty((len(view.series.steps), 0))
    place = {column: number for number, one in enumerate(comparisons) for column in one.members}
    return JobView(
        now_job_ns=view.now_job_ns,
        world_size=len(columns),
        series=StepSeries(view.series.steps, tuple(range(len(columns))), ns, ns, ns, {}, self_is_measured=True),
        twins=Twins(tuple(comparisons), place),
        nodes={},
        samples=Samples({}, {}, {}),
    )
