"""Send snapshots to the publisher, start it again when it ends, and answer its requests.

The publisher renders pages and answers HTTP requests. Under `rankscope serve` it has a process of its own: rendering
the metrics of 16,384 ranks takes a second of CPU time, in which the threads here would compute half as fast. In an
embedded collector it is a thread of this process, with the same messages over the same kind of connection.

One thread here sends and receives. It sends what is the latest when it gets to it, so that a slow publisher gets fewer
snapshots and nothing accumulates. A publisher that accepts nothing for SEND_S_MAX is killed and started again. The port
stays open meanwhile: requests wait for the next publisher.
"""

import logging
import multiprocessing
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, Protocol

import msgspec

from rankscope.collector.captures.capture import NO_CAPTURES, Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.process_tuning import name_this_thread
from rankscope.collector.publish.api.setting_routes import NO_SETTINGS_HERE
from rankscope.collector.publish.api.step_breakdown import Shares
from rankscope.collector.publish.snapshot_messages import (
    CaptureAnswer,
    CaptureWanted,
    DumpAnswer,
    DumpWanted,
    Health,
    SettingsAnswer,
    SettingsWanted,
    SnapshotEncoder,
    Update,
    encode_blocks,
)
from rankscope.collector.runs.live_settings import RunSettings, SettingsRefusal, WantedChange
from rankscope.collector.runs.run_dump import RunDump
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.wakeup import Wakeup

LOG = logging.getLogger("rankscope.collector")

SEND_S_MAX: Final = 30
"""Longest wait for a publisher that does not read, s."""
RESTART_S: Final = 1.0
"""Time before a publisher is started again."""
END_S_MAX: Final = 5.0
"""Longest wait for a publisher that ends with the collector."""
PUBLISHER: Final = "publisher"
"""Label of publishers that ended by themselves, in the counts of errors."""

_WANTED: Final = msgspec.msgpack.Decoder(DumpWanted | CaptureWanted | SettingsWanted)


class RunningPublisher(Protocol):
    """A running publisher. The function that started it was given the publisher's end of the connection."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end, which comes when the connection is closed; return whether it has ended."""
        ...

    def kill(self) -> None:
        """End the publisher at once; does nothing for a publisher that is a thread."""
        ...

    def describe_end(self) -> str:
        """Return how it ended, in words."""
        ...


class Sources(NamedTuple):
    """Functions that return what the link sends; its thread calls them. `read_dump` returns the internal state of a run
    by its id or name; None for an unknown run. `order_capture` begins a capture, without waiting for it;
    `read_captures` returns those that are kept, newest first, the same object while nothing has changed.
    `order_settings` changes settings of a run, and waits some seconds for it at most.
    """

    read_snapshot: Callable[[], Snapshot]
    read_incidents: Callable[[], tuple[Incident, ...]]
    read_health: Callable[[], Health]
    read_dump: Callable[[str], RunDump | None]
    order_capture: Callable[[CaptureRequest], Capture | CaptureRefusal] = lambda _request: NO_CAPTURES
    read_captures: Callable[[], tuple[Capture, ...]] = tuple
    order_settings: Callable[[WantedChange], RunSettings | SettingsRefusal] = lambda _wanted: NO_SETTINGS_HERE


class PublisherLink:
    """Connection to the publisher, from `start` to `close`. `start_publisher` starts a publisher with one end of it;
    `wakeup` has what has changed since the last message sent, and is closed here.
    """

    def __init__(
        self,
        start_publisher: Callable[[Connection], RunningPublisher],
        sources: Sources,
        faults: FaultLog,
        wakeup: Wakeup,
    ) -> None:
        self._start_publisher = start_publisher
        self._sources = sources
        self._faults = faults
        self._time_slices = Shares()
        self._closing = threading.Event()
        self._wakeup = wakeup
        self._thread = threading.Thread(target=self._run, name="rankscope-publish", daemon=True)

    def start(self) -> None:
        """Start the publisher, and send it the latest snapshot, incidents and health."""
        self._thread.start()

    def close(self) -> None:
        """End the publisher. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wakeup.set()
        if self._thread.is_alive():
            self._thread.join()
        self._wakeup.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        name_this_thread("publish")
        while not self._closing.is_set():
            reason = self._run_publisher()
            if not self._closing.is_set():
                self._faults.count(PUBLISHER)
                LOG.error("The publisher (metrics, API, live page) %s; starting it again.", reason)
                self._closing.wait(RESTART_S)

    def _run_publisher(self) -> str:
        """Start a publisher and serve it until it ends or this closes; return how it ended."""
        own, theirs = multiprocessing.Pipe()
        _limit_sending(own)
        with own:
            try:
                with theirs:  # the publisher has its own copy, and its end closes the connection
                    publisher = self._start_publisher(theirs)
            except Exception as error:  # noqa: BLE001 - it is reported
                return f"could not be started ({error})"
            problem = self._serve_contained(own)
        if problem or not publisher.wait(END_S_MAX):
            publisher.kill()
        return problem or publisher.describe_end()

    def _serve_contained(self, connection: Connection) -> str:
        """Serve a publisher; return why this ended it, empty where it ended by itself or this closes."""
        try:
            self._serve(connection)
        except BlockingIOError:
            return f"accepted nothing for {SEND_S_MAX} s and was ended"
        except (EOFError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 - it is noted
            self._faults.note(PUBLISHER, "a message for the publisher could not be made")
            return f"was ended, because a message for it could not be made ({type(error).__name__})"
        return ""

    def _serve(self, connection: Connection) -> None:
        """Send updates and answer requests. Raises EOFError or OSError when the publisher has ended."""
        encoder = SnapshotEncoder()
        snapshot: Snapshot | None = None
        incidents: tuple[Incident, ...] | None = None
        captures: tuple[Capture, ...] | None = None
        answers: list[CaptureAnswer | DumpAnswer | SettingsAnswer] = []
        ready = select.poll()
        for fd in (connection.fileno(), self._wakeup.fd):
            ready.register(fd, select.POLLIN)
        while not self._closing.is_set():
            latest, known = self._sources.read_snapshot(), self._sources.read_incidents()
            kept = self._sources.read_captures()
            message = None
            if latest is not snapshot:
                self._time_slices.record(latest)
                message = encoder.encode(latest, self._time_slices.of)
            connection.send(
                Update(
                    self._sources.read_health(),
                    incidents=None if known is incidents else known,
                    snapshot=message,
                    captures=None if kept is captures else kept,
                )
            )
            for block in encode_blocks(latest) if message is not None else ():
                connection.send_bytes(block)
            snapshot, incidents, captures = latest, known, kept
            for answer in answers:  # after what it has changed: who has ordered a capture finds it listed
                connection.send(answer)
            ready.poll()
            self._wakeup.clear()
            answers = []
            while connection.poll():
                answers.append(self._answer(_WANTED.decode(connection.recv_bytes())))

    def _answer(
        self, wanted: DumpWanted | CaptureWanted | SettingsWanted
    ) -> DumpAnswer | CaptureAnswer | SettingsAnswer:
        match wanted:
            case SettingsWanted(number, change):
                return SettingsAnswer(number, self._sources.order_settings(change))
            case CaptureWanted(number, request):
                return CaptureAnswer(number, self._sources.order_capture(request))
            case DumpWanted(number, run):
                found = self._sources.read_dump(run)
                return DumpAnswer(number, None if found is None else msgspec.json.encode(found))


def _limit_sending(connection: Connection) -> None:
    """Make sending raise BlockingIOError when nothing was accepted for SEND_S_MAX."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S_MAX, 0))
