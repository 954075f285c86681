"""What RAS says, in JSON and in the texts of several versions of NCCL."""

import re

import pytest

from rankscope.agent.sidecar.ras_answer import (
    COMMUNICATORS_MAX,
    RANKS_MAX,
    READ_MAX,
    JobStatus,
    RasAnswer,
    parse_answer,
)
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from tests.ras_stand_in import (
    ERRORS,
    HEALTHY_TEXT,
    HOST,
    TABLE,
    TEXT_HEAD,
    WARNINGS,
    communicator,
    missing,
    present,
    to_json,
)

NAME = "cf264af53edbe986"


def read_json(text: str, cut: str = "") -> JobStatus:
    return parse_answer(RasAnswer(text, is_json=True, cut=cut))


def read_text(text: str, cut: str = "") -> JobStatus:
    return parse_answer(RasAnswer(text, cut=cut))


def only(status: JobStatus) -> RasCommunicator:
    (one,) = status.communicators
    assert one.name == NAME
    return one


def said(one: RasCommunicator) -> list[tuple[int, str, int | None]]:
    return [(rank.communicator_rank, rank.state, rank.pid) for rank in one.ranks]


# -- JSON -------------------------------------------------------------------------------------------------------------


def test_equal_ranks_are_not_listed() -> None:
    ranks = [present(rank, {"AllReduce": 42}, pid=100 + rank) for rank in range(2)]
    status = read_json(to_json(communicator(ranks), communicator(ranks, name="0x2")))
    assert status == JobStatus(
        nccl_version="2.29.2",
        communicators_total=2,
        timeouts=0,
        processes=frozenset({(HOST, 100), (HOST, 101)}),
        lists_all=True,
    )


def test_rank_that_launched_fewer_is_behind() -> None:
    counts = [{"AllReduce": 42, "Broadcast": 3}, {"AllReduce": 41, "Broadcast": 1}, {"AllReduce": 42, "Broadcast": 3}]
    ranks = [present(rank, one, pid=100 + rank) for rank, one in enumerate(counts)]
    found = only(read_json(to_json(communicator(ranks))))
    # Of the two kinds the one with the larger difference: 3 - 1 = 2.
    behind = RasRank(
        communicator_rank=1, state="behind", host=HOST, pid=101, op="Broadcast", launched=1, furthest=3
    )  # fmt: skip
    assert found == RasCommunicator(name=NAME, size=3, ranks=(behind,))


def test_ranks_without_data_are_told_apart() -> None:
    lacking = [missing(1, 101), missing(2, 102, dead=True), missing(3, 103, unresponsive=False)]
    found = only(read_json(to_json(communicator([present(0, {}, pid=100)], lacking), timeouts=2)))
    assert said(found) == [(2, "dead", 102), (1, "missing", 101), (3, "not_member", 103)]
    assert read_json(to_json(communicator([], lacking), timeouts=2)).timeouts == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"init_state": 3}, "internal error"),
        ({"async_error": 6}, "remote process error"),
        ({"async_error": 9}, "error 9"),
    ],
)
def test_errors_are_named(status: dict[str, int], error: str) -> None:
    ranks = [present(0, {}, pid=100, init_state=7), present(1, {}, 101, HOST, **status)]
    (rank,) = only(read_json(to_json(communicator(ranks)))).ranks
    assert (rank.communicator_rank, rank.state, rank.error) == (1, "failed", error)


def test_process_that_nccl_does_not_know_has_no_id() -> None:
    (rank,) = only(read_json(to_json(communicator([], [missing(5, -1, "unknown")])))).ranks
    assert (rank.host, rank.pid) == ("", None)


def test_missing_comma_of_nccl_2_28_is_mended() -> None:
    text = to_json(communicator([present(0, {}, pid=100)], [missing(1, 101)]))
    head, _, lacking = text.partition('"missing_ranks": [')
    broken = head + '"missing_ranks": [' + re.sub(r'("nvml_dev": 1),', r"\1", lacking)
    assert broken != text
    assert said(only(read_json(broken))) == [(1, "missing", 101)]


