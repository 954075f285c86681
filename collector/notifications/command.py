"""Run a command for each event, with the event as JSON on its stdin: without a shell, and for a limited time.

The command gets its own process group and, of the environment, only PASSED_VARIABLES. When it has ended or its time is
over, every process of the group is ended. Of what it prints the first OUTPUT_BYTES_MAX bytes are kept for the log.
"""

import contextlib
import logging
import os
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankscope.collector.config import CollectorConfig
from rankscope.collector.notifications.channel import DELIVERED, FAILED, Delivery
from rankscope.collector.notifications.event import IncidentEvent
from rankscope.measure.errors import SettingError

LOG = logging.getLogger("rankscope.collector")

PASSED_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
"""Variables of the collector's environment that the command gets, where they are set."""
OUTPUT_BYTES_MAX: Final = 2048
READ_BYTES: Final = 64 * 1024
POLL_MS: Final = 100


class Command:
    """A command as its list of arguments, the first of which is the path of a program."""

    def __init__(self, arguments: Sequence[str], seconds_max: float, environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._seconds_max = seconds_max
        self._environment = {name: environment[name] for name in PASSED_VARIABLES if name in environment}

    def prepare(self) -> None:
        """Do nothing: the program was found at the start."""

    def __call__(self, event: IncidentEvent, cancelled: threading.Event) -> Delivery:
        """Run it once. Any exit status but 0 is a failure, and nothing is tried again."""
        end_s = time.monotonic() + self._seconds_max
        try:
            child = self._start(msgspec.json.encode(event))
        except OSError as error:
            return Delivery(FAILED, f"{self._arguments[0]} cannot be started: {error.strerror or error}")
        with child, contextlib.ExitStack() as ends:
            ends.callback(_end_group, child.pid)
            output, has_ended = _read_until_end(child, end_s, cancelled)
        return self._judge(child.returncode, has_ended, output)

    def _start(self, body: bytes) -> "subprocess.Popen[bytes]":
        with tempfile.TemporaryFile() as given:
            given.write(body)
            given.seek(0)
            return subprocess.Popen(  # noqa: S603 - the operator's own command
                self._arguments,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )

    def _judge(self, status: int, has_ended: bool, output: bytes) -> Delivery:  # noqa: FBT001 - of `_read_until_end`
        text = output.decode(errors="replace").strip()
        if not has_ended:
            how = f"has not ended within {self._seconds_max:g} s, and was killed"
        elif status < 0:
            how = f"was ended by signal {-status}"
        else:
            how = f"ended with status {status}"
        if has_ended and status == 0:
            if text:
                LOG.info("%s: %s", self._arguments[0], text)
            return Delivery(DELIVERED)
        return Delivery(FAILED, f"{self._arguments[0]} {how}" + (f": {text}" if text else ""))


def make_command(config: CollectorConfig, environment: Mapping[str, str] = os.environ) -> Command:
    """Return the command of the settings. Raises SettingError where its program cannot be run."""
    arguments = shlex.split(config.notify_command)
    program = Path(arguments[0])
    if not program.is_file() or not os.access(program, os.X_OK):
        raise SettingError(
            f"notify_command is {config.notify_command!r} ({config.source('notify_command')}), and {program} is not a "
            "program that can be run. Name one, and its arguments."
        )
    return Command(arguments, config.notify_command_s_max, environment)


def _read_until_end(child: "subprocess.Popen[bytes]", end_s: float, cancelled: threading.Event) -> tuple[bytes, bool]:
    """Return the first bytes that a child prints, and whether it has ended; it is not reaped. What it has started may
    hold its stdout open for longer, which is not waited for.
    """
    output = bytearray()
    fd = 0 if child.stdout is None else child.stdout.fileno()
    os.set_blocking(fd, False)
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    is_open = True
    while not (has_ended := _has_ended(child.pid)) and time.monotonic() < end_s and not cancelled.is_set():
        if not is_open:
            cancelled.wait(POLL_MS / 1000)
        elif ready.poll(POLL_MS):
            is_open = _read_some(fd, output)
    if is_open:
        _read_some(fd, output)
    return bytes(output), has_ended


def _read_some(fd: int, output: bytearray) -> bool:
    """Read what is there, keep the first bytes of it all, and return whether there may be more."""
    with contextlib.suppress(BlockingIOError):
        data = os.read(fd, READ_BYTES)
        output += data[: OUTPUT_BYTES_MAX - len(output)]
        return bool(data)
    return True


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, and leave it a zombie: until it is reaped no other group has its number."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(pid: int) -> None:
    """End the process group of a child that is not reaped yet."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
