"""A sidecar's watch over a folder with real processes and a simulated clock, for tests."""

from pathlib import Path

from rankscope.agent.sidecar.beacon import Heartbeat
from rankscope.agent.sidecar.inspector_readings import InspectorReadings
from rankscope.agent.sidecar.notice_sender import NoticeSender
from rankscope.agent.sidecar.ras_inquiries import RasInquiries
from rankscope.agent.sidecar.watch import Watch
from rankscope.measure.node_messages import Notice
from rankscope.measure.units import HostNs, WallNs
from tests.unit.agent.sidecar.ranks_of_a_node import MS, Process, S, light_beacon


class Clock:
    """A simulated clock."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * S

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_ns)

    def wall_ns(self) -> WallNs:
        return WallNs(self.now_ns + 1_795_000_000 * S)


class RecordingSender(NoticeSender):
    """Records the notices; acknowledges each at once."""

    def __init__(self, endpoint: str, kept: list[tuple[str, Notice]]) -> None:
        super().__init__(endpoint, lambda _endpoint: None)
        self._kept, self._to = kept, endpoint

    def enqueue(self, notice: Notice) -> None:
        self._kept.append((self._to, notice))


class Node:
    """A watch over a folder, and the ranks that the test starts in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.posted: list[tuple[str, Notice]] = []
        self.watch = Watch(
            str(folder),
            self.clock,
            make_sender=lambda endpoint: RecordingSender(endpoint, self.posted),
            ras=RasInquiries(self.clock, start=lambda work: work()),
            inspector=InspectorReadings(self.clock, start=lambda work: work()),
        )
        self._processes: list[Process] = []

    def start(self, statement: str, rank: int = 0, heartbeat: Heartbeat | None = None, **changed: object) -> Process:
        """Start a rank that waits and then runs `statement`; the sidecar knows it."""
        process = self.prepare(statement)
        self.announce(process, rank, heartbeat, **changed)
        return process

    def prepare(self, statement: str) -> Process:
        """Start a rank without a beacon."""
        self._processes.append(Process(statement))
        return self._processes[-1]

    def announce(self, process: Process, rank: int, heartbeat: Heartbeat | None = None, **changed: object) -> None:
        """Write its beacon and let the sidecar find it."""
        self.write_beacon(process, rank, heartbeat, **changed)
        self.watch.run_pass()

    def write_beacon(self, process: Process, rank: int, heartbeat: Heartbeat | None = None, **changed: object) -> None:
        """Write its beacon."""
        light_beacon(self.folder, rank, process, heartbeat or Heartbeat(self.clock.now_ns, 41), **changed).close()

    def run_pass(self, after_ns: int = 0) -> list[Notice]:
        """Return the notices of a pass after that time."""
        self.posted.clear()
        self.clock.now_ns += after_ns
        self.watch.run_pass()
        return [notice for _, notice in self.posted]

    def pass_time(self, seconds: int) -> list[Notice]:
        """Return the notices of the passes in that time, two per second."""
        return [notice for _ in range(2 * seconds) for notice in self.run_pass(500 * MS)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.watch.close()
