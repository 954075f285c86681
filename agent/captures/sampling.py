"""The sampler of one process and the files of its script, imported and made when somebody first wants samples: full
windows of a GPU do from the start, the collector with its first order.
"""

import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rankscope.agent.guard import Guard
from rankscope.agent.late_imports import LATE_IMPORTS

if TYPE_CHECKING:
    from rankscope.agent.captures.script_files import ScriptFiles
    from rankscope.agent.captures.thread_sampler import ThreadSampler

SWITCHED_OFF: Final = "line_samples is off on this rank"


def find_obstacle() -> str:
    """Return why this interpreter lets no thread read the frames of another; empty where it does."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "Python without a global interpreter lock lets no thread read another's frames"
    return ""


class Sampling:
    """Sampling in one process. `is_wanted` is the setting `line_samples`."""

    def __init__(self, environment: Mapping[str, str], guard: Guard, *, is_wanted: bool) -> None:
        self._environment = environment
        self._guard = guard
        self._files: ScriptFiles | None = None
        self._sampler: ThreadSampler | None = None
        self._is_closed = False
        self.interpreter_obstacle = find_obstacle() if is_wanted else ""
        """What is to be said to the user who has left it on."""
        self.obstacle = self.interpreter_obstacle if is_wanted else SWITCHED_OFF
        """Why there are no samples; empty: there may be some."""

    @property
    def files(self) -> "ScriptFiles":
        """Whose code a file is."""
        if self._files is None:
            with LATE_IMPORTS:
                from rankscope.agent.captures.script_files import ScriptFiles  # noqa: PLC0415 - see above

            self._files = ScriptFiles(self._environment)
        return self._files

    def find_sampler(self) -> "ThreadSampler | None":
        """Return what looks where threads are; None where there is an obstacle, and after the end."""
        if self._sampler is None and not self.obstacle and not self._is_closed:
            with LATE_IMPORTS:
                from rankscope.agent.captures.thread_sampler import ThreadSampler  # noqa: PLC0415 - see above

            self._sampler = ThreadSampler(self._guard)
        return self._sampler

    def close(self) -> None:
        """End the thread of the sampler, soon. Never waits."""
        self._is_closed = True
        if self._sampler is not None:
            self._sampler.close()

    def wait(self, seconds: float) -> None:
        """Wait after `close` until nothing is sampled, at most so long."""
        if self._sampler is not None:
            self._sampler.wait(seconds)