def test_communicators_before_the_cut_are_known() -> None:
    behind = communicator([present(0, {"AllReduce": 2}, pid=100), present(1, {"AllReduce": 1}, pid=101)])
    text = to_json(behind, behind, behind)
    status = read_json(text[: text.rindex('"hash"')], cut="its end did not come in time")
    assert [said(one) for one in status.communicators] == [[(1, "behind", 101)]] * 2
    assert (status.communicators_total, status.left_out, status.timeouts, status.lists_all) == (3, 1, None, False)
    assert status.problem == "the answer is not whole: its end did not come in time"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the answer has no list of communicators"),
        ("[" * 100_000, "the answer has no list of communicators"),
        ('{"communicators": [' + "[" * 100_000, "the answer could not be read beyond 0 communicators"),
        ('{"communicators": [{"a": ' + "[" * 100_000, "the answer could not be read beyond 0 communicators"),
        ('{"communicators": [{"size": -1}]}', "the answer could not be read beyond 0 communicators"),
        ('{"communicators": [{"ranks": [{"rank": "x"}]}]}', "the answer could not be read beyond 0 communicators"),
        ('{"communicators": [{"ranks": [{"rank": 1e999}]}]}', "the answer could not be read beyond 0 communicators"),
    ],
)
def test_what_is_no_answer_in_json_is_a_reason(text: str, problem: str) -> None:
    status = read_json(text)
    assert (status.problem, status.communicators) == (problem, ())


def test_lists_are_bounded_and_the_rest_is_counted() -> None:
    ahead = present(0, {"AllReduce": 9}, pid=1)
    wide = communicator([ahead, *(present(rank, {}, pid=rank) for rank in range(1, RANKS_MAX + 4))])
    narrow = communicator([ahead, present(1, {}, pid=2)])
    status = read_json(to_json(wide, *(narrow | {"hash": f"0x{number}"} for number in range(COMMUNICATORS_MAX))))
    assert len(status.communicators) == COMMUNICATORS_MAX
    assert status.left_out == 1
    (one,) = read_json(to_json(wide)).communicators
    assert (len(one.ranks), one.ranks_left_out) == (RANKS_MAX, 3)


def test_no_more_communicators_are_read_than_the_limit() -> None:
    status = read_json('{"communicators": [' + ",".join(["{}"] * (READ_MAX + 5)) + "]}")
    assert (status.communicators, status.lists_all) == ((), False)
    assert status.problem == f"the answer could not be read beyond {READ_MAX} communicators"


# -- text -------------------------------------------------------------------------------------------------------------


def text_of(row: str, errors: str = "", warnings: str = "") -> str:
    return f"{TEXT_HEAD}{TABLE}{row}\n{ERRORS}{errors}{WARNINGS}{warnings}"


ROW = "    0         1         4       1-2         8         8   RUNNING  INCOMPLETE,MISMATCH"


def test_healthy_text_lists_nobody() -> None:
    assert read_text(HEALTHY_TEXT) == JobStatus(nccl_version="2.27.5", communicators_total=3, timeouts=0)


def test_communicators_of_all_groups_are_counted() -> None:
    rows = f"{ROW}\n    1        12         4         1         4        48  FINALIZE      OK"
    assert read_text(text_of(rows)).communicators_total == 13


def test_job_without_communicators_has_none() -> None:
    text = f"{TEXT_HEAD} (0.00s)\n=============\n\nNo communicator data collected!\n{ERRORS}{WARNINGS}"
    assert read_text(text).communicators_total == 0


def test_lagging_ranks_are_behind_the_furthest() -> None:
    warnings = f"""#0-0 ({NAME}) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 42
  Rank 3 has launched up to operation 41 -- GPU 3 managed by process 103 on node 10.0.0.2
  Rank 5 has not launched any operations -- GPU 5 (NVML 7) managed by process 105 on node 10.0.0.3

  Communicator ranks have different Broadcast operation counts
  7 ranks have launched up to operation 9
  Rank 3 has launched up to operation 1 -- [process information not found]

"""
    found = only(read_text(text_of(ROW, warnings=warnings)))
    three, five = found.ranks
    assert five == RasRank(
        communicator_rank=5, state="behind", host="10.0.0.3", pid=105, op="AllReduce", launched=0, furthest=42
    )  # fmt: skip
    assert (three.op, three.launched, three.furthest) == ("Broadcast", 1, 9)
    assert (found.size, found.ranks_left_out) == (8, 0)


def test_ranks_of_a_listed_set_have_its_count() -> None:
    warnings = f"""#0-0 ({NAME}) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 100 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.2
"""
    found = only(read_text(text_of(ROW, warnings=warnings)))
    assert [(one.communicator_rank, one.launched, one.furthest) for one in found.ranks] == [
        (0, 6649, 6650),
        (2, 6649, 6650),
    ]
    assert read_text(text_of(ROW, warnings=warnings)).processes == {("10.0.0.1", 100), ("10.0.0.2", 102)}


