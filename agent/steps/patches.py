"""A function of torch's replaced by one of ours around it, for a time, and put back without harm to anybody else's."""

import contextlib
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Patch:
    """`owner.name`, wrapped. What somebody has put around ours since stays, and ours with it: taking theirs away would
    be worse.
    """

    def __init__(self, owner: Any, name: str, wrap: Wrap) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._original: Any = None
        self._replacement: Any = None
        self._is_on = False

    def apply(self) -> None:
        """Begin. Does nothing while it is on, or still inside somebody's."""
        if self._is_on:
            return
        present = getattr(self._owner, self._name)
        if present is not self._original:
            self._original, self._replacement = present, self._wrap(present)
            hide_from_compiler(self._replacement)
        setattr(self._owner, self._name, self._replacement)
        self._is_on = True

    def revert(self) -> None:
        """End."""
        if self._is_on and getattr(self._owner, self._name) is self._replacement:
            setattr(self._owner, self._name, self._original)
            self._is_on = False


def hide_from_compiler(function: Any, *, callees_too: bool = False) -> None:
    """Keep torch.compile from tracing a function of ours when a compiled training step calls it: it would warn the user
    about the thread and the clock that are asked for, and compile a dozen frames of ours.

    These are what torch.compiler.disable uses, without the seconds that importing torch._dynamo takes. A torch that has
    them not warns once, and works.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        function._torchdynamo_disable = True
        from torch._C._dynamo import eval_frame  # noqa: PLC0415

        action = eval_frame._FrameAction
        then = action.SKIP if callees_too else action.DEFAULT
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, then))
