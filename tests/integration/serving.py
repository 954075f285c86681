"""A collector as an operator starts it, in a process of its own, and how a test asks it and waits for it.

The API has no events, so a test that waits for something asks again after a short pause until it is so, or fails with
what it saw last. Nothing here waits for a time to pass.
"""

import contextlib
import http.client
import json
import math
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar
from urllib.parse import quote

import msgspec
import psutil

from rankscope.collector.address_token import split_token
from rankscope.collector.detect.hang_state import EXIT_UNKNOWN
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot

START_S_MAX = 180.0
"""How long a collector may take to say where it listens. On two busy cores it has taken 6 s."""
END_S_MAX = 120.0
DEADLINE_S = 300.0
"""How long a test waits for what a job must do. On two busy cores the imports of two ranks alone have taken 20 s."""
LOOK_AGAIN_S = 0.05
MS_PER_S = 1_000
HTTP_TIMEOUT_S = 60.0
FIXED_PORTS = range(20_000, 30_000)
"""Below the ports that Linux gives to whoever asks for any: nobody gets one of these by chance."""

T = TypeVar("T")


WATCHING = re.compile(
    r"^rankscope: watching run '(.+)': live page (http://[^/\s]+/(\?token=[\w-]{22})), metrics http://[^/\s]+/metrics\3$",
    re.MULTILINE,
)
"""What rank 0 says of the collector that it has started: the run, the page, and the token in both addresses."""


class Api:
    """What a collector says over HTTP at an address, which may carry a token. `url` is the address without it."""

    def __init__(self, address: str) -> None:
        address, self.token = split_token(address)
        self.url = address.rstrip("/")

    def read(self, path: str) -> bytes:
        """The body of a page of it."""
        return read_url(f"{self.url}{path}", self.token)

    def read_run(self, name: str) -> RunSnapshot | None:
        """A run as the API gives it; None while the collector does not know it."""
        try:
            return msgspec.json.decode(self.read(f"/api/v1/runs/{quote(name, safe='')}"), type=RunSnapshot)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def read_run_names(self) -> list[str]:
        """The runs the collector knows."""
        return [run["run"] for run in json.loads(self.read("/api/v1/runs"))["runs"]]

    def read_metrics(self) -> str:
        """The page at /metrics."""
        return self.read("/metrics").decode()

    def wait_for_metrics(self, *lines: str) -> str:
        """The first page of metrics with all these texts in it: it may show an earlier moment than the API."""
        seen = [""]

        def look() -> str | None:
            seen[0] = self.read_metrics()
            return seen[0] if all(line in seen[0] for line in lines) else None

        return wait_for(look, lambda: f"not on the page: {[line for line in lines if line not in seen[0]]}\n{seen[0]}")

    def wait_for_run(
        self, name: str, predicate: Callable[[RunSnapshot], bool], deadline_s: float = DEADLINE_S
    ) -> RunSnapshot:
        """The first picture of the run for which `predicate` holds. Fails after the deadline with the last one."""
        seen: list[RunSnapshot | None] = [None]

        def look() -> RunSnapshot | None:
            run = seen[0] = self.read_run(name)
            return run if run is not None and predicate(run) else None

        return wait_for(look, lambda: f"run {name!r} is not as awaited: {seen[0]}", deadline_s)

    def wait_for_rank(self, name: str, number: int, predicate: Callable[[RankSnapshot], bool]) -> RankSnapshot:
        """The first picture of a rank of the run for which `predicate` holds; the run may lack the rank until then."""

        def is_so(run: RunSnapshot) -> bool:
            return any(rank.identity.rank == number and predicate(rank) for rank in run.ranks)

        return find_rank(self.wait_for_run(name, is_so), number)

    def wait_for_steps(self, name: str, steps: int) -> RunSnapshot:
        """The first picture of the run in which every rank has reported that many steps."""
        return self.wait_for_run(name, lambda run: have_stepped(run, steps))


