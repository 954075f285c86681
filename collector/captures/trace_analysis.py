"""Analyze and merge the traces of a capture in child processes with limits of time, memory and disk.

A trace comes from a rank, and may be large or damaged: what reads it must not take the collector down, nor slow it.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rankscope.collector.captures.store import FULL_CURE
from rankscope.collector.private_files import OTHERS, open_private
from rankscope.measure.child_command import build_child_command

NICENESS: Final = 19
CHILD_S_MAX: Final = 300.0
"""Longest time of one child."""
MEMORY_BYTES_MAX: Final = 8 << 30
"""Most address space of one child; a GB of JSON takes some."""
FILE_BYTES_MAX: Final = 4 << 30
"""Largest file that a child may write."""
ROOM_BYTES_MIN: Final = 1 << 20
"""A disk with less room than this counts as full."""
TEXT: Final = "report.txt"
OUTPUTS: Final = {"analyze": (TEXT, "report.html", "report.json"), "merge": (".merged.json.gz.*.partial",)}
"""What a child writes, as patterns of names. `merge` gives its file the name when it is whole."""
WRITTEN: Final = frozenset({0, 1})
"""Statuses of a child that has written its files: all went well, or some traces could not be read. On a full disk the
second one may also mean that a file is there in part.
"""
FINDINGS_SHOWN: Final = 3
VERDICT_CHARACTERS_MAX: Final = 1000
REASON_CHARACTERS_MAX: Final = 300
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class TraceAnalysis:
    """`rankscope analyze`, then `rankscope merge`, of the traces in a folder. `poll` has to be called until it is over.

    `problem` is why a part of it has failed; empty while nothing has.
    """

    def __init__(
        self,
        folder: Path,
        traces: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        child_s_max: float = CHILD_S_MAX,
        tables: Sequence[str] = (),
    ) -> None:
        """Nothing runs before the first `poll`. `tables`: the options of `analyze` for tables beside the usual ones."""
        paths = [str(folder / name) for name in traces]
        page, table = str(folder / "report.html"), str(folder / "report.json")
        self._folder = folder
        self._child_s_max = child_s_max
        self._environment = {**environment, **_ONE_THREAD}
        self._waiting = [("analyze", [*paths, *tables, "--html", page, "--json-file", table])]
        if len(paths) > 1:
            self._waiting.append(("merge", [*paths, "-o", str(folder / "merged.json.gz")]))
        self._child: subprocess.Popen[bytes] | None = None
        self._name = ""
        self._end_s = 0.0
        self.problem = ""

    def poll(self) -> bool:
        """Start what is next, and end what takes too long; return whether all is over. Raises OSError where a child
        cannot be started.
        """
        if self._child is not None:
            status = self._child.poll()
            if status is None and time.monotonic() < self._end_s:
                return False
            if status is None:
                self.close()
                self._note(f"took longer than {self._child_s_max:.0f} s")
            elif status != 0:
                self._note(self._describe_end(status))
            if status not in WRITTEN or (status and self._is_full):
                self._remove_outputs()
            self._child = None
        if self._waiting:
            self._start(*self._waiting.pop(0))
            return False
        return True

    def read_verdict(self) -> str:
        """Return the first findings of the analysis; empty where there is none."""
        try:
            with (self._folder / TEXT).open(encoding="utf-8", errors="replace") as file:
                text = file.read(4 * VERDICT_CHARACTERS_MAX)
        except OSError:
            return ""
        return read_verdict(text)

    def close(self) -> None:
        """End the child that runs. A second call does nothing."""
        if self._child is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)  # it may have children; start_new_session made it their leader
        self._child.wait()

    def _start(self, name: str, arguments: list[str]) -> None:
        self._name, self._end_s = name, time.monotonic() + self._child_s_max
        output = self._folder / (TEXT if name == "analyze" else ".merge.txt")
        with open_private(output) as out, open_private(self._errors) as errors:
            self._child = subprocess.Popen(  # noqa: S603 - our own program
                build_child_command(sys.executable, "rankscope.collector", name, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
                umask=OTHERS,
            )
        _limit(self._child.pid)

    @property
    def pid(self) -> int | None:
        """The process id of the child that runs; None while none does."""
        return None if self._child is None else self._child.pid

    @property
    def _is_full(self) -> bool:
        try:
            return shutil.disk_usage(self._folder).free < ROOM_BYTES_MIN
        except OSError:
            return False

    @property
    def _errors(self) -> Path:
        return self._folder / ".errors.txt"

    def _describe_end(self, status: int) -> str:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        with contextlib.suppress(OSError):
            said = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            how += f": {said[-1][:REASON_CHARACTERS_MAX]}" if said else ""
        if self._is_full:  # then the child may have been unable to say so
            how += f"; the disk of {self._folder} is full: {FULL_CURE}"
        return how

    def _remove_outputs(self) -> None:
        """Delete what the child may have written in part."""
        for pattern in OUTPUTS[self._name]:
            for path in self._folder.glob(pattern):
                path.unlink(missing_ok=True)

    def _note(self, problem: str) -> None:
        self.problem = f"{self.problem}; {self._name} {problem}" if self.problem else f"{self._name} {problem}"


def read_verdict(text: str) -> str:
    """Return the first findings and notes of an analysis, a line each, without what to do and the evidence; the line
    about the traces where there is none. `text` is what `rankscope analyze` prints.

    >>> print(read_verdict('''2 ranks
    ...
    ... VERDICT AND ADVICE
    ... [hint] few_overlaps (rank 1): Little of the
    ...     communication overlaps.
    ...     do: Begin earlier.
    ... [note] ranks: No rank is named as slow.'''))
    [hint] few_overlaps (rank 1): Little of the communication overlaps.
    [note] ranks: No rank is named as slow.
    """
    found: list[str] = []
    is_sentence = False
    lines = text.splitlines()
    for line in lines:
        if line.startswith("["):
            if len(found) == FINDINGS_SHOWN:
                break
            found.append(line.rstrip())
            is_sentence = True
        elif is_sentence and line.startswith("    ") and not line.startswith(("    do: ", "    evidence: ")):
            found[-1] += f" {line.strip()}"
        else:
            is_sentence = False
    return "\n".join(found or lines[:1])[:VERDICT_CHARACTERS_MAX]


def _limit(pid: int) -> None:
    """Limit a child that has just been started, and by that its own children: it reads no trace before it has imported
    its modules.
    """
    with contextlib.suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        for kind, most in (
            (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
            (resource.RLIMIT_CPU, round(CHILD_S_MAX)),
            (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.prlimit(pid, kind, (most, most))
