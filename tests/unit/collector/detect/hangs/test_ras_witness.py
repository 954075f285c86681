"""What NCCL's RAS service adds to the sentence about a hang, and what it never changes."""

from dataclasses import replace

import msgspec
import pytest

from rankscope.collector.detect.hangs.ras_witness import LINES_MAX, count_witness, describe_witness, write_witness
from rankscope.measure.identity import RankIdentity
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import RasAnswered
from tests.unit.collector.detect.hang_states import S, find_hang, still, view_on, waits

IDENTITY = RankIdentity(
    run="job", rank=0, local_rank=0, world_size=4, node="node-a", restart_count=0, boot_id="boot-of-0", pid=100
)
HEALTHY = RasAnswered(
    sequence=1,
    identity=IDENTITY,
    host_ns=52 * S,
    stalled_since_host_ns=40 * S,
    address="localhost:28028",
    nccl_version="2.29.2",
    communicators_total=2,
    timeouts=0,
    is_own=True,
)
BEHIND = RasRank(communicator_rank=3, state="behind", host="h", pid=102, op="AllReduce", launched=41, furthest=42)
LAUNCHED = "had launched 41 AllReduce operations, where another rank had launched 42, in a communicator of 8 ranks"


def said(*ranks: RasRank, size: int | None = 8) -> RasAnswered:
    return msgspec.structs.replace(HEALTHY, communicators=(RasCommunicator(name="ab", size=size, ranks=ranks),))


def named(rank: int, **changed: object) -> RasRank:
    return msgspec.structs.replace(BEHIND, rank=rank, **changed)


def write(cause: str, ranks: tuple[int, ...], answered: RasAnswered | None) -> str:
    return write_witness(cause, ranks, answered)


# -- a rank is named --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["missing_rank", "dead_rank", "silent_rank"])
def test_witness_that_lists_the_rank_agrees(cause: str) -> None:
    assert write(cause, (2,), said(named(2))) == f"NCCL RAS agreed: rank 2 {LAUNCHED}"


@pytest.mark.parametrize(
    ("rank", "what"),
    [
        (named(2, state="dead"), "was considered dead in a communicator of 8 ranks"),
        (named(2, state="missing"), "gave no answer in a communicator of 8 ranks"),
        (named(2, state="not_member"), "answered, but not as a member in a communicator of 8 ranks"),
        (
            named(2, state="failed", error="system error"),
            "reported an error (system error) in a communicator of 8 ranks",
        ),
        (
            named(2, op=""),
            "had launched 41 operations, where another rank had launched 42, in a communicator of 8 ranks",
        ),
        (named(2, state="of a later version"), "of a later version in a communicator of 8 ranks"),
    ],
)
def test_what_it_said_is_written(rank: RasRank, what: str) -> None:
    assert write("missing_rank", (2,), said(rank)) == f"NCCL RAS agreed: rank 2 {what}"


def test_ranks_that_follow_are_counted() -> None:
    text = write("missing_rank", (2,), said(named(1), named(2), BEHIND))
    assert text == f"NCCL RAS agreed: rank 2 {LAUNCHED}; it listed 2 more ranks"


def test_agreement_about_some_of_the_ranks_names_them() -> None:
    assert write("dead_rank", (1, 2), said(named(2))).startswith("NCCL RAS agreed about rank 2: rank 2 had")
    assert write("dead_rank", (1, 2), said(named(1), named(2))).startswith("NCCL RAS agreed: rank 1 had")


def test_witness_that_lists_another_rank_says_so() -> None:
    text = write("missing_rank", (2,), said(named(3), size=None))
    assert text == (
        "NCCL RAS did not list rank 2, but rank 3 had launched 41 AllReduce operations, where another rank had "
        "launched 42, in a communicator"
    )


def test_rank_that_cannot_be_named_is_one_of_the_communicator() -> None:
    assert write("missing_rank", (2,), said(BEHIND)) == (
        f"NCCL RAS listed one whose rank in the run was not known: communicator rank 3 (process 102 on h) {LAUNCHED}"
    )
    without_process = msgspec.structs.replace(BEHIND, pid=None)
    assert "not known: communicator rank 3 had launched" in write("missing_rank", (2,), said(without_process))


