"""Where the ranks of earlier attempts ran: what is kept of them, how much, and through a restart of the collector."""

import msgspec

from rankscope.collector.runs.former_attempts import (
    ATTEMPTS_KEPT_MAX,
    RANKS_KEPT_MAX,
    FormerAttempt,
    FormerAttempts,
)
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from tests.unit.collector.runs.run_stories import S, Story
from tests.unit.collector.runs.test_saved_runs import kill


def hellos(*nodes: str, begun_s: int = 1) -> list[Hello]:
    """A rank on each of these nodes; the second begins a second after the first, and so on."""
    return [
        Hello(
            identity=RankIdentity(
                run="r", rank=rank, local_rank=0, world_size=len(nodes), node=node, restart_count=0,
                boot_id=f"boot-{rank:06d}", pid=1,
            ),
            first_sequence=1, host_ns=0, wall_ns=(begun_s + rank) * S, report_interval_ns=S,
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip


def test_attempt_has_ranks_by_node_and_its_begin() -> None:
    found = FormerAttempts().add(hellos("a", "b", "a", begun_s=7))
    assert found == FormerAttempts((FormerAttempt(7.0, {"a": (0, 2), "b": (1,)}),))


def test_attempt_at_the_same_places_is_not_kept_again() -> None:
    first = FormerAttempts().add(hellos("a", "b"))
    assert first.add(hellos("a", "b", begun_s=50)) is first
    # Of the second only rank 0 had joined; then rank 1 is elsewhere.
    assert first.add(hellos("a", begun_s=60)) is first
    assert [one.begun_wall_s for one in first.add(hellos("a", "c", begun_s=70)).kept] == [1.0, 70.0]


def test_attempt_without_ranks_is_not_kept() -> None:
    assert FormerAttempts().add([]) == FormerAttempts()


def test_oldest_attempts_are_dropped_and_counted() -> None:
    found = FormerAttempts()
    for number in range(ATTEMPTS_KEPT_MAX + 3):
        found = found.add(hellos(f"node-{number}"))
    assert (len(found.kept), found.dropped, list(found.kept[0].ranks_by_node)) == (ATTEMPTS_KEPT_MAX, 3, ["node-3"])


def test_ranks_of_all_attempts_are_bounded() -> None:
    full = FormerAttempts((FormerAttempt(1.0, {"a": tuple(range(RANKS_KEPT_MAX))}),))
    found = full.add(hellos("b"))
    assert ([list(one.ranks_by_node) for one in found.kept], found.dropped) == ([["b"]], 1)


def test_run_keeps_the_places_of_an_attempt_that_was_restarted() -> None:
    story = Story(2).join().train(3)
    story.restart()
    assert story.run.processes.former_attempts == FormerAttempts((FormerAttempt(0.0, {"node-a": (0, 1)}),))


def test_next_collector_knows_earlier_attempts() -> None:
    story = kill(Story(2).join().train(3).restart().train(3))
    assert story.run.processes.former_attempts == FormerAttempts((FormerAttempt(0.0, {"node-a": (0, 1)}),))


def test_story_of_an_earlier_release_has_none() -> None:
    assert msgspec.json.decode(b"{}", type=FormerAttempts) == FormerAttempts()
