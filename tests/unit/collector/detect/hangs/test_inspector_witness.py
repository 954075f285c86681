"""What the dumps of NCCL's Inspector add to the sentence about a hang, and what they never change."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rankscope.collector.detect.hangs.inspector_witness import (
    LINES_MAX,
    count_dumps,
    describe_dumps,
    write_dump_witness,
)
from rankscope.measure.identity import RankIdentity
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.node_messages import InspectorRead
from tests.unit.collector.detect.hang_states import S, find_hang, still, view_on, waits

BEHIND = "had last completed AllReduce 40 in a communicator of 4 ranks, where 3 ranks had completed AllReduce 41"
EQUAL = "had last completed the same"


def dump_of(rank: int, *communicators: InspectorCommunicator, skipped: int = 0) -> InspectorRead:
    identity = RankIdentity(
        run="job",
        rank=rank,
        local_rank=0,
        world_size=4,
        node="node-a",
        restart_count=0,
        boot_id=f"boot-of-{rank}",
        pid=1,
    )
    return InspectorRead(
        sequence=1, identity=identity, host_ns=52 * S, communicators=communicators, lines_skipped=skipped
    )


def last(sequence: int | None, op: str = "AllReduce", id_: str = "0xab", size: int | None = 4) -> InspectorCommunicator:
    return InspectorCommunicator(
        id=id_, size=size, last_op=op if sequence is not None else "", last_sequence=sequence, last_bytes=4096
    )


def dumps_of(lasts: Mapping[int, int | None]) -> dict[int, InspectorRead]:
    """Dumps of one communicator, by rank the number of its last all-reduce."""
    return {rank: dump_of(rank, last(sequence)) for rank, sequence in lasts.items()}


# -- a rank is named --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["missing_rank", "dead_rank", "silent_rank", "busy_rank", "data_wait"])
def test_rank_with_less_completed_agrees_without_what_it_entered(cause: str) -> None:
    assert write_dump_witness(cause, (2,), dumps_of({0: 41, 1: 41, 2: 40, 3: 41})) == (
        f"NCCL Inspector's dumps agreed: rank 2 {BEHIND}; whether it had entered the next the dumps do not say"
    )


def test_several_ranks_that_are_behind() -> None:
    said = write_dump_witness("missing_rank", (1, 2), dumps_of({0: 41, 1: 40, 2: 40, 3: 40}))
    assert said == (
        "NCCL Inspector's dumps agreed: ranks 1-3 had last completed AllReduce 40 in a communicator of 4 ranks, where "
        "1 rank had completed AllReduce 41; whether they had entered the next the dumps do not say"
    )


def test_another_rank_is_behind() -> None:
    assert write_dump_witness("missing_rank", (1,), dumps_of({0: 41, 1: 41, 2: 40, 3: 41})) == (
        f"NCCL Inspector's dumps did not show rank 1 behind, but rank 2 {BEHIND}"
    )


def test_furthest_behind_is_named_first() -> None:
    said = write_dump_witness("unattributed", (), dumps_of({0: 41, 1: 40, 2: 12}))
    assert said == (
        "NCCL Inspector's dumps showed a difference: rank 2 had last completed AllReduce 12 in a communicator of 4 "
        "ranks, where 1 rank had completed AllReduce 41"
    )


def test_equal_ranks_tell_nothing() -> None:
    assert write_dump_witness("missing_rank", (1,), dumps_of({0: 41, 1: 41})) == (
        "NCCL Inspector's dumps showed nobody behind: in the only communicator that could be compared the ranks "
        f"{EQUAL}; which one they had entered the dumps do not say"
    )


@pytest.mark.parametrize(
    "dumps",
    [
        {},
        dumps_of({1: 41}),
        dumps_of({0: 41, 2: 41}),
        dumps_of({0: 41, 1: None, 2: 41}),
        {0: dump_of(0, last(41)), 1: dump_of(1, last(3, "Broadcast"))},
        {0: dump_of(0, last(41)), 1: dump_of(1, last(40, id_="0xcd"))},
    ],
    ids=["no dumps", "one", "others", "last unknown", "another operation", "another communicator"],
)
def test_dumps_that_cannot_be_compared_say_nothing(dumps: dict[int, InspectorRead]) -> None:
    assert write_dump_witness("missing_rank", (1,), dumps) == ""


# -- none is named ----------------------------------------------------------------------------------------------------


def test_equal_ranks_beside_a_collective_that_all_have_entered() -> None:
    dumps = {rank: dump_of(rank, last(41), last(7, "Broadcast", "0xcd", size=None)) for rank in range(4)}
    assert write_dump_witness("all_in_collective", (), dumps) == (
        "NCCL Inspector's dumps showed nobody behind: in each of 2 communicators that could be compared the ranks "
        f"{EQUAL}"
    )
    assert write_dump_witness("order_mismatch", (), dumps) == ""
    assert write_dump_witness("all_in_collective", (), {}) == ""


def test_rank_behind_in_a_collective_that_all_have_entered() -> None:
    said = write_dump_witness("all_in_collective", (), dumps_of({0: 41, 1: 41, 2: 40, 3: 41}))
    assert said == f"NCCL Inspector's dumps showed a difference: rank 2 {BEHIND}"


def test_size_that_is_not_known_is_not_said() -> None:
    dumps = {0: dump_of(0, last(41, size=None)), 1: dump_of(1, last(40, size=None))}
    assert "in a communicator, where 1 rank had" in write_dump_witness("missing_rank", (1,), dumps)


# -- details ----------------------------------------------------------------------------------------------------------


def test_details_list_all_communicators() -> None:
    named = InspectorCommunicator(id="0xcd", name="TP 0", size=2, last_op="Reduce", last_sequence=3)
    dumps = {
        0: dump_of(0, last(41), named),
        1: dump_of(1, last(41), named, skipped=3),
        2: dump_of(2, last(40)),
        3: dump_of(3, last(None)),
    }
    behind = "rank 2: AllReduce 40 (4096 bytes)"
    assert describe_dumps(dumps).splitlines() == [
        f"0xab, last completed: {behind}; ranks 0-1: AllReduce 41 (4096 bytes); rank 3: not known",
        "0xcd (TP 0), last completed: ranks 0-1: Reduce 3",
        "lines that were not used since the sidecars began: 3",
    ]
    assert count_dumps(dumps) == {"inspector_communicators": 2, "inspector_behind_ranks": 1}


def test_details_are_bounded() -> None:
    many = [last(1, id_=f"0x{number:04x}") for number in range(LINES_MAX + 2)]
    lines = describe_dumps({0: dump_of(0, *many)}).splitlines()
    assert (len(lines), lines[-1]) == (LINES_MAX + 1, "communicators not listed here: 2")
    assert count_dumps({}) == {}


# -- in the finding ---------------------------------------------------------------------------------------------------


def test_verdict_is_the_same_with_and_without_dumps() -> None:
    view = view_on({0: waits(), 1: still({"default_pg": (7, 7)}), 2: waits()})
    alone, with_dumps = find_hang(view), find_hang(replace(view, dumps=dumps_of({0: 41, 1: 41, 2: 40})))
    assert (alone.cause, alone.ranks) == ("missing_rank", (1,))
    for name in ("cause", "ranks", "group", "severity", "suggestion"):
        assert getattr(with_dumps, name) == getattr(alone, name)
    assert "Inspector" not in alone.sentence
    assert "NCCL Inspector" not in alone.details


def test_finding_has_the_dumps_in_sentence_numbers_and_details() -> None:
    view = view_on({0: waits(), 1: still({"default_pg": (7, 7)}), 2: waits()})
    finding = find_hang(replace(view, dumps=dumps_of({0: 41, 1: 40, 2: 41})))
    said = " NCCL Inspector's dumps agreed: rank 1 had last completed AllReduce 40"
    assert said in finding.sentence
    assert finding.evidence["inspector_behind_ranks"] == 1
    assert finding.details["NCCL Inspector"].startswith("0xab, last completed: rank 1: AllReduce 40")
