"""Admission of Hellos and numbered messages, event by event."""

import msgspec
import pytest

from rankscope.collector.ingest.admission import (
    DETAIL_LENGTH_MAX,
    ORPHANED_MAX,
    Admission,
    Admitted,
    Duplicate,
    ProcessCounts,
    SequenceGap,
    UnknownPeer,
)
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Refused, Welcome


def identity_of(boot: str, rank: int = 0, **changed: object) -> RankIdentity:
    """A rank of an eight-rank run."""
    fields: dict[str, object] = {
        "run": "a", "rank": rank, "local_rank": rank, "world_size": 8, "node": "n0", "restart_count": 0, "pid": 7,
    } | changed  # fmt: skip
    return RankIdentity(boot_id=boot, **fields)  # type: ignore[arg-type]


def hello_of(identity: RankIdentity, first_sequence: int = 1) -> Hello:
    """Its Hello."""
    return Hello(identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=0)


def admission_with(boot: str = "boot-one", first_sequence: int = 1) -> Admission:
    """An admission with one rank, from the peer `peer`."""
    admission = Admission(runs_max=4, ranks_max=8)
    assert isinstance(admission.hello(b"peer", hello_of(identity_of(boot), first_sequence)), Welcome)
    return admission


def refusal(answer: Welcome | Refused) -> Refused:
    """The refusal that the answer must be."""
    assert isinstance(answer, Refused)
    return answer


ONE = identity_of("boot-one")

# -- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_in_order_are_admitted() -> None:
    admission = admission_with()
    assert [admission.number(b"peer", sequence) for sequence in (1, 2, 3)] == [
        Admitted(ONE, 1), Admitted(ONE, 2), Admitted(ONE, 3),
    ]  # fmt: skip


def test_old_number_is_a_duplicate_to_acknowledge_again() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.number(b"peer", 2)
    assert admission.number(b"peer", 1) == Duplicate(ONE, through=2)


def test_gap_is_not_admitted_and_asks_for_a_hello_once() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    assert admission.number(b"peer", 4) == SequenceGap(ONE, through=1, missing=2, hello_wanted=True)
    assert admission.number(b"peer", 5) == SequenceGap(ONE, through=1, missing=3, hello_wanted=False)
    assert admission.number(b"peer", 2) == Admitted(ONE, 2)


def test_gap_asks_again_after_the_next_hello() -> None:
    admission = admission_with()
    admission.number(b"peer", 2)
    admission.hello(b"peer", hello_of(ONE, first_sequence=1))
    assert admission.number(b"peer", 2) == SequenceGap(ONE, through=0, missing=1, hello_wanted=True)


def test_number_without_a_hello_is_from_an_unknown_peer() -> None:
    assert Admission(1, 1).number(b"peer", 1) == UnknownPeer()


# -- hellos -----------------------------------------------------------------------------------------------------------


def test_new_rank_process_begins_at_its_first_sequence() -> None:
    admission = Admission(1, 8)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=500)) == Welcome(admitted_through=499)
    assert admission.number(b"peer", 500) == Admitted(ONE, 500)


def test_known_rank_process_gets_the_last_admitted_number() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.number(b"peer", 2)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=1)) == Welcome(admitted_through=2)


def test_messages_before_the_first_sequence_are_missing() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=5)) == Welcome(admitted_through=4)  # 2, 3, 4 are gone
    assert admission.number(b"peer", 5) == Admitted(ONE, 5)
    assert admission.number(b"peer", 3) == Duplicate(ONE, through=5)
    assert admission.counts("boot-one") == ProcessCounts(
        first_sequence=1, last_sequence=5, admitted=2, missing=3, duplicates=1, gaps=0
    )  # fmt: skip


def test_process_with_a_key_keeps_counts_under_new_routing_id() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    admission.number(b"peer", 1, key="k")
    admission.hello(b"other", hello_of(ONE), key="k")
    assert admission.number(b"other", 2, key="k") == Admitted(ONE, 2)
    assert admission.number(b"peer", 3, key="k") == UnknownPeer()


