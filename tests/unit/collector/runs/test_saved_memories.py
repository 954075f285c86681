"""What detectors remember of findings that were open, over a restart of the collector; nobody is told of it."""

import msgspec
import pytest

from rankscope.collector.detect.finding import RUN_SLOWDOWN, STRAGGLER, Finding
from rankscope.collector.detect.finding_memory import (
    MEMORY_VERSION,
    FindingMemory,
    HeldFinding,
    forget,
    recall,
    remember,
)
from rankscope.collector.runs import saved_memories
from rankscope.collector.runs.events import CloseFinding, FindingOpened, UpdateFinding
from rankscope.collector.runs.findings import RECURS_NS
from rankscope.collector.runs.saved_memories import KeptMemory, SavedMemories
from rankscope.collector.runs.saved_runs import SavedStory, save_run
from tests.unit.collector.runs.run_stories import S, Story
from tests.unit.collector.runs.test_saved_runs import kill, wall_of

ALL_SLOW = dict.fromkeys(range(4), 30.0)
SLOW = {2: 30.0}
"""Milliseconds of the forward by rank, instead of 10."""
FORGOTTEN = KeptMemory(FindingMemory(steps_to_close=12), 5.0)


def slower_run() -> Story:
    """All ranks have become slower with step 60, and stay so."""
    return Story(4).join().train(60).train(60, forward=ALL_SLOW)


def slow_rank() -> Story:
    return Story(4).join().train(60).train(60, forward=SLOW)


def only(story: Story, kind: str) -> Finding:
    (found,) = (one for one in story.snapshot().open_findings if one.kind == kind)
    return found


# -- what is told has no memory ---------------------------------------------------------------------------------------


def test_memory_stays_with_a_finding_that_changes() -> None:
    held = remember(Finding(kind="straggler", ranks=(2,), cause="host_cpu"), FindingMemory(steps_to_close=9))
    assert recall(msgspec.structs.replace(held, cause="data_loading")).steps_to_close == 9
    assert recall(remember(held, FindingMemory())) == recall(None) == FindingMemory()
    assert type(forget(held)) is type(remember(held, FindingMemory())) is Finding


def test_no_finding_that_is_told_has_a_memory() -> None:
    story = slow_rank()
    assert [recall(one).steps_to_close > 0 for one in story.run.findings.held] == [True]
    told = [*story.snapshot().open_findings]
    story.train(60)
    told += [one.finding for one in story.effects if isinstance(one, FindingOpened | UpdateFinding | CloseFinding)]
    saved = save_run(story.run, wall_of(story))
    assert saved is not None
    told += [*story.snapshot().findings, *saved.story.findings]
    assert len(told) >= 5
    assert not [one for one in told if isinstance(one, HeldFinding)]
    assert "memory" not in Finding.__struct_fields__
    assert b"steps_to_close" not in msgspec.json.encode(told)


# -- over a restart ---------------------------------------------------------------------------------------------------


def test_run_that_is_slower_than_before_a_restart_is_found_again_with_its_begin() -> None:
    story = slower_run()
    before = only(story, RUN_SLOWDOWN)
    kill(story).come_back().train(40, forward=ALL_SLOW)
    found = only(story, RUN_SLOWDOWN)
    assert (before.number, found.number, found.since_step) == (1, 2, before.since_step)
    assert found.evidence["before_ns"] == before.evidence["before_ns"] == 35e6
    assert found.slowdown_ratio == pytest.approx(55 / 35)
    assert found.since_wall_s == pytest.approx(before.since_wall_s)
    (closed,) = (one for one in story.snapshot().findings if one.number == 1)
    assert (closed.until_step, closed.is_closed) == (119, True)


