"""A picture that is made later is the picture of the moment it was taken at."""

from rankscope.collector.state.snapshot import Snapshot
from tests.unit.collector.job_stories import Story


def test_a_picture_made_later_shows_the_moment_it_was_taken_at() -> None:
    story = Story(3).join().train(20).tick()
    taken = story.job.draft(story.now_ns)
    at_once = taken.build()
    moment_ns = story.now_ns
    story.train(20, forward={1: 30}).tick(5.0)
    story.say_goodbye(2)
    assert taken.build() == at_once
    assert story.job.draft(moment_ns).build() != at_once


def test_pictures_are_made_once_and_only_when_they_are_asked_for() -> None:
    story = Story(2).join().train(3)
    built = []

    class Counted:
        def build(self) -> object:
            built.append(1)
            return story.job.snapshot(story.now_ns)

    snapshot = Snapshot(wall_s=0.0, version="0", runs=[Counted()])  # type: ignore[list-item]
    assert built == []
    assert snapshot.runs is snapshot.runs
    assert ([run.run for run in snapshot.runs], built) == (["story"], [1])


def test_pictures_that_were_let_go_of_are_made_anew_and_are_the_same() -> None:
    story = Story(2).join().train(3)
    snapshot = Snapshot(wall_s=0.0, version="0", runs=[story.job.draft(story.now_ns), story.job.snapshot(story.now_ns)])
    before = snapshot.runs
    snapshot.let_go()
    assert snapshot.runs is not before
    assert snapshot.runs == before
