"""Times and contents of a relay's batches, and its limits, with a clock that the test drives."""

import pytest

from rankscope.collector.ingest.relays import FULL, NO_COLLECTOR, PEER_QUOTA
from rankscope.collector.relay.node_batch import BATCH_BYTES_MAX, PEER_FRAMES_MAX, URGENT_NS, NodeBatch
from rankscope.measure.node_messages import RELAYED_MAX
from rankscope.measure.units import NS_PER_MS, NS_PER_S

MIB = 1 << 20


def new_batch(bytes_max: int = MIB) -> NodeBatch:
    return NodeBatch(interval_ns=NS_PER_S, bytes_max=bytes_max)


def send(batch: NodeBatch, now_ns: int) -> list[tuple[bytes, bytes]]:
    """Send one batch; whose frames were in it."""
    frames = batch.build(now_ns)
    batch.sent(len(frames), now_ns)
    return [(one.peer, one.frame) for one in frames]


def flowing_since(now_ns: int) -> NodeBatch:
    """A batch that has just sent."""
    batch = new_batch()
    batch.add(b"a", b"x", "", now_ns)
    send(batch, now_ns)
    return batch


# -- when -------------------------------------------------------------------------------------------------------------


def test_nothing_is_due_while_nothing_waits() -> None:
    assert new_batch().due_ns is None
    assert flowing_since(5).due_ns is None


def test_frame_after_a_pause_is_sent_at_once() -> None:
    batch = flowing_since(0)
    batch.add(b"a", b"y", "", 3 * NS_PER_S)
    assert batch.due_ns == 3 * NS_PER_S


def test_while_frames_flow_there_is_one_batch_in_an_interval() -> None:
    batch = flowing_since(0)
    for rank in range(8):
        batch.add(b"%d" % rank, b"report", "", (100 + rank) * NS_PER_MS)
    assert batch.due_ns == NS_PER_S
    assert len(send(batch, NS_PER_S)) == 8
    batch.add(b"0", b"report", "", NS_PER_S + 1)
    assert batch.due_ns == 2 * NS_PER_S


def test_urgent_frame_is_sent_soon_with_all_waiting_frames() -> None:
    batch = flowing_since(0)
    batch.add(b"a", b"report", "", 100)
    batch.add(b"b", b"hello", "", 200, urgent=True)
    assert batch.due_ns == 200 + URGENT_NS
    assert send(batch, 200 + URGENT_NS) == [(b"a", b"report"), (b"b", b"hello")]


def test_last_messages_of_all_ranks_are_sent_together() -> None:
    batch = flowing_since(0)
    for rank in range(8):
        batch.add(b"%d" % rank, b"goodbye", "", 100 + rank, urgent=True)
    assert batch.due_ns == 100 + URGENT_NS
    assert len(send(batch, 100 + URGENT_NS)) == 8


def test_urgent_frame_does_not_delay_a_due_batch() -> None:
    batch = flowing_since(0)
    batch.add(b"a", b"report", "", 100)
    batch.add(b"b", b"hello", "", NS_PER_S - 1, urgent=True)
    assert batch.due_ns == NS_PER_S


# -- what -------------------------------------------------------------------------------------------------------------


def test_frames_keep_order_and_key_and_have_their_age() -> None:
    batch = new_batch()
    batch.add(b"a", b"1", "key of a", 100)
    batch.add(b"b", b"2", "", 250)
    batch.add(b"a", b"3", "key of a", 300)
    assert [(one.peer, one.frame, one.age_ns, one.key) for one in batch.build(300)] == [
        (b"a", b"1", 200, "key of a"), (b"b", b"2", 50, ""), (b"a", b"3", 0, "key of a"),
    ]  # fmt: skip


def test_unsent_frame_keeps_waiting_and_ages() -> None:
    batch = new_batch()
    batch.add(b"a", b"x", "", 0)
    assert [one.age_ns for one in batch.build(10)] == [10]
    assert [one.age_ns for one in batch.build(30)] == [30]
    assert (len(batch), batch.due_ns) == (1, 0)


def test_frames_beyond_one_batch_are_sent_in_the_next_at_once() -> None:
    batch = new_batch()
    half = b"x" * (BATCH_BYTES_MAX // 2)
    for _ in range(5):
        batch.add(b"a", half, "", 0)
    assert [len(send(batch, 0)) for _ in range(2)] == [2, 2]
    assert batch.due_ns == 0
    assert len(send(batch, 0)) == 1
    assert batch.due_ns is None
    assert batch.held_bytes == 0


def test_frame_larger_than_a_batch_is_sent_alone() -> None:
    batch = new_batch()
    for frame in (b"small", b"x" * (BATCH_BYTES_MAX + 1), b"small"):
        batch.add(b"a", frame, "", 0)
    assert [len(send(batch, 0)) for _ in range(3)] == [1, 1, 1]


def test_no_batch_has_more_frames_than_a_message_may() -> None:
    batch = new_batch()
    for number in range(RELAYED_MAX + 1):
        batch.add(b"%d" % number, b"", "", 0)
    assert [len(send(batch, 0)) for _ in range(2)] == [RELAYED_MAX, 1]


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_misbehaving_rank_takes_no_room_from_the_others() -> None:
    batch = new_batch()
    kept = [batch.add(b"flood", b"x", "", 0) for _ in range(PEER_FRAMES_MAX + 10)]
    assert kept.count(True) == PEER_FRAMES_MAX
    assert batch.add(b"good", b"x", "", 0)
    assert batch.dropped == {PEER_QUOTA: 10}


def test_rank_has_room_again_once_its_frames_are_sent() -> None:
    batch = new_batch()
    for _ in range(PEER_FRAMES_MAX):
        batch.add(b"a", b"x", "", 0)
    send(batch, 0)
    assert batch.add(b"a", b"x", "", 0)


def test_bytes_above_the_limit_are_dropped_and_counted() -> None:
    batch = new_batch(bytes_max=10)
    assert [batch.add(b"%d" % number, b"1234", "", 0) for number in range(4)] == [True, True, False, False]
    assert (batch.dropped, batch.held_bytes) == ({FULL: 2}, 8)


def test_frame_larger_than_the_limit_waits_alone() -> None:
    assert new_batch(bytes_max=10).add(b"a", b"x" * 11, "", 0)


@pytest.mark.parametrize("frames", [0, 3])
def test_dropped_frames_are_counted_and_nothing_is_due(frames: int) -> None:
    batch = new_batch()
    for _ in range(frames):
        batch.add(b"a", b"x", "", 0)
    batch.drop(NO_COLLECTOR)
    assert batch.dropped == ({NO_COLLECTOR: frames} if frames else {})
    assert (len(batch), batch.held_bytes, batch.due_ns) == (0, 0, None)
    assert batch.add(b"a", b"x", "", 0)