def test_routing_id_may_change_to_another_rank_process() -> None:
    admission = admission_with()
    two = identity_of("boot-two", rank=1)
    admission.hello(b"peer", hello_of(two))
    admission.forget_peer("boot-one")
    assert admission.number(b"peer", 1) == Admitted(two, 1)
    assert admission.identity(b"peer") == two


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_rank_outside_its_world_is_refused_with_both_numbers() -> None:
    answer = refusal(Admission(1, 1).hello(b"peer", hello_of(identity_of("boot-one", rank=8))))
    assert answer.reason == "rank_outside_world"
    assert answer.detail == (
        "rank 8 reports a world of 8 ranks, numbered from 0 (from RANK and WORLD_SIZE of its process). Correct the "
        "environment that the launcher gives it."
    )


def test_boot_id_with_another_identity_is_refused() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"other", hello_of(identity_of("boot-one", rank=3, node="n1", pid=9))))
    assert answer.reason == "identity_changed"
    assert answer.detail == (
        "boot id boot-one is known as rank 0 of run 'a' on node 'n0', process 7, and is now claimed by rank 3 of run "
        "'a' on node 'n1', process 9. It names one process: restart the agent there."
    )
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)
    assert admission.number(b"other", 1) == UnknownPeer()


def test_refusal_is_never_longer_than_a_frame_allows() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"peer", hello_of(identity_of("boot-one", run="\U000e0001" * 128))))
    assert len(answer.detail) == DETAIL_LENGTH_MAX


def test_run_above_the_limit_is_refused_until_one_is_forgotten() -> None:
    admission = Admission(runs_max=1, ranks_max=8)
    admission.hello(b"peer", hello_of(ONE))
    other = hello_of(identity_of("boot-two", run="b"))
    answer = refusal(admission.hello(b"two", other))
    assert answer.reason == "full"
    assert answer.detail == (
        "this collector knows 1 runs; runs_max in its configuration is 1. Raise it there, or wait until one has ended; "
        "this rank tries again by itself."
    )
    admission.forget("a")
    assert admission.hello(b"two", other) == Welcome(admitted_through=0)


def test_rank_above_the_limit_is_refused_and_known_ones_stay() -> None:
    admission = Admission(runs_max=2, ranks_max=2)
    for rank, peer in enumerate((b"0", b"1")):
        admission.hello(peer, hello_of(identity_of(f"boot-of-{rank}", rank, world_size=2)))
    # The run shrinks, so its world leaves room for another run; the superseded rank process still has its place.
    admission.hello(b"0 again", hello_of(identity_of("boot-again", world_size=1, restart_count=1)))
    answer = refusal(admission.hello(b"2", hello_of(identity_of("boot-of-2", run="b", world_size=1))))
    assert answer.detail.startswith("this collector knows 2 ranks; ranks_max in its configuration is 2.")
    assert isinstance(admission.number(b"0 again", 1), Admitted)
    assert isinstance(admission.number(b"1", 1), Admitted)


def test_world_too_large_is_refused_with_its_first_rank() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"two", hello_of(identity_of("boot-two", run="b", world_size=1))))
    assert answer.reason == "full"
    assert answer.detail == (
        "run 'b' has 1 ranks, and the other runs that this collector knows have 8; ranks_max in its configuration is "
        "8. Raise it there, or wait until a run has ended; this rank tries again by itself."
    )


def admission_of_three() -> Admission:
    """It is full: of the runs a, b and c with two ranks each, b has ended first and then a."""
    admission = Admission(runs_max=3, ranks_max=6)
    for run in "abc":
        admission.hello(run.encode(), hello_of(identity_of(f"boot-of-{run}", run=run, world_size=2)))
    admission.may_forget(["b", "a"])
    return admission


