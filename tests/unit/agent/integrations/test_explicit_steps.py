"""Tests of explicit batches, evaluations and steps by the user or a framework. One tick is one ns."""

import pytest

from rankscope.agent.steps.batch_size import BatchSize
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.user_steps import EVALUATION
from rankscope.measure.records import StepRecord


class Loop:
    """A training loop that lets time pass on a clock of its own."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.records: list[StepRecord] = []
        self.boundaries: list[int] = []
        self.pauses = 0
        self.timer = StepTimer(
            self.records.append,
            self.boundaries.append,
            self._pause,
            read_clock_ns=lambda: self.now_ns,
            read_cpu_ns=lambda: self.now_ns // 2,
        )

    def _pause(self) -> None:
        self.pauses += 1

    def wait(self, ticks: int) -> "Loop":
        self.now_ns += ticks
        return self

    def fetch(self, size: BatchSize | None = None, *, training: bool = True) -> "Loop":
        self.timer.data_begin(self.now_ns, training)
        self.now_ns += 10
        self.timer.data_end(self.now_ns, True, 1, size or BatchSize())
        return self

    def train(self) -> "Loop":
        """100 ticks of forward, 200 of backward, 30 of the optimizer."""
        self.now_ns += 100
        self.timer.backward_begin(self.now_ns)
        self.now_ns += 200
        self.timer.backward_end(self.now_ns)
        self.timer.optimizer_begin(self.now_ns, 1)
        self.now_ns += 30
        self.timer.optimizer_end(self.now_ns)
        return self

    def say(self, samples: int | None = None, tokens: int | None = None) -> "Loop":
        self.timer.user.set_batch_size(self.now_ns, BatchSize(samples, tokens))
        return self

    def evaluate(self, ticks: int = 5_000) -> "Loop":
        self.timer.user.begin_evaluation(self.now_ns)
        self.now_ns += ticks
        self.timer.user.end_evaluation(self.now_ns)
        return self

    def end_step(self, samples: int | None = None, tokens: int | None = None) -> "Loop":
        self.timer.user.end_step(self.now_ns, BatchSize(samples, tokens))
        return self

    def finish(self) -> list[StepRecord]:
        self.timer.finish()
        assert all(sum(record.phases_ns.values()) == record.duration_ns for record in self.records)
        return self.records

    def sizes(self) -> list[tuple[int | None, int | None]]:
        return [(record.samples, record.tokens) for record in self.finish()]


# -- what batches hold ------------------------------------------------------------------------------------------------


def test_samples_of_a_step_are_those_of_its_batches() -> None:
    loop = Loop()
    for tokens in (40, 48):
        loop.fetch(BatchSize(8, tokens)).fetch(BatchSize(4, 2)).train()
    assert loop.sizes() == [(12, 42), (12, 50)]


def test_step_with_a_batch_of_unknown_size_has_an_unknown_sum() -> None:
    assert Loop().fetch(BatchSize(8, 40)).fetch(BatchSize(8)).train().sizes() == [(16, None)]
    assert Loop().train().sizes() == [(None, None)]


def test_batch_sizes_of_the_user_replace_detected_ones() -> None:
    loop = Loop().fetch(BatchSize(8, 40)).train()
    loop.fetch(BatchSize(8, 40)).say(samples=3).fetch(BatchSize(8, 40)).say(samples=4).train()
    assert loop.fetch(BatchSize(8, 40)).train().sizes() == [(8, 40), (7, 80), (None, 40)]


@pytest.mark.parametrize("before_the_backward", [True, False])
def test_batch_may_be_set_before_backward_or_after_the_step(before_the_backward: bool) -> None:
    loop = Loop()
    for samples in (1, 2, 3):
        loop.fetch()
        loop.say(samples).train() if before_the_backward else loop.train().say(samples)
    assert loop.sizes() == [(1, None), (2, None), (3, None)]


def test_batches_without_a_loader_belong_to_the_next_step() -> None:
    loop = Loop()
    for samples in (1, 2, 3, 4):
        loop.say(samples).train()
    assert loop.sizes() == [(1, None), (2, None), (3, None), (4, None)]


def test_explicit_step_may_have_its_amounts() -> None:
    loop = Loop()
    for tokens in (None, 7):
        loop.fetch(BatchSize(8, 40)).say(samples=1).train().end_step(samples=5, tokens=tokens)
    # Nothing was said of the first step's tokens until then, so what was read stands.
    assert loop.sizes() == [(5, 40), (5, 7)]


# -- evaluations that the user marks ----------------------------------------------------------------------------------


def test_marked_evaluation_between_steps_belongs_to_none() -> None:
    loop = Loop().fetch().train().fetch().train().evaluate().fetch().train()
    records = loop.finish()
    assert [record.duration_ns for record in records] == [340, 340, 340]
    assert records[2].start_host_ns - records[1].end_host_ns == 5_000
    assert loop.pauses == 1


def test_training_without_a_loader_resumes_after_evaluation() -> None:
    records = Loop().train().train().evaluate().train().finish()
    assert records[-1].phases_ns["forward"] == 100
    assert records[-1].duration_ns == 330


def test_marked_evaluation_amid_a_step_is_a_phase_of_it() -> None:
    loop = Loop().fetch().train().fetch().evaluate(700).train()
    records = loop.finish()
    assert records[1].phases_ns[EVALUATION] == 700
    assert records[1].duration_ns == 340 + 700
    assert loop.pauses == 1


def test_evaluation_after_an_explicit_step_belongs_to_none() -> None:
    loop = Loop().fetch().train().end_step().evaluate().fetch().train().end_step()
    records = loop.finish()
    assert [record.duration_ns for record in records] == [340, 340]
    assert loop.boundaries == [1, 1, 2]  # the step that the evaluation undid has its boundary again


def test_first_explicit_step_ends_all_since_the_last_detected() -> None:
    loop = Loop().fetch()
    for _ in range(3):
        loop.train().fetch().end_step()  # each batch is fetched ahead
    records = loop.finish()
    assert [(record.duration_ns, record.backwards) for record in records] == [(350, 1), (340, 1), (340, 1)]
    assert loop.boundaries == [1, 2, 3]


# -- a framework that says where steps end ----------------------------------------------------------------------------


def test_switching_to_explicit_steps_counts_no_step_twice() -> None:
    loop = Loop().fetch().train()
    loop.timer.user.begin_explicit_steps(loop.wait(7).now_ns)
    for _ in range(3):
        loop.fetch().train().wait(5).end_step()
    loop.timer.user.end_explicit_steps(loop.wait(900).now_ns)
    loop.fetch().train().fetch().train()
    records = loop.finish()
    assert [record.step for record in records] == list(range(1 + 3 + 2))
    assert [record.duration_ns for record in records] == [340 + 7, 345, 345, 345, 340, 340]


def test_prefetched_batch_without_gradients_is_not_counted() -> None:
    loop = Loop()
    loop.timer.user.begin_explicit_steps(loop.now_ns)
    loop.fetch(BatchSize(8)).train().end_step()
    loop.fetch(BatchSize(99), training=False).evaluate().fetch(BatchSize(8)).train().end_step()
    assert [(record.batches, record.samples, EVALUATION in record.phases_ns) for record in loop.finish()] == [
        (1, 8, False),
        (1, 8, False),
    ]
