"""LineSearch: which ranks are asked for samples, when, how often, and what is made of the answers."""

import msgspec
import pytest

from rankscope.collector.detect.finding import HANG, PERIODIC_WORK, STRAGGLER, Finding
from rankscope.collector.detect.memory.growth import FASTEST, MEMORY_GROWTH
from rankscope.collector.runs.events import AnswerSeen, AskSamples
from rankscope.collector.runs.line_search import (
    AGAIN_NS,
    GIVEN_NS,
    HELD_NS,
    LASTS_NS,
    REPEAT_NS,
    TRIES_MAX,
    LineSearch,
    is_searched,
)
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.measure.line_samples import (
    HELD,
    LONG,
    NO_STEP,
    NOW,
    WHOLE,
    GrownContainer,
    HeldGrowth,
    SampledStack,
    SampledStep,
)
from rankscope.measure.messages import SampleOrder, SamplesTaken
from rankscope.measure.stalls import StackFrame
from tests.unit.collector.runs.run_stories import MS, S, Story, boot_of

MIB = 2**20
SLOW = Finding(kind=STRAGGLER, number=7, ranks=(1,), cause="unseen_wait", sentence="")
SLEEP = SampledStack(frames=(StackFrame("/home/me/train.py", 104, "augment"),), call="time.sleep")
OTHER = SampledStack(frames=(StackFrame("/home/me/train.py", 60, "main"),))


class Search:
    """The search of a run of three ranks that has trained for 20 steps of 30 ms or more."""

    def __init__(self) -> None:
        self.run = Story(3).join().train(20).run
        assert self.run.attempt is not None
        self.attempt = self.run.attempt
        self.search = LineSearch()
        self.now_ns = 0

    def tick(self, *findings: Finding, after_ns: int = 0) -> list[AskSamples]:
        self.now_ns += after_ns
        return self.search.tick(findings, self.attempt, self.now_ns)

    def answer(self, order: SampleOrder, rank: int, stack: SampledStack, state: str = "taken") -> None:
        step = NO_STEP if order.mode == NOW else 30
        steps = (SampledStep(step=step, duration_ns=100 * MS, stack_ns=((0, 100 * MS),)),)
        self.search.take(
            rank,
            SamplesTaken(id=order.id, state=state, stacks=(stack,), steps=steps, samples=50, span_ns=S, cpu_ns=0),
        )


def make() -> Search:
    search = Search()
    columns = {"own_ns_median": (5.0 * MS, 90.0 * MS, 6.0 * MS), "step_ns_median": (100.0 * MS,) * 3}
    search.attempt.medians = RankMedians((0, 1, 2), columns)
    return search


def test_slow_rank_and_healthiest_peer_are_asked_for_whole_steps() -> None:
    asked = make().tick(SLOW)
    assert [one.boot_id for one in asked] == [boot_of(1), boot_of(0)]
    order = asked[0].order
    assert (order.mode, order.lasts_ns, order.longer_than_ns, order == asked[1].order) == (WHOLE, LASTS_NS, 0, True)


def test_rare_slow_steps_are_waited_for() -> None:
    search = make()
    (one, _) = search.tick(Finding(kind=PERIODIC_WORK, number=7, ranks=(1,), cause=PERIODIC_WORK, sentence=""))
    assert (one.order.mode, one.order.longer_than_ns) == (LONG, 120 * MS)  # 1.2 times 100 ms
    (other, _) = make().tick(
        Finding(**{**{name: getattr(SLOW, name) for name in SLOW.__struct_fields__}, "pattern": "intermittent"})
    )
    assert other.order.mode == LONG


def test_rare_slow_steps_are_as_long_as_the_finding_says() -> None:
    stops = msgspec.structs.replace(SLOW, pattern="intermittent", evidence={"stall_ns": 400.0 * MS})
    search = make()
    (one, _) = search.tick(stops)
    assert one.order.longer_than_ns == 300 * MS  # half of it beyond 100 ms
    search.answer(one.order, 1, SLEEP)
    search.answer(one.order, 0, OTHER)
    search.tick(stops)
    assert search.search.pop()[7].sentence.startswith("100.0 ms per slow step in time.sleep")


def test_line_explaining_too_little_of_the_finding_is_not_named() -> None:
    search = make()
    slow = msgspec.structs.replace(SLOW, evidence={"own_ns": 500.0 * MS, "peers_own_ns": 50.0 * MS})
    (one, _) = search.tick(slow)
    search.answer(one.order, 1, SLEEP)
    search.answer(one.order, 0, OTHER)
    search.tick(slow)
    assert not search.search.pop()[7].is_named  # 100 of 450 ms
    assert len(search.tick(slow, after_ns=AGAIN_NS)) == 2


def test_long_steps_are_sampled_for_longer_and_more_rarely() -> None:
    search = make()
    columns = {**search.attempt.medians.columns, "step_ns_median": (30.0 * S,) * 3}
    search.attempt.medians = type(search.attempt.medians)((0, 1, 2), columns)
    (one, _) = search.tick(SLOW)
    assert (one.order.lasts_ns, one.order.interval_ns) == (120 * S, 120 * MS)  # 4 steps, in 1,000 samples


def test_order_is_repeated_until_it_is_answered() -> None:
    search = make()
    (one, _) = search.tick(SLOW)
    assert search.tick(SLOW, after_ns=REPEAT_NS - 1) == []
    search.answer(one.order, 1, SLEEP, "accepted")
    assert len(search.tick(SLOW, after_ns=1)) == 2
    search.answer(one.order, 1, SLEEP)
    assert [one.boot_id for one in search.tick(SLOW, after_ns=REPEAT_NS)] == [boot_of(0)]


