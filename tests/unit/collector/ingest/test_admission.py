"""Admission, event by event."""

import msgspec
import pytest

from rankscope.collector.ingest.admission import (
    DETAIL_LENGTH_MAX,
    LEFT_BEHIND_MAX,
    Admission,
    Admitted,
    Duplicate,
    LifeCounts,
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
    """An admission that has heard the Hello of one rank, from the peer `peer`."""
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


def test_a_number_that_came_before_is_a_duplicate_and_tells_what_to_acknowledge_again() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.number(b"peer", 2)
    assert admission.number(b"peer", 1) == Duplicate(ONE, through=2)


def test_a_jump_is_not_admitted_and_asks_for_a_hello_once() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    assert admission.number(b"peer", 4) == SequenceGap(ONE, through=1, missing=2, hello_wanted=True)
    assert admission.number(b"peer", 5) == SequenceGap(ONE, through=1, missing=3, hello_wanted=False)
    assert admission.number(b"peer", 2) == Admitted(ONE, 2)


def test_a_jump_asks_again_after_the_next_hello() -> None:
    admission = admission_with()
    admission.number(b"peer", 2)
    admission.hello(b"peer", hello_of(ONE, first_sequence=1))
    assert admission.number(b"peer", 2) == SequenceGap(ONE, through=0, missing=1, hello_wanted=True)


def test_a_number_from_a_peer_that_said_no_hello_is_from_an_unknown_peer() -> None:
    assert Admission(1, 1).number(b"peer", 1) == UnknownPeer()


# -- hellos -----------------------------------------------------------------------------------------------------------


def test_a_new_life_begins_at_the_first_number_it_holds() -> None:
    admission = Admission(1, 8)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=500)) == Welcome(admitted_through=499)
    assert admission.number(b"peer", 500) == Admitted(ONE, 500)


def test_a_known_life_is_told_what_was_admitted_last() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.number(b"peer", 2)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=1)) == Welcome(admitted_through=2)


def test_what_a_hello_no_longer_holds_is_missing_and_not_waited_for() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=5)) == Welcome(admitted_through=4)  # 2, 3, 4 are gone
    assert admission.number(b"peer", 5) == Admitted(ONE, 5)
    assert admission.number(b"peer", 3) == Duplicate(ONE, through=5)
    assert admission.counts("boot-one") == LifeCounts(
        first_sequence=1, last_sequence=5, admitted=2, missing=3, duplicates=1, jumps=0
    )  # fmt: skip


def test_a_life_with_a_key_keeps_its_counts_under_a_new_routing_id() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    admission.number(b"peer", 1, key="k")
    admission.hello(b"other", hello_of(ONE), key="k")
    assert admission.number(b"other", 2, key="k") == Admitted(ONE, 2)
    assert admission.number(b"peer", 3, key="k") == UnknownPeer()


def test_a_routing_id_that_turns_to_another_life_leaves_the_first_one_known() -> None:
    admission = admission_with()
    two = identity_of("boot-two", rank=1)
    admission.hello(b"peer", hello_of(two))
    admission.forget_peer("boot-one")
    assert admission.number(b"peer", 1) == Admitted(two, 1)
    assert admission.identity(b"peer") == two


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_rank_outside_its_world_is_refused_with_both_numbers() -> None:
    answer = refusal(Admission(1, 1).hello(b"peer", hello_of(identity_of("boot-one", rank=8))))
    assert answer.reason == "rank_outside_world"
    assert answer.detail == (
        "rank 8 says that its world has 8 ranks, numbered from 0 (from RANK and WORLD_SIZE of its process). Correct "
        "the environment that the launcher gives it."
    )


def test_a_boot_id_claimed_with_another_identity_is_refused_and_the_first_one_stays() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"other", hello_of(identity_of("boot-one", rank=3, node="n1", pid=9))))
    assert answer.reason == "identity_changed"
    assert answer.detail == (
        "boot id boot-one is known as rank 0 of run 'a' on node 'n0', process 7, and is now claimed by rank 3 of run "
        "'a' on node 'n1', process 9. It names one life of one process: start the agent anew there."
    )
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)
    assert admission.number(b"other", 1) == UnknownPeer()


