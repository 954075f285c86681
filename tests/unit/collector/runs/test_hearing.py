"""Runs that fall silent: alone, or all at once because their collector does not hear."""

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.hearing import Heard, SilentRun, find_nothing_heard
from rankscope.collector.runs.run_end import RunEnd
from tests.unit.collector.runs.run_stories import S, Story

SILENT_S = 15
CONFIG = CollectorConfig(rank_silent_s=SILENT_S)


class Cluster:
    """Runs of one collector on one clock. Those that are not `cut` report once a second, each after the other."""

    def __init__(self, runs: int) -> None:
        self.stories = [Story(2, CONFIG).join() for _ in range(runs)]
        self.heard = Heard()

    def go_on(self, seconds: int, *, cut: tuple[int, ...] = ()) -> "Cluster":
        for _ in range(seconds):
            now_ns = max(story.now_ns for story in self.stories)
            for number, story in enumerate(self.stories):
                story.now_ns = now_ns + 100_000_000 * number
                if number not in cut:
                    for rank in range(2):
                        story.report(rank, [], [])
            last_ns = max(story.run.last_message_collector_ns for story in self.stories)
            self.heard = self.heard.hear(last_ns, SILENT_S * S)
            for story in self.stories:
                story.now_ns = now_ns
                story.run.heard = self.heard
                story.tick(1.0)
        return self

    @property
    def ends(self) -> list[str | None]:
        return [None if (end := story.snapshot().end) is None else end.reason for story in self.stories]

    @property
    def nothing_heard(self) -> list[str]:
        runs = [story.run for story in self.stories]
        silent = [SilentRun("run", one.ending.end, 2, {"n0"}) for one in runs if one.ending.end is not None]
        anybody = any(one.has_live_ranks for one in runs)
        return [finding.sentence for finding in find_nothing_heard(silent, is_anybody_heard=anybody).values()]


def test_run_that_falls_silent_beside_another_is_lost() -> None:
    cluster = Cluster(2).go_on(10).go_on(20, cut=(0,))
    assert (cluster.ends, cluster.nothing_heard) == (["lost", None], [])


def test_runs_falling_silent_together_are_not_heard_but_not_lost() -> None:
    cluster = Cluster(3).go_on(10)
    for _ in range(25):
        cluster.go_on(1, cut=(0, 1, 2))
        assert "lost" not in cluster.ends
    assert cluster.ends == ["not_heard"] * 3
    (sentence,) = cluster.nothing_heard
    assert sentence.startswith(
        "Nothing heard of 3 runs since 1970-01-01 00:00:00 UTC. All silent at once: the network or"
    )
    assert "6 ranks on 1 node" in sentence


def test_runs_that_are_heard_again_have_not_ended() -> None:
    cluster = Cluster(2).go_on(10).go_on(25, cut=(0, 1)).go_on(1)
    assert (cluster.ends, cluster.nothing_heard) == ([None, None], [])


def test_run_that_alone_stays_silent_is_lost_after_its_time() -> None:
    cluster = Cluster(2).go_on(10).go_on(25, cut=(0, 1))
    assert cluster.go_on(14, cut=(0,)).ends == ["not_heard", None]
    assert cluster.go_on(3, cut=(0,)).ends == ["lost", None]


def test_only_run_is_told_as_what_is_known_of_it() -> None:
    cluster = Cluster(1).go_on(10).go_on(20, cut=(0,))
    assert cluster.ends == ["not_heard"]
    (sentence,) = cluster.nothing_heard
    assert sentence.startswith("Nothing heard of the run since 1970-01-01 00:00:00 UTC. No other run reports here")
    assert sentence.endswith("2 ranks on 1 node; whether they go on: not known.")


def test_run_with_a_failed_rank_is_no_question_of_hearing() -> None:
    silent = [SilentRun("run", RunEnd(reason="failed"), 2, {"n0"})]
    assert find_nothing_heard(silent, is_anybody_heard=False) == {}


def test_finding_about_all_is_kept_with_the_largest_run() -> None:
    silent = [SilentRun(name, RunEnd(reason="not_heard"), ranks, {name}) for name, ranks in (("a", 2), ("b", 8))]
    found = find_nothing_heard(silent, is_anybody_heard=False)
    assert {run: finding.evidence for run, finding in found.items()} == {"b": {"runs": 2, "ranks": 10, "nodes": 2}}
