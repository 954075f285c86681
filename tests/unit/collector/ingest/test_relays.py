"""Relays on the collector's side: allowed keys, frames of ranks, answers and counts."""

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
from rankscope.measure.messages import Ack, Refused, Welcome
from rankscope.measure.node_messages import PEER_BYTES_MAX, RELAYED_MAX, RelayCounts, Relayed, RelayedFrame, RelayHello

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
def test_address_splits_into_relay_and_rank(relay_bytes: int, peer_bytes: int) -> None:
    relay, peer = b"\0" * relay_bytes, b"\xff" * peer_bytes
    assert split_address(to_address(relay, peer)) == (relay, peer)


@pytest.mark.parametrize("name", [b"", b"boot-one", b"relay-n1", b"\0\0\0\0\0", b"\0\x01abc", b"\0\x08relay-n1"])
def test_routing_ids_of_zeromq_are_no_addresses(name: bytes) -> None:
    assert split_address(name) is None


# -- who may ----------------------------------------------------------------------------------------------------------


def test_batch_is_unpacked_rank_by_rank_in_order() -> None:
    batch = Relayed(
        frames=(RelayedFrame(b"boot-1", b"x"), RelayedFrame(b"boot-2", b"y"), RelayedFrame(b"boot-1", b"z"))
    )
    found = joined(Relays()).unpack(RELAY, batch, "")
    assert found is not None
    assert [(split_address(one.peer), one.frame) for one in found] == [
        ((RELAY, b"boot-1"), b"x"), ((RELAY, b"boot-2"), b"y"), ((RELAY, b"boot-1"), b"z"),
    ]  # fmt: skip


def test_batch_without_a_hello_is_not_unpacked() -> None:
    relays = Relays()
    assert relays.unpack(RELAY, ONE_FRAME, "") is None
    assert relays.totals.batches == 0


def test_key_of_an_agent_is_refused_as_relay() -> None:
    relays = keyed()
    answer = relays.hello(RELAY, HELLO, "a")
    assert isinstance(answer, Refused)
    assert answer.reason == RELAY_NOT_ALLOWED
    assert "`rankscope keys FOLDER --relay NAME`" in answer.detail
    assert relays.unpack(RELAY, ONE_FRAME, "a") is None
    assert relays.refused == {RELAY_NOT_ALLOWED: 1}


def test_agent_cannot_use_the_name_of_an_admitted_relay() -> None:
    assert joined(keyed(), key="r").unpack(RELAY, ONE_FRAME, "a") is None


def test_removed_relay_key_ends_its_batches() -> None:
    marked = {"r"}
    relays = Relays(has_keys=True, may_relay=lambda key: key in marked, is_allowed=lambda key: key in marked)
    joined(relays, key="r")
    marked.clear()
    assert relays.unpack(RELAY, ONE_FRAME, "r") is None


def test_too_short_relay_name_is_refused() -> None:
    assert isinstance(Relays().hello(b"short", HELLO, ""), Refused)


# -- whose key --------------------------------------------------------------------------------------------------------


def keys_of(relays: Relays, key: str, *stated: str) -> list[str]:
    """The keys that ranks count as having whose relay has this key and says those of them."""
    batch = Relayed(frames=tuple(RelayedFrame(RANK, b"frame", key=one) for one in stated))
    found = relays.unpack(RELAY, batch, key)
    assert found is not None
    return [one.key for one in found]


def test_rank_has_the_key_it_used_towards_its_relay() -> None:
    assert keys_of(joined(keyed(), key="r"), "r", "a") == ["a"]


def test_rank_without_a_key_has_that_of_its_relay() -> None:
    assert keys_of(joined(keyed(), key="r"), "r", "") == ["r"]


def test_disallowed_key_is_refused_behind_a_relay_too() -> None:
    relays = joined(keyed(), key="r")
    assert keys_of(relays, "r", "stranger", "a") == ["a"]
    assert relays.refused == {RELAYED_KEY_NOT_ALLOWED: 1}


def test_keys_of_ranks_are_ignored_by_an_open_collector() -> None:
    assert keys_of(joined(Relays()), "", "a") == [""]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_are_batched_with_their_ranks() -> None:
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


def test_too_many_answers_are_split_into_batches() -> None:
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


def test_counts_of_a_relay_are_added_once() -> None:
    assert dropped_after(joined(Relays()), {"full": 3}, {"full": 3}, {"full": 5}) == {"full": 5}


def test_counts_are_not_added_again_after_another_hello() -> None:
    relays = joined(Relays())
    dropped_after(relays, {"full": 3})
    relays.forget(RELAY)
    assert relays.totals.relays == 0
    assert dropped_after(joined(relays), {"full": 4}) == {"full": 4}


def test_restarted_relay_counts_from_zero_and_the_sum_grows() -> None:
    relays = joined(Relays())
    dropped_after(relays, {"full": 3})
    again = joined(relays, hello=RelayHello(name="n1", boot_id="life-2"))
    assert dropped_after(again, {"full": 1}) == {"full": 4}


def test_sums_never_decrease() -> None:
    assert dropped_after(joined(Relays()), {"full": 3}, {"full": 1}, {"full": 2}) == {"full": 4}  # 3, then 2 - 1


def test_unknown_reasons_of_a_relay_count_as_other() -> None:
    reasons = {f"reason {number}": 1 for number in range(100)}
    assert dropped_after(joined(Relays()), reasons) == {OTHER: 100}


def test_relay_above_the_limit_evicts_the_oldest() -> None:
    relays = Relays(relays_max=2)
    for name in (b"relay-n1", b"relay-n2", b"relay-n3"):
        joined(relays, name)
    assert relays.totals.relays == 2
    assert relays.unpack(b"relay-n1", ONE_FRAME, "") is None
    assert relays.unpack(b"relay-n3", ONE_FRAME, "") is not None
