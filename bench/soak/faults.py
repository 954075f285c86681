"""Carries the faults of a plan out, one after the other, each to its end."""

import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.soak import plan
from bench.soak.fleet import STDERR_CHARACTERS_MAX, STRANGER, Fleet, run_name
from bench.soak.plan import PlannedFault
from bench.soak.watch import Watch
from rankscope.measure.codec import FRAME_BYTES_MAX
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from tests.integration.serving import DEADLINE_S, read_url, wait_for
from tests.integration.small_disk import fill
from tests.integration.wire_peer import connected, hello_of, identity_of

SLOW_SCRAPERS: Final = 8
"""A quarter of the requests that a collector answers at a time."""

GARBAGE_BYTES: Final = 4096


class DoneFault(NamedTuple):
    """A fault that was carried out. `healed_s`: from its end (a killed collector is started then) until /readyz said
    that all is well.
    """

    planned: PlannedFault
    began_s: float
    healed_s: float


class Saboteur:
    """Carries faults out. `disk` is the small one that the store is on; None where there is none."""

    def __init__(self, fleet: Fleet, watch: Watch, disk: Path | None, seed: int) -> None:
        self._fleet = fleet
        self._watch = watch
        self._disk = disk
        self._chance = random.Random(seed)
        self._pause = threading.Event()
        self._kinds: Mapping[str, Callable[[PlannedFault], contextlib.AbstractContextManager[None]]] = {
            plan.COLLECTOR_KILLED: self._kill_collector,
            plan.COLLECTOR_STOPPED: self._stop_collector,
            plan.RUN_RESTARTED: self._restart_run,
            plan.RUN_RESTARTED_UNHEARD: self._restart_run_unheard,
            plan.NODE_STOPPED: self._stop_node,
            plan.CONNECTIONS_CUT: self._cut_connections,
            plan.BAD_PEERS: self._send_garbage,
            plan.SLOW_SCRAPERS: self._scrape_slowly,
            plan.DISK_FULL: self._fill_disk,
        }

    def carry_out(self, fault: PlannedFault, first_s: float) -> DoneFault:
        """Wait until the fault is due, `first_s` being when the first one was, and carry it out."""
        self._pause.wait(max(0.0, first_s + fault.at_s - self._watch.elapsed_s))
        self._fleet.revive_collector()
        began_s = self._watch.elapsed_s
        with self._kinds[fault.kind](fault):
            self._pause.wait(fault.duration_s)
            over_s = time.monotonic()
        self._wait_until_well(fault)
        return DoneFault(fault, began_s, time.monotonic() - over_s)

    def _wait_until_well(self, fault: PlannedFault) -> None:
        """Until the collector answers, and says that all is well. One that does not is a problem, and replaced."""
        said: list[str] = []

        def look() -> bool | None:
            try:
                said[:] = [read_url(f"{self._fleet.served.url}/readyz").decode()]
            except OSError as error:
                said[:] = [str(error)]
            return True if said == ["ok\n"] else None

        try:
            wait_for(look, lambda: f"after {fault}: {said}", DEADLINE_S)
        except AssertionError as error:
            self._watch.problems.append(f"{error}; {self._fleet.served.read_stderr()[-STDERR_CHARACTERS_MAX:]}")
            self._fleet.serve_again()

    @contextlib.contextmanager
    def _kill_collector(self, _fault: PlannedFault) -> Iterator[None]:
        self._fleet.served.kill()
        yield
        self._fleet.serve_again()

    @contextlib.contextmanager
    def _stop_collector(self, _fault: PlannedFault) -> Iterator[None]:
        self._fleet.served.send(signal.SIGSTOP)
        yield
        self._fleet.served.send(signal.SIGCONT)

    @contextlib.contextmanager
    def _restart_run(self, fault: PlannedFault) -> Iterator[None]:
        self._fleet.restart_run(fault.run, fault.node)
        yield

    @contextlib.contextmanager
    def _restart_run_unheard(self, fault: PlannedFault) -> Iterator[None]:
        self._fleet.served.send(signal.SIGSTOP)
        self._pause.wait(fault.duration_s / 2)
        self._fleet.restart_run(fault.run, fault.node)
        yield
        self._fleet.served.send(signal.SIGCONT)

    @contextlib.contextmanager
    def _stop_node(self, fault: PlannedFault) -> Iterator[None]:
        node = self._fleet.nodes[fault.run, fault.node]
        node.send(signal.SIGSTOP)
        yield
        node.send(signal.SIGCONT)

    @contextlib.contextmanager
    def _cut_connections(self, fault: PlannedFault) -> Iterator[None]:
        self._fleet.nodes[fault.run, fault.node].say("cut")
        yield

    @contextlib.contextmanager
    def _send_garbage(self, fault: PlannedFault) -> Iterator[None]:
        """One with a key that is allowed, one without keys, and one that does not speak ZeroMQ."""
        served, folder = self._fleet.served, self._fleet.key_folder
        keys = ClientKeys(
            read_public_key(str(folder / "collector.pub"), "collector_key_file"),
            read_key_pair(str(folder / f"{STRANGER}.key"), "key_file"),
        )
        with (
            connected(served.endpoint, "stranger", keys) as stranger,
            connected(served.endpoint, "nobody") as nobody,
            socket.create_connection(("127.0.0.1", served.ports[0])) as raw,
        ):
            world = self._fleet.shape.ranks_per_run
            stranger.send(hello_of(identity_of("boot-stranger", run=run_name(fault.run), world_size=world)))
            stranger.send_bytes(self._chance.randbytes(GARBAGE_BYTES))
            stranger.send_bytes(b"x" * (FRAME_BYTES_MAX + 1))
            nobody.try_to_send(hello_of(identity_of("boot-nobody", run="nobody")))
            raw.sendall(self._chance.randbytes(GARBAGE_BYTES))
            yield

    @contextlib.contextmanager
    def _scrape_slowly(self, _fault: PlannedFault) -> Iterator[None]:
        with contextlib.ExitStack() as ends:
            for number in range(SLOW_SCRAPERS):
                scraper = ends.enter_context(socket.socket())
                scraper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                scraper.connect(("127.0.0.1", self._fleet.served.ports[1]))
                scraper.sendall(b"GET /metrics HTTP/1.0\r\n" + (b"\r\n" if number % 2 else b""))
            yield

    @contextlib.contextmanager
    def _fill_disk(self, _fault: PlannedFault) -> Iterator[None]:
        if self._disk is None:
            yield
            return
        filler = fill(self._disk)
        yield
        filler.unlink()
