"""Find slow storage behind a slow rank: its saves take longer than its peers' of the same size, or its training thread
waits longer for block I/O, as the kernel counts it.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.stragglers.host_times import compare_waits, describe_wait, find_wait_excess
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.view import Samples
from rankscope.measure.records import SavedLine
from rankscope.measure.units import format_bytes, format_duration, ns_to_s

STORAGE: Final = "storage"
"""The cause."""
BLOCK_IO: Final = "block_io_wait_ns_per_step"
"""Evidence key: for how long the training thread waits for block I/O in a step."""
BLOCK_IO_EXCESS: Final = "block_io_excess_ns"
SAVED_BYTES_PER_S: Final = "saved_bytes_per_s"
"""Evidence key: the speed of the rank's last save, from its begin to its end."""
PEERS_SAVED_BYTES_PER_S: Final = "peers_saved_bytes_per_s"
SLOW_RATIO: Final = 1.5
"""How much faster than a rank its peers save from where on it is slow: disks of healthy nodes differ by a third."""
PEERS_READ_MAX: Final = 64
"""Ranks whose saves are read, evenly spread: the reports of 16,384 take half a second."""
ALIKE_BYTES: Final = 2.0
"""How much more or less a save may hold than another to be compared with it."""


class Saving(NamedTuple):
    """How a rank saves: the clause that says so, its speed and that of its peers with a save of the same size at the
    same line, in bytes/s; None: not known, or there are none.
    """

    because: str
    bytes_per_s: float | None
    peers_bytes_per_s: float | None

    @property
    def is_slow(self) -> bool:
        """Whether it saves as much as its peers do, more slowly."""
        mine, peers = self.bytes_per_s, self.peers_bytes_per_s
        return mine is not None and peers is not None and peers >= SLOW_RATIO * mine


def describe_saving(rank: int, peers: Sequence[int], saves: Mapping[int, Sequence[SavedLine] | None]) -> Saving | None:
    """Return how the rank saves where its training waits for it, by its line with the most time; None where it has none
    that is known.
    """
    waited = [one for one in saves.get(rank) or () if not one.in_background and one.count]
    if not waited:
        return None
    mine = max(waited, key=lambda one: one.duration_ns)
    where = f"{mine.call}, called at {mine.line}" if mine.line else mine.call
    lasted = format_duration(mine.last_ns)
    speed = _speed_of(mine)
    if speed is None or mine.last_bytes is None:
        return Saving(f"saving a checkpoint: {where}, {lasted} the last time", None, None)
    because = f"saving a checkpoint: {where}, {format_bytes(mine.last_bytes)} in {lasted} ({format_bytes(speed)}/s)"
    read = peers[:: max(1, len(peers) // PEERS_READ_MAX)]
    theirs = [one for peer in read for one in saves.get(peer) or () if _is_alike(one, mine)]
    speeds = [its for one in theirs if (its := _speed_of(one)) is not None]
    found = Saving(because, speed, statistics.median(speeds) if speeds else None)
    if found.peers_bytes_per_s is None or not found.is_slow:
        return found
    whose = "its peers" if len(peers) > 1 else "its peer"
    return found._replace(because=f"{because}, {whose} as much at {format_bytes(found.peers_bytes_per_s)}/s")


def _is_alike(other: SavedLine, mine: SavedLine) -> bool:
    """Return whether the last save of another rank is comparable."""
    if (other.call, other.line, other.in_background) != (mine.call, mine.line, False) or not other.last_bytes:
        return False
    return 1 / ALIKE_BYTES <= other.last_bytes / max(1, mine.last_bytes or 0) <= ALIKE_BYTES


def _speed_of(one: SavedLine) -> float | None:
    return one.last_bytes / ns_to_s(one.last_ns) if one.last_bytes and one.last_ns else None


def find_slow_saves(
    slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples
) -> str | None:
    """Describe that saves hold `explained_ns_min` of a slow step or more, and are slower than the peers' of the same
    size, and add the speeds to `evidence`; None where they do not, or it is not known.
    """
    if evidence.get("checkpoint_excess_ns", 0.0) < explained_ns_min:
        return None
    found = describe_saving(slow.rank, slow.peers.ranks, samples.saves)
    if found is None or not found.is_slow:
        return None
    evidence.update(speeds_of(found))
    return found.because


def speeds_of(found: Saving) -> dict[str, float]:
    """Return the speeds of a rank's saves and of its peers' as evidence, as far as they are known."""
    speeds = {SAVED_BYTES_PER_S: found.bytes_per_s, PEERS_SAVED_BYTES_PER_S: found.peers_bytes_per_s}
    return {name: value for name, value in speeds.items() if value is not None}


def find_block_io(slow: SlowRank, explained_ns_min: float, evidence: dict[str, float], samples: Samples) -> str | None:
    """Describe that its training thread waits longer for block I/O than its peers', by `explained_ns_min` of a slow
    step or more, and add the numbers to `evidence`; None where it does not, or the kernel does not count it.
    """
    waits = compare_waits(slow, samples.block_io, samples)
    if waits is None:
        return None
    evidence[BLOCK_IO], evidence[BLOCK_IO_EXCESS] = waits.mine_ns, find_wait_excess(slow, waits)
    return None if evidence[BLOCK_IO_EXCESS] < explained_ns_min else describe_wait(slow, waits, "block I/O")
