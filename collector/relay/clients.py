"""Which collector each rank's frames go to. Pure: no socket, no clock.

A rank says in its Hello of which run it is, and the run decides (measure/shards.py). The rest of what it sends tells
only who sends it, so the relay remembers. It forgets the one that said Hello first when there are too many; that one is
asked for its Hello again, like one that was there before the relay was.
"""

from collections.abc import Sequence
from typing import Final

from rankscope.measure.messages import ClockPong, Goodbye, Hello, Message, RankEnded, RankUnresponsive, Report
from rankscope.measure.shards import choose_collector

PASSENGERS_MAX: Final = 4096
"""Ranks remembered. A node has some ten at a time, and new ones with each restart of a job; an entry has 200 bytes."""


class RelayClients:
    """The ranks of a relay, by their routing ids. `endpoints` are the collectors that there are."""

    def __init__(self, endpoints: Sequence[str], passengers_max: int = PASSENGERS_MAX) -> None:
        self._endpoints = tuple(endpoints)
        self._passengers_max = passengers_max
        self._endpoint_of: dict[bytes, str] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._endpoint_of)

    def find_endpoint(self, peer: bytes, message: Message) -> str | None:
        """Where a message of that rank goes; None: it has to say Hello first. A sidecar, which says none, names the run
        in every notice.
        """
        match message:
            case Hello():
                self._endpoint_of.pop(peer, None)
                endpoint = choose_collector(message.identity.run, self._endpoints)
                self._endpoint_of[peer] = endpoint
                while len(self._endpoint_of) > self._passengers_max:
                    del self._endpoint_of[next(iter(self._endpoint_of))]
                return endpoint
            case RankEnded() | RankUnresponsive():
                return choose_collector(message.identity.run, self._endpoints)
        return self._endpoint_of.get(peer)

    def of(self, endpoint: str) -> list[bytes]:
        """The ranks whose collector is there."""
        return [peer for peer, there in self._endpoint_of.items() if there == endpoint]

    def forget(self, peer: bytes) -> None:
        """It is gone."""
        self._endpoint_of.pop(peer, None)


def is_of_a_rank(message: Message) -> bool:
    """Whether ranks and sidecars send such messages."""
    return isinstance(message, (Hello, Report, Goodbye, ClockPong, RankEnded, RankUnresponsive))


def is_urgent(message: Message) -> bool:
    """Whether somebody waits for the answer: a rank that begins, or one that ends."""
    return isinstance(message, (Hello, Goodbye, RankEnded, RankUnresponsive))
