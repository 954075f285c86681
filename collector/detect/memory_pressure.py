"""Whether memory does not suffice a rank: what torch's allocator and the host count, against its peers.

A training that has its memory takes all its blocks in the first steps and none afterwards. One that does not gives
blocks back to the driver and takes them anew in step after step, and each time the GPU is waited for.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rankscope.collector.detect.stragglers import Slow
from rankscope.collector.detect.view import AllocatorCounts, Samples
from rankscope.measure.records import AllocatorSample

RETRIES_PER_STEP: Final = 0.1
"""Above the peers'. A retry empties the cache and stops the GPU until the blocks are taken anew; one in ten steps, step
after step, is what no training makes that has its memory."""
DEVICE_CALLS_PER_STEP: Final = 1.0
"""Blocks taken from the driver and given back, above the peers': a steady training makes no such call at all, and a
single large batch makes a few of them once."""
MAJOR_FAULT_NS: Final = 100_000
"""Reading a page from a fast disk takes about 0.1 ms, from others longer: so much time page faults explain at least."""


def find_memory_pressure(
    slow: Slow, explained_ns_min: float, evidence: dict[str, float], samples: Samples
) -> str | None:
    """Half a sentence on how memory does not suffice the rank, its numbers put into `evidence`; None when it does, or
    when it or its peers do not tell. Page faults must explain `explained_ns_min` of a step.
    """
    retries = _compare(slow, evidence, "retries_per_step", lambda rank: _per_step(rank, slow, samples, _retries))
    calls = _compare(slow, evidence, "device_calls_per_step", lambda rank: _per_step(rank, slow, samples, _calls))
    faults = _compare(slow, evidence, "major_faults_per_step", lambda rank: _faults_per_step(rank, samples))
    if retries is not None and retries[0] - retries[1] >= RETRIES_PER_STEP:
        return f"its GPU's memory runs out {retries[0]:.1f} times a step, its peers' {retries[1]:.1f} times"
    if calls is not None and calls[0] - calls[1] >= DEVICE_CALLS_PER_STEP:
        return f"its allocator calls the driver for memory {calls[0]:.1f} times a step, its peers' {calls[1]:.1f} times"
    if faults is not None and (faults[0] - faults[1]) * MAJOR_FAULT_NS >= explained_ns_min:
        return f"it reads {faults[0]:.0f} pages of memory a step from disk, its peers {faults[1]:.0f}"
    return None


def _compare(
    slow: Slow, evidence: dict[str, float], name: str, measure: Callable[[int], float | None]
) -> tuple[float, float] | None:
    """The rank's and the median of its peers, as far as they tell; None when it or all of them do not."""
    mine = measure(slow.rank)
    peers = [value for value in map(measure, slow.peers.ranks) if value is not None]
    if mine is None or not peers:
        return None
    evidence[name] = mine
    return mine, float(np.median(peers))


def _retries(sample: AllocatorSample) -> int | None:
    return sample.retries


def _calls(sample: AllocatorSample) -> int | None:
    if sample.device_allocs is None or sample.device_frees is None:
        return None
    return sample.device_allocs + sample.device_frees


def _per_step(rank: int, slow: Slow, samples: Samples, count: Callable[[AllocatorSample], int | None]) -> float | None:
    """How often a step since the slow rank's present level; None without two counts in that time."""
    told: Sequence[AllocatorCounts] = [
        counts for counts in samples.allocators.get(rank, ()) if counts.steps >= slow.level_from_step
    ]
    if len(told) < 2 or told[-1].steps == told[0].steps:  # noqa: PLR2004 - a difference takes two
        return None
    first, last = count(told[0].sample), count(told[-1].sample)
    return None if first is None or last is None else (last - first) / (told[-1].steps - told[0].steps)


def _faults_per_step(rank: int, samples: Samples) -> float | None:
    """Page faults that read from disk, a step since the start: only the last count is kept. The steps are those that
    the rank had made when it told of its garbage collector, in the same report.
    """
    host, pauses = samples.hosts.get(rank), samples.gc_pauses.get(rank, ())
    if host is None or host.major_faults is None or not pauses or pauses[-1].steps == 0:
        return None
    return host.major_faults / pauses[-1].steps
