"""How a run ended, from what is known of the end of each rank."""

import pytest

from rankscope.collector.detect.hang_state import DEATH_SEEN_DELAY_NS
from rankscope.collector.runs.liveness import Ending
from rankscope.collector.runs.run_end import TOGETHER_NS, FirstToFail, RankProcessEnd, RunEnd, find_run_end
from rankscope.collector.runs.run_end_words import (
    DETAIL_LENGTH_MAX,
    EXIT_NOT_KNOWN,
    describe_end,
    describe_first_to_fail,
    describe_lost,
    find_failure,
    write_end,
)
from rankscope.measure.identity import BootId, RankIdentity, RunId
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.stalls import StackFrame, ThreadStack

S = 1_000_000_000
SCRIPT = StackFrame("/me/a.py", 24, "run")
LIBRARY = StackFrame("/env/lib/python3.11/ctypes/__init__.py", 517, "string_at")


def seen(reason: str, detail: str = "", number: int | None = None, *frames: StackFrame) -> RankEnded:
    identity = RankIdentity(
        run=RunId("bert"), rank=1, local_rank=1, world_size=4, node="n0", restart_count=0, boot_id=BootId("boot-of-1"),
        pid=7,
    )  # fmt: skip
    stacks = (ThreadStack(name="current thread", frames=frames),) if frames else ()
    return RankEnded(
        sequence=1, identity=identity, host_ns=0, wall_ns=0, reason=reason, detail=detail, signal=number, stacks=stacks
    )


def life(
    rank: int, reason: str | None = "finished", at_s: float = 9.0, detail: str = "", **known: object
) -> RankProcessEnd:
    """One that was last heard of half a second before its end."""
    return RankProcessEnd(
        rank=rank,
        node="n0",
        ending=None if reason is None else Ending(reason, detail),
        ended_wall_ns=None if reason in {None, "silent"} else round(at_s * S),
        heard_wall_s=at_s - 0.5,
        **known,  # type: ignore[arg-type]
    )


def end_of(*lives: RankProcessEnd, world_size: int = 2) -> RunEnd:
    end = find_run_end(lives, world_size)
    assert end is not None
    return end


def first_of(*lives: RankProcessEnd) -> int | None:
    first = end_of(*lives).first
    return None if first is None else first.rank


def test_run_with_a_live_rank_goes_on() -> None:
    assert find_run_end([life(0), life(1, None)], 2) is None


def test_run_without_ranks_has_not_ended() -> None:
    assert find_run_end([], 2) is None


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        (("finished", "finished"), "finished"),
        (("finished", "stopped"), "stopped"),
        (("finished", "terminated"), "terminated"),
        (("terminated", "interrupted"), "interrupted"),
        (("interrupted", "silent"), "lost"),
        (("finished", "silent"), "lost"),
        (("terminated", "crashed"), "crashed"),
        (("silent", "out_of_memory"), "out_of_memory"),
    ],
)
def test_reason_is_the_first_failure_or_from_outside(reasons: tuple[str, str], reason: str) -> None:
    assert end_of(*(life(rank, one) for rank, one in enumerate(reasons))).reason == reason


def test_end_is_that_of_the_last_rank_and_counts_who_never_came() -> None:
    end = end_of(life(0, at_s=5.0), life(1, at_s=7.0), world_size=4)
    assert (end.ended_wall_s, end.ranks, end.unheard, end.is_good) == (7.0, {"finished": 2}, 2, True)


def test_failure_at_an_unknown_time_names_no_rank() -> None:
    end = end_of(life(0)._replace(ending=Ending("crashed"), ended_wall_ns=None), life(1))
    assert (end.reason, end.first, end.unknown) == ("crashed", None, "it is not known when each rank ended")


@pytest.mark.parametrize("other", ["interrupted", "terminated", "silent"])
def test_undated_failure_precedes_ends_from_outside(other: str) -> None:
    end = end_of(life(0)._replace(ending=Ending("crashed"), ended_wall_ns=None), life(1, other))
    assert (end.reason, end.first, end.unknown) == ("crashed", None, "it is not known when each rank ended")


def test_lost_ranks_are_named_since_the_first_last_report() -> None:
    end = end_of(life(0, "silent", 5.0), life(1, "silent", 8.0))
    assert (end.reason, end.ended_wall_s, end.lost_ranks, end.lost_since_wall_s) == ("lost", 7.5, (0, 1), 4.5)


# -- the first to fail ------------------------------------------------------------------------------------------------


def test_exception_is_described_with_its_line() -> None:
    raised = Ending("failed", "ValueError: no such batch", 1, "train.py:24 (main)")
    first = end_of(life(0), life(1)._replace(ending=raised, last_step=7)).first
    assert first is not None
    text = "rank 1 (n0), failed (ValueError: no such batch) at train.py:24 (main), the last step it reported was 7"
    assert describe_first_to_fail(first) == text


