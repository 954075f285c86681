"""Find the share of a step that ranks wait in what no report shows: on CPUs, point-to-point operations of gloo, files,
locks, sleep.

    unseen = self time - CPU time of the training thread - data phase

Self times hold such waits, so comparing them does not tell which rank the others wait for. Ranks with a GPU are not
judged: their training thread waits for the GPU.
"""

from typing import Final

import numpy as np

from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PEERS_SAMPLED_MAX

MOSTLY: Final = 0.5
"""Share from which more of a step is unseen than is known."""


def find_unseen_share(view: RunView, from_step: int) -> float | None:
    """Return the lower median over the ranks of their unseen share of the step, from 0 to 1, in the steps from
    `from_step` on; None where CPU times or self times are not known, or ranks have GPUs.
    """
    series = view.series
    if not series.self_is_measured or any(view.samples.devices.get(rank) for rank in series.ranks):
        return None
    rows = np.flatnonzero(series.steps >= from_step)
    columns = np.arange(len(series.ranks))[:: -(-len(series.ranks) // PEERS_SAMPLED_MAX) or 1]
    cells = np.ix_(rows, columns)
    unseen_ns = series.self_ns[cells] - series.cpu_ns[cells]
    if "data" in series.phases_ns:
        unseen_ns -= series.phases_ns["data"][cells]
    shares = np.clip(unseen_ns / np.maximum(series.step_ns[cells], 1.0), 0.0, 1.0)
    known = ~np.isnan(shares).all(axis=0)
    if not known.any():
        return None
    medians = np.sort(np.nanmedian(shares[:, known], axis=0))
    return float(medians[(len(medians) - 1) // 2])
