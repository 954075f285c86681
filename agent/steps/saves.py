"""Times and counts what a rank saves, without a change of the script: each save by line, with its duration and bytes.

    torch.save                                   to a file; in memory it is no save
    torch.distributed.checkpoint                 `write_data` of its file writers: a rank's own part. The rest of
                                                 a save plans, and waits for the other ranks' writes
    its async_save                               on the training thread the copy to the host (`stage`); the write is one
                                                 in the background
    safetensors.torch                            `serialize_file`, which save_file and save_model call
    Lightning                                    `TorchCheckpointIO.save_checkpoint`, which writes by way of memory

What is own time is the phase `checkpoint` of the step, the rest of a distributed save the phase `checkpoint_wait`. Of
libraries that are imported later, saves count from the first report after their import. A save in another process, as
of async_save with processes, is not seen.
"""

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import monotonic_ns
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.steps.event_buffer import PART as STEP_HOOKS
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.patches import Patch, hide_from_compiler
from rankscope.agent.steps.user_steps import UserSteps
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.records import CHECKPOINT, CHECKPOINT_WAIT, SAVE_LINES_MAX, SavedLine
from rankscope.measure.stalls import StackFrame, describe_frame
from rankscope.measure.text import to_unicode

PART: Final = "saves"
SAVE_NS: Final = 30_000
"""Assumed cost of one save: two events, the walk to the script's line, the size of the file. Measured in a bare loop:
9 us, and three times that is what a hook event takes during training (`event_buffer.py`)."""

OTHER_SAVES: Final = "other", "", False
"""Stands for the saves at lines beyond SAVE_LINES_MAX."""

Call = Callable[..., Any]


