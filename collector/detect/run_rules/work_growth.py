"""Compare the steps of a run, or of a stage, with earlier ones of as much work, where batches have grown on purpose.

A batch with more tokens takes longer. By how much is known where steps before the change had as many tokens: then these
alone are the past. Where there are none, as the batch has grown with the change or shortly before it, a step counts as
if it took in proportion to its tokens, and the sentence says so: a part that does not grow with them (gradients take as
long to move) makes the true slowness larger. Batches that became smaller count as they are: time in proportion to
fewer tokens would call every such part a slowness.

Tokens are those of TOKENS_READ_MAX ranks at most, evenly spread. Where they are not known, work counts as equal.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.machine_growth import spread
from rankscope.collector.detect.stragglers.regression_cause import Compared
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Flags, Floats

MORE_TOKENS: Final = "more_tokens_ratio"
"""Evidence key: how many times as many tokens a batch has as in the steps before a change, where none had as many."""
ALIKE_RATIO: Final = 0.02
"""Batches whose tokens differ by less count as equal: less than half of the least slowness."""
DIFFERENCE_OF_NOISE: Final = 0.954
"""The median of the difference between two values of normal noise, in its standard deviations: 0.6745 times sqrt(2)."""
MEDIAN_ERRORS: Final = 2 * 1.2533
"""Two standard errors of a median, in standard deviations over sqrt(n): sqrt(pi/2) is that of normal noise."""
OTHERS_MIN: Final = 3
"""Steps in a row with other tokens that end a level of them: the short last batch of an epoch does not."""
TOKENS_READ_MAX: Final = 64


def find_compared(view: RunView, ranks: Sequence[int], since_step: int, level_from_step: int) -> Compared:
    """Return the steps before `since_step` that those of the present level, from `level_from_step` on, compare with,
    and by how much more work the latter have: from the first step on that has as many tokens, if `steps_min` have, else
    from the first that is kept.
    """
    tokens, steps = _read_tokens(view, ranks), view.series.steps
    before = steps < since_step
    now, past = (tokens[rows & ~np.isnan(tokens)] for rows in (steps >= level_from_step, before))
    if not len(now) or not len(past) or not np.median(past):
        return Compared(since_step)
    present = float(np.median(now))
    more = present / float(np.median(past))
    if not _is_growth(more, tokens, len(now), len(past)):
        return Compared(since_step)
    alike = _find_alike(tokens, before, present)
    if np.count_nonzero(alike) >= view.steps_min:
        return Compared(since_step, from_step=int(steps[np.argmax(alike)]))
    return Compared(since_step, more_work=more)


def keep_alike(view: RunView, times_ns: Floats) -> Floats:
    """Return times of the steps, shape (n,) in ns, with NaN in those before the batches had as many tokens as in the
    last `steps_min` steps; all of them where fewer than twice `steps_min` steps have as many.
    """
    tokens = _read_tokens(view, view.series.ranks)
    known = tokens[~np.isnan(tokens)]
    if len(known) < 2 * view.steps_min or not (present := float(np.median(known[-view.steps_min :]))):
        return times_ns
    alike = _find_alike(tokens, np.full(len(tokens), fill_value=True), present)
    return np.where(alike, times_ns, np.nan) if np.count_nonzero(alike) >= 2 * view.steps_min else times_ns


def find_growth_since(view: RunView, finding: Finding) -> float:
    """Return how many times as many tokens as the level before of an open finding counts for the last `steps_min` steps
    have; 1 where there are fewer or as many, or it is not known.
    """
    counted = recall(finding).tokens
    present = find_present_tokens(view, finding.ranks)
    if not counted or present is None:
        return 1.0
    grown = present / counted
    tokens = _read_tokens(view, _find_present(view, finding.ranks))
    return grown if _is_growth(grown, tokens, view.steps_min, view.steps_min) else 1.0


def find_present_tokens(view: RunView, ranks: Sequence[int]) -> float | None:
    """Return the tokens in the batch of one of these ranks (none: of all) in the last `steps_min` steps: the median;
    None where they are not known.
    """
    tokens = _read_tokens(view, _find_present(view, ranks))
    known = tokens[~np.isnan(tokens)][-view.steps_min :]
    return float(np.median(known)) if len(known) else None


def _find_present(view: RunView, ranks: Sequence[int]) -> Sequence[int]:
    return [rank for rank in ranks if view.series.has(rank)] or view.series.ranks


def _is_growth(ratio: float, tokens: Floats, *steps: int) -> bool:
    """Return whether two medians of so many steps each differ by this ratio as batches of varying lengths do not by
    chance. How much they vary is that from step to step, which a jump or a slow growth does not change.
    """
    known = tokens[~np.isnan(tokens)]
    level = float(np.median(known))
    differ = np.abs(np.diff(known))
    varies = float(np.median(differ)) / DIFFERENCE_OF_NOISE / level if len(differ) and level else 0.0
    errors = MEDIAN_ERRORS * varies * math.sqrt(sum(1 / count for count in steps))
    return ratio > 1 + ALIKE_RATIO + errors


def _read_tokens(view: RunView, ranks: Sequence[int]) -> Floats:
    """Return the mean of the tokens in the ranks' batches in each step, shape (n,); NaN where one is not known."""
    if view.series.tokens is None or not len(ranks):
        return np.full(len(view.series.steps), np.nan)
    columns = view.series.columns_of(spread(ranks, TOKENS_READ_MAX))
    return np.asarray(view.series.tokens[:, columns].mean(axis=1))


def _find_alike(tokens: Floats, among: Flags, present: float) -> Flags:
    """Return the steps `among` some, the last ones in a row, whose batches have as many tokens as at present; shape
    (n,). Fewer than OTHERS_MIN others in a row are left out, and do not end the row.
    """
    alike = among & (np.abs(tokens / present - 1) <= ALIKE_RATIO)
    others = np.flatnonzero(among & ~alike)
    ends = others[OTHERS_MIN - 1 :][others[OTHERS_MIN - 1 :] - others[: -OTHERS_MIN + 1] == OTHERS_MIN - 1]
    if len(ends):
        alike[: ends[-1]] = False
    return alike
