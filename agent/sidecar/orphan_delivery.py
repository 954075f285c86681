"""Delivers orphaned reports: those that ended rank processes have left on the disk.

Runs on a separate thread, one rank process after the other, started with the first delivery: most sidecars never import
ZeroMQ. It delivers reports of the run that the sidecar watches: those of earlier starts when it sees the first rank,
and those of each rank that ends. Reports that are not delivered when the sidecar exits stay for the next one.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rankscope.agent.guard import print_traceback
from rankscope.agent.reporting.orphaned_reports import (
    OrphanedReports,
    OrphanRefusedError,
    ReportAddress,
    claim_orphan,
    describe_damage,
)
from rankscope.agent.reporting.spill_folder import find_boot_ids, find_files, remove_old
from rankscope.agent.sidecar.beacon import Descriptor
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.measure.clock import Clock
from rankscope.measure.errors import RankscopeError
from rankscope.measure.units import NS_PER_S

ORPHANS_NS_MAX: Final = 120 * NS_PER_S
"""Longest time that the sidecar stays after its last rank, enough for a collector to be restarted elsewhere."""

ATTEMPT_NS: Final = 30 * NS_PER_S
"""Longest attempt with one rank process before the next: collectors may differ, and one may be gone."""

PART: Final = "orphaned reports"
PAUSE_S: Final = 1.0
"""Pause after a failed attempt."""

DELIVERIES_MAX: Final = 1024
"""Largest number of pending deliveries; further ones are left to the next sidecar."""


class _PendingDelivery(NamedTuple):
    """The delivery of a rank process's reports in `folder`, if they belong to `run`, to the collector at `address`."""

    folder: str
    boot_id: str
    run: str
    address: ReportAddress


Deliver = Callable[[OrphanedReports, ReportAddress, Clock, int, Callable[[], bool]], bool]


class OrphanDelivery:
    """Finds and delivers orphaned reports. `deliver` replaces `orphaned_reports.deliver`. No method raises or waits."""

    def __init__(self, clock: Clock, deliver: Deliver | None = None, *, faults: SidecarFaults | None = None) -> None:
        self._clock = clock
        self._faults = faults
        self._deliver = deliver or _deliver
        self._searched: set[tuple[str, str, str]] = set()
        self._pending: deque[_PendingDelivery] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.delivered = 0
        """Number of rank processes whose orphaned reports were all acknowledged."""

    @property
    def is_idle(self) -> bool:
        """True if nothing remains to be delivered."""
        with self._changed:
            return not self._pending and not self._is_busy

    def queue_earlier(self, descriptor: Descriptor) -> None:
        """Queue reports of earlier processes of the rank's run, once for each folder, run and collector."""
        folder = descriptor.spill_folder
        key = (folder, descriptor.identity.run, descriptor.endpoint)
        if not folder or not descriptor.endpoint or key in self._searched:
            return
        self._searched.add(key)
        remove_old(folder, keep=descriptor.identity.boot_id)
        for boot_id in find_boot_ids(folder):
            self._add(descriptor, boot_id)

    def queue_ended(self, descriptor: Descriptor) -> str:
        """Queue the reports of a rank that has ended; return a description of damage to them, if any."""
        folder, boot_id = descriptor.spill_folder, descriptor.identity.boot_id
        if not folder or not descriptor.endpoint or not find_files(folder, boot_id):
            return ""
        damage = describe_damage(folder, boot_id)  # before the delivery removes the files
        self._add(descriptor, boot_id)
        return damage

    def start_if_needed(self) -> None:
        """Start the thread if there is something to deliver; if none can be started now, a later call tries again."""
        if self._thread is not None or self.is_idle:
            return
        thread = threading.Thread(target=self._run, name="rankscope-orphans", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if self._faults is not None:
                self._faults.note(PART, error)
        else:
            self._thread = thread

    def close(self) -> None:
        """Stop; undelivered reports stay on the disk."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PAUSE_S)

    def _add(self, descriptor: Descriptor, boot_id: str) -> None:
        address = ReportAddress(descriptor.endpoint, descriptor.keys)
        delivery = _PendingDelivery(descriptor.spill_folder, boot_id, descriptor.identity.run, address)
        with self._changed:
            if len(self._pending) < DELIVERIES_MAX and delivery not in self._pending:
                self._pending.append(delivery)
                self._changed.notify_all()
        self.start_if_needed()

    # -- the delivery thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (delivery := self._wait_for_delivery()) is not None:
            if not self._attempt(delivery):
                with self._changed:
                    self._pending.append(delivery)
                self._stopping.wait(PAUSE_S)

    def _wait_for_delivery(self) -> _PendingDelivery | None:
        with self._changed:
            self._is_busy = False
            while not self._pending and not self._stopping.is_set():
                self._changed.wait()
            if self._stopping.is_set():
                return None
            self._is_busy = True
            return self._pending.popleft()

    def _attempt(self, delivery: _PendingDelivery) -> bool:
        """Return whether nothing remains to be done: delivered, of another run or process, or refused for good."""
        try:
            orphan = claim_orphan(delivery.folder, delivery.boot_id)
            if orphan is None:
                return True
            try:
                return orphan.hello.identity.run != delivery.run or self._deliver_all(orphan, delivery.address)
            finally:
                orphan.close()
        except OrphanRefusedError:
            return True
        except (OSError, RankscopeError) as error:
            print_traceback(PART, error)  # not an error of the sidecar: the collector may be away
            return False
        except Exception as error:  # noqa: BLE001 - an error with one rank process must not prevent other deliveries
            if self._faults is not None:
                self._faults.note(PART, error)
            return True

    def _deliver_all(self, orphan: OrphanedReports, address: ReportAddress) -> bool:
        """Return whether the collector has acknowledged all reports."""
        deadline_ns = self._clock.monotonic_ns() + ATTEMPT_NS
        if not self._deliver(orphan, address, self._clock, deadline_ns, self._stopping.is_set):
            return False
        orphan.remove()
        self.delivered += 1
        return True


def _deliver(
    orphan: OrphanedReports, address: ReportAddress, clock: Clock, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    from rankscope.agent.reporting.orphaned_reports import deliver  # noqa: PLC0415 - imports ZeroMQ

    return deliver(orphan, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping)