def test_crash_has_its_signal_and_script_line() -> None:
    crashed = life(1, "crashed", detail="SIGSEGV", seen=seen("crashed", "SIGSEGV", 11, LIBRARY, SCRIPT), last_step=7)
    assert end_of(life(0, "terminated"), crashed).first == FirstToFail(
        rank=1, node="n0", reason="crashed", detail="SIGSEGV", signal="SIGSEGV", line="a.py:24 (run)", last_step=7,
        ended_wall_s=9.0,
    )  # fmt: skip


def test_signal_without_a_name_is_named_by_its_number() -> None:
    first = end_of(life(0, "crashed", detail="?", seen=seen("crashed", "?", 200))).first
    assert first is not None
    assert first.signal == "signal 200"


def test_exceptions_shortly_before_a_death_are_its_victims() -> None:
    # The sockets of a dying process are closed before it is gone.
    raised, head_start_s = life(0, "failed", 10.0, "RuntimeError: peer"), DEATH_SEEN_DELAY_NS / S
    assert first_of(raised, life(1, "killed", 10.0 + head_start_s - 0.1, "SIGKILL")) == 1
    assert first_of(raised, life(1, "killed", 10.0 + head_start_s + 0.1, "SIGKILL")) == 0


def test_an_exit_without_a_word_is_a_death_too() -> None:
    raised = life(0, "failed", 10.0, "RuntimeError", seen=seen("terminated"))
    exited = life(1, "failed", 10.1, "exit code 7", seen=seen("failed", "exit code 7"))
    assert first_of(raised, exited) == 1


def test_timed_out_rank_is_not_dated_back() -> None:
    assert first_of(life(0, "collective_timeout", 10.2), life(1, "failed", 10.1)) == 1


CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:49298"


def left(rank: int = 1, at_s: float = 5.0) -> RankProcessEnd:
    """One that left with status 0 after step 80."""
    return life(rank, at_s=at_s, last_step=80)._replace(ending=Ending("finished", exit_code=0))


@pytest.mark.parametrize("left_s", [4.9, 5.4])  # the end and the exception of its peer are told in any order
def test_rank_that_left_ended_first_and_others_failed_without_it(left_s: float) -> None:
    end = end_of(life(0, "failed", 5.0, CLOSED), left(at_s=left_s), life(2, "failed", 5.2, CLOSED))
    assert end.reason == "failed"
    assert write_end(end) == (
        "The run failed at 1970-01-01 00:00:05 UTC. First to end: rank 1 (n0), by itself with status 0 while ranks "
        f"0, 2 were to go on, the last step it reported was 80; ranks 0, 2 failed for want of it ({CLOSED})."
    )
    found = find_failure(end)
    assert found is not None
    assert (found.ranks, found.cause) == ((1,), "failed")
    assert found.suggestion.startswith("See in the log of the rank that ended first why it left")


def test_ranks_that_left_together_are_listed() -> None:
    first = end_of(life(0, "collective_timeout", 60.0), left(1), left(2), left(3)).first
    assert first is not None
    assert describe_first_to_fail(first) == (
        "rank 1 (n0) and ranks 2-3, by itself with status 0 while rank 0 was to go on, the last step it reported was "
        "80; rank 0 failed for want of it"
    )


@pytest.mark.parametrize(
    "others",
    [
        [life(0, "failed", 9.0, "RuntimeError: cannot save the checkpoint")],
        [life(0, "failed", 5.0, CLOSED), life(2, "failed", 5.5, "ValueError: no such batch")],
        [life(0, "failed", 5.0, CLOSED), life(2, "silent")],
        [life(0, "failed", 5.0, CLOSED), life(2, "terminated", 4.0)],
        [life(0, "failed", 3.0, CLOSED)],
    ],
    ids=["failed by itself", "another failed by itself", "another is lost", "another ended before", "left later"],
)
def test_rank_that_left_is_not_named_where_another_may_be_why(others: list[RankProcessEnd]) -> None:
    assert first_of(left(), *others) == 0


def test_no_first_to_fail_without_a_failure() -> None:
    ends = ("finished", "stopped", "terminated", "interrupted", "silent")
    assert first_of(*(life(rank, end) for rank, end in enumerate(ends))) is None


def test_deaths_within_a_second_are_listed_together() -> None:
    together_s = TOGETHER_NS / S
    lives = [life(rank, "killed", 10.0 + at_s, "SIGKILL") for rank, at_s in enumerate((0.1, 0.0, 0.0 + together_s))]
    first = end_of(*lives, life(3, "failed", 10.0)).first
    assert first is not None
    assert (first.rank, first.together) == (1, (0,))


