"""Order the micro batches of a pipeline: 1F1B and interleaved 1F1B as Megatron-LM does (Narayanan et al., SC 2021), and
ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024).

A stage holds `chunks` parts of the model; chunk c of the last stage is followed by chunk c + 1 of the first. After a
warm-up of forwards a stage alternates one forward with one backward, then does the backwards that are left:

    warm-up = stages - stage - 1                                  one chunk
    warm-up = 2 (stages - stage - 1) + (chunks - 1) stages        several, at most all micro batches of all chunks

ZB-H1 is 1F1B whose backward is split: the gradient of a micro batch's input, which the stage before waits for, and that
of the weights, which nobody waits for. Stage s is s micro batches late with the weights, so that they fill what 1F1B
leaves idle at the end, and every stage holds as many micro batches as the first one does in 1F1B. A stage is idle for

    (stages - 1) (forward + input gradient - weight gradient)

What is handed over is sent when it is ready, and received when the stage that needs it comes to it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

WEIGHTS = "weights"
"""Phase of a unit that computes the gradient of weights; the backward of its micro batch is that of the input only."""


class Unit(NamedTuple):
    """One micro batch in one chunk of one stage: forward, backward or weights."""

    phase: str
    stage: int
    chunk: int
    micro_batch: int


def order_stage(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Unit]:
    """Return what one stage does, in its order. Raises ValueError for several chunks if the stages do not divide the
    micro batches.

    >>> [f"{unit.phase[0]}{unit.micro_batch}" for unit in order_stage(1, 3, 1, 4)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'f3', 'b2', 'b3']
    """
    if chunks > 1 and micro_batches % stages:
        raise ValueError(f"{stages} stages do not divide {micro_batches} micro batches, as several chunks need it")
    places = [_place(number, stages, chunks) for number in range(micro_batches * chunks)]
    forwards = [Unit("forward", stage, chunk, micro_batch) for chunk, micro_batch in places]
    backwards = [Unit("backward", stage, chunks - 1 - chunk, micro_batch) for chunk, micro_batch in places]
    behind = stages - stage - 1
    warm = min(len(forwards), behind if chunks == 1 else 2 * behind + (chunks - 1) * stages)
    pairs = zip_longest(forwards[warm:], backwards)
    return [*forwards[:warm], *(unit for unit in chain.from_iterable(pairs) if unit is not None)]


def order_stage_zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Unit]:
    """Return what one stage does in ZB-H1, in its order.

    >>> [f"{unit.phase[0]}{unit.micro_batch}" for unit in order_stage_zero_bubble(1, 2, 3)]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    order, late = [], 0
    for unit in order_stage(stage, stages, 1, micro_batches):
        order.append(unit)
        if unit.phase == "backward":
            late += 1
            if late > stage:
                order.append(unit._replace(phase=WEIGHTS, micro_batch=unit.micro_batch - stage))
    computed = max(0, micro_batches - stage)
    return [*order, *(Unit(WEIGHTS, stage, 0, micro_batch) for micro_batch in range(computed, micro_batches))]


def _place(number: int, stages: int, chunks: int) -> tuple[int, int]:
    """Return chunk and micro batch of a stage's n-th forward: as many micro batches as stages, chunk after chunk."""
    if chunks == 1:
        return 0, number
    block, place = divmod(number, stages * chunks)
    return place // stages, block * stages + place % stages


def before(unit: Unit, stages: int, chunks: int) -> Unit | None:
    """Return the unit on another stage whose result this one needs; None where it needs none of another stage.

    >>> before(Unit("forward", 0, 1, 2), 4, 2)
    Unit(phase='forward', stage=3, chunk=0, micro_batch=2)
    """
    if unit.phase == WEIGHTS:
        return None
    step = 1 if unit.phase == "forward" else -1
    place = unit.chunk * stages + unit.stage - step
    if not 0 <= place < stages * chunks or stages == 1:
        return None
    return unit._replace(chunk=place // stages, stage=place % stages)


def order_units(orders: Sequence[Sequence[Unit]], chunks: int) -> Iterator[Unit]:
    """Yield the units of all stages, each stage's in its order and each after what it needs."""
    waiting = [list(units) for units in orders]
    done: set[Unit | None] = {None}
    while any(waiting):
        ready = [units.pop(0) for units in waiting if units and before(units[0], len(orders), chunks) in done]
        assert ready, f"every stage waits: {[units[0] for units in waiting if units]}"
        done.update(ready)
        yield from ready
