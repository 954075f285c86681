"""Simulate the network between ranks and collector: frames are late, lost, duplicated, reordered, or cut off one way
only.

The ranks' end has the agent's own resend buffer and rules of delivery. Everything happens on one true clock, which is
the collector's too; each rank's reading of it comes from `clocks.py`.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from rankscope.measure.codec import encode
from rankscope.measure.messages import Ack, ClockPing, ClockPong, Hello, HelloWanted, Message, Welcome
from rankscope.measure.units import NS_PER_MS
from rankscope.uplink.delivery import Delivery, Send, SendHello
from rankscope.uplink.resend_buffer import ResendBuffer
from tests.simulation.collector_end import CollectorEnd

UP, DOWN = "up", "down"
"""From a rank to the collector, and back."""
WAKE_NS_MIN = NS_PER_MS
"""A rank that is due at once, and again at once, is let alone so long: its delivery waits for something else."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """From `begin_s` to `end_s` nothing gets through between these ranks and the collector, one way or (None) both."""

    ranks: tuple[int, ...]
    begin_s: float
    end_s: float
    direction: str | None = None

    def cuts(self, rank: int, direction: str, now_s: float) -> bool:
        """Return whether a message at this time is lost."""
        is_hit = rank in self.ranks and self.begin_s <= now_s < self.end_s
        return is_hit and self.direction in {None, direction}


@dataclass(frozen=True, kw_only=True)
class NetworkNoise:
    """Faults of the network. A message needs `delay_s` times a lognormal factor of spread `delay_spread`: one above 0
    lets messages overtake each other. `frames_max` bounds each rank's resend buffer.
    """

    delay_s: float = 0.001
    delay_spread: float = 0.0
    loss: float = 0.0
    duplicates: float = 0.0
    partitions: tuple[Partition, ...] = ()
    frames_max: int = 1024


NETWORKS: dict[str, NetworkNoise] = {
    "slow": NetworkNoise(delay_s=1.5, delay_spread=0.3),
    "reordered": NetworkNoise(delay_s=0.5, delay_spread=1.0),
    "lossy": NetworkNoise(loss=0.1, delay_spread=0.3),
    "duplicating": NetworkNoise(duplicates=0.2, delay_s=0.3, delay_spread=0.5),
    "cut_off": NetworkNoise(partitions=(Partition(ranks=(2, 5), begin_s=8, end_s=14),)),
    "deaf": NetworkNoise(partitions=(Partition(ranks=(2, 5), begin_s=8, end_s=14, direction=DOWN),)),
    "mute": NetworkNoise(partitions=(Partition(ranks=(2, 5), begin_s=8, end_s=14, direction=UP),)),
    "overflowing": NetworkNoise(partitions=(Partition(ranks=(2, 5), begin_s=4, end_s=14),), frames_max=4),
}
"""Networks by name, for runs of 200 steps, which last 25 s. `deaf` ranks receive nothing and are received, `mute` ones
the other way round."""


class Sender(Protocol):
    """A rank, as far as delivery asks it."""

    def make_hello(self, first_sequence: int = 1) -> Hello:
        """Return its Hello."""

    def read_clock(self, now_ns: int) -> int:
        """Return its clock's time."""


class RankEnd:
    """One rank's end. `dropped` are the numbers of the frames that were dropped from its buffer, `step_counts` the
    number of step records in each frame.
    """

    def __init__(self, frames_max: int, seed: int) -> None:
        self.buffer = ResendBuffer(frames_max, 10**9)
        self.delivery = Delivery(self.buffer, random.Random(seed))
        self.dropped: set[int] = set()
        self.step_counts: dict[int, int] = {}
        self.wakes_at_ns: int | None = None

    def push(self, frame: bytes, step_count: int) -> None:
        """One more report to deliver."""
        oldest, before = self.buffer.first_sequence, self.buffer.reports_dropped
        self.step_counts[self.buffer.last_sequence + 1] = step_count
        self.buffer.push(self.buffer.last_sequence + 1, frame, step_count)
        self.dropped.update(range(oldest, oldest + self.buffer.reports_dropped - before))