def test_answers_of_both_are_compared_once() -> None:
    search = make()
    (one, _) = search.tick(SLOW)
    search.answer(one.order, 1, SLEEP)
    search.tick(SLOW)
    assert search.search.pop() == {}
    search.answer(one.order, 0, OTHER)
    search.tick(SLOW)
    found = search.search.pop()
    assert found[7].sentence.startswith("100.0 ms per step in time.sleep, called at train.py:104 (augment)")
    assert search.search.pop() == {}
    assert search.tick(SLOW, after_ns=AGAIN_NS) == []  # a line is named: it is not searched again


def test_what_could_not_be_had_is_asked_for_again_a_few_times() -> None:
    search = make()
    asked = 0
    for _ in range(TRIES_MAX + 2):
        asked += len({one.order.id for one in search.tick(SLOW)})
        search.tick(SLOW, after_ns=LASTS_NS + GIVEN_NS + 1)
        search.now_ns += AGAIN_NS
    assert asked == TRIES_MAX


def test_answer_of_the_rank_alone_is_used_if_its_peer_is_silent() -> None:
    search = make()
    (one, _) = search.tick(SLOW)
    search.answer(one.order, 1, SLEEP)
    search.tick(SLOW, after_ns=LASTS_NS + GIVEN_NS + 1)
    assert search.search.pop()[7].peer is None


def test_finding_that_passes_meanwhile_has_what_is_there() -> None:
    search = make()
    (one, _) = search.tick(SLOW)
    search.answer(one.order, 1, SLEEP)
    search.tick()
    assert search.search.pop()[7].is_named


def test_answer_to_another_order_is_ignored() -> None:
    search = make()
    search.tick(SLOW)
    search.answer(SampleOrder(id="other", mode=WHOLE, interval_ns=1, lasts_ns=1, steps_max=1), 1, SLEEP)
    search.tick(SLOW, after_ns=LASTS_NS + GIVEN_NS + 1)
    assert search.search.pop() == {}


def test_hang_asks_the_stalled_ranks_where_they_are_now() -> None:
    search = make()
    hang = Finding(kind=HANG, number=7, ranks=(1,), cause="missing_rank", sentence="")
    (one,) = search.tick(hang)
    assert (one.boot_id, one.order.mode) == (boot_of(1), NOW)
    search.answer(one.order, 1, SLEEP)
    search.tick(hang)
    (where,) = search.search.pop()[7].lines
    assert (where.ranks, where.line, where.call) == ((1,), "train.py:104 (augment)", "time.sleep")


def test_run_that_waits_for_data_is_asked_by_one_rank() -> None:
    (one,) = make().tick(Finding(kind="data_bound", number=7, cause="data_bound", sentence=""))
    assert one.boot_id == boot_of(0)


def test_more_work_is_searched_for_the_line_that_does_it() -> None:
    assert is_searched(Finding(kind=STRAGGLER, ranks=(1,), cause="more_work", sentence=""))


@pytest.mark.parametrize(("kind", "cause"), [(STRAGGLER, "gpu_clock"), ("slow_link", "slow_link")])
def test_what_no_line_explains_is_not_searched(kind: str, cause: str) -> None:
    assert not is_searched(Finding(kind=kind, ranks=(1,), cause=cause, sentence=""))


def test_new_attempt_forgets_the_searches() -> None:
    search = make()
    (one, _) = search.tick(SLOW)
    search.search.begin_attempt()
    search.answer(one.order, 1, SLEEP)
    search.tick()
    assert search.search.pop() == {}


def test_lines_stay_with_the_finding_of_the_run() -> None:
    story = Story(4).join()
    for _ in range(6):
        story.train(16, forward={2: 80})
    (finding,) = (one for one in story.run.open_findings if one.kind == STRAGGLER)
    asked = [one for one in story.effects if isinstance(one, AskSamples)]
    assert {one.boot_id for one in asked} >= {boot_of(2)}
    order = asked[0].order
    step = SampledStep(step=90, duration_ns=100 * MS, stack_ns=((0, 100 * MS),))
    for rank, stack in ((2, SLEEP), *((rank, OTHER) for rank in (0, 1, 3))):
        answer = SamplesTaken(id=order.id, state="taken", stacks=(stack,), steps=(step,), samples=50)
        story.run.apply(AnswerSeen(boot_of(rank), answer, story.now_ns))
    story.train(16, forward={2: 80})
    story.train(16, forward={2: 80})
    (after,) = (one for one in story.run.open_findings if one.number == finding.number)
    assert after.lines is not None
    assert after.lines.sentence.startswith("100.0 ms per step in time.sleep")


GROWS = Finding(kind=MEMORY_GROWTH, number=7, ranks=(0, 1), cause="host_memory", sentence="", evidence={FASTEST: 1.0})


def test_rank_that_grows_fastest_is_asked_what_it_holds() -> None:
    search = make()
    (one,) = search.tick(GROWS)
    assert (one.boot_id, one.order.mode, one.order.lasts_ns) == (boot_of(1), HELD, HELD_NS)
    kept = GrownContainer(
        name="kept of train.py", kind="list", length=60, added=40, added_bytes=40 * MIB, element="torch.Tensor",
        line="train.py:33 (main)",
    )  # fmt: skip
    held = HeldGrowth(steps=40, resident_bytes={"RssAnon": 41 * MIB}, containers=(kept,))
    search.search.take(1, SamplesTaken(id=one.order.id, state="taken", held=held))
    assert search.tick(GROWS) == []
    found = search.search.pop()[7]
    assert found.is_named
    assert found.sentence == (
        "About 1.0 MiB per step in a list, kept of train.py: 60 elements (torch.Tensor), 1 more per step, added at "
        "train.py:33 (main)."
    )