def test_witness_that_saw_all_equal_did_not_show_the_hang() -> None:
    where = "all ranks had answered and launched equally many collectives"
    assert write("missing_rank", (2,), HEALTHY) == f"NCCL RAS did not show this: in each of 2 communicators {where}"
    one = msgspec.structs.replace(HEALTHY, communicators_total=1, is_own=None)
    assert write("missing_rank", (2,), one) == (
        f"NCCL RAS did not show this: in the only communicator {where}, if these were of this run, "
        "which its answer did not tell"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"absent": {"communicators": "cut"}},
        {"communicators_left_out": 1},
        {"timeouts": 1},
        {"communicators_total": 0},
        {"communicators_total": None},
        {"is_own": False},
        {"communicators": (RasCommunicator(name="ab", ranks_left_out=4),)},
    ],
)
@pytest.mark.parametrize("cause", ["missing_rank", "all_in_collective"])
def test_answer_that_is_not_whole_says_nothing(cause: str, changed: dict[str, object]) -> None:
    assert write(cause, (2,), msgspec.structs.replace(HEALTHY, **changed)) == ""


# -- nobody is named --------------------------------------------------------------------------------------------------


def test_equal_counts_agree_that_all_have_entered() -> None:
    assert write("all_in_collective", (), HEALTHY).startswith("NCCL RAS agreed: in each of 2 communicators all ranks")


def test_unequal_counts_do_not() -> None:
    assert write("all_in_collective", (), said(named(2))) == f"NCCL RAS saw it differently: rank 2 {LAUNCHED}"


def test_other_causes_only_get_what_it_listed() -> None:
    assert write("deadlock", (1, 2), said(named(2))) == f"NCCL RAS was asked too: rank 2 {LAUNCHED}"
    assert write("order_mismatch", (), HEALTHY) == ""


def test_no_answer_adds_nothing() -> None:
    assert write("missing_rank", (2,), None) == ""


# -- details ----------------------------------------------------------------------------------------------------------


def test_details_have_everything_it_said() -> None:
    ranks = tuple(named(rank) for rank in range(LINES_MAX + 1))
    answered = msgspec.structs.replace(
        said(*ranks), communicators_left_out=2, timeouts=1, absent={"communicators": "cut"}, is_own=None
    )
    lines = describe_witness(answered).splitlines()
    assert lines[:4] == [
        "NCCL 2.29.2 at localhost:28028, 12.0 s after the first stall on its machine began:",
        "cut",
        "communicators: 2; with ranks that differed: 1",
        f"ab: rank 0 {LAUNCHED}",
    ]
    assert lines[-4:] == [
        "ranks not listed here: 1",
        "communicators not listed here: 2",
        "timeouts while RAS collected this: 1",
        "it is not known whether this was the present run: the answer names no process of it on this machine",
    ]
    assert len(lines) == 3 + LINES_MAX + 4


def test_details_of_a_failed_question_have_the_reason() -> None:
    answered = RasAnswered(
        sequence=1, identity=IDENTITY, host_ns=0, stalled_since_host_ns=1, address="a:1",
        absent={"communicators": "a:1 did not answer in time"},
    )  # fmt: skip
    assert describe_witness(answered).splitlines() == [
        "NCCL RAS at a:1, 0 ns after the first stall on its machine began:",
        "a:1 did not answer in time",
    ]
    assert count_witness(answered) == {}


def test_process_in_several_communicators_counts_once() -> None:
    lost = msgspec.structs.replace(BEHIND, state="missing", pid=103)
    unknown = msgspec.structs.replace(BEHIND, state="dead", pid=None)
    one = RasCommunicator(name="ab", ranks=(lost, unknown, BEHIND))
    answered = msgspec.structs.replace(HEALTHY, communicators=(one, msgspec.structs.replace(one, name="cd")))
    # Process 103 is one, the communicator ranks without a process are two.
    assert count_witness(answered) == {"ras_communicators": 2, "ras_missing_ranks": 3, "ras_behind_ranks": 1}


# -- in the finding ---------------------------------------------------------------------------------------------------


def test_verdict_is_the_same_with_and_without_a_witness() -> None:
    view = view_on({0: waits(), 1: still({"default_pg": (7, 7)}), 2: waits()})
    alone, with_witness = find_hang(view), find_hang(replace(view, ras=said(named(2))))
    assert (alone.cause, alone.ranks, alone.severity) == ("missing_rank", (1,), "critical")
    for name in ("cause", "ranks", "group", "severity", "suggestion"):
        assert getattr(with_witness, name) == getattr(alone, name)
    assert "NCCL RAS" not in alone.sentence


def test_finding_has_the_witness_in_sentence_numbers_and_details() -> None:
    view = view_on({0: waits(), 1: still({"default_pg": (7, 7)}), 2: waits()})
    finding = find_hang(replace(view, ras=said(named(1))))
    assert f"NCCL RAS agreed: rank 1 {LAUNCHED}" in finding.also
    assert finding.evidence["ras_behind_ranks"] == 1
    assert finding.details["NCCL RAS"].startswith("NCCL 2.29.2 at localhost:28028")
