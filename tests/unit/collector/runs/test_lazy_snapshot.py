"""Snapshots that are built when they are read."""

import msgspec
import pytest

from rankscope.collector.runs.lazy_snapshot import LazyRunSnapshot
from rankscope.collector.runs.snapshot import SUMMARY_FIELDS, RankSnapshot, Snapshot
from tests.lazy_runs import LazyRun
from tests.unit.collector.runs.run_stories import Story, boot_of


def snapshot_of(story: Story) -> Snapshot:
    """Return the present snapshot of a story, not built yet."""
    return Snapshot(wall_s=0.0, version="0", runs=[story.run.lazy_snapshot(story.now_ns)])


def test_snapshot_built_later_shows_its_own_time() -> None:
    story = Story(3).join().train(20).tick()
    lazy = story.run.lazy_snapshot(story.now_ns)
    at_once = lazy.build()
    then_ns = story.now_ns
    story.train(20, forward={1: 30}).tick(5.0)
    story.say_goodbye(2)
    assert lazy.build() == at_once
    assert story.run.lazy_snapshot(then_ns).build() != at_once


def test_snapshot_built_of_an_encoded_one_is_the_same() -> None:
    story = Story(3).join().train(20, forward={1: 30}).tick()
    story.say_goodbye(2)
    lazy = story.run.lazy_snapshot(story.now_ns)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(lazy), type=LazyRunSnapshot)
    assert decoded.build() == lazy.build()
    assert decoded.summarize() == lazy.summarize()
    assert (decoded.size, decoded.run_id, decoded.read_totals()) == (lazy.size, lazy.run_id, lazy.read_totals())
    assert all(rank.collectives and rank.step_ns_median for rank in decoded.build().ranks)


def test_runs_are_built_once_and_only_on_request() -> None:
    story = Story(2).join().train(3)
    lazy = LazyRun(lambda: story.run.snapshot(story.now_ns), run="story", size=2)
    snapshot = Snapshot(wall_s=0.0, version="0", runs=[lazy])
    assert (snapshot.sizes, lazy.made) == ({"story": 2}, 0)
    assert snapshot.runs is snapshot.runs
    assert ([run.run for run in snapshot.runs], lazy.made) == (["story"], 1)


def is_odd(rank: int) -> bool:
    return rank % 2 == 1


def test_blocks_have_the_wanted_ranks_of_the_whole_snapshot() -> None:
    """Also of a snapshot that was built before."""
    story = Story(6).join().train(3)
    snapshot = snapshot_of(story)
    alone = list(snapshot.blocks(lambda _run: is_odd, 2))
    (whole,) = snapshot.runs
    assert [[rank.identity.rank for rank in ranks] for _, ranks in alone] == [[1, 3], [5]]
    assert [rank for _, ranks in alone for rank in ranks] == list(whole.ranks[1::2])
    assert {run for run, _ in alone} == set(snapshot.sizes)
    assert list(snapshot.blocks(lambda _run: is_odd, 2)) == alone


def test_wanted_ranks_may_differ_between_runs() -> None:
    story = Story(2).join().train(1)
    built = story.run.snapshot(story.now_ns)
    runs = [msgspec.structs.replace(built, run=run, run_id=run) for run in ("a", "b")]
    snapshot = Snapshot(wall_s=0.0, version="0", runs=runs)
    found = snapshot.blocks(lambda run: is_odd if run == "a" else lambda rank: not is_odd(rank), 2)
    assert [(run, [rank.identity.rank for rank in ranks]) for run, ranks in found] == [("a", [1]), ("b", [0])]
    assert snapshot.sizes == {"a": 2, "b": 2}


def test_totals_are_read_without_building_the_run() -> None:
    story = Story(2).join()
    before = story.run.lazy_snapshot(story.now_ns)
    story.train(4)
    snapshot = snapshot_of(story)
    counted = snapshot.read_totals("story")
    assert counted == snapshot.runs[0].read_totals()
    assert {life: totals.steps for life, totals in counted.items()} == {boot_of(0): 4, boot_of(1): 4}
    assert before.read_totals() == before.build().read_totals() == {}, "nobody had reported"
    with pytest.raises(KeyError):
        snapshot.read_totals("other")


def summary_of(rank: RankSnapshot) -> dict[str, object]:
    return {name: getattr(rank, name) for name in SUMMARY_FIELDS}


def test_summary_equals_the_snapshot_in_its_fields() -> None:
    story = Story(3).join().train(20, forward={1: 30}).tick()
    story.say_goodbye(2)
    (whole,), (summarize,) = (each.runs for each in (snapshot_of(story), snapshot_of(story).summarize()))
    assert msgspec.structs.replace(summarize, ranks=()) == msgspec.structs.replace(whole, ranks=())
    assert list(map(summary_of, summarize.ranks)) == list(map(summary_of, whole.ranks))
    assert [rank.ended for rank in summarize.ranks] == [None, None, "finished"]
    assert all(rank.totals.steps == 20 and rank.slowdown_ratio for rank in summarize.ranks)
    assert snapshot_of(story).summarize_run("story") == summarize


def test_summary_has_no_other_fields() -> None:
    story = Story(2).join().train(20).tick()
    (whole,), (summarize,) = (each.runs for each in (snapshot_of(story), snapshot_of(story).summarize()))
    left_out = set(RankSnapshot.__struct_fields__) - SUMMARY_FIELDS
    nothing = RankSnapshot(identity=whole.ranks[0].identity, up=True)
    assert all(getattr(rank, name) == getattr(nothing, name) for rank in summarize.ranks for name in left_out)
    assert any(getattr(whole.ranks[0], name) != getattr(nothing, name) for name in left_out)


def test_built_runs_are_their_own_summaries() -> None:
    story = Story(2).join().train(3)
    snapshot = snapshot_of(story)
    whole = snapshot.runs
    assert snapshot.summarize().runs == whole
    with pytest.raises(KeyError):
        snapshot.summarize_run("other")