def test_set_too_large_to_be_listed_is_counted() -> None:
    warnings = f"""#0-0 ({NAME}) MISMATCH
  Communicator ranks have different AllReduce operation counts
  4 ranks have launched up to operation 8
  4 ranks have launched up to operation 7
"""
    found = only(read_text(text_of(ROW, warnings=warnings)))
    assert (found.ranks, found.ranks_left_out) == ((), 4)


def test_dead_and_missing_ranks_are_told_apart() -> None:
    errors = f"""INCOMPLETE
  Missing communicator data from 1 job process
  Process 101 on node 10.0.0.1 managing GPU 1

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 103 on node 10.0.0.2 managing GPU 1

#0-0 ({NAME}) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Rank 3 -- GPU 1 managed by process 103 on node 10.0.0.2

"""
    warnings = "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n"
    status = read_text(text_of(ROW, errors, warnings))
    assert said(only(status)) == [(3, "dead", 103), (1, "missing", 101)]
    assert (status.timeouts, only(status).ranks_left_out, status.lists_all) == (2, 0, False)


def test_missing_ranks_that_are_not_listed_are_counted() -> None:
    errors = f"#0-0 ({NAME}) INCOMPLETE\n  Missing communicator data from 6 ranks\n\n"
    assert only(read_text(text_of(ROW, errors))).ranks_left_out == 6


def test_text_of_nccl_2_24_has_numbers_without_processes() -> None:
    errors = f"#0-0 ({NAME}) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 1,6\n\n"
    warnings = f"""#0-0 ({NAME}) MISMATCH
  Communicator ranks have different status
  5 ranks have status RUNNING
  Rank 7 has status UNKNOWN
  Communicator ranks have different collective operation counts
  4 ranks have launched up to operation 12
  Rank 4 has launched up to operation 11 -- GPU 4 managed by process 104 on node 10.0.0.2
"""
    found = only(read_text(text_of(ROW, errors, warnings)))
    assert said(found) == [(1, "missing", None), (6, "missing", None), (7, "not_member", None), (4, "behind", 104)]
    assert (found.ranks[-1].op, found.ranks[-1].launched, found.ranks[-1].furthest) == ("", 11, 12)


def test_ranks_that_left_the_communicator_are_no_members() -> None:
    warnings = f"""#0-0 ({NAME}) MISMATCH
  Communicator ranks have different status
  5 ranks have status RUNNING
  2 ranks have status NOCOMM
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1
  Rank 4 -- [process information not found]
  Rank 6 has status FINALIZE -- GPU 6 managed by process 106 on node 10.0.0.4
"""
    assert said(only(read_text(text_of(ROW, warnings=warnings)))) == [(2, "not_member", 102), (4, "not_member", None)]


def test_errors_of_a_text_are_named() -> None:
    errors = f"""#0-0 ({NAME}) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 100 on node 10.0.0.1
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Rank 5 reported System error -- GPU 5 managed by process 105 on node 10.0.0.3

"""
    found = only(read_text(text_of(ROW, errors)))
    assert [(one.communicator_rank, one.state, one.error) for one in found.ranks] == [
        (0, "failed", "Remote process error"),
        (1, "failed", "Remote process error"),
        (5, "failed", "System error"),
    ]


@pytest.mark.parametrize("text", ["", "hello\n", TEXT_HEAD, "  Rank 1 -- x\n", "\x00\xff\n" * 1000])
def test_text_without_communicators_is_a_reason(text: str) -> None:
    status = read_text(text)
    assert (status.communicators_total, status.communicators) == (None, ())
    assert status.problem == "the answer has no data about communicators"


def test_text_that_is_cut_keeps_what_it_had() -> None:
    errors = f"""#0-0 ({NAME}) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 7 on node 10.0.0.1
"""
    text = text_of(ROW, errors)
    status = read_text(text[: text.index("Warnings")], cut="its end did not come in time")
    assert said(only(status)) == [(1, "missing", 7)]
    assert (status.timeouts, status.problem) == (None, "the answer is not whole: its end did not come in time")


def test_hostile_text_is_bounded() -> None:
    lines = "".join(
        f"  Rank {number} -- GPU 1 managed by process {number} on node h\n" for number in range(READ_MAX + 9)
    )
    found = only(read_text(text_of(ROW, f"#0-0 ({NAME}) INCOMPLETE\n{lines}")))
    assert (len(found.ranks), found.ranks_left_out) == (RANKS_MAX, READ_MAX + 9 - RANKS_MAX)
