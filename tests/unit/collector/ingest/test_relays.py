"""Relays on the collector's side: who may be one, whose frames they bring, where the answers go, what they count."""

import pytest

from rankscope.collector.ingest.relays import (
    NAME_BYTES_MIN,
    OTHER,
    RELAY_NOT_ALLOWED,
    RELAYED_KEY_NOT_ALLOWED,
    Relays,
    split_address,
    to_address,
)
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import (
    PEER_BYTES_MAX,
    RELAYED_MAX,
    Ack,
    Refused,
    RelayCounts,
    Relayed,
    RelayedFrame,
    RelayHello,
    Welcome,
)

RELAY = b"relay-n1"
RANK = b"boot-one"
HELLO = RelayHello(name="n1", boot_id="life-1")
ONE_FRAME = Relayed(frames=(RelayedFrame(RANK, b"frame", age_ns=7),))


def keyed() -> Relays:
    """With keys: `r` and `s` are relays' keys, `a` an agent's."""
    return Relays(has_keys=True, may_relay=lambda key: key in {"r", "s"}, is_allowed=lambda key: key in {"a", "r", "s"})


def joined(relays: Relays, relay: bytes = RELAY, key: str = "", hello: RelayHello = HELLO) -> Relays:
    """The relays, after one has been welcomed."""
    assert isinstance(relays.hello(relay, hello, key), Welcome)
    return relays


def batch_with(dropped: dict[str, int]) -> Relayed:
    return Relayed(frames=(), counts=RelayCounts(dropped=dropped))


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relay_bytes", [NAME_BYTES_MIN, PEER_BYTES_MAX])
@pytest.mark.parametrize("peer_bytes", [1, 5, PEER_BYTES_MAX])
def test_an_address_gives_back_the_relay_and_the_rank_whatever_their_names(relay_bytes: int, peer_bytes: int) -> None:
    relay, peer = b"\0" * relay_bytes, b"\xff" * peer_bytes
    assert split_address(to_address(relay, peer)) == (relay, peer)


@pytest.mark.parametrize("name", [b"", b"boot-one", b"relay-n1", b"\0\0\0\0\0", b"\0\x01abc", b"\0\x08relay-n1"])
def test_no_routing_id_that_zeromq_gives_is_taken_for_an_address(name: bytes) -> None:
    assert split_address(name) is None


# -- who may ----------------------------------------------------------------------------------------------------------


def test_a_relay_that_has_said_hello_is_unpacked_rank_by_rank_in_order() -> None:
    batch = Relayed(
        frames=(RelayedFrame(b"boot-1", b"x"), RelayedFrame(b"boot-2", b"y"), RelayedFrame(b"boot-1", b"z"))
    )
    found = joined(Relays()).unpack(RELAY, batch, "")
    assert found is not None
    assert [(split_address(one.peer), one.frame) for one in found] == [
        ((RELAY, b"boot-1"), b"x"), ((RELAY, b"boot-2"), b"y"), ((RELAY, b"boot-1"), b"z"),
    ]  # fmt: skip


def test_a_batch_of_somebody_who_has_not_said_hello_is_not_looked_at() -> None:
    relays = Relays()
    assert relays.unpack(RELAY, ONE_FRAME, "") is None
    assert relays.totals.batches == 0


def test_an_agent_s_key_makes_no_relay() -> None:
    relays = keyed()
    answer = relays.hello(RELAY, HELLO, "a")
    assert isinstance(answer, Refused)
    assert answer.reason == RELAY_NOT_ALLOWED
    assert "`rankscope keys FOLDER --relay NAME`" in answer.detail
    assert relays.unpack(RELAY, ONE_FRAME, "a") is None
    assert relays.refused == {RELAY_NOT_ALLOWED: 1}


def test_an_agent_s_key_cannot_use_the_name_of_a_relay_that_was_welcomed() -> None:
    assert joined(keyed(), key="r").unpack(RELAY, ONE_FRAME, "a") is None


def test_a_relay_s_key_that_is_taken_back_ends_its_batches() -> None:
    marked = {"r"}
    relays = Relays(has_keys=True, may_relay=lambda key: key in marked, is_allowed=lambda key: key in marked)
    joined(relays, key="r")
    marked.clear()
    assert relays.unpack(RELAY, ONE_FRAME, "r") is None


def test_a_name_too_short_to_make_addresses_is_refused() -> None:
    assert isinstance(Relays().hello(b"short", HELLO, ""), Refused)


