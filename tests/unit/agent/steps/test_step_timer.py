"""StepTimer: steps and phases from hook events, on a virtual clock of one tick per nanosecond."""

import operator

import pytest

from rankscope.agent.steps.step_recorder import PHASE_LENGTH_MAX
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.measure.records import StepRecord


class Loop:
    """A training loop on a clock of its own."""

    def __init__(self, phases_max: int = 16) -> None:
        self.now_ns = 1_000
        self.records: list[StepRecord] = []
        self.boundaries: list[int] = []
        self.pauses_ns: list[int] = []
        self.timer = StepTimer(
            self.records.append,
            self.boundaries.append,
            lambda: self.pauses_ns.append(self.now_ns),
            phases_max=phases_max,
            read_clock_ns=lambda: self.now_ns,
            read_cpu_ns=lambda: self.now_ns // 2,
        )

    def wait(self, ticks: int) -> "Loop":
        self.now_ns += ticks
        return self

    def data(self, ticks: int = 10, *, training: bool = True, got_batch: bool = True, loader: int = 1) -> "Loop":
        self.timer.data_begin(self.now_ns, training=training)
        self.now_ns += ticks
        self.timer.data_end(self.now_ns, got_batch=got_batch, loader=loader)
        return self

    def backward(self, ticks: int = 200, *, cpu_ns: int | None = None) -> "Loop":
        begin_cpu_ns = None if cpu_ns is None else 70
        self.timer.backward_begin(self.now_ns, begin_cpu_ns)
        self.now_ns += ticks
        self.timer.backward_end(self.now_ns, None if cpu_ns is None else 70 + cpu_ns)
        return self

    def gradients(self, ticks: int = 200, *, keeps_graph: bool = False) -> "Loop":
        """Take gradients, as torch.autograd.grad does."""
        self.timer.gradients_begin(self.now_ns, self.timer.counts_gradients(keeps_graph))
        self.now_ns += ticks
        self.timer.gradients_end(self.now_ns)
        return self

    def optimizer(self, ticks: int = 30, name: int = 1) -> "Loop":
        self.timer.optimizer_begin(self.now_ns, name)
        self.now_ns += ticks
        self.timer.optimizer_end(self.now_ns)
        return self

    def closure_optimizer(self, evaluations: int = 2) -> "Loop":
        self.timer.optimizer_begin(self.now_ns, 1)
        for _ in range(evaluations):
            self.wait(100).backward(200)
        self.wait(30)
        self.timer.optimizer_end(self.now_ns)
        return self

    def finish(self) -> list[StepRecord]:
        self.timer.finish()
        for record in self.records:
            assert sum(record.phases_ns.values()) == record.duration_ns
            assert min(record.phases_ns.values()) >= 0
        for before, after in zip(self.records, self.records[1:], strict=False):
            assert after.step == before.step + 1
            assert after.start_host_ns >= before.end_host_ns
        return self.records


def simple_step(loop: Loop) -> Loop:
    return loop.data(10).wait(100).backward(200).wait(5).optimizer(30).wait(7)


def test_simple_loop_gives_every_phase_its_time() -> None:
    loop = Loop()
    for _ in range(3):
        simple_step(loop)
    records = loop.finish()
    assert [record.step for record in records] == [0, 1, 2]
    assert records[1].phases_ns == {"data": 10, "forward": 100, "backward": 200, "optimizer": 30, "other": 5 + 7}
    assert (records[1].duration_ns, records[1].batches, records[1].backwards) == (352, 1, 1)


def test_last_step_of_the_script_ends_with_its_optimizer_step() -> None:
    records = simple_step(simple_step(Loop())).finish()
    assert records[-1].duration_ns == 10 + 100 + 200 + 5 + 30


def test_cpu_time_is_that_of_the_training_thread_within_the_step() -> None:
    loop = Loop()
    for _ in range(3):
        simple_step(loop)
    assert loop.finish()[1].cpu_ns == 352 // 2