def test_a_refusal_is_never_longer_than_a_frame_may_say() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"peer", hello_of(identity_of("boot-one", run="\U000e0001" * 128))))
    assert len(answer.detail) == DETAIL_LENGTH_MAX


def test_a_run_too_many_is_refused_until_another_is_forgotten() -> None:
    admission = Admission(runs_max=1, ranks_max=8)
    admission.hello(b"peer", hello_of(ONE))
    other = hello_of(identity_of("boot-two", run="b"))
    answer = refusal(admission.hello(b"two", other))
    assert answer.reason == "full"
    assert answer.detail == (
        "this collector knows 1 runs; runs_max in its configuration is 1. Raise it there, or wait until something that "
        "has ended is forgotten; this rank asks again by itself."
    )
    admission.forget("a")
    assert admission.hello(b"two", other) == Welcome(admitted_through=0)


def test_a_rank_too_many_is_refused_and_those_who_are_in_stay() -> None:
    admission = Admission(runs_max=2, ranks_max=2)
    for rank, peer in enumerate((b"0", b"1")):
        admission.hello(peer, hello_of(identity_of(f"boot-of-{rank}", rank, world_size=2)))
    # The run shrinks, so its world leaves room for another run; the life that is left over still has its place.
    admission.hello(b"0 again", hello_of(identity_of("boot-again", world_size=1, restart_count=1)))
    answer = refusal(admission.hello(b"2", hello_of(identity_of("boot-of-2", run="b", world_size=1))))
    assert answer.detail.startswith("this collector knows 2 ranks; ranks_max in its configuration is 2.")
    assert isinstance(admission.number(b"0 again", 1), Admitted)
    assert isinstance(admission.number(b"1", 1), Admitted)


def test_a_world_too_large_is_refused_with_its_first_rank() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"two", hello_of(identity_of("boot-two", run="b", world_size=1))))
    assert answer.reason == "full"
    assert answer.detail == (
        "run 'b' has 1 ranks, and the other runs that this collector knows have 8; ranks_max in its configuration is "
        "8. Raise it there, or wait until something that has ended is forgotten; this rank asks again by itself."
    )


def test_a_restart_may_not_grow_beyond_the_room() -> None:
    admission = admission_with()
    grown = identity_of("boot-two", restart_count=1, world_size=9)
    assert refusal(admission.hello(b"two", hello_of(grown))).reason == "full"
    assert admission.world_size("a") == 8


def test_a_restarted_rank_takes_its_own_place_when_there_is_no_other() -> None:
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
def test_a_bound_below_one_is_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="the smallest allowed is 1 for both"):
        Admission(*bounds)


# -- forgetting and restarts ------------------------------------------------------------------------------------------


def test_after_forget_peer_the_life_is_unknown_and_may_come_back() -> None:
    admission = admission_with()
    admission.number(b"peer", 1)
    admission.forget_peer("boot-one")
    assert admission.number(b"peer", 2) == UnknownPeer()
    assert admission.counts("boot-one") is None
    assert admission.hello(b"peer", hello_of(ONE, first_sequence=2)) == Welcome(admitted_through=1)


def test_forget_lets_go_of_every_life_of_that_run_only() -> None:
    admission = Admission(runs_max=4, ranks_max=16)
    admission.hello(b"peer", hello_of(ONE))
    other = identity_of("boot-two", run="b")
    admission.hello(b"two", hello_of(other))
    admission.forget("a")
    assert admission.identity(b"peer") is None
    assert admission.identity(b"two") == other
    assert admission.world_size("a") is None


def test_forgetting_what_is_not_known_does_nothing() -> None:
    admission = admission_with()
    admission.forget("nobody")
    admission.forget_peer("nobody")
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)