def test_run_that_ended_first_is_forgotten_for_a_new_one() -> None:
    admission = admission_of_three()
    new = hello_of(identity_of("boot-of-d", run="d", world_size=2))
    assert admission.hello(b"d", new) == Welcome(admitted_through=0)
    assert admission.pop_forgotten() == ["b"]
    assert (admission.number(b"b", 1), admission.world_size("b"), admission.world_size("a")) == (UnknownPeer(), None, 2)


def test_as_many_ended_runs_are_forgotten_as_the_new_world_needs() -> None:
    admission = admission_of_three()
    new = hello_of(identity_of("boot-of-d", run="d", world_size=4))
    assert admission.hello(b"d", new) == Welcome(admitted_through=0)
    assert admission.pop_forgotten() == ["b", "a"]


def test_none_is_forgotten_for_a_world_that_finds_no_room() -> None:
    admission = admission_of_three()
    new = hello_of(identity_of("boot-of-d", run="d", world_size=5))
    assert refusal(admission.hello(b"d", new)).reason == "full"
    assert (admission.pop_forgotten(), admission.world_size("b")) == ([], 2)


def test_run_whose_rank_has_come_back_is_not_forgotten() -> None:
    admission = admission_of_three()
    admission.hello(b"b", hello_of(identity_of("boot-of-b", run="b", world_size=2)))
    admission.hello(b"d", hello_of(identity_of("boot-of-d", run="d", world_size=2)))
    assert admission.pop_forgotten() == ["a"]
    assert refusal(admission.hello(b"e", hello_of(identity_of("boot-of-e", run="e", world_size=2)))).reason == "full"


def test_restart_may_not_grow_beyond_the_limit() -> None:
    admission = admission_with()
    grown = identity_of("boot-two", restart_count=1, world_size=9)
    assert refusal(admission.hello(b"two", hello_of(grown))).reason == "full"
    assert admission.world_size("a") == 8


def test_restarted_rank_replaces_its_own_process_when_full() -> None:
    admission = Admission(runs_max=1, ranks_max=1)
    admission.hello(b"one", hello_of(identity_of("boot-one", world_size=1)))
    again = identity_of("boot-two", restart_count=1, world_size=1)
    assert admission.hello(b"two", hello_of(again)) == Welcome(admitted_through=0)
    assert admission.number(b"one", 1) == UnknownPeer()


def test_refusals_are_counted_by_reason() -> None:
    admission = Admission(1, 1)
    for rank in (8, 9):
        admission.hello(b"peer", hello_of(identity_of("boot-one", rank)))
    assert admission.refused == {"rank_outside_world": 2}


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_limit_below_one_is_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="the smallest allowed is 1 for both"):
        Admission(*bounds)


# -- forgetting and restarts ------------------------------------------------------------------------------------------


def test_forgotten_rank_process_is_unknown_and_may_come_back() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.forget_peer("boot-one")
    assert admission.number(b"peer", 2) == UnknownPeer()
    assert admission.counts("boot-one") is None
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=2)) == Welcome(admitted_through=1)


def test_forget_drops_every_rank_process_of_that_run_only() -> None:
    admission = Admission(runs_max=4, ranks_max=16)
    admission.hello(b"peer", hello_of(ONE))
    other = identity_of("boot-two", run="b")
    admission.hello(b"two", hello_of(other))
    admission.forget("a")
    assert admission.identity(b"peer") is None
    assert admission.identity(b"two") == other
    assert admission.world_size("a") is None


def test_forgetting_unknown_names_does_nothing() -> None:
    admission = admission_with()
    admission.forget("nobody")
    admission.forget_peer("nobody")
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)