def test_last_step_has_no_cpu_time_if_steps_end_at_a_batch() -> None:
    loop = Loop()
    for _ in range(3):
        simple_step(loop)
    assert [record.cpu_ns for record in loop.finish()] == [352 // 2, 352 // 2, None]


def test_without_a_loader_cpu_time_ends_at_the_optimizer_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.wait(100).backward(200).optimizer(30)
    records = loop.finish()
    assert [record.cpu_ns for record in records] == [record.duration_ns // 2 for record in records]


@pytest.mark.parametrize(
    ("of_each", "expected"), [((50,), 50), ((50, 30), 80), ((50, None), None), ((None, 50), None), ((), None)]
)
def test_backward_cpu_time_is_the_sum_if_each_backward_was_read(
    of_each: tuple[int | None, ...], expected: int | None
) -> None:
    loop = Loop().data(10)
    for cpu_ns in of_each:
        loop.wait(100).backward(200, cpu_ns=cpu_ns)
    record = loop.optimizer(30).data(10).wait(100).backward(200).optimizer(30).finish()[0]
    assert record.backward_cpu_ns == expected


def test_backward_cpu_time_covers_the_whole_cycle_of_optimizers() -> None:
    loop = Loop()
    for _ in range(3):
        loop.data().wait(100).backward(200, cpu_ns=50).optimizer(name=1).wait(50).backward(90, cpu_ns=30)
        loop.optimizer(name=2)
    assert [record.backward_cpu_ns for record in loop.finish()] == [80, 80, 80]


def test_gradient_accumulation_is_one_step_of_several_batches() -> None:
    loop = Loop()
    for _ in range(2):
        for _ in range(4):
            loop.data(10).wait(100).backward(200)
        loop.optimizer(30)
    records = loop.finish()
    assert [(r.batches, r.backwards, r.phases_ns["forward"]) for r in records] == [(4, 4, 400), (4, 4, 400)]


def test_two_optimizers_make_one_step_from_the_first_cycle_on() -> None:
    loop = Loop()
    for _ in range(4):
        loop.data(10).wait(100).backward(200).optimizer(30, name=1).wait(50).backward(100).optimizer(20, name=2)
    records = loop.finish()
    assert len(records) == 4
    assert records[0].phases_ns == records[2].phases_ns
    assert records[2].phases_ns == {"data": 10, "forward": 150, "backward": 300, "optimizer": 50, "other": 0}


def test_two_optimizers_with_a_batch_each_make_one_step() -> None:
    loop = Loop()
    for _ in range(4):
        loop.data().wait(100).backward().optimizer(name=1).data().wait(50).backward().optimizer(name=2)
    assert [record.batches for record in loop.finish()] == [2, 2, 2, 2]


def test_rare_generator_steps_do_not_delay_steps() -> None:
    loop = Loop()
    for index in range(9):
        loop.data().wait(100).backward().optimizer(name=1)
        if index % 3 == 2:
            loop.wait(50).backward().optimizer(name=2)
    assert len(loop.finish()) == 9


def test_without_a_loader_the_forward_belongs_to_its_own_step() -> None:
    loop = Loop()
    for ticks in (100, 100, 900, 100):
        loop.wait(ticks).backward(200).optimizer(30)
    records = loop.finish()
    assert [record.phases_ns["forward"] for record in records] == [0, 100, 900, 100]
    assert loop.boundaries == [2, 3, 4]


def test_closure_has_forward_and_backward_inside_the_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.data(10).closure_optimizer(evaluations=2)
    records = loop.finish()
    assert records[1].phases_ns == {"data": 10, "forward": 200, "backward": 400, "optimizer": 30, "other": 0}
    assert [record.backwards for record in records] == [2, 2, 2]


def test_closure_without_a_loader_still_ends_each_step() -> None:
    loop = Loop()
    for _ in range(4):
        loop.closure_optimizer(evaluations=3).wait(9)
    assert [record.backwards for record in loop.finish()] == [3, 3, 3, 3]


def test_skipped_optimizer_step_joins_the_batch_to_the_next_step() -> None:
    loop = simple_step(Loop())
    loop.data(10).wait(100).backward(200)
    simple_step(loop)
    assert [record.batches for record in simple_step(loop).finish()] == [1, 2, 1]


def test_burst_of_optimizer_steps_is_one() -> None:
    loop = Loop()
    for _ in range(3):
        loop.data(10).wait(100).backward(200).optimizer(30).optimizer(30).optimizer(30)
    assert [record.phases_ns["optimizer"] for record in loop.finish()] == [90, 90, 90]


def test_evaluation_between_steps_belongs_to_no_step() -> None:
    loop = simple_step(simple_step(Loop()))
    for _ in range(5):
        loop.data(10, training=False).wait(1_000)
    loop.data(1, training=False, got_batch=False)
    records = simple_step(simple_step(loop)).finish()
    assert [record.duration_ns for record in records] == [352, 352, 352, 345]
    assert records[2].start_host_ns - records[1].end_host_ns == 5 * 1_010 + 1


def test_evaluation_ends_an_open_cycle_of_optimizers() -> None:
    loop = Loop().data(10).backward(200).optimizer(30, name=1)
    loop.data(10, training=False).wait(1_000)
    records = loop.data(10).backward(200).optimizer(30, name=2).finish()
    assert [record.duration_ns for record in records] == [240, 240]


def test_evaluation_pauses_once_and_then_a_boundary_follows() -> None:
    loop = simple_step(simple_step(Loop()))
    evaluation_ns = loop.now_ns
    loop.data(10, training=False).data(10, training=False).data(1, training=False, got_batch=False)
    simple_step(simple_step(loop)).finish()
    assert loop.pauses_ns == [evaluation_ns]
    assert loop.boundaries == [2, 3]  # the first step's end was not yet certain, so that 1 was not announced


def evaluate_loader(loop: Loop, *, loader: int) -> Loop:
    """Run an evaluation with gradients off around the model only, as Transformers' Trainer does: 3,031 ticks."""
    for _ in range(3):
        loop.data(10, loader=loader).wait(1_000)
    return loop.data(1, got_batch=False, loader=loader)


def test_evaluation_with_gradients_on_belongs_to_no_step() -> None:
    loop = evaluate_loader(simple_step(simple_step(Loop())), loader=2)
    records = simple_step(simple_step(loop)).finish()
    assert [record.duration_ns for record in records] == [352, 352, 352, 345]
    assert [record.batches for record in records] == [1, 1, 1, 1]
    assert records[2].start_host_ns - records[1].end_host_ns == 3_031


def test_two_evaluations_before_training_belong_to_no_step() -> None:
    loop = evaluate_loader(evaluate_loader(Loop(), loader=2), loader=3)
    records = simple_step(loop).finish()
    assert [(record.batches, record.duration_ns) for record in records] == [(1, 345)]


def test_evaluation_with_gradients_on_is_detected_at_training() -> None:
    loop = simple_step(simple_step(simple_step(Loop())))
    evaluate_loader(loop, loader=2)
    resumed_ns = loop.now_ns
    simple_step(loop).finish()
    assert loop.pauses_ns == [resumed_ns]
    assert loop.boundaries == [2, 3, 3]  # 3 was given up by the evaluation and began again after it


def test_epoch_fetched_before_its_first_backward_is_training() -> None:
    loop = Loop().data().data().data(1, got_batch=False)
    loop.backward().backward().optimizer()
    records = simple_step(loop).finish()
    assert [record.batches for record in records] == [2, 1]


def test_batch_is_kept_when_another_loader_is_exhausted() -> None:
    loop = simple_step(simple_step(Loop())).data(10, loader=1)
    evaluate_loader(loop, loader=2).data(10, loader=1).backward().optimizer()
    assert [record.batches for record in loop.finish()] == [1, 1, 1 + 3 + 1]


def test_fetch_that_ends_the_epoch_is_no_batch_and_no_step() -> None:
    loop = simple_step(simple_step(Loop()))
    loop.data(3, got_batch=False)
    records = simple_step(loop).finish()
    assert [record.batches for record in records] == [1, 1, 1]
    assert records[2].phases_ns["data"] == 13


def test_prefetching_loader_shifts_batches_but_not_steps() -> None:
    loop = Loop().data(10)
    for _ in range(3):
        loop.data(10).wait(100).backward(200).optimizer(30)
    loop.data(1, got_batch=False).wait(100).backward(200).optimizer(30)
    assert [record.batches for record in loop.finish()] == [2, 1, 1, 0]


def test_nested_backward_of_a_checkpoint_is_counted_once() -> None:
    loop = Loop()
    for _ in range(2):
        loop.data(10).wait(100)
        loop.timer.backward_begin(loop.now_ns)
        loop.wait(50).backward(100).wait(50)
        loop.timer.backward_end(loop.now_ns)
        loop.optimizer(30)
    records = loop.finish()
    assert [(r.backwards, r.phases_ns["backward"]) for r in records] == [(1, 200), (1, 200)]


# -- gradients that the script takes itself ---------------------------------------------------------------------------


def find_phases(record: StepRecord, *names: str) -> tuple[int, ...]:
    return tuple(record.phases_ns[name] for name in names)


@pytest.mark.parametrize("keeps_graph", [False, True])
def test_gradients_are_the_backward_of_a_loop_that_has_none(*, keeps_graph: bool) -> None:
    loop = Loop()
    for _ in range(4):
        loop.wait(100).gradients(200, keeps_graph=keeps_graph).wait(5).optimizer(30)
    records = loop.finish()
    assert [find_phases(one, "forward", "backward", "optimizer", "other") for one in records[1:]] == [
        (100, 200, 30, 5)
    ] * 3
    assert [one.backwards for one in records[1:]] == [1] * 3


def test_gradients_of_inputs_and_of_weights_are_both_backward() -> None:
    loop = Loop()
    for _ in range(3):
        for _ in range(2):
            loop.wait(100).gradients(120).gradients(80)
        loop.optimizer(30)
    last = loop.finish()[-1]
    assert (*find_phases(last, "forward", "backward"), last.backwards) == (200, 400, 4)


def test_stage_with_both_kinds_of_backward_has_one_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.wait(100).backward(200).wait(50).gradients(80).optimizer(30)
    records = loop.finish()
    assert [(one.backwards, *find_phases(one, "backward")) for one in records] == [(2, 280)] * 3


def test_gradient_penalty_before_a_backward_is_forward() -> None:
    loop = Loop()
    for _ in range(3):
        loop.data(10).wait(100).gradients(40, keeps_graph=True).wait(10).backward(200).optimizer(30)
    records = loop.finish()
    assert [(one.backwards, *find_phases(one, "forward", "backward")) for one in records] == [(1, 150, 200)] * 3


def test_gradients_after_the_optimizer_end_no_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.data(10).wait(100).backward(200).optimizer(30).wait(5).gradients(40).wait(5)
    records = loop.finish()
    assert [record.batches for record in records] == [1] * 3
    assert [*map(sum, [find_phases(one, "forward", "other") for one in records[:-1]])] == [110, 110]


def test_evaluation_that_takes_gradients_belongs_to_no_step() -> None:
    loop = Loop()
    for _ in range(2):
        simple_step(loop)
        for _ in range(3):
            loop.data(10, loader=2).wait(100).gradients(50)
        loop.data(1, got_batch=False, loader=2).wait(9)
    simple_step(loop)
    records = loop.finish()
    assert [(one.batches, one.backwards) for one in records] == [(1, 1)] * 3


def test_evaluation_without_gradients_on_lasts_over_those_taken() -> None:
    loop = Loop()
    for _ in range(2):
        simple_step(loop)
        loop.data(10, training=False).gradients(50).data(10, training=False).gradients(50)
    simple_step(loop)
    assert [one.duration_ns for one in loop.finish()][1:] == [352, 345]


def test_epoch_trained_by_gradients_is_no_evaluation() -> None:
    loop = Loop()
    for _ in range(3):
        for _ in range(2):
            loop.data(10).wait(100).gradients(200)
        loop.data(1, got_batch=False).optimizer(30)
    assert [one.batches for one in loop.finish()] == [2] * 3


def test_gradients_of_an_attack_are_backwards_of_the_same_step() -> None:
    loop = Loop()
    for _ in range(2):
        loop.data(10).wait(100).gradients(50).wait(100).backward(200).optimizer(30)
    records = loop.finish()
    assert [(one.backwards, *find_phases(one, "forward", "backward")) for one in records] == [(2, 200, 250)] * 2


def test_gradients_without_a_step_are_backwards_without_end() -> None:
    loop = Loop()
    for _ in range(3):
        loop.gradients()
    assert loop.timer.backwards_without_end == 3


def test_users_own_phase_takes_its_time_from_the_gaps_only() -> None:
    loop = simple_step(Loop())
    loop.data(10)
    loop.timer.user.begin_phase(loop.now_ns, "augment")
    loop.wait(40).data(5).wait(3)
    loop.timer.user.end_phase(loop.now_ns)
    loop.wait(100).backward(200).optimizer(30)
    records = simple_step(loop).finish()
    assert records[1].phases_ns["augment"] == 43
    assert (records[1].phases_ns["data"], records[1].phases_ns["forward"]) == (15, 100)


def test_too_many_phase_names_end_in_other() -> None:
    loop = simple_step(Loop(phases_max=1))
    for name in ("first", "second"):
        loop.timer.user.begin_phase(loop.now_ns, name)
        loop.wait(40)
        loop.timer.user.end_phase(loop.now_ns)
    phases_ns = simple_step(loop).finish()[0].phases_ns
    assert (phases_ns["first"], "second" in phases_ns, phases_ns["other"]) == (40, False, 40 + 5 + 7)


def test_phase_name_is_cut_to_the_length_of_a_label() -> None:
    loop = Loop()
    loop.timer.user.begin_phase(loop.now_ns, "x" * (PHASE_LENGTH_MAX + 1))
    loop.wait(40)
    loop.timer.user.end_phase(loop.now_ns)
    assert simple_step(loop).finish()[0].phases_ns["x" * PHASE_LENGTH_MAX] == 40


def test_phase_name_that_is_not_unicode_can_be_sent() -> None:
    loop = Loop()
    loop.timer.user.begin_phase(loop.now_ns, "loss \udcff")
    loop.wait(40)
    loop.timer.user.end_phase(loop.now_ns)
    assert simple_step(loop).finish()[0].phases_ns["loss ?"] == 40


def test_user_may_end_steps_explicitly() -> None:
    loop = Loop()
    for _ in range(3):
        simple_step(simple_step(loop))
        loop.timer.user.end_step(loop.now_ns)
    records = loop.finish()
    assert [record.batches for record in records[-2:]] == [2, 2]


def test_backwards_are_counted_until_something_ends_a_step() -> None:
    loop = Loop()
    for backwards in (1, 2, 3):
        loop.data().backward()
        assert loop.timer.backwards_without_end == backwards
    loop.optimizer()
    assert loop.timer.backwards_without_end == 0
    loop.data().backward()
    assert loop.timer.backwards_without_end == 0


def test_explicit_steps_have_no_backwards_without_end() -> None:
    loop = Loop()
    loop.backward()
    loop.timer.user.end_step(loop.now_ns)
    loop.backward()
    assert loop.timer.backwards_without_end == 0


def test_script_that_never_trains_has_no_steps() -> None:
    assert Loop().data().wait(10).data().finish() == []


def test_cost_of_a_boundary_is_charged_to_the_new_step() -> None:
    loop = Loop()
    loop.timer = StepTimer(
        loop.records.append, lambda _step: void(loop.wait(1_000)), read_clock_ns=lambda: loop.now_ns, read_cpu_ns=int
    )
    for _ in range(3):
        simple_step(loop)
    assert loop.finish()[2].phases_ns["other"] == 1_000 + 5


def void(_value: object) -> None:
    """Drop a value where a callable must return None."""


@pytest.mark.parametrize(
    "event", ["data_end", "backward_end", "optimizer_end", "user.end_phase", "user.end_evaluation", "finish"]
)
def test_an_end_without_its_begin_does_no_harm(event: str) -> None:
    loop = Loop()
    arguments = () if event == "finish" else (loop.now_ns,)
    operator.attrgetter(event)(loop.timer)(*arguments)
    simple_step(simple_step(loop))
    assert len(loop.finish()) == 2


def test_evaluation_after_an_explicit_step_pauses_the_next() -> None:
    loop = Loop().data(training=False)
    loop.timer.user.end_step(loop.wait(5).now_ns)
    loop.timer.user.begin_evaluation(loop.wait(5).now_ns)
    loop.timer.user.end_evaluation(loop.wait(5).now_ns)
    assert loop.boundaries == [1, 1]
    assert loop.pauses_ns == [1_000, 1_020]  # the fetch, and the evaluation: the boundary between them is undone


def test_place_is_the_open_step_and_its_phase() -> None:
    loop = Loop()
    assert loop.timer.find_place() == (None, "")
    loop.timer.data_begin(loop.now_ns)
    assert loop.timer.find_place() == (0, "data")
    loop.timer.data_end(loop.now_ns)
    assert loop.timer.find_place() == (0, "forward")
    loop.timer.user.begin_phase(loop.now_ns, "loss")
    assert loop.timer.find_place() == (0, "loss")
    loop.timer.backward_begin(loop.now_ns)
    assert loop.timer.find_place() == (0, "backward")
    loop.timer.backward_end(loop.now_ns)
    loop.timer.user.end_phase(loop.now_ns)
    assert loop.timer.find_place() == (0, "other")
    loop.timer.optimizer_begin(loop.now_ns, 1)
    assert loop.timer.find_place() == (0, "optimizer")
    loop.timer.optimizer_end(loop.now_ns)
    assert loop.timer.find_place() == (0, "other")


def test_place_after_a_step_that_may_have_ended_is_the_next_one() -> None:
    loop = Loop().backward().optimizer().wait(50)
    loop.timer.backward_begin(loop.now_ns)
    assert loop.timer.find_place() == (1, "backward")
