"""Decides when the dumps of NCCL's Inspector plugin are read, and makes the notices about them.

Each READ_NS, and when a rank stalls, the dumps of all ranks on the node are read, on a thread of their own: they may be
on a network disk that does not answer. While a reading goes on there is no other. A rank has a notice when something
new was read, when the reason why there is nothing has changed, each AGAIN_NS in case the collector was started anew,
and always while it is stalled, so that the collector knows that nothing new was written since. Most sidecars have no
dumps, so what parses them is imported with the first reading.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.agent.guard import describe
from rankscope.agent.sidecar.beacon import Descriptor, WatchedStall
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.node_messages import InspectorRead
from rankscope.measure.units import NS_PER_S, NS_PER_US, format_duration

if TYPE_CHECKING:
    from rankscope.agent.sidecar.inspector_dump import InspectorDump

READ_NS: Final = 15 * NS_PER_S
READ_NS_MIN: Final = 5 * NS_PER_S
"""Least time between two readings, however often ranks stall and go on."""
AGAIN_NS: Final = 60 * NS_PER_S
STUCK_NS: Final = 60 * NS_PER_S
"""Time after which a reading that has not ended is a reason why there is nothing."""
DUMP: Final = "dump"
"""Field of `absent`: why nothing was read."""
TEXT_LENGTH_MAX: Final = 500


class InspectorReadings:
    """The readings of one sidecar. `start` replaces the thread."""

    def __init__(self, clock: Clock, *, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._clock = clock
        self._start = start or _start_thread
        self._dumps: dict[str, InspectorDump] = {}
        self._sent: dict[str, InspectorRead] = {}
        self._read_ns: dict[str, int] = {}
        self._ready: list[tuple[Descriptor, InspectorRead]] = []
        self._begun_ns: int | None = None
        self._is_reading = False
        self._is_stuck_said = False
        self._stalled: frozenset[str] = frozenset()

    def run_pass(self, watched: Sequence[WatchedStall]) -> list[tuple[Descriptor, InspectorRead]]:
        """Begin a reading if it is time to; return the notices of an earlier one, once."""
        own = [one for one in watched if one.descriptor.inspector is not None]
        if not own:
            return []
        now_ns = self._clock.monotonic_ns()
        since_ns = None if self._begun_ns is None else now_ns - self._begun_ns
        if self._is_reading:
            return self._find_stuck(own, now_ns) if since_ns is not None and since_ns >= STUCK_NS else []
        ready, self._ready = self._ready, []
        stalled = frozenset(one.descriptor.identity.boot_id for one in own if one.stalled_since_host_ns is not None)
        if since_ns is None or since_ns >= (READ_NS if stalled <= self._stalled else READ_NS_MIN):
            self._stalled = stalled
            self._begun_ns, self._is_reading, self._is_stuck_said = now_ns, True, False
            try:
                self._start(lambda: self._read_all(own))
            except RuntimeError:  # no thread can be started now: the next time is READ_NS away
                self._is_reading = False
        return ready

    def _find_stuck(self, own: Sequence[WatchedStall], now_ns: int) -> list[tuple[Descriptor, InspectorRead]]:
        """Return, once in a reading, that it does not end."""
        if self._is_stuck_said:
            return []
        self._is_stuck_said = True
        reason = f"its folder has not answered for {format_duration(STUCK_NS)}, as a network disk that is gone"
        return [(one.descriptor, _explain(one.descriptor, now_ns, reason)) for one in own]

    # -- on the thread of the reading ---------------------------------------------------------------------------------

    def _read_all(self, own: Sequence[WatchedStall]) -> None:
        ready = []
        try:
            names = {one.descriptor.identity.boot_id for one in own}
            for kept in (self._dumps, self._sent, self._read_ns):
                for name in kept.keys() - names:
                    del kept[name]
            for one in own:
                notice = self._read(one.descriptor)
                if self._is_news(notice) or one.stalled_since_host_ns is not None:
                    self._sent[notice.identity.boot_id] = notice
                    ready.append((one.descriptor, notice))
        finally:
            self._ready, self._is_reading = ready, False

    def _read(self, descriptor: Descriptor) -> InspectorRead:
        """Return what the dump of a rank has, or why nothing. Never raise."""
        from rankscope.agent.sidecar.inspector_dump import InspectorDump  # noqa: PLC0415 - see the module docstring

        name, place = descriptor.identity.boot_id, descriptor.inspector
        if place is None or place.problem:
            return _explain(descriptor, self._clock.monotonic_ns(), "" if place is None else place.problem)
        dump = self._dumps.setdefault(name, InspectorDump(place, descriptor.identity.pid))
        host_ns = self._clock.monotonic_ns()
        try:
            found = dump.read()
        except FileNotFoundError:
            return _explain(
                descriptor, host_ns, f"{place.path} is not there: NCCL has not written it yet, or elsewhere"
            )
        except (OSError, UnavailableError) as error:
            return _explain(descriptor, host_ns, f"it cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - the watch over the ranks goes on, and the notice has it
            return _explain(descriptor, host_ns, f"it could not be read: {describe(error)}")
        since_ns, self._read_ns[name] = self._read_ns.get(name), host_ns
        return InspectorRead(
            sequence=1,
            identity=descriptor.identity,
            host_ns=host_ns,
            since_host_ns=since_ns,
            dump_interval_ns=place.interval_us * NS_PER_US,
            communicators=found.communicators,
            communicators_left_out=found.communicators_left_out,
            lines_skipped=found.lines_skipped,
            bytes_skipped=found.bytes_skipped,
        )

    def _is_news(self, notice: InspectorRead) -> bool:
        sent = self._sent.get(notice.identity.boot_id)
        if any(one.bandwidths for one in notice.communicators) or sent is None:
            return True
        if notice.host_ns - sent.host_ns >= AGAIN_NS:
            return True
        times = {"host_ns": sent.host_ns, "since_host_ns": sent.since_host_ns}
        return msgspec.structs.replace(notice, **times) != sent


def _explain(descriptor: Descriptor, host_ns: int, reason: str) -> InspectorRead:
    absent = {DUMP: reason[:TEXT_LENGTH_MAX]}
    return InspectorRead(sequence=1, identity=descriptor.identity, host_ns=host_ns, absent=absent)


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="rankscope-inspector", daemon=True).start()
