"""Find what torch keeps private to call a function when a backward's own work has ended.

    backward() -- first node: queue ---- nodes ---------- last node: callbacks in their order ------ returns
                                                          ours | DDP's wait for its all-reduces

Autograd calls the callbacks of a backward when all of its nodes have run, in the order in which they were queued. DDP
queues its own while nodes run, and waits in it for the gradients that are still being reduced. Ours is queued by a
pre-hook of the loss's node, which is the first to run, and so comes before that wait.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rankscope.agent.steps.torch_functions import find_unheard

UNSUPPORTED: Final = "unsupported"
COMPILED: Final = "compiled_autograd"
TRACED: Final = "traced"
NO_NODE: Final = "no_node"

_READS: Final = ((tuple, tuple.__iter__), (list, list.__iter__), (dict, dict.values))
"""How the members of what may have tensors are read: not by methods of the script."""


class AutogradCallbacks:
    """The callbacks of this torch, once `find` was called."""

    def __init__(self) -> None:
        self.queue: Callable[[Callable[[], None]], None] | None = None
        """Queues a callback of the backward that runs on this thread; None: not found."""
        self._is_traced: Callable[[], bool] | None = None
        self._is_found = False

    def find(self) -> None:
        """Find them, the first time. Raises what torch raises."""
        if self._is_found:
            return
        self._is_found = True
        import torch  # noqa: PLC0415 - the user's torch, imported by now

        engine = getattr(torch.autograd.Variable, "_execution_engine", None)
        count_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
        self.queue = getattr(engine, "queue_callback", None)
        self._is_traced = None if count_modes is None else lambda: bool(count_modes() > 0)

    def find_obstacle(self, node: Any) -> str | None:
        """Return why a backward that begins with this node may not be watched; None: it may."""
        if self.queue is None or self._is_traced is None:
            return UNSUPPORTED
        if may_be_compiled():
            return COMPILED
        if self._is_traced():
            return TRACED
        return NO_NODE if node is None else None


ENGINE_ARGUMENTS: Final = (
    "tensors", "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad",
)  # fmt: skip
"""Of the engine's `run_backward`, by their places."""


def accumulates_gradients(arguments: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Return whether a call of the engine with these arguments adds to the gradients of parameters, as a backward does;
    torch.autograd.grad returns them instead.

    >>> accumulates_gradients((), {"accumulate_grad": True}), accumulates_gradients((1, 2, 3, 4, 5, 6, False), {})
    (True, False)
    """
    return bool(_find_argument("accumulate_grad", arguments, keywords))


def keeps_graph(arguments: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Return whether gradients of the gradients can be taken after a call of the engine with these arguments.

    >>> keeps_graph((), {"create_graph": True}), keeps_graph((1, 2, True, False), {})
    (True, False)
    """
    return bool(_find_argument("create_graph", arguments, keywords))


def find_tracing() -> Callable[[], object]:
    """Return what returns an object while torch.compile traces on this thread, which takes gradients of tensors without
    data; None else, and in a torch without it.
    """
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    found: Callable[[], object] | None = getattr(context, "try_get", None)
    return found or (lambda: None)


def _find_argument(name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    place = ENGINE_ARGUMENTS.index(name)
    return arguments[place] if place < len(arguments) else keywords.get(name)


def find_first_node(arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return the node with which a backward begins, given the arguments of the engine; None: not known."""
    return find_node((_find_argument("tensors", arguments, keywords),))


def find_node(values: Iterable[Any]) -> Any:
    """Return the node of the first tensor in these values, or in the first that has several; None: none has one.

    Nothing but a tensor is asked for it: other objects may answer anything, and torch.fx notes the question.
    """
    torch = sys.modules["torch"]
    with find_unheard(torch)():
        for value in values:
            read = next((read for kind, read in _READS if issubclass(type(value), kind)), None)
            for one in (value,) if read is None else read(value):
                node = one.grad_fn if issubclass(type(one), torch.Tensor) else None
                if node is not None:
                    return node if hasattr(node, "register_prehook") else None
    return None


def may_be_compiled() -> bool:
    """Return whether torch compiles the backward that is called now: it would trace hooks of ours."""
    compiler = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiler is None:
        return False
    is_enabled = getattr(compiler, "compiled_autograd_enabled", True)
    return bool(is_enabled or getattr(compiler, "in_compiled_autograd_region", False))