def test_steps_are_charged_once_over_a_restart() -> None:
    story = slow_rank()
    before = only(story, STRAGGLER)
    kill(story).come_back().train(40, forward=SLOW)
    found = only(story, STRAGGLER)
    # 20 ms of four ranks in each step: those up to 119, and those after it.
    assert before.lost_rank_seconds == pytest.approx(60 * 0.020 * 4)
    assert found.lost_rank_seconds == pytest.approx(40 * 0.020 * 4)
    assert (found.since_step, before.since_step) == (60, 60)


def test_slowness_that_is_over_after_a_restart_is_told_no_more() -> None:
    story = kill(slower_run())
    opened = len([one for one in story.effects if isinstance(one, FindingOpened)])
    story.come_back().train(100)
    assert not story.run.findings.held
    assert len([one for one in story.effects if isinstance(one, FindingOpened)]) == opened


def test_collector_that_is_killed_twice_remembers() -> None:
    story = kill(kill(slower_run()))
    story.come_back().train(40, forward=ALL_SLOW)
    assert only(story, RUN_SLOWDOWN).since_step == 60


def test_what_is_not_judged_for_long_is_forgotten() -> None:
    story = kill(slower_run())
    story.come_back().train(1, forward=ALL_SLOW)
    assert len(story.run.findings.held) == 1
    story.tick(RECURS_NS / S)
    assert not story.run.findings.held
    assert not story.run.findings.kept_memories


def test_another_attempt_begins_without_memories() -> None:
    story = kill(slower_run()).restart().train(40, forward=ALL_SLOW)
    assert not story.run.findings.held
    assert not story.snapshot().open_findings


def test_memory_of_another_version_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    story = slower_run()
    monkeypatch.setattr(saved_memories, "MEMORY_VERSION", MEMORY_VERSION + 1)
    kill(story).come_back().train(40, forward=ALL_SLOW)
    assert story.snapshot().open_findings == ()  # as long as all that this collector knows


# -- their saved form -------------------------------------------------------------------------------------------------


def test_saved_memories_are_read_again() -> None:
    whole = FindingMemory(
        steps_to_close=12, step_before_ns=1.5, level_from_step=3, told_level_step=0, gap_known_steps=2.5,
        usual={3: 0.25}, before_ns=2.0, after_ns=3.0, robust_z=9.0, tokens=5.0, more_tokens=1.5,
        pasts_ns={"dp/0,1": 4.0}, transfer_excesses_ns={"dp/0,1": 1.0}, model="A", holds_while_found=True,
    )  # fmt: skip
    names = FindingMemory.__struct_fields__
    assert [name for name in names if getattr(whole, name) == getattr(FindingMemory(), name)] == []
    story = SavedStory(memories=SavedMemories.of({7: KeptMemory(whole, 8.0)}))
    again = msgspec.json.decode(msgspec.json.encode(story).decode(), type=SavedStory)
    assert again == story
    assert again.memories is not None
    assert again.memories.read() == {7: KeptMemory(whole, 8.0)}


@pytest.mark.parametrize(
    ("version", "by_number"),
    [
        (MEMORY_VERSION + 1, msgspec.json.encode({1: FORGOTTEN})),
        (0, msgspec.json.encode({1: FORGOTTEN})),
        (MEMORY_VERSION, b'{"1": {"memory": {"usual": "of another kind"}}}'),
        (MEMORY_VERSION, b'["no mapping"]'),
    ],
)
def test_memories_that_cannot_be_read_cost_the_story_nothing_else(version: int, by_number: bytes) -> None:
    text = b'{"former_boots": ["a"], "memories": {"version": %d, "by_number": %b}}' % (version, by_number)
    story = msgspec.json.decode(text, type=SavedStory)
    assert story.memories is not None
    assert (story.former_boots, story.memories.read()) == (("a",), {})


def test_memories_are_one_value_in_either_form() -> None:
    saved = SavedMemories.of({1: FORGOTTEN})
    assert saved == SavedMemories.of({1: FORGOTTEN}) != SavedMemories.of({2: FORGOTTEN})
