"""Find what may hold products that the operators of a host do not show, where the work of its device is not recorded.

Without kernels there is no time on the device, so nothing is too short to matter: each operator counts that is not
known to be without products, however seldom it is called. And what launches kernels of its own past torch's operators
shows only as the range around it: functions of autograd that are not torch's own, and code that torch.compile has made.
What is launched past both, as by a Triton kernel in an optimizer, is not seen at all.
"""

import re
from collections import Counter
from typing import Final

import numpy as np

from rankscope.measure.counted_operators import CountedOperators, ProfiledWindow
from rankscope.measure.flops import NO_FORMULA, has_no_product
from rankscope.measure.kineto import Ints
from rankscope.measure.nesting import OUTSIDE, Nesting
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.uncounted_operators import UncountedOperator

OWN_KERNELS: Final = "may launch kernels of its own"
COMPILED: Final = "compiled: what its kernels compute is not recorded on the host"
_NODE = re.compile(r"Backward\d+$|^torch::autograd::(?:AccumulateGrad|GraphRoot|CopySlices|CopyBackwards)")
"""Nodes of torch's own autograd, with a number behind each generated one."""
_CPP_NODE = "CppNode"
"""In the name of a function of autograd that is written in C++ outside of torch."""
_FUNCTIONS_OF_TORCH = frozenset({
    "CheckpointFunction", "_DDPSink", "RegisterPostBackwardFunction", "_ToTorchTensor", "_FromTorchTensor",
    "Redistribute",
})  # fmt: skip
"""Functions of autograd that torch has written in Python, whose work is operators; of DDP, FSDP2 and DTensor."""
_COMPILED = re.compile(r"^Torch-Compiled Region|CompiledFunction|CompiledFxGraph|^## Call")


def find_unseen_products(view: RankView, window: ProfiledWindow, counted: CountedOperators) -> list[UncountedOperator]:
    """Return what may hold products that are not in the sums, the most calls first: calls with a formula that could not
    be used, operators that are not known to be without products and have none inside, and what may launch kernels of
    its own. Times are None.
    """
    found: Counter[tuple[str, str]] = Counter()
    for row, one in zip(counted.row.tolist(), counted.found, strict=True):
        if one.reason is not None:
            found[view.trace.name(row), one.reason] += 1
    rows = view.host.operator_rows
    others = np.flatnonzero(window.select(view.events.start_ns[rows]) & (counted.owner == OUTSIDE))
    has_product = _find_around(view.host.operators, counted.place)
    for row, around in zip(rows[others].tolist(), has_product[others].tolist(), strict=True):
        name = view.trace.name(row)
        reason = find_reason(name, has_product_inside=around)
        if reason is not None:
            found[name, reason] += 1
    return [
        UncountedOperator(operator=name, reason=reason, count=count, time_ns=None, time_ratio=None)
        for (name, reason), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def _find_around(nesting: Nesting, places: Ints) -> Bools:
    """Return by place which ranges are around any of these."""
    is_around = np.zeros(len(nesting.parent), dtype=bool)
    above = np.unique(nesting.parent[places])
    while len(above := above[above != OUTSIDE]):
        is_around[above] = True
        above = np.unique(nesting.parent[above])
    return is_around


def find_reason(name: str, *, has_product_inside: bool) -> str | None:
    """Return why a range that is not counted may hold products, None where it holds none of its own.

    An operator of torch with a counted one inside is made of others; one of another library may do more than these.

    >>> names = "aten::gelu", "aten::einsum", "AddmmBackward0", "mylib::attention"
    >>> [find_reason(name, has_product_inside=True) for name in names]
    [None, None, None, 'no formula']
    >>> find_reason("aten::einsum", has_product_inside=False), find_reason("FlashAttn", has_product_inside=False)
    ('no formula', 'may launch kernels of its own')
    """
    if _COMPILED.search(name):
        return COMPILED
    if has_no_product(name) or _NODE.search(name):
        return None
    prefix, _, _ = name.rpartition("::")
    if not prefix or _CPP_NODE in name:
        return None if name.removesuffix("Backward") in _FUNCTIONS_OF_TORCH else OWN_KERNELS
    return None if prefix == "aten" and has_product_inside else NO_FORMULA
