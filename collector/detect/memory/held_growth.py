"""Say what a growing process holds more of, from its answer (`HeldGrowth`): which list, dict, set or deque, who has it,
which line adds to it; or what kind of memory grows, where no container of Python holds half of it. Pure.
"""

from typing import Final

from rankscope.collector.detect.sampled_lines import SampledLines
from rankscope.measure.line_samples import GrownContainer, HeldGrowth
from rankscope.measure.messages import SamplesTaken
from rankscope.measure.units import format_bytes

HOLDS_MIN: Final = 0.5
"""Share of the growth from which on a container is named: what its elements take is estimated from some of them."""
ALL_MIN: Final = 0.9
"""Share from which on it is all of the growth, as far as an estimate tells."""
MOSTLY: Final = 0.5
"""Share of the growth from which on a kind of memory is named."""
KINDS: Final = {
    "RssAnon": "private memory (heap)",
    "RssFile": "mapped files",
    "RssShmem": "shared memory",
}
"""Kinds of resident memory by the kernel's name."""
ELSEWHERE: Final = (
    "Possible: a C++ library, one object that grows, or a kept autograd graph (losses summed without .item())"
)


def describe_growth(rank: int, taken: SamplesTaken) -> SampledLines | None:
    """Return what the process of a rank holds more of; None without an answer, or without a step in it."""
    held = taken.held
    if held is None or not held.steps:
        return None
    grown_bytes = sum(held.resident_bytes.values())
    biggest = max(held.containers, key=lambda one: one.added_bytes or 0, default=None)
    if biggest is not None and biggest.added_bytes and biggest.added_bytes >= HOLDS_MIN * max(1, grown_bytes):
        sentence = _describe_container(biggest, held.steps, grown_bytes)
        return SampledLines(sentence=sentence, rank=rank, steps=held.steps, is_named=True)
    return SampledLines(sentence=_describe_rest(held, grown_bytes), rank=rank, steps=held.steps)


def _describe_container(one: GrownContainer, steps: int, grown_bytes: int) -> str:
    """Return what a container holds more of.

    >>> kept = GrownContainer(name="kept of train.py", kind="list", length=60, added=20, added_bytes=20 * 2**20)
    >>> _describe_container(kept, 20, 20 * 2**20)
    'About 1.0 MiB per step in a list, kept of train.py: 60 elements, 1 more per step.'
    """
    added_bytes = one.added_bytes or 0
    of_all = "" if added_bytes >= ALL_MIN * grown_bytes else f" of {format_bytes(grown_bytes / steps)}"
    owner = f", {one.name}" if one.name else " of no known owner (likely a local variable)"
    parts = [
        f"{one.length:,} elements{one.element and f' ({one.element})'}",
        f"{one.added / steps:,.3g} more per step",
        f"{'added at' if one.name else 'perhaps'} {one.line}" if one.line else "",
    ]
    said = ", ".join(filter(None, parts))
    return f"About {format_bytes(added_bytes / steps)}{of_all} per step in a {one.kind}{owner}: {said}."


def _describe_rest(held: HeldGrowth, grown_bytes: int) -> str:
    """Return what kind of memory grows."""
    kind = max(held.resident_bytes, key=lambda name: held.resident_bytes[name], default="")
    is_known = grown_bytes > 0 and held.resident_bytes.get(kind, 0) >= MOSTLY * grown_bytes
    begin = f"Mostly {KINDS.get(kind, kind)}. " if is_known else ""
    objects = f"{held.objects:,} Python objects, {held.added_objects / held.steps:,.3g} more per step"
    if not held.is_searched:
        return f"{begin}{objects}: too many to be searched."
    frozen = f" of those not frozen ({held.frozen:,} are)" if held.frozen else ""
    return f"{begin}No list, dict, set or deque{frozen} holds half of the growth. {ELSEWHERE}. {objects}."
