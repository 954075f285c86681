"""The processes of a soak: a collector as an operator starts it, the nodes, and one that delivers what was left.

All of them end with the block that began them, whatever happens in it.
"""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.soak.node import FINISH_S_MAX, LifeAccount, NodeSettings
from bench.soak.plan import Shape
from rankscope.collector.keys import make_keys
from tests.integration.faults import ROOT
from tests.integration.serving import DEADLINE_S, Served, find_fixed_port

LOSSY_RUN: Final = 0
"""The one run whose ranks have small buffers and no disk: what it loses must be counted."""

LOSSY_REPORTS_MAX: Final = 8
REPORTS_MAX: Final = 4096
STDERR_CHARACTERS_MAX: Final = 4_000
STRANGER: Final = "stranger"
"""The client whose key is allowed and who has no ranks here."""

RANKS_MAX_FACTOR: Final = 2
"""Room for lives, in worlds: so little that a few restarts fill it, as weeks do with the default."""


class ChildProcess:
    """A process of ours that obeys lines and says some."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self.pid = self._child.pid
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, line: str) -> None:
        """Send it a line. One that is gone does not hear it."""
        stdin = self._child.stdin
        if stdin is not None:
            with contextlib.suppress(OSError):
                stdin.write(f"{line}\n")
                stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def read_line(self, deadline_s: float = DEADLINE_S) -> str | None:
        """The next line; None at the end. Raises queue.Empty after the deadline."""
        return self._lines.get(timeout=deadline_s)

    def read_rest(self, deadline_s: float) -> list[str]:
        """Every line up to the end."""
        lines = []
        while (line := self.read_line(deadline_s)) is not None:
            lines.append(line)
        return lines

    def kill(self) -> None:
        """SIGKILL; when it returns the process is gone."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Make sure that it is gone."""
        if self._child.poll() is None:
            self.kill()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        stdout = self._child.stdout
        if stdout is not None:
            with contextlib.suppress(ValueError):  # closed under the reader
                for line in stdout:
                    self._lines.put(line.strip())
        self._lines.put(None)


class LeftDelivered(NamedTuple):
    """Lives and reports that were delivered from the disk, and lives that are still there."""

    lives: int
    reports: int
    lives_left: int


class Fleet:
    """Everything that runs. `store` is the collector's. Made by `begun`."""

    def __init__(self, shape: Shape, folder: Path, store: Path, interval_s: float) -> None:
        self.shape = shape
        self.key_folder = folder / "keys"
        self.spill_dir = folder / "spill"
        self._store = store
        self._interval_s = interval_s
        make_keys(self.key_folder, ["agent", STRANGER], force=False)
        self._listen = f"tcp://127.0.0.1:{find_fixed_port()}"
        self._http_listen = f"127.0.0.1:{find_fixed_port()}"
        self.restart_counts = [0] * shape.runs
        self.served: Served = self._serve()
        self.collectors = 1
        """How many there have been, one after the other."""
        self.tracebacks: list[str] = []
        """What collectors have said on stderr that have had an error which they do not know."""
        self.nodes: dict[tuple[int, int], ChildProcess] = {}
        self._left = ChildProcess("bench.soak.left", self.served.endpoint, str(self.key_folder), str(self.spill_dir))

    @property
    def endpoint(self) -> str:
        """Where the collector listens."""
        return self.served.endpoint

    def begin_nodes(self) -> None:
        """Start every node, each when the one before is there: all at once they would keep each other waiting."""
        for run in range(self.shape.runs):
            for node in range(self.shape.nodes_per_run):
                self.nodes[run, node] = self._begin_node(run, node)
                self.nodes[run, node].read_line()

    def serve_again(self) -> None:
        """A collector in the place of the one that was killed, with its ports and its store."""
        self.end_collector()
        self.served = self._serve()
        self.collectors += 1

    def revive_collector(self) -> None:
        """A collector that has ended by itself is told, and replaced."""
        if self.served.has_ended:
            said = self.served.read_stderr()[-STDERR_CHARACTERS_MAX:]
            self.tracebacks.append(f"collector {self.collectors} has ended by itself: {said}")
            self.serve_again()

    def end_collector(self) -> None:
        """Make sure that the present collector is gone, and keep what it has said that it should not have to."""
        said = self.served.read_stderr()
        if "Traceback" in said:
            self.tracebacks.append(said[-STDERR_CHARACTERS_MAX:])
        self.served.close()

    def restart_run(self, run: int, node: int) -> None:
        """SIGKILL a node; the launcher then restarts all ranks of the run."""
        self.nodes[run, node].close()
        self.restart_counts[run] += 1
        for other in range(self.shape.nodes_per_run):
            if other != node:
                self.nodes[run, other].say(f"restart {self.restart_counts[run]}")
        self.nodes[run, node] = self._begin_node(run, node)
        self.nodes[run, node].read_line()

    def find_restarts(self) -> dict[str, int]:
        """By run how many times it has been restarted, also where no collector has heard of it yet."""
        return {run_name(run): count for run, count in enumerate(self.restart_counts)}

    def finish_nodes(self) -> list[LifeAccount]:
        """Have every rank say goodbye; what each knows of its life."""
        for child in self.nodes.values():
            child.say("finish")
        lines = [line for child in self.nodes.values() for line in child.read_rest(FINISH_S_MAX + DEADLINE_S)]
        return [msgspec.json.decode(line, type=LifeAccount) for line in lines]

    def finish_left(self) -> LeftDelivered:
        """Have everything delivered that killed ranks have left."""
        self._left.say("finish")
        (line,) = self._left.read_rest(FINISH_S_MAX + DEADLINE_S)
        return LeftDelivered(*(int(number) for number in line.split()))

    def close(self) -> None:
        """End what is left."""
        for child in (*self.nodes.values(), self._left):
            child.close()
        self.served.close()

    def _serve(self) -> Served:
        ranks_max = RANKS_MAX_FACTOR * self.shape.ranks
        return Served(
            (
                "--listen", self._listen, "--http-listen", self._http_listen, "--store", str(self._store),
                "--key-file", str(self.key_folder / "collector.key"),
                "--allowed-keys", str(self.key_folder / "allowed"),
                "--ranks-max", str(ranks_max),
            ),
            {"RANKSCOPE_SERVE_CONSTANT_HISTORY_INTERVAL_S": "10"},
        )  # fmt: skip

    def _begin_node(self, run: int, node: int) -> ChildProcess:
        is_lossy = run == LOSSY_RUN
        settings = NodeSettings(
            run=run_name(run),
            first_rank=node * self.shape.ranks_per_node,
            ranks=self.shape.ranks_per_node,
            world_size=self.shape.ranks_per_run,
            restart_count=self.restart_counts[run],
            endpoint=self.served.endpoint,
            key_folder=str(self.key_folder),
            spill_dir="" if is_lossy else str(self.spill_dir / f"node-{run}-{node}"),
            reports_max=LOSSY_REPORTS_MAX if is_lossy else REPORTS_MAX,
            interval_s=self._interval_s,
        )
        return ChildProcess("bench.soak.node", msgspec.json.encode(settings).decode())


def run_name(run: int) -> str:
    """The name of a run, by its number."""
    return f"soak-{run}"


@contextlib.contextmanager
def begun(shape: Shape, folder: Path, store: Path, interval_s: float) -> Iterator[Fleet]:
    """A fleet until the end of the block."""
    fleet = Fleet(shape, folder, store, interval_s)
    try:
        fleet.begin_nodes()
        yield fleet
    finally:
        fleet.close()