# -- whose key --------------------------------------------------------------------------------------------------------


def keys_of(relays: Relays, key: str, *stated: str) -> list[str]:
    """The keys that ranks count as having whose relay has this key and says those of them."""
    batch = Relayed(frames=tuple(RelayedFrame(RANK, b"frame", key=one) for one in stated))
    found = relays.unpack(RELAY, batch, key)
    assert found is not None
    return [one.key for one in found]


def test_a_rank_counts_as_having_the_key_it_has_shown_its_relay() -> None:
    assert keys_of(joined(keyed(), key="r"), "r", "a") == ["a"]


def test_a_rank_that_has_shown_none_has_its_relay_s() -> None:
    assert keys_of(joined(keyed(), key="r"), "r", "") == ["r"]


def test_a_key_that_is_not_allowed_here_gets_in_through_no_relay() -> None:
    relays = joined(keyed(), key="r")
    assert keys_of(relays, "r", "stranger", "a") == ["a"]
    assert relays.refused == {RELAYED_KEY_NOT_ALLOWED: 1}


def test_where_the_collector_has_no_keys_those_of_the_ranks_mean_nothing() -> None:
    assert keys_of(joined(Relays()), "", "a") == [""]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_go_back_together_each_with_its_rank() -> None:
    relays = joined(Relays())
    relays.answer(RELAY, b"boot-1", Ack(through=1))
    relays.answer(b"relay-n2", b"boot-1", Ack(through=9))
    relays.answer(RELAY, b"boot-2", Ack(through=2))
    answers = dict(relays.drain_answers())
    assert [(one.peer, decode(one.frame)) for one in answers[RELAY].frames] == [
        (b"boot-1", Ack(through=1)), (b"boot-2", Ack(through=2)),
    ]  # fmt: skip
    assert [(one.peer, decode(one.frame)) for one in answers[b"relay-n2"].frames] == [(b"boot-1", Ack(through=9))]
    assert relays.drain_answers() == []


def test_more_answers_than_a_batch_may_hold_go_in_several() -> None:
    relays = Relays()
    for _ in range(RELAYED_MAX + 1):
        relays.answer(RELAY, RANK, Ack(through=1))
    batches = [decode(encode(batch)) for _, batch in relays.drain_answers()]
    assert [len(batch.frames) for batch in batches if isinstance(batch, Relayed)] == [RELAYED_MAX, 1]


# -- what relays say of themselves ------------------------------------------------------------------------------------


def dropped_after(relays: Relays, *said: dict[str, int]) -> dict[str, int]:
    for dropped in said:
        relays.unpack(RELAY, batch_with(dropped), "")
    return dict(relays.totals.dropped)


def test_what_a_relay_has_counted_is_added_once_however_often_it_says_so() -> None:
    assert dropped_after(joined(Relays()), {"full": 3}, {"full": 3}, {"full": 5}) == {"full": 5}


def test_what_a_relay_counted_is_not_added_again_after_a_new_hello_of_the_same_life() -> None:
    relays = joined(Relays())
    dropped_after(relays, {"full": 3})
    relays.forget(RELAY)
    assert relays.totals.relays == 0
    assert dropped_after(joined(relays), {"full": 4}) == {"full": 4}


def test_a_relay_that_was_started_anew_counts_from_nothing_and_the_sum_goes_on() -> None:
    relays = joined(Relays())
    dropped_after(relays, {"full": 3})
    again = joined(relays, hello=RelayHello(name="n1", boot_id="life-2"))
    assert dropped_after(again, {"full": 1}) == {"full": 4}


def test_a_sum_never_decreases_whatever_a_relay_says() -> None:
    assert dropped_after(joined(Relays()), {"full": 3}, {"full": 1}, {"full": 2}) == {"full": 4}  # 3, then 2 - 1


def test_a_relay_makes_no_labels_up() -> None:
    reasons = {f"reason {number}": 1 for number in range(100)}
    assert dropped_after(joined(Relays()), reasons) == {OTHER: 100}


def test_for_one_relay_too_many_the_one_known_longest_has_to_say_hello_again() -> None:
    relays = Relays(relays_max=2)
    for name in (b"relay-n1", b"relay-n2", b"relay-n3"):
        joined(relays, name)
    assert relays.totals.relays == 2
    assert relays.unpack(b"relay-n1", ONE_FRAME, "") is None
    assert relays.unpack(b"relay-n3", ONE_FRAME, "") is not None
