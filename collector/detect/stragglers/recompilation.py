"""Find how long ranks were in torch.compile in given steps, and for which frame and guard.

Torch compiles a frame again where a guard of it fails: a shape, a number or an object is not the one that it was
compiled for. Ranks with other data do so at other steps, and all wait for each of them.

The time in a step is the median over the steps: one long compilation in a slow stretch explains none of the others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from rankscope.measure.records import CompiledFrame
from rankscope.measure.units import format_duration

RECOMPILATION: Final = "recompilation"
"""The cause."""

Compiled = Mapping[int, Sequence[CompiledFrame] | None]
"""What was compiled after the first steps, by rank; None: the rank's torch does not tell."""


def measure_compilation(compiled: Compiled, rank: int, steps: Collection[int]) -> float | None:
    """Return for how long a rank compiled in one of these steps, in ns: the median; None where it is not known."""
    frames = compiled.get(rank)
    if frames is None or not steps:
        return None
    by_step = dict.fromkeys(steps, 0)
    for one in frames:
        if one.step in by_step:
            by_step[one.step] += one.duration_ns
    return float(median(by_step.values()))


def compare_compilation(compiled: Compiled, rank: int, peers: Iterable[int], steps: Collection[int]) -> float | None:
    """Return how much longer a rank compiled in one of these steps than its peers, in ns; None where it is not known of
    the rank, or of no peer.
    """
    mine = measure_compilation(compiled, rank, steps)
    theirs = [
        known for peer in peers if peer != rank and (known := measure_compilation(compiled, peer, steps)) is not None
    ]
    return None if mine is None or not theirs else mine - median(theirs)


def describe_compilation(
    longer_ns: float, what: str, compiled: Compiled, ranks: Iterable[int], steps: Collection[int]
) -> str:
    """Return a clause on the frame that these ranks compiled for longest in these steps, with the guard that failed.

    >>> seen = CompiledFrame(step=7, frame="train.py:24 (forward)", duration_ns=9, reason="k == 4")
    >>> describe_compilation(2e8, " each time", {0: [seen]}, [0], {7})
    '200.0 ms each time in torch.compile, all of it for train.py:24 (forward): the guard k == 4 failed'
    """
    frames = [one for rank in ranks for one in compiled.get(rank) or () if one.step in steps]
    spent_ns: dict[str, int] = {}
    for one in frames:
        spent_ns[one.frame] = spent_ns.get(one.frame, 0) + one.duration_ns
    text = f"{format_duration(longer_ns)}{what} in torch.compile"
    frame = max(spent_ns, key=lambda name: spent_ns[name], default="")
    if not frame:
        return text
    share = "all" if len(spent_ns) == 1 else "most"
    reason = next((one.reason for one in reversed(frames) if one.frame == frame and one.reason), "")
    why = f": {describe_guard(reason)}" if reason else ""
    return f"{text}, {share} of it for {frame}{why}"


def describe_guard(reason: str) -> str:
    """Return a guard that failed, in torch's words, as a clause.

    >>> describe_guard("tensor 'x' size mismatch at index 0. expected 4, actual 5")
    "tensor 'x' size mismatch at index 0, expected 4, actual 5"
    """
    return reason.rstrip(".").replace(". ", ", ") if " mismatch" in reason else f"the guard {reason} failed"