class _Place(NamedTuple):
    """A function that saves: of `owner`, an attribute of `module` or, where empty, the module itself. `call` is its
    name for users; without one it is the whole of a save whose parts have places of their own. `file`: the place and
    the name of the argument that is the file, or its path; None: what it has written follows from what it returns.
    """

    module: str
    owner: str
    name: str
    call: str
    file: tuple[int, str] | None = None

    def find_file(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """Return the file or its path; None where none is among the arguments."""
        if self.file is None:
            return None
        place, name = self.file
        return args[place] if len(args) > place else keywords.get(name)


_DCP: Final = "torch.distributed.checkpoint"
_STAGE: Final = f"{_DCP}.async_save"
PLACES: Final = (
    _Place("torch.serialization", "", "save", "torch.save", (1, "f")),
    _Place("torch", "", "save", "torch.save", (1, "f")),
    _Place(f"{_DCP}.filesystem", "_FileSystemWriter", "write_data", f"{_DCP}.save"),
    _Place(f"{_DCP}.staging", "DefaultStager", "stage", _STAGE),
    _Place(f"{_DCP}.staging", "BlockingAsyncStager", "stage", _STAGE),
    _Place(f"{_DCP}.state_dict_saver", "", "_save_state_dict", ""),
    _Place("safetensors.torch", "", "serialize_file", "safetensors.torch.save_file", (1, "filename")),
    *(
        _Place(f"{name}.plugins.io.torch_io", "TorchCheckpointIO", "save_checkpoint", "save_checkpoint", (2, "path"))
        for name in ("lightning.fabric", "lightning_fabric")
    ),
)


def _size_of_file(file: Any) -> int | None:
    """Return the size of a file by its path, or of what was written to an open file up to now; None where not known.
    Raises what a signal handler of the script raises: a file system may let it wait for long.
    """
    try:
        return os.stat(file).st_size if isinstance(file, str | os.PathLike) else int(file.tell())
    except Exception as error:
        if is_of_script(error):
            raise
        return None


def _size_of_writes(result: Any) -> int | None:
    """Return the bytes of a finished future of WriteResults; None for anything else."""
    try:
        return sum(int(one.size_in_bytes) for one in result.value()) if result.done() else None
    except Exception:  # noqa: BLE001 - other writers return what they want
        return None


class _Begun(NamedTuple):
    """A save that has begun: its line, whether it is on the training thread, when, its file, and what that held."""

    call: str
    line: str
    is_training: bool
    begin_ns: int
    file: Any
    before_bytes: int


class Saves:
    """The saves of one process, on any thread; read on one, the agent's. `is_user` says of a file of code whether it is
    the user's own.
    """

    def __init__(
        self,
        guard: Guard,
        buffer: HookEventBuffer,
        steps: UserSteps,
        is_user: Callable[[str], bool],
        read_event_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._guard, self._buffer, self._steps, self._read_event_ns = guard, buffer, steps, read_event_ns
        self._is_user = is_user
        self._patches: list[Patch] = []
        self._waiting: list[_Place] = []
        self._wrapped: dict[Call, Call] = {}
        self._inside: set[int] = set()
        self._lines: dict[tuple[str, str, bool], SavedLine] = {}
        self._count = 0
        self._is_on = self._was_on = False

    @property
    def spent_ns(self) -> int:
        """The estimated cost to the training thread so far."""
        return self._count * SAVE_NS

    def install(self) -> None:
        """Wrap what is imported by now; the rest is left to `read`."""
        for method in (Saves._begin, Saves._end, Saves._enter, Saves._leave):
            hide_from_compiler(method, callees_too=True)
        self._waiting, self._is_on = list(PLACES), True
        self._was_on = True
        self._wrap_imported()

    def remove(self) -> None:
        """Restore what is wrapped."""
        self._waiting, self._is_on = [], False
        while self._patches:
            self._patches.pop().revert()

    def read(self) -> tuple[SavedLine, ...] | None:
        """Return the saves so far, and wrap what was imported since the last call; None if they were never counted."""
        if not self._was_on:
            return None
        try:
            self._wrap_imported()
        except Exception as error:  # noqa: BLE001 - a library may be of any version
            self._guard.record(PART, error)
        return tuple(self._lines.copy().values())

    def _wrap_imported(self) -> None:
        for place in tuple(self._waiting):
            module = sys.modules.get(place.module)
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            self._waiting.remove(place)
            owner = getattr(module, place.owner, None) if place.owner else module
            if owner is not None and callable(getattr(owner, place.name, None)):
                patch = Patch(owner, place.name, functools.partial(self._wrap, place))
                patch.apply()
                self._patches.append(patch)

    def _wrap(self, place: _Place, original: Call) -> Call:
        """Return the wrapper, one of a function by whatever name: pickle looks for the same one where it is defined."""
        if original not in self._wrapped:
            self._wrapped[original] = self._wrap_save(place, original) if place.call else self._wrap_whole(original)
        return self._wrapped[original]

    def _wrap_save(self, place: _Place, original: Call) -> Call:
        @functools.wraps(original)
        def save(*args: Any, **keywords: Any) -> Any:
            begun = self._begin(place, args, keywords)
            if begun is None:
                return original(*args, **keywords)
            try:
                result = original(*args, **keywords)
            except BaseException:
                self._end(begun)
                raise
            self._end(begun, [result])
            return result

        return save

    def _wrap_whole(self, original: Call) -> Call:
        @functools.wraps(original)
        def save(*args: Any, **keywords: Any) -> Any:
            is_entered = self._enter(CHECKPOINT_WAIT)
            try:
                return original(*args, **keywords)
            finally:
                if is_entered:
                    self._leave()

        return save

    def _enter(self, phase: str) -> bool:
        """Begin a phase, and return True; False on another thread than the one that trains."""
        if get_ident() != self._buffer.thread or self._guard.is_off(STEP_HOOKS):
            return False
        self._buffer.entries.extend((self._steps.begin_save, self._read_event_ns(), (phase,)))
        return True

    def _leave(self) -> None:
        self._buffer.entries.extend((self._steps.end_phase, self._read_event_ns(), ()))

    def _begin(self, place: _Place, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> _Begun | None:
        """Begin a save; None for a part of one, and for one that is none."""
        begun, thread = None, get_ident()
        try:
            file = place.find_file(args, keywords)
            if self._is_on and thread not in self._inside and not isinstance(file, io.BytesIO):
                is_written = file is not None and not isinstance(file, str | os.PathLike)
                before_bytes = (_size_of_file(file) or 0) if is_written else 0
                line = self._find_line()
                self._inside.add(thread)
                begun = _Begun(place.call, line, self._enter(CHECKPOINT), monotonic_ns(), file, before_bytes)
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._inside.discard(thread)
            self._guard.record(PART, error)
        held = self._guard.pop_held()
        if held is not None:
            if begun is not None:
                self._end(begun)
            raise held
        return begun

    def _end(self, begun: _Begun, results: Sequence[Any] = ()) -> None:
        """End a save; without a result it has failed, and is not counted."""
        try:
            lasted_ns = monotonic_ns() - begun.begin_ns
            self._inside.discard(get_ident())
            if begun.is_training:
                self._leave()
            self._count += 1
            for result in results:
                size = _size_of_writes(result) if begun.file is None else _size_of_file(begun.file)
                self._add(begun, lasted_ns, None if size is None else max(0, size - begun.before_bytes))
        except BaseException as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)
        self._guard.raise_held()

    def _add(self, begun: _Begun, lasted_ns: int, size: int | None) -> None:
        key = begun.call, begun.line, not begun.is_training
        if key not in self._lines and len(self._lines) >= SAVE_LINES_MAX - 1:
            key = OTHER_SAVES
        known = self._lines.get(key) or SavedLine(call=key[0], line=key[1], in_background=key[2], bytes=0)
        self._lines[key] = msgspec.structs.replace(
            known,
            count=known.count + 1,
            duration_ns=known.duration_ns + lasted_ns,
            longest_ns=max(known.longest_ns, lasted_ns),
            bytes=None if size is None or known.bytes is None else known.bytes + size,
            last_ns=lasted_ns,
            last_bytes=size,
        )

    def _find_line(self) -> str:
        """Return the innermost line of the user's own code that called this, empty where none did."""
        frame = sys._getframe(1)
        with contextlib.suppress(Exception):
            while frame is not None:
                code = frame.f_code
                if self._is_user(code.co_filename):
                    found = describe_frame(StackFrame(code.co_filename, frame.f_lineno or 0, code.co_name))
                    return to_unicode(found[:NAME_LENGTH_MAX])
                frame = frame.f_back  # type: ignore[assignment]
        return ""