def test_forgetting_an_earlier_life_leaves_the_rank_s_later_one_in_its_place() -> None:
    admission = Admission(runs_max=1, ranks_max=2)
    admission.hello(b"one", hello_of(identity_of("boot-one", world_size=2)))
    admission.hello(b"two", hello_of(identity_of("boot-two", world_size=2, restart_count=1)))
    admission.forget_peer("boot-one")
    admission.hello(b"rank 1", hello_of(identity_of("boot-1-1", rank=1, world_size=2)))
    third = identity_of("boot-three", world_size=2, restart_count=2)
    assert admission.hello(b"three", hello_of(third)) == Welcome(admitted_through=0)
    assert admission.number(b"two", 1) == UnknownPeer()


def test_the_world_size_is_that_of_the_newest_restart() -> None:
    admission = admission_with()
    admission.hello(b"two", hello_of(identity_of("boot-two", restart_count=1, world_size=4)))
    admission.hello(b"late", hello_of(identity_of("boot-late", rank=5)))  # restart 0, a world of 8
    assert admission.world_size("a") == 4


def test_a_world_that_grows_without_counting_a_restart_has_its_new_size() -> None:
    admission = Admission(runs_max=1, ranks_max=16)
    admission.hello(b"peer", hello_of(ONE))
    admission.hello(b"two", hello_of(identity_of("boot-two", rank=9, world_size=16)))
    assert admission.world_size("a") == 16


# -- who is spoken about ----------------------------------------------------------------------------------------------


def test_others_may_speak_about_a_life_that_has_said_hello_and_about_no_other() -> None:
    admission = admission_with()
    assert admission.knows(ONE)
    assert not admission.knows(identity_of("boot-two"))
    assert not admission.knows(identity_of("boot-one", rank=1))
    admission.forget("a")
    assert not admission.knows(ONE)
    assert admission.unknown_lives == 3


# -- who may speak for whom -------------------------------------------------------------------------------------------


def test_a_life_s_hello_on_another_connection_is_refused_and_the_first_one_stays() -> None:
    admission = admission_with()
    answer = refusal(admission.hello(b"thief", hello_of(ONE)))
    assert answer.reason == "identity_taken"
    assert answer.detail == (
        "rank 0 of run 'a', boot id boot-one, has said Hello on a connection with another routing id, and nobody else "
        "may speak for it. Start the agent anew there: it makes an id of its own."
    )
    assert admission.number(b"peer", 1) == Admitted(ONE, 1)
    assert admission.number(b"thief", 2) == UnknownPeer()


def test_a_life_s_hello_with_another_key_is_refused_even_from_its_routing_id() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    answer = refusal(admission.hello(b"peer", hello_of(ONE), key="other"))
    assert answer.reason == "identity_taken"
    assert "on a connection with another key" in answer.detail


def test_messages_with_another_key_are_no_life_s_and_counted() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    assert admission.number(b"peer", 1, key="other") == UnknownPeer()
    assert admission.identity(b"peer", key="other") is None
    assert not admission.knows(ONE, key="other")
    assert admission.refused == {"identity_taken": 3}
    assert admission.number(b"peer", 1, key="k") == Admitted(ONE, 1)
    assert admission.knows(ONE, key="k")


def test_a_run_belongs_to_the_key_that_began_it_until_it_is_forgotten() -> None:
    admission = Admission(1, 8)
    admission.hello(b"peer", hello_of(ONE), key="k")
    two = hello_of(identity_of("boot-two", rank=1))
    answer = refusal(admission.hello(b"two", two, key="other"))
    assert answer.reason == "run_taken"
    assert answer.detail == (
        "run 'a' was begun with another client key. All ranks of a run have one key; give the run another name, or "
        "every rank the same key_file."
    )
    admission.forget("a")
    assert admission.hello(b"two", two, key="other") == Welcome(admitted_through=0)


# -- lives that have ended --------------------------------------------------------------------------------------------


