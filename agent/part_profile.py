"""Record a part of a script with torch's profiler, from its begin to its end: `rankscope.agent.profile`.

It needs no agent and no whole steps. The trace is written when the part ends, which takes as long as torch takes to
write it. Where torch's profiler is on already, the agent's or the script's own, nothing is recorded, and a line says
so.
"""

import functools
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from rankscope.agent.guard import log_line

P = ParamSpec("P")
R = TypeVar("R")

FILES_MAX: Final = 100
"""Files of one object: a decorated function may be called without end."""
_LEFT_ALONE: Final = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and asynchronous generators: a call only makes them."""


class profile:  # noqa: N801 - used like a keyword, as rankscope.agent.phase
    """Context manager and decorator that records what runs inside into a file of `folder`, one for each time:
    `rank3-1.pt.trace.json.gz`, at most FILES_MAX. `host` and `device` say which sides are recorded; `shapes`, `stacks`
    and `memory` are record_shapes, with_stack and profile_memory of torch. `file` is the path of the last trace, None
    before. Errors are logged and never raised; those of the part itself pass. Not for use by two threads at once.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]" = "rankscope-profile",
        *,
        host: bool = True,
        device: bool = True,
        shapes: bool = False,
        stacks: bool = False,
        memory: bool = False,
    ) -> None:
        self._folder = Path(folder)
        self._sides = (host, device)
        self._shapes, self._stacks, self._memory = shapes, stacks, memory
        self._numbers = itertools.count(1)
        self._session: Any = None
        self.file: Path | None = None

    def __enter__(self) -> "profile":  # noqa: PYI034 - typing.Self is Python 3.11
        """Begin to record."""
        try:
            self._session = self._begin()
        except Exception as error:  # noqa: BLE001 - no error of a profile may reach the script
            self._log(error)
        return self

    def __exit__(self, *_: object) -> None:
        """End, and write the trace."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.__exit__(None, None, None)
            self._write(session)
        except Exception as error:  # noqa: BLE001 - as above
            self._log(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with each of its calls recorded; generators and coroutines as they are."""
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _LEFT_ALONE:
            return function

        @functools.wraps(function)
        def recorded(*arguments: P.args, **options: P.kwargs) -> R:
            with self:
                return function(*arguments, **options)

        return recorded

    def _begin(self) -> Any:
        """Return the session, begun; None where nothing is to be recorded."""
        import torch  # noqa: PLC0415 - a script that never profiles does not pay for it

        if self._session is not None or torch.compiler.is_compiling() or next(self._numbers) > FILES_MAX:
            return self._session
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - torch has no public question
            raise RuntimeError("torch's profiler is on already")
        session = torch.profiler.profile(
            activities=find_activities(torch, *self._sides),
            record_shapes=self._shapes,
            with_stack=self._stacks,
            profile_memory=self._memory,
        )
        session.__enter__()
        return session

    def _write(self, session: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        rank = find_rank(sys.modules, os.environ)
        names = (f"rank{rank}-{number}.pt.trace.json.gz" for number in itertools.count(1))
        path = next(self._folder / name for name in names if not (self._folder / name).exists())
        partial = path.with_name(f".{path.name}.{os.getpid()}.json.gz")
        try:
            session.export_chrome_trace(str(partial))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self.file = path

    def _log(self, error: Exception) -> None:
        log_line(f"profile: nothing is recorded into {self._folder}: {type(error).__name__}: {error}")


def find_activities(torch: Any, host: bool, device: bool) -> list[Any]:  # noqa: FBT001 - the two of `profile`
    """Return what torch's profiler is to record. Raises ValueError where nothing is left."""
    kinds = torch.profiler.ProfilerActivity
    found = [kinds.CPU] if host else []
    supported = torch.profiler.supported_activities()
    found += [one for one in (kinds.CUDA, kinds.XPU) if device and one in supported]
    if not found:
        raise ValueError("neither a host nor a device is left to record: no device is known to this torch")
    return found


def find_rank(modules: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    """Return the rank of this process: of the default process group, else of the launcher's RANK, else 0.

    >>> find_rank({}, {"RANK": "3"}), find_rank({}, {})
    (3, 0)
    """
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = environment.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0