# -- in words ---------------------------------------------------------------------------------------------------------


def test_first_to_fail_in_words_with_what_is_known() -> None:
    first = FirstToFail(rank=1, node="n0", reason="failed", detail="ValueError: x", last_step=159, together=(2, 3))
    assert describe_first_to_fail(first) == (
        "rank 1 (n0), failed (ValueError: x), the last step it reported was 159; ranks 2-3 died within a second of it"
    )


def test_rank_that_is_gone_without_a_notice_has_an_unknown_exit() -> None:
    first = FirstToFail(rank=1, node="n0", reason="exit_unknown")
    assert describe_first_to_fail(first) == f"rank 1 (n0), exit_unknown ({EXIT_NOT_KNOWN}), no step reported"


def test_a_long_text_is_cut() -> None:
    text = describe_first_to_fail(FirstToFail(rank=0, node="n0", reason="failed", detail="x" * 1_000))
    assert "x" * (DETAIL_LENGTH_MAX - 3) + "..." in text
    assert "x" * DETAIL_LENGTH_MAX not in text


def test_described_end_has_its_time() -> None:
    assert describe_end(RunEnd(reason="out_of_memory", ended_wall_s=59.0)) == (
        "ran out of memory at 1970-01-01 00:00:59 UTC"
    )
    assert describe_end(RunEnd(reason="finished")) == "finished"
    assert describe_end(RunEnd(reason="lost")) == "was lost: not heard of since an unknown time"


def test_more_lost_ranks_than_are_named_are_hinted_at() -> None:
    assert describe_lost(RunEnd(reason="lost", ranks={"silent": 3}, lost_ranks=(0, 1))) == (
        "ranks 0-1, ... not heard of; whether their processes still run is not known"
    )
    assert describe_lost(RunEnd(reason="finished")) == ""


def test_failure_is_a_finding_about_the_first_to_fail() -> None:
    first = FirstToFail(rank=1, node="n0", reason="killed", detail="SIGKILL", together=(0,))
    failure = find_failure(RunEnd(reason="killed", ended_wall_s=59.0, first=first))
    assert failure is not None
    assert (failure.kind, failure.number, failure.cause, failure.ranks, failure.severity) == (
        "run_failure", 0, "killed", (0, 1), "warning",
    )  # fmt: skip
    assert failure.headline == "The run was killed at 1970-01-01 00:00:59 UTC"
    assert "rank 1 (n0), killed (SIGKILL)" in failure.why
    assert "rank 0 " in failure.why


def test_run_that_ended_well_or_goes_on_has_no_failure() -> None:
    assert find_failure(RunEnd(reason="finished")) is None
    assert find_failure(None) is None


def test_run_that_was_ended_from_outside_is_only_to_be_known() -> None:
    end = RunEnd(reason="terminated", unknown="nobody failed")
    failure = find_failure(end)
    assert failure is not None
    assert failure.severity == "info"
    assert write_end(end) == "The run was terminated. Nobody failed."


def test_lost_run_ends_with_the_last_report_of_any_rank() -> None:
    """Rank 1 went on for an hour without rank 0: the run was not lost before."""
    end = end_of(life(0, "silent", 60.5), life(1, "silent", 3660.5))
    assert describe_end(end) == "was lost: not heard of since 1970-01-01 01:01:00 UTC"
    assert describe_lost(end) == (
        "ranks 0-1 not heard of, the first of them since 1970-01-01 00:01:00 UTC; whether their processes still run is "
        "not known"
    )


def test_lost_run_in_sentences() -> None:
    end = end_of(life(0, "silent", 60.5), life(1, "finished"))
    assert write_end(end) == (
        "The run was lost: not heard of since 1970-01-01 00:01:00 UTC. First to fail not known: no end "
        "was reported for the ranks that are not heard of any more. Rank 0 not heard of since 1970-01-01 00:01:00 "
        "UTC; whether its process still runs is not known."
    )


def test_end_after_an_error_of_the_allocator_says_so() -> None:
    notice = OutOfMemory(number=1, host_ns=0, asked_bytes=2**31, free_bytes=2**30, step=7, phase="backward")
    end = end_of(life(0, "terminated"), life(1, "failed", 8.0, "OutOfMemoryError", last_step=6, out_of_memory=notice))
    assert end.first is not None
    assert describe_first_to_fail(end.first) == (
        "rank 1 (n0), failed (OutOfMemoryError), the last step it reported was 6; its GPU out of memory in "
        "step 7 (backward): 2.0 GiB asked for, 1.0 GiB of the device free"
    )
    failure = find_failure(end)
    assert failure is not None
    assert failure.suggestion.startswith("The incident out_of_memory of this run says")