def left_behind(identity: RankIdentity) -> Hello:
    """The Hello of a life that has ended, from who delivers what it has left on the disk."""
    return msgspec.structs.replace(hello_of(identity), left_behind=True)


def test_a_life_that_has_ended_has_room_where_living_ones_fill_the_collector_and_none_of_these_goes() -> None:
    admission, alone = Admission(runs_max=4, ranks_max=1), identity_of("boot-one", world_size=1)
    admission.hello(b"peer", hello_of(alone))
    before = identity_of("boot-before", world_size=1)
    assert admission.hello(b"other", left_behind(before)) == Welcome(admitted_through=0)
    assert admission.number(b"other", 1) == Admitted(before, 1)
    assert admission.number(b"peer", 1) == Admitted(alone, 1)
    answer = admission.hello(b"two", hello_of(identity_of("boot-two", run="b", world_size=1)))
    assert refusal(answer).reason == "full"


def test_of_too_many_lives_that_have_ended_the_one_that_came_first_goes() -> None:
    admission = Admission(runs_max=4, ranks_max=1)
    admission.hello(b"peer", hello_of(identity_of("boot-one", world_size=1)))
    for number in range(LEFT_BEHIND_MAX + 1):
        admission.hello(b"%d" % number, left_behind(identity_of(f"boot-{number}", world_size=1)))
    known = [admission.counts(boot) is not None for boot in ("boot-one", "boot-0", "boot-1")]
    assert known == [True, False, True]


def test_lives_of_earlier_restarts_give_way_to_another_run() -> None:
    """Of rank 0 there have been two lives more, which would keep a run of two out for ever."""
    admission = Admission(runs_max=4, ranks_max=3)
    for restart_count in range(3):
        restarted = identity_of(f"boot-{restart_count}", world_size=1, restart_count=restart_count)
        admission.hello(b"%d" % restart_count, hello_of(restarted))
    for rank in range(2):
        answer = admission.hello(b"of b %d" % rank, hello_of(identity_of(f"boot-b{rank}", rank, run="b", world_size=2)))
        assert answer == Welcome(admitted_through=0)
    known = [admission.counts(boot) is not None for boot in ("boot-0", "boot-1", "boot-2", "boot-b0", "boot-b1")]
    assert known == [False, False, True, True, True]


def test_a_life_that_has_ended_is_admitted_beside_the_one_that_has_its_place_now() -> None:
    admission, before = admission_with(), identity_of("boot-before", world_size=4)
    assert admission.hello(b"other", left_behind(before)) == Welcome(admitted_through=0)
    assert admission.number(b"other", 1) == Admitted(before, 1)
    assert admission.world_size("a") == 8


def test_a_restarted_rank_takes_the_place_of_its_last_life_and_not_of_one_that_was_left() -> None:
    admission, before = Admission(runs_max=4, ranks_max=2), identity_of("boot-before", world_size=2)
    admission.hello(b"peer", hello_of(identity_of("boot-one", world_size=2)))
    admission.hello(b"other", left_behind(before))
    admission.hello(b"next", hello_of(identity_of("boot-next", world_size=2, restart_count=1)))
    assert (admission.counts("boot-one"), admission.identity(b"other")) == (None, before)


# -- runs of one name -------------------------------------------------------------------------------------------------


def test_run_that_begins_anew_counts_its_restarts_from_its_first_life_on() -> None:
    """The run before had restarted three times and had two ranks; the new one has four."""
    admission = Admission(runs_max=1, ranks_max=8)
    admission.hello(b"one", hello_of(identity_of("boot-one", restart_count=3, world_size=2)))
    new = identity_of("boot-two", restart_count=0, world_size=4)
    assert isinstance(admission.hello(b"two", hello_of(new)), Welcome)
    admission.begin_run(new)
    assert admission.world_size("a") == 4


def test_larger_world_needs_its_room_also_where_fewer_restarts_are_counted() -> None:
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
