"""Laws of a run whose collector is killed again and again, each time with all that it had not saved."""

from typing import NamedTuple

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.saved_runs import SavedRun, SavedStory, restore_run, save_run
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.steps.collective_totals import unpack_counts
from tests.library_exporter import SnapshotExporter
from tests.unit.collector.runs.run_stories import S, Story

RANKS = 3
WALL_S = 1_800_000_000.0
Counters = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Kept(NamedTuple):
    """Content of the store, as bytes, and the counters at that time, which Prometheus has read."""

    run: bytes
    story: bytes
    lives: tuple[bytes, ...]
    collectives: bytes
    counters: Counters


deeds = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 12), st.sampled_from([10.0, 30.0])),
    st.tuples(st.just("save"), st.just(0), st.just(0.0)),
    st.tuples(st.just("kill"), st.integers(0, 40), st.just(0.0)),
)


def read_counters(story: Story) -> Counters:
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(story.snapshot(),))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in SnapshotExporter(lambda: snapshot).collect()
        if family.type == "counter"
        for sample in family.samples
        if "run" in sample.labels
    }


def clocks_of(story: Story) -> Clocks:
    return Clocks(story.now_ns, WALL_S + story.now_ns / S)


def save(story: Story) -> Kept:
    clocks = clocks_of(story)
    saved = save_run(story.run, clocks)
    assert saved is not None
    encode = msgspec.json.encode
    lives = [encode(saved.save_rank(rank, clocks)()) for rank in saved.ranks]
    return Kept(encode(saved.run), encode(saved.story), tuple(lives), saved.collectives.pack(), read_counters(story))


def restore(story: Story, kept: Kept) -> None:
    decode = msgspec.json.decode
    story.run = restore_run(
        CollectorConfig(),
        decode(kept.run, type=SavedRun),
        decode(kept.story, type=SavedStory),
        [decode(life, type=SavedRank) for life in kept.lives],
        clocks_of(story),
        collectives=unpack_counts(kept.collectives),
    )
    story.come_back().train(1)


@settings(max_examples=40, deadline=None)
@given(st.lists(deeds, min_size=2, max_size=12))
def test_saved_counters_never_decrease_after_a_kill(
    told: list[tuple[str, int, float]],
) -> None:
    story = Story(RANKS).join().train(8)
    kept = save(story)
    for deed, number, length_ms in told:
        match deed:
            case "train":
                story.train(number, forward={1: length_ms})
            case "save":
                kept = save(story)
            case _:
                story.now_ns += number * S
                restore(story, kept)
                now = read_counters(story)
                assert {key: value for key, value in kept.counters.items() if now.get(key, -1.0) < value} == {}
                kept = save(story)


@settings(max_examples=40, deadline=None)
@given(st.lists(deeds, min_size=2, max_size=12))
def test_goodput_parts_sum_to_the_time_over_all_collectors(
    told: list[tuple[str, int, float]],
) -> None:
    story = Story(RANKS)
    begun_ns = story.now_ns
    story.join().train(8)
    for deed, number, length_ms in told:
        match deed:
            case "train":
                story.train(number, forward={1: length_ms})
            case "save":
                story.tick()
            case _:
                kept = save(story)
                story.now_ns += number * S
                restore(story, kept)
        goodput = msgspec.structs.asdict(story.snapshot().goodput)
        wall_ns = goodput.pop("wall_ns")
        assert sum(goodput.values()) == wall_ns
        assert min(goodput.values()) >= 0
        # Seconds since 1970 as floats are good for some hundred nanoseconds a restart.
        assert abs(wall_ns - (story.now_ns - begun_ns)) < 1_000 * len(told)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 3))
def test_acknowledged_unsaved_reports_are_never_missing(saved: int, unsaved: int, seconds: int) -> None:
    story = Story(RANKS).join().train(1)
    for _ in range(saved):
        story.train(1)
    kept = save(story)
    for _ in range(unsaved):
        story.train(1)
    story.now_ns += seconds * S
    restore(story, kept)
    assert [(rank.report_gaps, rank.reports_admitted) for rank in story.snapshot().ranks] == [
        (0, 2 + saved + unsaved)
    ] * RANKS