class Network:
    """Connections between all ranks and the collector, and the time of each event on them."""

    def __init__(
        self, noise: NetworkNoise, ranks: Sequence[Sender], peers: Sequence[str], end: CollectorEnd, seed: int
    ) -> None:
        self._noise = noise
        self._ranks = ranks
        self._peers = list(peers)
        self._end = end
        self._chance = random.Random(seed)
        self._count = itertools.count()
        self._happenings: list[tuple[int, int, Callable[[int], None]]] = []
        self.rank_ends = [RankEnd(noise.frames_max, seed + rank) for rank in range(len(ranks))]
        self.heals = False
        """Time from which on the network works without faults."""
        for rank in range(len(ranks)):
            self._at(0, lambda now_ns, rank=rank: self._wake(rank, now_ns))  # type: ignore[misc]

    def push(self, rank: int, frame: bytes, step_count: int, at_ns: int) -> None:
        """Send a rank's report at this time."""

        def push(now_ns: int) -> None:
            self.rank_ends[rank].push(frame, step_count)
            self._wake(rank, now_ns)

        self._at(at_ns, push)

    def ask_clocks(self, peers: Sequence[str], now_ns: int) -> None:
        """The collector asks these ranks for the time."""
        for peer in peers:
            self._send_down(self._peers.index(peer), ClockPing(collector_ns=now_ns), now_ns)

    def run_until(self, now_ns: int) -> None:
        """Process all events up to this time."""
        while self._happenings and self._happenings[0][0] <= now_ns:
            at_ns, _, happen = heapq.heappop(self._happenings)
            happen(at_ns)

    @property
    def everything_acknowledged(self) -> bool:
        """Return whether no rank holds anything."""
        return all(end.delivery.everything_acknowledged for end in self.rank_ends)

    def _at(self, at_ns: int, happen: Callable[[int], None]) -> None:
        heapq.heappush(self._happenings, (at_ns, next(self._count), happen))

    def _carry(self, rank: int, direction: str, now_ns: int, deliver: Callable[[int], None]) -> None:
        """Send a message, subject to the network's faults."""
        noise, chance = self._noise, self._chance
        copies = 1
        if not self.heals:
            if any(partition.cuts(rank, direction, now_ns / 1e9) for partition in noise.partitions):
                return
            copies = 0 if chance.random() < noise.loss else 1 + (chance.random() < noise.duplicates)
        for _ in range(copies):
            self._at(now_ns + round(1e9 * noise.delay_s * chance.lognormvariate(0, noise.delay_spread)), deliver)

    def _send_up(self, rank: int, message: bytes, now_ns: int) -> None:
        def arrive(at_ns: int) -> None:
            for answer in self._end.receive(self._peers[rank], message, at_ns):
                self._send_down(rank, answer, at_ns)

        self._carry(rank, UP, now_ns, arrive)

    def _send_down(self, rank: int, message: Message, now_ns: int) -> None:
        self._carry(rank, DOWN, now_ns, lambda at_ns: self._hear(rank, message, at_ns))

    def _hear(self, rank: int, message: Message, now_ns: int) -> None:
        delivery = self.rank_ends[rank].delivery
        match message:
            case Welcome():
                self._send(rank, delivery.on_welcome(message.admitted_through, now_ns, message.hello_number), now_ns)
            case Ack():
                self._send(rank, delivery.on_ack(message.through, now_ns), now_ns)
            case HelloWanted():
                self._send(rank, delivery.on_hello_wanted(now_ns), now_ns)
            case ClockPing():
                pong = ClockPong(collector_ns=message.collector_ns, host_ns=self._ranks[rank].read_clock(now_ns))
                self._send_up(rank, encode(pong), now_ns)
            case _:
                raise AssertionError(f"the collector does not send {message!r} here")

    def _wake(self, rank: int, now_ns: int) -> None:
        self.rank_ends[rank].wakes_at_ns = None
        self._send(rank, self.rank_ends[rank].delivery.on_tick(now_ns), now_ns)

    def _send(self, rank: int, sends: Sequence[Send], now_ns: int) -> None:
        for send in sends:
            if isinstance(send, SendHello):
                hello = self._ranks[rank].make_hello(send.first_sequence)
                self._send_up(rank, encode(msgspec.structs.replace(hello, hello_number=send.number)), now_ns)
            else:
                self._send_up(rank, send.frame, now_ns)
        end = self.rank_ends[rank]
        due_ns = end.delivery.next_wake_ns
        if due_ns is not None and (end.wakes_at_ns is None or due_ns < end.wakes_at_ns):
            end.wakes_at_ns = max(due_ns, now_ns + WAKE_NS_MIN)
            self._at(end.wakes_at_ns, lambda at_ns: self._wake(rank, at_ns))