class AnnouncingProcess:
    """A process of ours that says where it listens, as one line of JSON. `name` is for those who read a failure."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], launcher: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._child = subprocess.Popen(
            [*launcher, sys.executable, "-m", "rankscope.collector", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **environment},
        )
        self.pid = self._child.pid
        try:
            self.announced: dict[str, Any] = json.loads(self._read_line())
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._child.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; when it returns the process is gone."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.send(number)
        return self._child.wait(END_S_MAX)

    def read_stderr(self) -> str:
        """What it has said on stderr."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    def close(self) -> None:
        """Make sure that it is gone."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._stderr.close()

    def _read_line(self) -> bytes:
        stdout = self._child.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_S_MAX)
        line = stdout.readline() if readable else b""
        assert line, f"no {self._name} after at most {START_S_MAX} s; stderr: {self.read_stderr()}"
        return line


class Served(AnnouncingProcess, Api):
    """A running `rankscope serve`. Made by `serving`."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], launcher: Sequence[str] = ()
    ) -> None:
        AnnouncingProcess.__init__(self, "collector", ("serve", "--announce", *arguments), environment, launcher)
        Api.__init__(self, self.announced["metrics_url"].removesuffix("/metrics"))
        self.endpoint: str = self.announced["endpoint"]

    @property
    def ports(self) -> tuple[int, int]:
        """Where it listens for ranks, and for HTTP."""
        return int(self.endpoint.rpartition(":")[2]), int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def serving(
    *arguments: str,
    listen: str = "tcp://127.0.0.1:0",
    http_listen: str = "127.0.0.1:0",
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> Iterator[Served]:
    """Start a collector, on free ports and with a quick tick unless told otherwise; it does not outlive the block.
    `launcher` is a command that becomes the collector, in front of its own.
    """
    addresses = ("--listen", listen, "--http-listen", http_listen)
    quick = {"RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.1", "RANKSCOPE_SERVE_CONSTANT_CLOCK_PING_S": "0.5"}
    served = Served((*addresses, *arguments), {**quick, **(environment or {})}, launcher)
    try:
        yield served
    finally:
        served.close()


def wait_for(look: Callable[[], T | None], describe: Callable[[], str], deadline_s: float = DEADLINE_S) -> T:
    """What `look` gives once it gives something. Fails with what `describe` says after the deadline."""
    pause = threading.Event()
    end_s = time.monotonic() + deadline_s
    while (found := look()) is None:
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {describe()}"
        pause.wait(LOOK_AGAIN_S)
    return found


def wait_for_readiness(api: Api, said: str) -> str:
    """What /readyz says, once this is in it."""
    seen = [""]

    def look() -> str | None:
        seen[0] = read_url(f"{api.url}/readyz").decode()
        return seen[0] if said in seen[0] else None

    return wait_for(look, lambda: f"no {said!r} at /readyz, but {seen[0]!r}")


def end_child(child: "subprocess.Popen[bytes]") -> None:
    """End this very process by SIGTERM, and whatever happens, make sure that it is gone."""
    child.terminate()
    try:
        child.wait(END_S_MAX)
    finally:
        child.kill()
        child.wait()


def wait_for_end_of(pid: int, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a process is gone that is no child of this one. Fails after the deadline."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        left = wait_for_ends([process], deadline_s)
        assert not left, f"still there after {deadline_s} s: {process.status()} {process.cmdline()}"


def wait_for_ends(processes: Iterable[psutil.Process], deadline_s: float) -> list[psutil.Process]:
    """Wait until they have ended, and return those that still run after the deadline. One that nobody has reaped yet
    has ended, with all its threads: an init may take a second or two to reap an orphan, such as a sidecar.
    """
    end_s, left = time.monotonic() + deadline_s, []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                if not poll.poll(max(0.0, end_s - time.monotonic()) * MS_PER_S):
                    left.append(process)
            finally:
                os.close(handle)
    return left


def read_url(url: str, token: str = "") -> bytes:
    """Return the body of a page. Raises OSError, also where the server ends amid its answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            body: bytes = answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer of {url} is not complete: {error!r}") from error
    return body


def find_fixed_port() -> int:
    """A free port that stays free when whoever has it ends."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(FIXED_PORTS)
        if can_listen(port):
            return port


def can_listen(port: int) -> bool:
    """Whether nobody listens at this port of loopback. Connections that have ended do not count, as for any server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def have_stepped(run: RunSnapshot, steps: int) -> bool:
    """Whether every rank of the run has reported that many steps."""
    return len(run.ranks) == run.world_size and all(rank.totals.steps >= steps for rank in run.ranks)


def have_ended(run: RunSnapshot) -> bool:
    """Whether the collector knows of every rank how it ended."""
    return len(run.ranks) == run.world_size and all(rank.ended is not None for rank in run.ranks)


def is_end_known(run: RunSnapshot) -> bool:
    """Whether all is known of how every rank ended: how one whose process is gone has ended is not known until its
    sidecar, which may be slow, says it.
    """
    return have_ended(run) and all(rank.ended != EXIT_UNKNOWN or rank.end is not None for rank in run.ranks)


def knows_clocks(run: RunSnapshot, error_ns_max: float = math.inf) -> bool:
    """Whether the collector knows the clock of every rank, each with a smaller error than that."""
    errors_ns = [rank.clock_error_ns for rank in run.ranks if rank.clock_error_ns is not None]
    return len(errors_ns) == run.world_size and max(errors_ns) < error_ns_max


def find_rank(run: RunSnapshot, number: int) -> RankSnapshot:
    """One rank of a run."""
    return next(rank for rank in run.ranks if rank.identity.rank == number)
