"""The bubble of a schedule by its formula, against torch's own order of work, played with stages of equal length.

A forward, a backward of the inputs and one of the weights last 1 each, a full backward 2, messages nothing. A rank does
its work in the order that torch's schedule has for it, each piece once those of other stages are done that it needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from rankscope.collector.steps.pipeline_stages import find_ideal_ratio
from rankscope.measure.records import PipelineSchedule

FORWARD, FULL, INPUT, WEIGHT = "F", "B", "I", "W"
COSTS = {FORWARD: 1, FULL: 2, INPUT: 1, WEIGHT: 1}

Piece = tuple[str, int, int]
"""What is done, on which stage, for which microbatch."""


def read_order(name: str, ranks: int, held: int, microbatches: int) -> Mapping[int, Sequence[Sequence[Piece]]]:
    """The work of each rank, in order; of what a schedule overlaps, several pieces at once."""
    kind: Any = get_schedule_class(name)
    stages = [
        SimpleNamespace(
            num_stages=ranks * held, group_size=ranks, group_rank=0, stage_index=place * ranks, submod=nn.Identity(),
            is_first=place == 0, is_last=False,
        )
        for place in range(held)
    ]  # fmt: skip
    is_single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, n_microbatches=microbatches)
    return {rank: [list(_pieces(one)) for one in order if one] for rank, order in schedule.pipeline_order.items()}


def _pieces(action: Any) -> Iterator[Piece]:
    for one in action.sub_actions or [action]:
        if one.computation_type.value in COSTS:
            yield one.computation_type.value, one.stage_index, one.microbatch_index


def one_forward_one_backward(ranks: int, microbatches: int) -> Mapping[int, Sequence[Sequence[Piece]]]:
    """The order of 1F1B by its definition: that which torch 2.13 writes down has microbatches that do not exist."""
    found = {}
    for rank in range(ranks):
        warm = min(ranks - 1 - rank, microbatches)
        order: list[Sequence[Piece]] = [[(FORWARD, rank, batch)] for batch in range(warm)]
        for batch in range(microbatches):
            order += [[(FORWARD, rank, batch + warm)]] if batch + warm < microbatches else []
            order.append([(FULL, rank, batch)])
        found[rank] = order
    return found


def needs(piece: Piece, stages: int) -> Iterator[Piece]:
    """What must be done before a piece: INPUT stands for a full backward, too."""
    what, stage, batch = piece
    if what == FORWARD and stage:
        yield FORWARD, stage - 1, batch
    if what in {FULL, INPUT}:
        yield FORWARD, stage, batch
        if stage + 1 < stages:
            yield INPUT, stage + 1, batch
    if what == WEIGHT:
        yield INPUT, stage, batch


def play(orders: Mapping[int, Sequence[Sequence[Piece]]], stages: int) -> float:
    """The share of the time in which the ranks do nothing."""
    ends: dict[Piece, int] = {}
    free, place, worked = dict.fromkeys(orders, 0), dict.fromkeys(orders, 0), dict.fromkeys(orders, 0)
    moved = True
    while moved:
        moved = False
        for rank, order in orders.items():
            while place[rank] < len(order):
                pieces = order[place[rank]]
                needed = [one for piece in pieces for one in needs(piece, stages)]
                if any(one not in ends for one in needed):
                    break
                cost = sum(COSTS[what] for what, _, _ in pieces)
                free[rank] = max([free[rank], *(ends[one] for one in needed)]) + cost
                worked[rank] += cost
                ends |= {(INPUT if what == FULL else what, stage, one): free[rank] for what, stage, one in pieces}
                place[rank] += 1
                moved = True
    assert all(place[rank] == len(order) for rank, order in orders.items()), "the order waits for itself"
    return 1.0 - sum(worked.values()) / (len(orders) * max(free.values()))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 12), (8, 32)])
@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("GPipe", 1), ("1F1B", 1), ("LoopedBFS", 2), ("Interleaved1F1B", 2), ("Interleaved1F1B", 3),
        ("InterleavedZeroBubble", 1), ("InterleavedZeroBubble", 2), ("DualPipeV", 2),
    ],
)  # fmt: skip
def test_formula_is_what_torchs_order_takes(name: str, held: int, ranks: int, microbatches: int) -> None:
    order = (
        one_forward_one_backward(ranks, microbatches) if name == "1F1B" else read_order(name, ranks, held, microbatches)
    )
    announced = PipelineSchedule(
        name=f"Schedule{name}", stages=tuple(range(held)), stage_count=ranks * held, ranks=ranks,
        microbatches=microbatches,
    )  # fmt: skip
    assert find_ideal_ratio(announced) == pytest.approx(play(order, ranks * held))


@pytest.mark.parametrize(("held", "name"), [(1, "1F1B"), (2, "Interleaved1F1B")])
def test_megatrons_schedules_have_the_same_formula(held: int, name: str) -> None:
    def announce(called: str) -> PipelineSchedule:
        return PipelineSchedule(name=called, stages=tuple(range(held)), stage_count=4 * held, ranks=4, microbatches=8)

    megatron = f"forward_backward_pipelining_with{'' if held > 1 else 'out'}_interleaving"
    assert find_ideal_ratio(announce(megatron)) == find_ideal_ratio(announce(f"Schedule{name}")) is not None


def test_schedule_without_formula_has_no_ideal() -> None:
    announced = PipelineSchedule(name="ScheduleZBVZeroBubble", stages=(0, 7), stage_count=8, ranks=4, microbatches=8)
    assert find_ideal_ratio(announced) is None
