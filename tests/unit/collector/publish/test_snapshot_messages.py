"""Snapshots as messages: what the publisher decodes is what the service has, and what has not changed is not sent."""

import pickle
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from rankscope.collector.publish import snapshot_messages
from rankscope.collector.publish.api.step_breakdown import TimeSlice
from rankscope.collector.publish.snapshot_messages import (
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotMessage,
    encode_blocks,
)
from rankscope.collector.runs.snapshot import CollectorCounts, Snapshot
from tests.unit.collector.runs.run_stories import Story

SLICES = (TimeSlice(begin_wall_s=1.0, end_wall_s=3.0, steps=2),)


def snapshot_of(story: Story) -> Snapshot:
    """The state of a story, as the service makes it at a tick."""
    heat_map = story.run.heat_map_steps
    return Snapshot(
        wall_s=5.0,
        version="0.1.0",
        runs=[story.run.lazy_snapshot(story.now_ns)],
        steps={} if heat_map is None else {story.run.run: heat_map},
        counts=CollectorCounts(frames_received=7),
    )


class Sent(NamedTuple):
    """A message and the blocks that follow it, as the publisher gets them."""

    message: SnapshotMessage
    blocks: list[bytes]

    def decode(self, decoder: SnapshotDecoder, http_refused: Mapping[str, int] | None = None) -> Snapshot:
        """Return what the publisher reads, which is all of it."""
        blocks = iter(self.blocks)
        found = decoder.decode(self.message, lambda: next(blocks), http_refused or {})
        assert next(blocks, None) is None
        return found


def send(encoder: SnapshotEncoder, snapshot: Snapshot) -> Sent:
    message: SnapshotMessage = pickle.loads(pickle.dumps(encoder.encode(snapshot, lambda _run: SLICES)))  # noqa: S301
    return Sent(message, list(encode_blocks(snapshot)))


def changed_parts(sent: Sent) -> set[str]:
    (run,) = sent.message.runs
    return set(run.changed)


def slow_story() -> Story:
    story = Story(4).join().train(40).train(60, forward={2: 30.0})
    story.tick()
    return story


def test_decoded_snapshot_equals_the_sent_one() -> None:
    story = slow_story()
    sent = snapshot_of(story)
    decoder = SnapshotDecoder()
    got = send(SnapshotEncoder(), sent).decode(decoder, {"busy": 3})
    assert got.runs == sent.runs
    assert got.runs[0].open_findings
    assert got.runs[0].ranks[2].slowdown_ratio == pytest.approx(1.57, abs=0.01)
    assert got.summarize().runs == sent.summarize().runs
    assert got.read_totals("story") == sent.read_totals("story")
    assert (got.wall_s, got.version) == (5.0, "0.1.0")
    assert got.counts == msgspec.structs.replace(sent.counts, http_refused={"busy": 3})
    assert decoder.find_time_slices("story") == SLICES
    assert decoder.find_time_slices("other") == ()


def test_decoded_heat_map_equals_the_sent_one() -> None:
    sent = snapshot_of(slow_story())
    got = send(SnapshotEncoder(), sent).decode(SnapshotDecoder())
    ours, theirs = sent.steps["story"], got.steps["story"]
    assert theirs.steps.tolist() == ours.steps.tolist()
    assert theirs.excess.tobytes() == ours.excess.tobytes()
    assert (theirs.attempt, theirs.latest_step, theirs.peer_groups) == (0, 99, ours.peer_groups)


def test_unchanged_parts_are_sent_once_and_stay_known() -> None:
    story, encoder, decoder = slow_story(), SnapshotEncoder(), SnapshotDecoder()
    first = send(encoder, snapshot_of(story))
    assert changed_parts(first) == {"medians", "collectives", "heat_map", "time_slices"}
    first.decode(decoder)
    again = send(encoder, snapshot_of(story))
    assert changed_parts(again) == set()
    sent, got = snapshot_of(story), again.decode(decoder)
    assert got.runs == sent.runs
    assert got.steps.keys() == {"story"}


def test_parts_of_a_new_pass_are_sent_again() -> None:
    story, encoder = slow_story(), SnapshotEncoder()
    send(encoder, snapshot_of(story))
    story.train(4).tick()
    assert {"medians", "heat_map"} <= changed_parts(send(encoder, snapshot_of(story)))


def test_another_publisher_is_sent_everything() -> None:
    story = slow_story()
    send(SnapshotEncoder(), snapshot_of(story))
    assert len(changed_parts(send(SnapshotEncoder(), snapshot_of(story)))) == 4


def test_forgotten_run_is_sent_whole_when_it_comes_back() -> None:
    story, encoder, decoder = slow_story(), SnapshotEncoder(), SnapshotDecoder()
    send(encoder, snapshot_of(story)).decode(decoder)
    send(encoder, Snapshot(wall_s=6.0, version="0.1.0")).decode(decoder)
    assert decoder.find_time_slices("story") == ()
    again = send(encoder, snapshot_of(story))
    assert len(changed_parts(again)) == 4
    assert again.decode(decoder).runs == snapshot_of(story).runs


def test_built_run_is_refused() -> None:
    built = Snapshot(wall_s=0.0, version="0", runs=[slow_story().snapshot()])
    with pytest.raises(TypeError, match="run 'story' is built already"):
        SnapshotEncoder().encode(built, lambda _run: ())


def test_ranks_are_sent_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_messages, "BLOCK_RANKS", 8)
    sent = send(SnapshotEncoder(), snapshot_of(Story(18).join().train(1)))
    assert [len(msgspec.msgpack.decode(block)) for block in sent.blocks] == [8, 8, 2]
    assert [one.identity.rank for one in sent.decode(SnapshotDecoder()).runs[0].ranks] == list(range(18))
