"""Run a command of the agent in a child process, without waiting for it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from rankscope.agent.nameless_file import open_nameless
from rankscope.measure.units import s_to_ns

ERRORS_BYTES_MAX: Final = 64 * 1024


class EndedChild(NamedTuple):
    """A child that has ended: its exit code (negative: the signal), its CPU time, its stdout and its stderr."""

    exit_code: int
    cpu_ns: int
    output: bytes
    errors: bytes = b""


class Child(Protocol):
    """A running child; `SpawnedChild` is the real one."""

    def poll(self) -> EndedChild | None:
        """Return how it ended; None while it runs."""
        ...

    def kill(self) -> None:
        """End it, and wait for its end."""
        ...


class SpawnedChild:
    """A child with its input and output in nameless files, so that nothing blocks and no file stays behind."""

    def __init__(self, command: Sequence[str], request: bytes, environment: Mapping[str, str]) -> None:
        with open_nameless("rankscope-request") as given:
            given.write(request)
            given.seek(0)
            self._answer = open_nameless("rankscope-answer")  # poll or kill closes both
            self._errors = open_nameless("rankscope-errors")
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a command of ours
                    command, stdin=given, stdout=self._answer, stderr=self._errors, env=dict(environment)
                )
            except BaseException:
                self._answer.close()
                self._errors.close()
                raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> EndedChild | None:
        """Return how it ended; None while it runs."""
        cpu_s = 0.0
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            # The script has waited for any child, or ignores them all: then only the answer shows how it ended.
            self._process.returncode = 0
        else:
            if pid == 0:
                return None
            self._process.returncode = os.waitstatus_to_exitcode(status)
            cpu_s = usage.ru_utime + usage.ru_stime
        with self._answer, self._errors:
            self._answer.seek(0)
            self._errors.seek(0)
            errors = self._errors.read(ERRORS_BYTES_MAX)
            return EndedChild(self._process.returncode, s_to_ns(cpu_s), self._answer.read(), errors)

    def kill(self) -> None:
        """End it, and wait for its end."""
        with self._answer, self._errors:
            self._process.kill()
            self._process.wait()
