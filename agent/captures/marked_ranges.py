"""Mark ranges beside the operators of a capture: scopes of the script, and on request the forwards of modules.

Ranges of modules have the names that torch gives them in traces with Python stacks, `nn.Module: Linear_3`: the class,
and the number of the instance by its first call in the capture. The hooks of `torch.nn` that mark them are there only
during such a capture. They return nothing, so torch passes on what it would without them. How many parameters each
module has, and the path of its attributes in the outermost module that was called, goes into the head of the trace;
`rankscope analyze --flops` reads it.
"""

import contextlib
import json
import sys
import weakref
from _thread import get_ident
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from rankscope.agent import scopes
from rankscope.agent.capture_settings import RecordOptions
from rankscope.agent.captures.trace_recording import PART
from rankscope.agent.guard import Guard
from rankscope.measure.capture_limits import MODULE_PREFIX, MODULES_KEY

INSTANCES_MAX: Final = 10_000
"""Instances that are told apart in a capture; further ones of a class share a name."""
WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Attributes in which torch puts the module that it wraps: nobody has written them."""
VERSION: Final = 1
"""Of what the head of a trace says of modules."""
COMPILED: Final = "modules cannot be marked in a process in which torch.compile has compiled code"


def find_modules_obstacle(loaded: Mapping[str, Any] = sys.modules) -> str | None:
    """Return why no hooks may be put on modules, None where nothing is in the way. With them each call of a compiled
    module warns, which a script may have made an error. `loaded` are the modules that have been imported, by name.
    """
    dynamo = loaded.get("torch._dynamo.utils")
    if dynamo is None:
        return None
    counters = getattr(dynamo, "counters", None)
    return COMPILED if counters is None or counters.get("frames") else None


class MarkedRanges:
    """The ranges that are marked in this process while a capture is on.

    `make_range` returns a context manager that marks a range of this name; `register` puts two hooks on all modules,
    called before and after each forward, and returns what removes them. Both are torch's unless a test says otherwise.
    """

    def __init__(
        self,
        guard: Guard,
        make_range: Callable[[str], Any] | None = None,
        register: Callable[[Callable[..., None], Callable[..., None]], list[Callable[[], None]]] | None = None,
    ) -> None:
        self._guard = guard
        self.session: Any = None
        """The session of torch's profiler that the ranges are marked in; forgotten when they end."""
        self._parameters: dict[str, int | None] = {}
        self._paths: dict[str, str] = {}
        self._path_of: dict[int, str] = {}
        self._make_range = make_range or record_range
        self._register = register or register_hooks
        self._undo: list[Callable[[], None]] = []
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._counts: dict[str, int] = {}
        self._open: dict[int, list[tuple[int, Any]]] = {}
        self._is_traced = scopes.find_tracing_check(sys.modules.get("torch"))
        scopes.learn_torch(sys.modules.get("torch"))

    def begin(self, options: RecordOptions) -> None:
        """Mark ranges from now on, for a capture with these options. On the training thread."""
        scopes.switch.turn_on(self._make_range, self._on_error)
        if options.modules:
            self._undo = self._register(self._begin_forward, self._end_forward)

    def end(self) -> None:
        """Mark no more ranges, end those of modules that are open on this thread, put what is known of the modules into
        the head of the trace, and forget all modules. Never raises.
        """
        scopes.switch.turn_off()
        undo, self._undo = self._undo, []
        for remove in undo:
            with contextlib.suppress(Exception):
                remove()
        opened, self._open = self._open, {}
        for _, one in reversed(opened.get(get_ident(), [])):
            with contextlib.suppress(Exception):
                one.__exit__(None, None, None)
        self._write_notes()
        self._names, self._counts, self._path_of = {}, {}, {}

    def _write_notes(self) -> None:
        session, self.session = self.session, None
        (counts, paths), self._parameters, self._paths = (self._parameters, self._paths), {}, {}
        if session is None or not counts:
            return
        try:
            notes = {"version": VERSION, "parameters": counts, "paths": paths}
            session.add_metadata_json(MODULES_KEY, json.dumps(notes, separators=(",", ":")))
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            self._on_error(error)

    def _begin_forward(self, module: Any, _inputs: object) -> None:
        if self._is_traced():
            return
        try:
            if is_jit_tracing():
                return
            one = self._make_range(self._name(module))
            one.__enter__()
            self._open.setdefault(get_ident(), []).append((id(module), one))
        except Exception as error:  # noqa: BLE001 - no error of a capture may reach the training script
            self._on_error(error)

    def _end_forward(self, module: Any, _inputs: object, _output: object) -> None:
        """End the innermost range of this module, and those inside it that have been left by other ways."""
        if self._is_traced():
            return
        mine = self._open.get(get_ident(), [])
        if all(key != id(module) for key, _ in mine):
            return
        try:
            key = 0
            while key != id(module):
                key, one = mine.pop()
                one.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - as above
            self._on_error(error)

    def _name(self, module: Any) -> str:
        known = self._names.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        of = type(module).__name__
        if len(self._names) >= INSTANCES_MAX:
            return f"{MODULE_PREFIX}{of}_more"
        number = self._counts.get(of, 0)
        self._counts[of] = number + 1
        name = f"{MODULE_PREFIX}{of}_{number}"
        self._names[id(module)] = weakref.ref(module), name
        said = name.removeprefix(MODULE_PREFIX)
        self._parameters[said] = count_parameters(module)
        if id(module) not in self._path_of and not self._open.get(get_ident()):
            self._path_of |= {id(inner): path for path, inner in name_modules(module)}
        if id(module) in self._path_of:
            self._paths[said] = self._path_of[id(module)]
        return name

    def _on_error(self, error: Exception) -> None:
        self._guard.record(PART, error)


def count_parameters(module: Any) -> int | None:
    """Return how many numbers the parameters of a module, and of the modules in it, have, each parameter once; None
    where one of them has no shape yet. A parameter that is divided among ranks counts as a whole (DTensor, DeepSpeed's
    ZeRO); of FSDP's flat parameters only the part of this rank is there.
    """
    try:
        return sum(int(getattr(one, "ds_numel", None) or one.numel()) for one in module.parameters())
    except Exception:  # noqa: BLE001 - a lazy module's parameters raise, and modules of others may do anything
        return None


def name_modules(module: Any) -> list[tuple[str, Any]]:
    """Return the module and those inside it, each with the path of its attributes, without torch's own wrappers; at
    most INSTANCES_MAX.

    >>> from torch import nn
    >>> [path for path, _ in name_modules(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))]
    ['', '0', '1', '1.0']
    """
    named = islice(module.named_modules(), INSTANCES_MAX)
    return [(".".join(part for part in path.split(".") if part not in WRAPPERS), inner) for path, inner in named]


def record_range(name: str) -> Any:
    """Return a context manager that marks a range in a trace of torch's profiler."""
    from torch.profiler import record_function  # noqa: PLC0415 - the user's torch

    return record_function(name)


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace is at work on this thread: the range would become part of what it makes."""
    return bool(sys.modules["torch"].jit.is_tracing())


def register_hooks(before: Callable[..., None], after: Callable[..., None]) -> list[Callable[[], None]]:
    """Put hooks on the forwards of all modules, the second also where a forward raises; return what removes them."""
    from torch.nn.modules import module  # noqa: PLC0415 - as above

    undo = [module.register_module_forward_pre_hook(before).remove]
    try:
        undo.append(module.register_module_forward_hook(after, always_call=True).remove)
    except Exception:
        undo[0]()
        raise
    return undo