def test_forgetting_an_earlier_process_keeps_the_later_one() -> None:
    admission = Admission(runs_max=1, ranks_max=2)
    admission.hello(b"one", hello_of(identity_of("boot-one", world_size=2)))
    admission.hello(b"two", hello_of(identity_of("boot-two", world_size=2, restart_count=1)))
    admission.forget_peer("boot-one")
    admission.hello(b"rank 1", hello_of(identity_of("boot-1-1", rank=1, world_size=2)))
    third = identity_of("boot-three", world_size=2, restart_count=2)
    assert admission.hello(b"three", hello_of(third)) == Welcome(admitted_through=0)
    assert admission.number(b"two", 1) == UnknownPeer()


def test_world_size_is_that_of_the_newest_restart() -> None:
    admission = admission_with()
    admission.hello(b"two", hello_of(identity_of("boot-two", restart_count=1, world_size=4)))
    admission.hello(b"late", hello_of(identity_of("boot-late", rank=5)))  # restart 0, a world of 8
    assert admission.world_size("a") == 4


def test_world_that_grows_without_a_restart_has_its_new_size() -> None:
    admission = Admission(runs_max=1, ranks_max=16)
    admission.hello(b"peer", hello_of(ONE))
    admission.hello(b"two", hello_of(identity_of("boot-two", rank=9, world_size=16)))
    assert admission.world_size("a") == 16


# -- notices of sidecars ----------------------------------------------------------------------------------------------


def test_notices_are_only_about_rank_processes_with_a_hello() -> None:
    admission = admission_with()
    assert admission.knows(ONE)
    assert not admission.knows(identity_of("boot-two"))
    assert not admission.knows(identity_of("boot-one", rank=1))
    admission.forget("a")
    assert not admission.knows(ONE)
    assert admission.unknown_processes == 3


# -- owners of rank processes and runs --------------------------------------------------------------------------------


def test_hello_on_another_connection_is_refused() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"thief", hello_of(ONE)))
    assert answer.reason == "identity_taken"
    assert answer.detail == (
        "rank 0 of run 'a', boot id boot-one, has sent its Hello on a connection with another routing id; only that "
        "one may report for it. Restart the agent there: it makes a new boot id."
    )
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)
    assert admission.number(b"thief", 2) == UnknownPeer()


def test_hello_with_another_key_is_refused_on_its_routing_id() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    answer = refusal(admission.hello(b"peer", hello_of(ONE), key="other"))
    assert answer.reason == "identity_taken"
    assert "on a connection with another key" in answer.detail


def test_messages_with_another_key_are_refused_and_counted() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    assert admission.number(b"peer", 1, key="other") == UnknownPeer()
    assert admission.identity(b"peer", key="other") is None
    assert not admission.knows(ONE, key="other")
    assert admission.refused == {"identity_taken": 3}
    assert admission.number(b"peer", 1, key="k") == Admitted(ONE, 1)
    assert admission.knows(ONE, key="k")


def test_run_belongs_to_the_key_that_began_it() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    two = hello_of(identity_of("boot-two", rank=1))
    answer = refusal(admission.hello(b"two", two, key="other"))
    assert answer.reason == "run_taken"
    assert answer.detail == (
        "run 'a' was started with another client key. All ranks of a run share one key; give the run another name, or "
        "every rank the same key_file."
    )
    admission.forget("a")
    assert admission.hello(b"two", two, key="other") == Welcome(admitted_through=0)


# -- orphaned reports -------------------------------------------------------------------------------------------------


def orphaned(identity: RankIdentity) -> Hello:
    """The Hello of a rank process that has ended, from the process that delivers its orphaned reports."""
    return msgspec.structs.replace(hello_of(identity), left_behind=True)


def test_orphaned_reports_have_room_in_a_full_collector() -> None:
    admission, alone = Admission(runs_max=4, ranks_max=1), identity_of("boot-one", world_size=1)
    admission.hello(b"peer", hello_of(alone))
    before = identity_of("boot-before", world_size=1)
    assert admission.hello(b"other", orphaned(before)) == Welcome(admitted_through=0)
    assert admission.number(b"other", 1) == Admitted(before, 1)
    assert admission.number(b"peer", 1) == Admitted(alone, 1)
    answer = admission.hello(b"two", hello_of(identity_of("boot-two", run="b", world_size=1)))
    assert refusal(answer).reason == "full"


