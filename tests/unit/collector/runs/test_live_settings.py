"""Settings of a run that change while it goes on: what is checked, said and kept, and which findings follow."""

import msgspec
import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import STRAGGLER, Finding
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import CloseFinding, SettingChanged
from rankscope.collector.runs.findings import STRICTER
from rankscope.collector.runs.live_settings import PAST_MAX, LiveSettings, RunSettings, WantedChange
from rankscope.collector.runs.saved_runs import SavedStory, restore_run, save_run
from rankscope.measure.errors import SettingError
from rankscope.measure.settings import Value
from tests.unit.collector.runs.run_stories import Story

AT_S = 50_520.0  # 14:02 on the first day of 1970
OWN = CollectorConfig(slowdown_ratio_min=1.2)


def want(values: dict[str, Value] | None = None, *reset: str, for_s: float | None = None) -> WantedChange:
    return WantedChange(run="story", values=values or {}, reset=reset, for_s=for_s, by="anna", host="login-1")


def change(story: Story, wanted: WantedChange) -> list[SettingChanged]:
    return story.run.change_settings(wanted, Clocks(story.now_ns, 0.0))


def slow(story: Story, ratio: float, steps: int = 60) -> Story:
    """Rank 1 has so many times the 30 ms of the others."""
    return story.train(steps, forward={1: 10.0 + 30.0 * (ratio - 1)})


def find_open(story: Story) -> list[Finding]:
    return [one for one in story.snapshot().open_findings if one.kind == STRAGGLER]


def test_change_says_what_who_and_until_when() -> None:
    settings = LiveSettings(OWN)
    (made,) = settings.change(want({"slowdown_ratio_min": "1.05"}, for_s=3600.0), AT_S)
    assert made.text == (
        "slowdown_ratio_min 1.05 instead of 1.2, set by anna on login-1, 1970-01-01 14:02 UTC, "
        "until 1970-01-01 15:02 UTC"
    )
    assert settings.config.slowdown_ratio_min == 1.05
    assert settings.config.slowdown_close_ratio == 1.025


def test_change_goes_back_when_its_time_is_over_and_not_before() -> None:
    settings = LiveSettings(OWN)
    settings.change(want({"slowdown_ratio_min": 1.05, "detect_steps_min": 20}, for_s=60.0), AT_S)
    assert settings.tick(AT_S + 59.9) == ()
    assert [one.text for one in settings.tick(AT_S + 60.0)] == [
        "slowdown_ratio_min 1.2 again instead of 1.05, 1970-01-01 14:03 UTC: the time that anna had set is over",
        "detect_steps_min 12 again instead of 20, 1970-01-01 14:03 UTC: the time that anna had set is over",
    ]
    assert (settings.config, settings.state.changed) == (OWN, ())


def test_changes_of_several_people_stay_apart() -> None:
    settings = LiveSettings(OWN)
    settings.change(want({"slowdown_ratio_min": 1.05}, for_s=60.0), AT_S)
    settings.change(msgspec.structs.replace(want({"slowdown_ratio_min": 1.1}), by="ben"), AT_S + 1)
    assert settings.tick(AT_S + 100) == ()  # ben's has no end
    (made,) = settings.change(want(None, "slowdown_ratio_min", "line_samples"), AT_S + 101)
    assert made.text == "slowdown_ratio_min 1.2 again instead of 1.1, reset by anna on login-1, 1970-01-01 14:03 UTC"
    assert [one.kind for one in settings.state.past] == ["set", "set", "reset"]


def test_the_collectors_own_value_is_no_change() -> None:
    settings = LiveSettings(OWN)
    assert settings.change(want({"slowdown_ratio_min": 1.2}), AT_S) == ()
    settings.change(want({"slowdown_ratio_min": 1.3}), AT_S)
    assert [one.kind for one in settings.change(want({"slowdown_ratio_min": 1.2}), AT_S)] == ["reset"]
    assert settings.state.changed == ()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"slowdown_ratio_mn": "1.1"}, "is no setting of a run that goes on. The nearest is slowdown_ratio_min:"),
        ({"zzz": "1"}, "zzz is no setting of a run that goes on. These can change: slowdown_ratio_min,"),
        ({"ranks_max": "7"}, "ranks_max cannot change while a run goes on. These can: slowdown_ratio_min,"),
        ({"slowdown_ratio_min": "1"}, "slowdown_ratio_min is 1.0 (as asked); the smallest allowed is 1.01."),
        ({"line_samples": "perhaps"}, "line_samples is 'perhaps' (as asked); it must be true or false."),
        ({"notify_severity_min": "loud"}, "it must be one of 'info', 'warning', 'critical'."),
    ],
)  # fmt: skip
def test_wrong_change_is_refused_and_changes_nothing(given: dict[str, Value], problem: str) -> None:
    settings = LiveSettings(OWN)
    with pytest.raises(SettingError) as caught:
        settings.change(want({"detect_steps_min": 20, **given}), AT_S)
    assert problem in str(caught.value)
    assert (settings.config, settings.state) == (OWN, RunSettings())


