"""OrderedSamples: which orders are taken, and what is answered."""

import threading

import pytest

from rankscope.agent.captures.ordered_samples import NO_MORE, NO_WHOLE_STEP, OrderedSamples, read_thread_cpu_ns
from rankscope.agent.captures.sampling import SWITCHED_OFF
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.thread_sampler import PART, ThreadSampler
from rankscope.agent.guard import Guard
from rankscope.measure.line_samples import HELD, WHOLE
from rankscope.measure.messages import SampleOrder
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in

FRAME = frame_in(SCRIPT, line=8)


class Rank:
    """A rank whose sampler has no thread of its own; samples are added by hand. Time is in ms."""

    def __init__(self, *, has_sampler: bool = True) -> None:
        self.now_ns = 0
        self.guard = Guard(error_budget=3)
        self.sampler = ThreadSampler(self.guard) if has_sampler else None
        if self.sampler is not None:
            self.sampler._is_started = True
        self.orders = OrderedSamples(
            self.sampler, ScriptFiles({}), self.guard,
            find_thread=threading.get_ident, monotonic_ns=lambda: self.now_ns,
        )  # fmt: skip

    def sample(self, at_ms: int) -> None:
        assert self.orders._on is not None
        self.orders._on.add(at_ms * NS_PER_MS, FRAME)


def order(order_id: str = "s1", mode: str = WHOLE) -> SampleOrder:
    return SampleOrder(id=order_id, mode=mode, interval_ns=10 * NS_PER_MS, lasts_ns=NS_PER_S, steps_max=9)


def step(number: int, begin_ms: int, end_ms: int) -> StepRecord:
    length_ns = (end_ms - begin_ms) * NS_PER_MS
    return StepRecord(step=number, start_host_ns=begin_ms * NS_PER_MS, duration_ns=length_ns, phases_ns={})


def state(rank: Rank, wanted: SampleOrder) -> tuple[str, str]:
    found = rank.orders.handle(wanted)
    assert found is not None
    return found.state, found.reason


def test_order_is_accepted_and_answered_once_its_time_has_passed() -> None:
    rank = Rank()
    assert state(rank, order()) == ("accepted", "")
    rank.sample(0)
    rank.sample(20)
    assert rank.orders.collect([step(3, 2, 12)]) is None
    rank.now_ns = NS_PER_S
    found = rank.orders.collect([])
    assert found is not None
    assert (found.state, found.samples, [one.step for one in found.steps]) == ("taken", 2, [3])
    assert rank.orders.handle(order()) == found  # asked again: the same answer


def test_answer_of_a_rank_that_ends_comes_at_once() -> None:
    rank = Rank()
    state(rank, order())
    found = rank.orders.collect([], last=True)
    assert found is not None
    assert (found.state, found.reason) == ("taken", NO_WHOLE_STEP)


def test_second_order_waits_for_the_first() -> None:
    rank = Rank()
    state(rank, order())
    assert state(rank, order("s2"))[0] == "busy"
    rank.now_ns = NS_PER_S
    rank.orders.collect([])
    assert state(rank, order("s2"))[0] == "accepted"


def test_rank_with_samples_off_refuses() -> None:
    assert state(Rank(has_sampler=False), order()) == ("refused", SWITCHED_OFF)


def test_rank_whose_sampler_has_failed_refuses() -> None:
    rank = Rank()
    rank.guard.switch_off(PART)
    assert state(rank, order()) == ("refused", NO_MORE)


def test_mode_of_a_later_release_is_refused() -> None:
    assert state(Rank(), order(mode="every_other")) == (
        "refused",
        "this agent has no samples of the mode 'every_other'",
    )


def test_error_is_counted_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    state(rank, order())
    assert rank.orders._on is not None
    monkeypatch.setattr(rank.orders._on, "_times", None)
    found = rank.orders.collect([step(3, 2, 12)])
    assert found is not None
    assert (found.state, rank.guard.errors) == ("refused", {PART: 1})


def test_cost_is_that_of_all_orders() -> None:
    rank = Rank()
    state(rank, order())
    assert rank.orders._on is not None
    rank.orders._on.cpu_ns = 5
    assert rank.orders.spent_ns == 5
    rank.orders.collect([], last=True)
    assert rank.orders.spent_ns == 5


def test_cpu_time_of_a_thread_is_read() -> None:
    assert (read_thread_cpu_ns(threading.get_native_id()) or 0) > 0
    assert read_thread_cpu_ns(2**30) is None


def test_looks_at_what_is_held_need_no_whole_steps() -> None:
    rank = Rank()
    assert state(rank, order(mode=HELD)) == ("accepted", "")
    assert state(rank, order("s2", mode=HELD))[0] == "busy"
    rank.now_ns = NS_PER_S // 2
    assert rank.orders.collect([step(3, 2, 12)]) is None
    rank.now_ns = NS_PER_S
    found = rank.orders.collect([step(4, 12, 22)])
    assert found is not None
    assert found.held is not None
    assert (found.state, found.held.steps) == ("taken", 2)
    assert rank.orders.spent_ns == found.cost_ns > 0
    assert rank.orders.handle(order(mode=HELD)) == found


def test_looks_and_samples_go_on_beside_each_other() -> None:
    rank = Rank()
    assert state(rank, order("s1"))[0] == state(rank, order("s2", mode=HELD))[0] == "accepted"
    rank.sample(0)
    rank.sample(20)
    rank.now_ns = NS_PER_S // 2
    assert rank.orders.collect([step(3, 2, 12)]) is None
    rank.now_ns = NS_PER_S
    answers = [rank.orders.collect([]), rank.orders.collect([])]
    assert [(one.id, one.state) for one in answers if one is not None] == [("s2", "taken"), ("s1", "taken")]