def test_of_too_many_orphaned_processes_the_first_is_dropped() -> None:
    admission = Admission(runs_max=4, ranks_max=1)
    admission.hello(b"peer", hello_of(identity_of("boot-one", world_size=1)))
    for number in range(ORPHANED_MAX + 1):
        admission.hello(b"%d" % number, orphaned(identity_of(f"boot-{number}", world_size=1)))
    known = [admission.counts(boot) is not None for boot in ("boot-one", "boot-0", "boot-1")]
    assert known == [True, False, True]


def test_processes_of_earlier_restarts_are_dropped_for_a_run() -> None:
    """Rank 0 has had two more processes, which would keep a run of two out for ever."""
    admission = Admission(runs_max=4, ranks_max=3)
    for restart_count in range(3):
        restarted = identity_of(f"boot-{restart_count}", world_size=1, restart_count=restart_count)
        admission.hello(b"%d" % restart_count, hello_of(restarted))
    for rank in range(2):
        answer = admission.hello(b"of b %d" % rank, hello_of(identity_of(f"boot-b{rank}", rank, run="b", world_size=2)))
        assert answer == Welcome(admitted_through=0)
    known = [admission.counts(boot) is not None for boot in ("boot-0", "boot-1", "boot-2", "boot-b0", "boot-b1")]
    assert known == [False, False, True, True, True]


def test_orphaned_process_is_admitted_beside_its_successor() -> None:
    admission, before = admission_with(), identity_of("boot-before", world_size=4)
    assert admission.hello(b"other", orphaned(before)) == Welcome(admitted_through=0)
    assert admission.number(b"other", 1) == Admitted(before, 1)
    assert admission.world_size("a") == 8


def test_restarted_rank_replaces_its_last_process_not_an_orphan() -> None:
    admission, before = Admission(runs_max=4, ranks_max=2), identity_of("boot-before", world_size=2)
    admission.hello(b"peer", hello_of(identity_of("boot-one", world_size=2)))
    admission.hello(b"other", orphaned(before))
    admission.hello(b"next", hello_of(identity_of("boot-next", world_size=2, restart_count=1)))
    assert (admission.counts("boot-one"), admission.identity(b"other")) == (None, before)


# -- runs of one name -------------------------------------------------------------------------------------------------


def test_new_run_counts_restarts_from_its_first_rank_process() -> None:
    """The run before had restarted three times and had two ranks; the new one has four."""
    admission = Admission(runs_max=1, ranks_max=8)
    admission.hello(b"one", hello_of(identity_of("boot-one", restart_count=3, world_size=2)))
    new = identity_of("boot-two", restart_count=0, world_size=4)
    assert isinstance(admission.hello(b"two", hello_of(new)), Welcome)
    admission.begin_run(new)
    assert admission.world_size("a") == 4


def test_larger_world_needs_room_also_with_fewer_restarts() -> None:
    admission = Admission(runs_max=2, ranks_max=8)
    admission.hello(b"one", hello_of(identity_of("boot-one", restart_count=3, world_size=2)))
    admission.hello(b"other", hello_of(identity_of("boot-other", run="b", world_size=4)))
    answer = admission.hello(b"two", hello_of(identity_of("boot-two", restart_count=0, world_size=5)))
    assert refusal(answer).reason == "full"


def test_run_that_is_over_leaves_its_name_to_other_keys() -> None:
    admission = Admission(runs_max=1, ranks_max=8)
    admission.hello(b"one", hello_of(ONE), "key one")
    two = hello_of(identity_of("boot-two"))
    assert refusal(admission.hello(b"two", two, "key two")).reason == "run_taken"
    admission.end_run("a")
    assert isinstance(admission.hello(b"two", two, "key two"), Welcome)
