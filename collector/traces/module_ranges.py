"""Find the forwards of modules in a trace: Python frames, or the ranges that a capture with `modules` marks."""

from collections import Counter

import msgspec
import numpy as np

from rankscope.measure.capture_limits import MODULE_PREFIX, MODULES_KEY
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


class ModuleNotes(msgspec.Struct):
    """What a capture says of modules, by the name of the range without its prefix: the numbers in the parameters of
    each instance, None where they are not known, and the path of its attributes in the outermost module, such as
    `layers.1.mlp`, empty for that one itself.
    """

    parameters: dict[str, int | None] = {}
    paths: dict[str, str] = {}


def read_notes(view: RankView) -> ModuleNotes:
    """Return what the trace says of its modules; empty where it says nothing. A capture says it of the ranges that it
    marks: where there are Python frames, too, these must have the same names as often, or their numbers may be those of
    other instances.
    """
    frames, marked = (
        Counter(map(view.trace.name, view.trace.rows_named(view.trace.rows(category), is_module_range).tolist()))
        for category in (Category.PYTHON, Category.ANNOTATION)
    )
    if frames and frames != marked:
        return ModuleNotes()
    try:
        return msgspec.convert(view.trace.head.get(MODULES_KEY, {}), ModuleNotes)
    except msgspec.ValidationError:
        return ModuleNotes()
