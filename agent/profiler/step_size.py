"""Estimate how many events a full window would have of a step, before any window has recorded one.

What a window costs follows from its events, and a first one cannot wait to be measured: two steps of a model of 6,000
small layers have 500,000, at which training would stop for seconds. They come from the nodes of a step's graph, which
autograd numbers, and from the tensors that its optimizer updates.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Final

EVENTS_A_NODE: Final = 12
EVENTS_A_TENSOR: Final = 30
"""An upper estimate. Measured: 8 to 11 a node, 15 in models of small linear layers alone; 8 a tensor with SGD, 15 with
fused AdamW, 38 with another one."""


class StepSize:
    """The steps of one rank. `count_nodes` returns how many nodes of graphs the calling thread has made, `find_tensors`
    how many tensors an optimizer updates in a step, 0: not known.
    """

    def __init__(self, count_nodes: Callable[[], int], find_tensors: Callable[[], int]) -> None:
        self._count_nodes = count_nodes
        self._find_tensors = find_tensors
        self._thread, self._step, self._nodes = get_ident(), 0, count_nodes()
        self._nodes_a_step = 0.0

    def estimate(self, step: int) -> float:
        """Return the events of a step, by those since the last call. Called before this step on the thread that trains;
        one that has not called before has made all its nodes since.
        """
        thread, nodes = get_ident(), self._count_nodes()
        if step > self._step:
            made = nodes - (self._nodes if thread == self._thread else 0)
            self._nodes_a_step = max(0, made) / (step - self._step)
        self._thread, self._step, self._nodes = thread, step, nodes
        return EVENTS_A_NODE * self._nodes_a_step + EVENTS_A_TENSOR * self._find_tensors()
