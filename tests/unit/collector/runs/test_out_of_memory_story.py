"""A run in which a rank runs out of GPU memory: while it goes on, and where it ends by that."""

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.memory.out_of_memory import QUIET_NS
from rankscope.collector.runs.events import CloseFinding, FindingOpened
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run_ending import SHORTLY_NS
from rankscope.measure.out_of_memory import NOTICES_MAX, HeldMemory, OutOfMemory
from rankscope.measure.units import ns_to_s
from tests.unit.collector.runs.run_stories import Story
from tests.unit.collector.runs.test_rank import joined, report_to

GIB = 2**30
STEPS = 20
NOTICE = OutOfMemory(number=1, host_ns=0, asked_bytes=2 * GIB, free_bytes=GIB, step=STEPS, phase="backward")
HEADLINE = "Rank 1 (node-a): out of GPU memory in step 20 (backward)"


def failing_story(*notices: OutOfMemory) -> Story:
    story = Story(2).join().train(STEPS)
    story.report(1, [], [], out_of_memory=notices or (NOTICE,))
    return story


def found_in(story: Story) -> list[Finding]:
    return [one for one in story.snapshot().findings if one.kind == "out_of_memory"]


def test_caught_error_is_a_finding_of_a_run_that_goes_on() -> None:
    story = failing_story().tick()
    (finding,) = found_in(story)
    assert finding.headline == HEADLINE
    assert (finding.ranks, finding.until_step, story.snapshot().end) == ((1,), None, None)
    story.train(5).tick(ns_to_s(QUIET_NS))
    (closed,) = found_in(story)
    assert (closed.sentence, closed.until_step) == (finding.sentence, 24)
    kinds = [(type(one), one.finding.kind) for one in story.effects if isinstance(one, FindingOpened | CloseFinding)]
    assert kinds == [(FindingOpened, "out_of_memory"), (CloseFinding, "out_of_memory")]


def test_end_of_the_run_says_that_memory_ran_out_before() -> None:
    story = failing_story()
    story.say_goodbye(1, "failed").say_goodbye(0, "terminated").tick()
    end = story.snapshot().end
    assert end is not None
    assert end.first is not None
    assert end.first.out_of_memory.startswith("its GPU out of memory in step 20 (backward): 2.0 GiB asked for")
    assert [finding.headline for finding in found_in(story)] == [HEADLINE]


def test_end_long_after_a_caught_error_does_not_name_it() -> None:
    story = failing_story()
    for rank in (0, 1):
        story.report(rank, [], [])
    story.now_ns += SHORTLY_NS + 1
    story.say_goodbye(1, "failed").say_goodbye(0, "terminated").tick()
    end = story.snapshot().end
    assert end is not None
    assert end.first is not None
    assert end.first.out_of_memory == ""


def numbers_of(rank: RankState) -> list[int]:
    return [one.notice.number for one in rank.memory_errors]


def test_rank_keeps_its_first_error_and_the_last() -> None:
    rank = joined()
    for number in range(1, 8):
        error = OutOfMemory(number=number, host_ns=0)
        rank = report_to(rank, number, out_of_memory=(error,))
    assert numbers_of(rank) == [1, 5, 6, 7]
    assert NOTICES_MAX == 4
    rank.validate()
    assert numbers_of(report_to(rank, 8)) == [1, 5, 6, 7]


def test_error_reported_again_keeps_its_time() -> None:
    first = report_to(joined(), 1, out_of_memory=(NOTICE,)).memory_errors
    held = OutOfMemory(number=1, host_ns=0, held=(HeldMemory(bytes=5, blocks=1),))
    (again,) = report_to(report_to(joined(), 1, out_of_memory=(NOTICE,)), 2, out_of_memory=(held,)).memory_errors
    assert (again.notice, again.seen_collector_ns) == (held, first[0].seen_collector_ns)
