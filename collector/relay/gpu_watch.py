"""Watch who holds the GPUs of a node, on a thread of its own: a call of the driver may block, and the relay goes on.

    every `interval_s`   one reading of all GPUs (gpu_reader.py), to which HoldTimes adds for how long each has had its
                         users and jobs, and for how long no reading has found a kernel on it
    the relay's thread   `take` returns a reading once; WatchedGpus adds the ranks whose reports name the GPUs

Utilization is what the driver says of its last period, up to a second: of a GPU that works for a second in each
minute most readings say 0, so idle is only what was so at every reading of a long time.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.fault_log import FaultLog
from rankscope.measure.clock import Clock
from rankscope.measure.held_gpus import HeldGpu, NodeGpus
from rankscope.measure.messages import Goodbye, Hello, Message, Report
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.relay")

RANK_SILENT_NS: Final = 300 * NS_PER_S
"""A rank of which nothing was heard for this long has no GPU any more: its process may have been killed."""
RANKS_MAX: Final = 4096
"""Ranks remembered, as of the relay's clients."""
FAILURES_MAX: Final = 3


class HoldTimes:
    """Since when each GPU has had its present holders, and since when it has been idle. For one thread."""

    def __init__(self) -> None:
        self._since: dict[str, _Since] = {}

    def add(self, gpu: HeldGpu, now_ns: int) -> HeldGpu:
        """Return the GPU with the times. `now_ns` is when it was read, by one monotonic clock."""
        if not gpu.holders and "holders" not in gpu.absent:
            self._since.pop(gpu.uuid, None)
            return gpu
        owners = frozenset((holder.user, holder.job) for holder in gpu.holders)
        since = self._since.get(gpu.uuid)
        if since is None or since.owners != owners:
            since = _Since(owners, now_ns, None)
        if gpu.utilization_ratio != 0.0:
            since = since._replace(idle_ns=None)
        elif since.idle_ns is None:
            since = since._replace(idle_ns=now_ns)
        self._since[gpu.uuid] = since
        idle_for_ns = None if gpu.utilization_ratio is None else 0 if since.idle_ns is None else now_ns - since.idle_ns
        return msgspec.structs.replace(gpu, held_ns=now_ns - since.held_ns, idle_ns=idle_for_ns)


class _Since(NamedTuple):
    """When the first reading was with these users and jobs, and the first of those without a kernel; None: of none."""

    owners: frozenset[tuple[str, str]]
    held_ns: int
    idle_ns: int | None


class _Rank(NamedTuple):
    run: str
    rank: int
    uuids: tuple[str, ...] = ()
    steps: int = -1
    stepped_ns: int = 0
    heard_ns: int = 0


class WatchedGpus:
    """The ranks whose reports pass, by the GPUs that these name. For one thread."""

    def __init__(self) -> None:
        self._ranks: dict[bytes, _Rank] = {}

    def note(self, peer: bytes, message: Message, now_ns: int) -> None:
        """Take what a message of a rank says of its GPU and its steps."""
        match message:
            case Hello(identity=identity):
                before = self._ranks.pop(peer, None)
                known = _Rank(identity.run, identity.rank) if before is None else before
                self._ranks[peer] = known._replace(heard_ns=now_ns, stepped_ns=known.stepped_ns or now_ns)
                while len(self._ranks) > RANKS_MAX:
                    del self._ranks[next(iter(self._ranks))]
            case Report(devices=devices, totals=totals) if peer in self._ranks:
                rank = self._ranks[peer]._replace(heard_ns=now_ns)
                if devices:
                    rank = rank._replace(uuids=tuple(device.uuid for device in devices))
                if totals.steps > rank.steps:
                    rank = rank._replace(steps=totals.steps, stepped_ns=now_ns)
                self._ranks[peer] = rank
            case Goodbye():
                self._ranks.pop(peer, None)

    def name(self, read: NodeGpus, now_ns: int) -> NodeGpus:
        """Return the reading with the ranks of its GPUs: of several on one, that whose step ended last."""
        of_uuid: dict[str, _Rank] = {}
        for peer, rank in list(self._ranks.items()):
            if now_ns - rank.heard_ns > RANK_SILENT_NS:
                del self._ranks[peer]
                continue
            for uuid in rank.uuids:
                if uuid not in of_uuid or of_uuid[uuid].stepped_ns < rank.stepped_ns:
                    of_uuid[uuid] = rank

        def name(gpu: HeldGpu) -> HeldGpu:
            rank = of_uuid.get(gpu.uuid)
            if rank is None:
                return gpu
            age_ns = max(0, now_ns - rank.stepped_ns)
            return msgspec.structs.replace(gpu, run=rank.run, rank=rank.rank, step_age_ns=age_ns)

        return msgspec.structs.replace(read, gpus=tuple(map(name, read.gpus)))


class GpuWatch:
    """The thread. `read` is `GpuReader.read`, called on it alone; an error that it raises FAILURES_MAX times in a row
    ends it, and the relay goes on.
    """

    def __init__(self, read: Callable[[], NodeGpus], clock: Clock, faults: FaultLog, interval_s: float) -> None:
        self._read = read
        self._clock = clock
        self._faults = faults
        self._interval_s = interval_s
        self._times = HoldTimes()
        self._latest: NodeGpus | None = None
        self._logged: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-gpus", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Does not wait: a call of the driver may block."""
        self._stopping.set()

    def take(self) -> NodeGpus | None:
        """Return the reading that was made since the last call; None if there is none. Any thread."""
        latest, self._latest = self._latest, None
        return latest

    def _work(self) -> None:
        left = FAILURES_MAX
        while left and not self._stopping.is_set():
            left -= 1
            with self._faults.contain("gpus", "the GPUs of this node could not be read; ranks are served as before"):
                self.read_once()
                left = FAILURES_MAX
            self._stopping.wait(self._interval_s)

    def read_once(self) -> None:
        """Read all GPUs once."""
        began_ns = self._clock.monotonic_ns()
        read = self._read()
        now_ns = self._clock.monotonic_ns()
        if read.unread != self._logged:
            self._logged = read.unread
            if read.unread:
                LOG.info("the GPUs of this node are not read (%s)", read.unread)
            else:
                LOG.info("watching who holds the %d GPUs of this node", len(read.gpus))
        gpus = tuple(self._times.add(gpu, now_ns) for gpu in read.gpus)
        self._latest = msgspec.structs.replace(read, gpus=gpus, took_ns=now_ns - began_ns)
