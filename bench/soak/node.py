"""One node in a process of its own: its ranks, each with a connection, an encoder, a buffer and a spill of its own.

`python -m bench.soak.node SETTINGS` with the settings as JSON. One thread drives all ranks: each makes a
report in every interval and exchanges with the collector twice. It obeys lines on stdin:

    restart N   every rank hangs up without a word and begins a new life, as its restart N
    cut         the TCP connections to the collector break
    finish      every rank says goodbye, sends what is left, tells what it has made, and the process ends

and ends when stdin does. On stdout it says `ready` once, and then, at the end, a line of JSON for each rank.
"""

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.units import NS_PER_S
from tests.integration.light_ranks import LightRank, light_identity

TURNS: Final = 2
"""Exchanges of a rank in an interval: with its report, and half an interval later for what has been answered."""

FINISH_S_MAX: Final = 180.0
"""How long a node tries to deliver its last reports."""


class NodeSettings(msgspec.Struct, kw_only=True):
    """What a node is told. `reports_max` bounds the buffer of a rank; without `spill_dir` it has no spill."""

    run: str
    first_rank: int
    ranks: int
    world_size: int
    restart_count: int
    endpoint: str
    key_folder: str
    spill_dir: str
    reports_max: int
    interval_s: float


class LifeAccount(msgspec.Struct, kw_only=True):
    """What a rank knows of its present life at its end."""

    run: str
    rank: int
    boot_id: str
    made: int
    overwritten: int
    reports: int
    steps_dropped: int
    reports_dropped: int
    is_delivered: bool
    resends: int


class Node:
    """The ranks of one node. It belongs to one thread."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        folder = Path(settings.key_folder)
        self._keys = ClientKeys(
            read_public_key(str(folder / "collector.pub"), "collector_key_file"),
            read_key_pair(str(folder / "agent.key"), "key_file"),
        )
        self._lights: list[LightRank] = []
        self._closed: list[LightRank] = []

    def begin(self, restart_count: int) -> None:
        """New lives for all ranks; those of before hang up, and what they had not delivered is left on the disk."""
        for light in self._lights:
            light.close()
        settings = self._settings
        last = settings.first_rank + settings.ranks
        self._lights = [
            LightRank(
                light_identity(settings.run, rank, settings.world_size, restart_count),
                settings.endpoint,
                spill_dir=settings.spill_dir,
                reports_max=settings.reports_max,
                interval_ns=round(settings.interval_s * NS_PER_S),
                keys=self._keys,
            )
            for rank in range(settings.first_rank, last)
        ]
        self._closed = list(self._lights)

    def work(self, commands: "queue.Queue[str]") -> None:
        """Report until told to finish."""
        began_s = time.monotonic()
        slot_s = self._settings.interval_s / (TURNS * self._settings.ranks)
        for slot in range(sys.maxsize):
            with contextlib.suppress(queue.Empty):
                command = commands.get(timeout=max(0.0, began_s + slot * slot_s - time.monotonic()))
                if command == "finish":
                    return
                self._obey(command)
            light = self._lights[slot % len(self._lights)]
            if light in self._closed:  # one after the other, as ranks draw a delay for their first connection
                self._closed.remove(light)
                light.open()
            if slot // len(self._lights) % TURNS == 0:
                light.report()
            light.exchange(0)
            if time.monotonic() > began_s + (slot + TURNS * self._settings.ranks) * slot_s:
                began_s = time.monotonic() - slot * slot_s  # it was stopped: what was missed is not made up for

    def finish(self) -> list[LifeAccount]:
        """Say goodbye, send what is left, and tell."""
        for light in self._closed:
            light.open()
        for light in self._lights:
            light.say_goodbye()
        deadline_s = time.monotonic() + FINISH_S_MAX
        while (left := [light for light in self._lights if not light.delivery.everything_acknowledged]) and (
            time.monotonic() < deadline_s
        ):
            for light in left:
                light.exchange(0)
            time.sleep(0.05)
        accounts = [_account(light) for light in self._lights]
        for light in self._lights:
            light.close()
        return accounts

    def _obey(self, command: str) -> None:
        word, _, number = command.partition(" ")
        if word == "restart":
            self.begin(int(number))
        elif word == "cut":
            cut_connections(int(self._settings.endpoint.rpartition(":")[2]))


def cut_connections(port: int) -> int:
    """Break every TCP connection of this process to that port, as a firewall that resets them; how many there were."""
    cut = 0
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family == socket.AF_INET and connection.getpeername()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


def _account(light: LightRank) -> LifeAccount:
    return LifeAccount(
        run=light.identity.run,
        rank=light.identity.rank,
        boot_id=light.identity.boot_id,
        made=light.made,
        overwritten=light.overwritten,
        reports=light.reports,
        steps_dropped=light.buffer.steps_dropped,
        reports_dropped=light.buffer.reports_dropped,
        is_delivered=light.delivery.everything_acknowledged,
        resends=light.delivery.resends,
    )


def _listen(commands: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    os._exit(0)  # who began this node is gone


def main(text: str) -> None:
    """Be that node."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it takes seconds and is not what is shown here
    settings = msgspec.json.decode(text, type=NodeSettings)
    commands: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    node = Node(settings)
    node.begin(settings.restart_count)
    print("ready", flush=True)
    node.work(commands)
    for account in node.finish():
        print(msgspec.json.encode(account).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
