"""Which end came first, of ranks that brought each other down."""

from typing import Final

from rankscope.measure.units import NS_PER_S

DIED: Final = frozenset({"killed", "out_of_memory", "crashed"})
"""Ends of which a rank itself says nothing."""
HEAD_START_NS: Final = 5 * NS_PER_S
"""The kernel closes the sockets of a dying process before it is gone, and a large one takes seconds to go: by so much
the exceptions of its peers may come before its end."""
VICTIM: Final = "collective_timeout"
"""Whoever ends so has waited for another rank."""


def date_failure(reason: str, ended_job_ns: int, *, is_only_seen: bool) -> int:
    """When an end counts as begun: HEAD_START_NS earlier for a rank that died without a word.

    `is_only_seen`: the sidecar saw the end, and the rank had not told it.

    >>> date_failure("killed", 9 * NS_PER_S, is_only_seen=True) == 4 * NS_PER_S
    True
    """
    without_a_word = reason in DIED or is_only_seen
    return ended_job_ns - (HEAD_START_NS if without_a_word and reason != VICTIM else 0)
