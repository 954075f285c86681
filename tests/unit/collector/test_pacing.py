"""Long work in turns with others: a piece, a rest, the next piece."""

import time

from rankscope.collector.pacing import PAUSE_S, PIECE, WORK_PER_WAIT, WORK_S, GilYielder
from tests.turn_log import TurnLog
from tests.unit.collector.runs.job_stories import Story


def test_who_works_rests_after_some_work_and_not_before() -> None:
    rests_s: list[float] = []
    with GilYielder(sleep=rests_s.append, now_s=at_once) as turns:
        turns.rest()
        work(WORK_S)
        turns.rest()
    assert rests_s[-1:] == [PAUSE_S]
    assert len(rests_s) <= 2


def at_once() -> float:
    """A clock by which nobody ever waits for a turn, however long the machine lets this thread wait."""
    return 100.0


def work(cpu_s: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_s:
        pass


def test_who_works_has_its_turn_while_it_works_and_not_while_it_rests() -> None:
    log = TurnLog()
    with GilYielder(log.take, sleep=lambda _s: log.said.append("rests"), now_s=at_once) as turns:
        work(WORK_S)
        turns.rest()
    assert log.said == ["begins", "ends", "rests", "begins", "ends"]


def test_who_has_waited_long_for_its_turn_works_longer_in_it() -> None:
    rests_s: list[float] = []
    waited_s = 20 * WORK_S / WORK_PER_WAIT
    times_s = iter((100.0, 100.0 + waited_s, 101.0, 101.0))
    with GilYielder(sleep=rests_s.append, now_s=lambda: next(times_s)) as turns:
        work(2 * WORK_S)
        turns.rest()
        assert rests_s == []
        work(19 * WORK_S)
        turns.rest()
    assert rests_s == [PAUSE_S]


def test_nobody_has_a_turn_who_does_no_long_work() -> None:
    log = TurnLog()
    turns = GilYielder(log.take, sleep=lambda _s: None)
    turns.rest()
    assert log.said == []
    with turns:
        pass
    turns.rest()
    assert log.said == ["begins", "ends"]


def test_a_tick_of_many_ranks_rests_between_pieces() -> None:
    story = Story(3 * PIECE).join().train(6)
    rests: list[int] = []
    story.job.rest = lambda: rests.append(1)
    story.tick()
    of_tick = len(rests)
    story.job.draft(story.now_ns)
    assert of_tick >= 3 + 4  # the walk over the ranks; the view, the medians, and before and after them
    assert len(rests) - of_tick == 3
