"""Wrap a function or the autograd engine of torch's for a time, and restore it without removing wrappers of others."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Patch:
    """A wrapper around `owner.name`. When another tool has wrapped ours since, both stay: removing theirs would be
    worse.
    """

    def __init__(self, owner: Any, name: str, wrap: Wrap) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._original: Any = None
        self._replacement: Any = None
        self._is_on = False

    def apply(self) -> None:
        """Install the wrapper. Does nothing while it is installed, or still inside another tool's wrapper."""
        if self._is_on:
            return
        present = getattr(self._owner, self._name)
        if present is not self._original:
            self._original, self._replacement = present, self._wrap(present)
            hide_from_compiler(self._replacement)
        setattr(self._owner, self._name, self._replacement)
        self._is_on = True

    def revert(self) -> None:
        """Restore the original, unless another tool has wrapped ours."""
        if self._is_on and getattr(self._owner, self._name) is self._replacement:
            setattr(self._owner, self._name, self._original)
            self._is_on = False


class EnginePatch:
    """What every backward and `torch.autograd.grad` goes through, wrapped: torch's function that calls the engine, and
    `run_backward` of the engine itself, which frameworks call without that. The wrapper takes the engine's arguments
    (`ENGINE_ARGUMENTS`).

    A warning of torch's C++ is said to come from the innermost frame of Python. If that were a wrapper of ours, the
    script's filters for torch would not match it, and where others are errors it would end the training. So torch's
    function calls the engine past our wrappers.

    The engine has no attributes of its own, so the patch puts another one in its place. Raises AttributeError in a
    torch without it.
    """

    def __init__(self, wrap: Wrap) -> None:
        import torch  # noqa: PLC0415 - the user's torch, imported by now

        variable, graph = torch.autograd.Variable, torch.autograd.graph
        self._patches = [Patch(variable, "_execution_engine", lambda engine: _wrap_engine(engine, wrap))]
        if hasattr(graph, "_engine_run_backward") and getattr(graph, "Variable", None) is not None:
            once = functools.cache(wrap)  # torch has the function under two names
            owners = [one for one in (graph, torch.autograd) if hasattr(one, "_engine_run_backward")]
            self._patches += [Patch(owner, "_engine_run_backward", once) for owner in owners]
            self._patches.append(Patch(graph, "Variable", lambda _present: _make_past_wrappers(variable)))

    def apply(self) -> None:
        """Install the wrappers, as Patch does."""
        for patch in self._patches:
            patch.apply()

    def revert(self) -> None:
        """Restore torch, as Patch does."""
        for patch in reversed(self._patches):
            patch.revert()


_BENEATH: Final = "_rankscope_beneath"
"""In the class of an engine of ours: the engine that it has taken the place of."""


def _wrap_engine(engine: Any, wrap: Wrap) -> Any:
    """Return an engine of the same type, for which torch.compile looks, whose `run_backward` is wrapped."""
    run_backward = wrap(engine.run_backward)
    hide_from_compiler(run_backward)
    kind = type(engine)
    watched: Any = type(kind.__name__, (kind,), {"run_backward": staticmethod(run_backward), _BENEATH: engine})
    replacement = watched.__new__(watched)
    vars(replacement).update(getattr(engine, "__dict__", {}))
    return replacement


def _make_past_wrappers(variable: Any) -> Any:
    """Return a class that is `Variable` to torch's function, but has the engine beneath those of ours."""

    def find_engine(_: object) -> Any:
        engine = variable._execution_engine
        while _BENEATH in vars(type(engine)):
            engine = vars(type(engine))[_BENEATH]
        return engine

    hide_from_compiler(find_engine)
    kind = type(variable)
    past: Any = type(kind.__name__, (kind,), {"_execution_engine": property(find_engine)})
    return past(variable.__name__, (variable,), {})


def hide_from_compiler(function: Any, *, callees_too: bool = False) -> None:
    """Keep torch.compile from tracing a function of ours that a compiled training step calls: it would warn the user
    about its reads of the thread's id and the clock, and compile a dozen frames of ours.

    This does what torch.compiler.disable does, without importing torch._dynamo, which takes seconds. A torch without
    these functions warns once, and works.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        function._torchdynamo_disable = True
        from torch._C._dynamo import eval_frame  # noqa: PLC0415

        action = eval_frame._FrameAction
        then = action.SKIP if callees_too else action.DEFAULT
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, then))