@pytest.mark.parametrize("for_s", [0.0, 0.5, -1.0, 1e9, float("nan")])
def test_time_beyond_the_limits_is_refused(for_s: float) -> None:
    with pytest.raises(SettingError, match="it must be from 1 s to 30 days"):
        LiveSettings(OWN).change(want({"detect_steps_min": 20}, for_s=for_s), AT_S)


def test_what_a_client_says_of_itself_is_one_short_line() -> None:
    wanted = msgspec.structs.replace(want({"detect_steps_min": 20}), by="x\x1b[2J\n" * 50)
    (made,) = LiveSettings(OWN).change(wanted, AT_S)
    assert len(made.by) <= 64
    assert made.text.isprintable()


def test_only_the_last_changes_are_kept() -> None:
    settings = LiveSettings(OWN)
    for number in range(PAST_MAX + 5):
        settings.change(want({"detect_steps_min": 13 + number % 9}), AT_S + number)
    settings.validate()
    assert [one.wall_s for one in settings.state.past] == [AT_S + number for number in range(5, PAST_MAX + 5)]


def test_next_collector_goes_on_with_what_is_changed() -> None:
    story = slow(Story(4, OWN).join(), 1.0)
    change(story, want({"slowdown_ratio_min": 1.05, "line_samples": False}, for_s=60.0))
    clocks = Clocks(story.now_ns, 0.0)
    saved = save_run(story.run, clocks)
    assert saved is not None
    told = msgspec.json.decode(msgspec.json.encode(saved.story), type=SavedStory)
    lives = [saved.save_rank(number, clocks)() for number in saved.ranks]
    run = restore_run(OWN, saved.run, told, lives, clocks)
    assert run.settings.state == story.run.settings.state
    assert run.settings.config.slowdown_ratio_min == 1.05
    assert {one.name for one in run.settings.tick(60.0)} == {"slowdown_ratio_min", "line_samples"}


def test_rank_is_named_by_the_changed_threshold_and_not_before() -> None:
    story = slow(Story(4, OWN).join(), 1.1)
    assert find_open(story) == []
    (effect,) = change(story, want({"slowdown_ratio_min": 1.05}))
    assert effect.text.startswith("slowdown_ratio_min 1.05 instead of 1.2, set by anna")
    (found,) = find_open(slow(story, 1.1))
    assert found.ranks == (1,)
    assert found.evidence["slowdown_ratio_min"] == 1.05
    assert found.sentence.endswith("Judged with slowdown_ratio_min 1.05 instead of 1.2.")


def test_finding_closes_at_the_restored_threshold_though_held() -> None:
    story = slow(Story(4, OWN).join(), 1.15)  # held from 1.1 on, half of 1.2
    change(story, want({"slowdown_ratio_min": 1.05}))
    assert len(find_open(slow(story, 1.15))) == 1
    change(story, want(None, "slowdown_ratio_min"))
    assert find_open(story.tick()) == []
    assert [one.reason for one in story.effects if isinstance(one, CloseFinding)] == [STRICTER]
    assert find_open(slow(story, 1.15)) == []


def test_finding_beyond_both_thresholds_stays_as_it_was() -> None:
    story = slow(slow(Story(4).join(), 1.0), 2.0, steps=120)
    (before,) = find_open(story)
    change(story, want({"slowdown_ratio_min": 1.5}))
    (after,) = find_open(slow(story, 2.0, steps=300))
    assert (after.number, after.since_step) == (before.number, before.since_step)
    change(story, want(None, "slowdown_ratio_min"))
    (last,) = find_open(story.tick())
    assert last.number == before.number
    assert "slowdown_ratio_min" not in last.evidence
    assert "Judged" not in last.sentence


def test_more_steps_are_waited_for_where_that_is_asked() -> None:
    story = Story(4).join()
    change(story, want({"detect_steps_min": 30}))
    assert slow(story, 6.0, steps=24).snapshot().abstained is not None
    assert find_open(slow(Story(4).join(), 6.0, steps=24)) != []
    assert find_open(slow(story, 6.0, steps=24)) != []


def test_run_that_is_over_changes_nothing() -> None:
    story = slow(Story(2).join(), 1.0)
    for rank in range(2):
        story.say_goodbye(rank)
    story.tick()
    with pytest.raises(SettingError, match="is over"):
        change(story, want({"detect_steps_min": 20}))
