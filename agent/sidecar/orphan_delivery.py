"""The sidecar's errand for ranks that cannot deliver any more: it brings the collector what they have left on the disk.

It runs on a thread of its own, one life after the other, and only once there is something to bring: most sidecars never
load ZeroMQ. Looked for are lives of the run whose ranks the sidecar watches: when it meets the first of them (what an
earlier start of the run has left on this machine), and whenever one of them has ended. What no collector has taken
when the sidecar leaves stays on the disk for the next one.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rankscope.agent.guard import print_traceback
from rankscope.agent.report.orphaned_reports import (
    Address,
    OrphanedReports,
    OrphanRefusedError,
    claim_orphan,
    describe_damage,
)
from rankscope.agent.report.spill_folder import find_boot_ids, find_files, remove_old
from rankscope.agent.sidecar.beacon import Descriptor
from rankscope.agent.sidecar.faults import SidecarFaults
from rankscope.measure.clock import Clock
from rankscope.measure.errors import RankscopeError
from rankscope.measure.units import NS_PER_S

ORPHANS_NS_MAX: Final = 120 * NS_PER_S
"""How long a sidecar outlives its last rank for this: a collector that is restarted elsewhere is back in that time."""

ATTEMPT_NS: Final = 30 * NS_PER_S
"""After so long with one life the next one has its turn: one collector may be gone for good, another be there."""

PAUSE_S: Final = 1.0
"""After an attempt that failed at once."""

ERRANDS_MAX: Final = 1024
"""Lives that wait; further ones are left to the next sidecar."""


class _PendingDelivery(NamedTuple):
    """Bring what a life of `run` has left in `folder` to the collector at `address`."""

    folder: str
    boot_id: str
    run: str
    address: Address


Deliver = Callable[[OrphanedReports, Address, Clock, int, Callable[[], bool]], bool]


class OrphanDelivery:
    """Finds and delivers what was left. `deliver` stands for `left_delivery.deliver`. Nothing here raises or waits."""

    def __init__(self, clock: Clock, deliver: Deliver | None = None, *, faults: SidecarFaults | None = None) -> None:
        self._clock = clock
        self._faults = faults
        self._deliver = deliver or _deliver
        self._looked_for: set[tuple[str, str, str]] = set()
        self._errands: deque[_PendingDelivery] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.delivered = 0
        """Lives of which everything was acknowledged."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be delivered."""
        with self._changed:
            return not self._errands and not self._is_busy

    def queue_earlier(self, descriptor: Descriptor) -> None:
        """A rank is there: look, once for each folder, run and collector, for what earlier lives of its run left."""
        folder = descriptor.spill_folder
        key = (folder, descriptor.identity.run, descriptor.endpoint)
        if not folder or not descriptor.endpoint or key in self._looked_for:
            return
        self._looked_for.add(key)
        remove_old(folder, keep=descriptor.identity.boot_id)
        for boot_id in find_boot_ids(folder):
            self._add(descriptor, boot_id)

    def take(self, descriptor: Descriptor) -> str:
        """A rank has ended: deliver what it left. Return what is damaged of that, empty for nothing."""
        folder, boot_id = descriptor.spill_folder, descriptor.identity.boot_id
        if not folder or not descriptor.endpoint or not find_files(folder, boot_id):
            return ""
        damage = describe_damage(folder, boot_id)  # before it is brought away
        self._add(descriptor, boot_id)
        return damage

    def close(self) -> None:
        """Stop; what is not delivered stays where it is."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PAUSE_S)

    def _add(self, descriptor: Descriptor, boot_id: str) -> None:
        address = Address(descriptor.endpoint, descriptor.keys)
        errand = _PendingDelivery(descriptor.spill_folder, boot_id, descriptor.identity.run, address)
        with self._changed:
            if len(self._errands) < ERRANDS_MAX and errand not in self._errands:
                self._errands.append(errand)
                self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rankscope-left-reports", daemon=True)
            self._thread.start()

    # -- the errand thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (errand := self._wait_for_errand()) is not None:
            if not self._try(errand):
                with self._changed:
                    self._errands.append(errand)
                self._stopping.wait(PAUSE_S)

    def _wait_for_errand(self) -> _PendingDelivery | None:
        with self._changed:
            self._is_busy = False
            while not self._errands and not self._stopping.is_set():
                self._changed.wait()
            if self._stopping.is_set():
                return None
            self._is_busy = True
            return self._errands.popleft()

    def _try(self, errand: _PendingDelivery) -> bool:
        """Whether nothing is left to be done: it was delivered, is somebody else's, or stays since it is refused."""
        try:
            life = claim_orphan(errand.folder, errand.boot_id)
            if life is None:
                return True
            try:
                return life.hello.identity.run != errand.run or self._bring(life, errand.address)
            finally:
                life.close()
        except OrphanRefusedError:
            return True
        except (OSError, RankscopeError) as error:
            print_traceback("left reports", error)  # no fault of ours: the collector may just be away
            return False
        except Exception as error:  # noqa: BLE001 - our bug with one life must not keep the others from delivery
            if self._faults is not None:
                self._faults.note("left reports", error)
            return True

    def _bring(self, life: OrphanedReports, address: Address) -> bool:
        """Whether the collector has taken all of it."""
        deadline_ns = self._clock.monotonic_ns() + ATTEMPT_NS
        if not self._deliver(life, address, self._clock, deadline_ns, self._stopping.is_set):
            return False
        life.remove()
        self.delivered += 1
        return True


def _deliver(
    life: OrphanedReports, address: Address, clock: Clock, deadline_ns: int, is_stopping: Callable[[], bool]
) -> bool:
    from rankscope.agent.report.orphaned_reports import deliver  # noqa: PLC0415 - loads ZeroMQ

    return deliver(life, address, clock, deadline_ns=deadline_ns, is_stopping=is_stopping)
