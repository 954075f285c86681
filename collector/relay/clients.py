"""Remember which collector the frames of each rank go to. Pure: no socket, no clock.

A rank's Hello names its run, and the run determines the collector (measure/shards.py). Later messages only name their
sender, so the relay remembers the collector. When there are too many ranks it forgets the one with the oldest Hello,
which is then asked for another, like a rank that was running before the relay started.
"""

from collections.abc import Sequence
from typing import Final

from rankscope.measure.messages import (
    CapturePart,
    CaptureState,
    ClockPong,
    Goodbye,
    Hello,
    Message,
    Report,
    SamplesTaken,
    SettingsTaken,
)
from rankscope.measure.node_messages import (
    InspectorRead,
    PreflightEnded,
    PreflightPastWanted,
    RankEnded,
    RankUnresponsive,
    RasAnswered,
)
from rankscope.measure.preflights import COLLECTOR_KEY
from rankscope.measure.shards import choose_collector

CLIENTS_MAX: Final = 4096
"""Ranks remembered. A node has about ten at a time, and new ones with each restart; an entry takes 200 bytes."""

NOTICES: Final = (RankEnded, RankUnresponsive, RasAnswered, InspectorRead)
"""Messages of sidecars."""
ANSWERS: Final = (CaptureState, CapturePart, SamplesTaken, SettingsTaken)
"""Messages of ranks about orders."""
PREFLIGHTS: Final = (PreflightPastWanted, PreflightEnded)
"""Messages of pre-flights."""


class RelayClients:
    """The ranks of a relay by their routing ids. `endpoints` are the collectors."""

    def __init__(self, endpoints: Sequence[str], clients_max: int = CLIENTS_MAX) -> None:
        self._endpoints = tuple(endpoints)
        self._clients_max = clients_max
        self._endpoint_of: dict[bytes, str] = {}

    def __len__(self) -> int:
        """Return how many ranks are remembered."""
        return len(self._endpoint_of)

    def find_endpoint(self, peer: bytes, message: Message) -> str | None:
        """Return the collector for a message of this peer; None if it has to send a Hello first. Sidecars send no
        Hello: each of their notices names the run. Pre-flights send none either: one collector has all of them.
        """
        match message:
            case Hello():
                self._endpoint_of.pop(peer, None)
                endpoint = choose_collector(message.identity.run, self._endpoints)
                self._endpoint_of[peer] = endpoint
                while len(self._endpoint_of) > self._clients_max:
                    del self._endpoint_of[next(iter(self._endpoint_of))]
                return endpoint
            case RankEnded() | RankUnresponsive() | RasAnswered() | InspectorRead():
                return choose_collector(message.identity.run, self._endpoints)
            case PreflightPastWanted() | PreflightEnded():
                return choose_collector(COLLECTOR_KEY, self._endpoints)
        return self._endpoint_of.get(peer)

    def of(self, endpoint: str) -> list[bytes]:
        """Return the ranks of this collector."""
        return [peer for peer, there in self._endpoint_of.items() if there == endpoint]

    def forget(self, peer: bytes) -> None:
        """Forget a rank that is gone."""
        self._endpoint_of.pop(peer, None)


def comes_from_rank(message: Message) -> bool:
    """Return whether ranks, sidecars and pre-flights send such messages."""
    return isinstance(message, (Hello, Report, Goodbye, ClockPong, *ANSWERS, *NOTICES, *PREFLIGHTS))


def is_urgent(message: Message) -> bool:
    """Return whether somebody waits for it: a rank that starts or ends, a sidecar, a pre-flight, or the collector for
    the answer to an order.
    """
    return isinstance(message, (Hello, Goodbye, *ANSWERS, *NOTICES, *PREFLIGHTS))
