"""Find the forwards of modules in a trace: Python frames, or the ranges that a capture with `modules` marks."""

import numpy as np

from rankscope.measure.capture_limits import MODULE_PREFIX
from rankscope.measure.kineto import Category, Ints
from rankscope.measure.rank_view import RankView


def is_module_range(name: str) -> bool:
    """Return whether this is the name of a module's forward.

    >>> is_module_range("nn.Module: Linear_3"), is_module_range("aten::linear")
    (True, False)
    """
    return name.startswith(MODULE_PREFIX)


def find_module_ranges(view: RankView) -> Ints:
    """Return the rows of the forwards of modules; those of Python frames where there are both."""
    for category in (Category.PYTHON, Category.ANNOTATION):
        rows = view.trace.rows_named(view.trace.rows(category), is_module_range)
        if len(rows):
            return rows
    return np.empty(0, dtype=np.int64)
