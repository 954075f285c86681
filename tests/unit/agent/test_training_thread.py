"""TrainingThread and the user's calls on the real torch: records, counts, and that nothing of them raises."""

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent import training_thread
from rankscope.agent.config import read_config
from rankscope.agent.governor import Allowance
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.window_scheduler import ANOTHER_THREAD
from rankscope.agent.run_report import FAILED, NOT_FOUND, VALUES, RunReport, build_report
from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.agent.steps import event_buffer
from rankscope.agent.steps.early_events import SETTLED_STEPS
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.agent.training_thread import TrainingThread
from rankscope.agent.user_calls import BATCH_SIZES, MODEL_FLOPS, PART, REPORT, UserCalls
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S
from tests.unit.agent.interruptions import interrupt_each_line
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

SETTINGS = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"}
BATCH = 4


PAID = Allowance(windows_ratio=0.005, budget_left_ns=0, elapsed_ns=16 * NS_PER_S)
"""When 0.5 % of the time pays for 80 ms."""

ENTRY_LINES = 8
"""Of a call that ends something, before it is carried out again where it is interrupted."""


class Rank:
    """A training thread without windows, a loop of one layer, and the user's calls."""

    def __init__(self, **settings: str) -> None:
        self.guard = Guard(error_budget=3)
        self.flops = ModelFlops()
        config = read_config({**SETTINGS, **settings})
        self.training = TrainingThread(
            config,
            identity_of(0, pid=1),
            {},
            self.guard,
            TrainingDevice(),
            find_resident_bytes=lambda: None,
            on_step=self.flops.add,
        )
        self.calls = UserCalls(self.training, self.guard, self.flops, lambda: build_report("bert", 0, NOT_FOUND, 0))
        self.model: nn.Module = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.ones(256 * BATCH, 4)), batch_size=BATCH)
        self.batches = iter(self.loader)

    def train(self, steps: int) -> None:
        """Train so many steps."""
        for _ in range(steps):
            (rows,) = next(self.batches)
            self.optimizer.zero_grad()
            self.model(rows).sum().backward()
            self.optimizer.step()

    def drain(self) -> list[StepRecord]:
        """Return the finished records, as the agent thread does."""
        self.training.hooks.buffer.flush_deferred()
        return self.training.steps.drain()


def test_cost_is_that_of_every_part_in_the_training_thread() -> None:
    training = Rank().training
    before_ns = training.spent_ns
    ends: Any = SimpleNamespace(spent_ns=5)
    training.backward_ends = ends
    assert training._backward_clock is not None
    training._backward_clock.spent_ns += 7
    assert training.spent_ns - before_ns == 12


def test_blocks_found_anew_lose_old_hooks_and_the_cost_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_thread, "LAYERS_SOUGHT", (1, 16))

    def make_blocks() -> nn.ModuleList:
        return nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4))

    gc.collect()  # models of earlier tests
    rank = Rank(RANKSCOPE_CONSTANT_WARMUP_STEPS="1")
    blocks, others = make_blocks(), make_blocks()
    rank.training.windows.plan.allow(PAID)
    rank.training.start()
    rank.train(4)
    rank.training.read_layers()
    rank.train(20)
    rank.drain()
    first = rank.training._layers
    assert first is not None
    first.on_boundary(first.plan.find_next(64))
    hooks = [hook for block in blocks for hook in (block._forward_hooks, block._forward_pre_hooks)]
    assert all(hooks)
    spent_ns = rank.training.spent_ns
    del others
    gc.collect()
    rank.training.read_layers()
    assert rank.training._layers is not first
    assert not any(hooks)
    assert rank.training.spent_ns >= spent_ns
    rank.training.stop()
    assert rank.guard.errors == {}


def test_blocks_are_looked_for_once_the_budget_has_paid_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    rank = Rank(RANKSCOPE_CONSTANT_WARMUP_STEPS="1")
    monkeypatch.setattr(rank.training, "_find_layers", lambda: looks.append(1))
    rank.training.start()
    rank.train(4)
    rank.drain()
    for elapsed_ns, count in ((PAID.elapsed_ns - 1, 0), (PAID.elapsed_ns, 1), (2 * PAID.elapsed_ns, 1)):
        rank.training.windows.plan.allow(PAID._replace(elapsed_ns=elapsed_ns))
        rank.training.read_layers()
        assert len(looks) == count
    rank.training.stop()


@pytest.mark.parametrize(("layers", "windows"), [(1, 1), (2_000, 0)], ids=["small", "large"])
def test_first_full_window_is_of_a_step_that_the_budget_pays_for(layers: int, windows: int) -> None:
    rank = Rank(RANKSCOPE_FULL_WINDOWS="1", RANKSCOPE_MEASURE_FLOPS="0")
    rank.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    rank.optimizer = torch.optim.SGD(rank.model.parameters(), lr=0.1)
    rank.training.start()
    rank.train(10)
    plan = rank.training.windows.plan
    # A layer is 2 nodes of 12 events and 2 tensors of 30; the loss is one node more.
    assert plan.events_a_step == 84 * layers + 12
    rank.training.stop()
    assert len(rank.training.windows.finished) == windows
    assert rank.guard.errors == {}


def test_sessions_wait_until_training_has_settled_on_a_thread() -> None:
    training = Rank().training
    assert training._has_settled(0)
    with ThreadPoolExecutor(1) as pool:
        settled = [pool.submit(training._has_settled, step).result() for step in (1, SETTLED_STEPS, SETTLED_STEPS + 1)]
    assert settled == [False, False, True]
    assert not training._has_settled(SETTLED_STEPS + 2)


@pytest.mark.parametrize("returns", [True, False])
def test_former_threads_session_is_discarded_and_sessions_resume(*, returns: bool) -> None:
    rank = Rank(RANKSCOPE_COLLECTIVE_WINDOWS="1", RANKSCOPE_CONSTANT_WARMUP_STEPS="1")
    rank.training.start()
    original, scheduler = torch.autograd.Variable._execution_engine, rank.training.windows.scheduler
    assert scheduler is not None
    with ThreadPoolExecutor(1) as second:
        with ThreadPoolExecutor(1) as first:
            while scheduler.thread is None:
                first.submit(rank.train, 1).result()
            second.submit(rank.train, 1).result()
            assert (scheduler.skipped, scheduler.thread is None) == ({ANOTHER_THREAD: 1}, False)
            assert torch.autograd.Variable._execution_engine is not original  # it asks the first thread
            if returns:
                first.submit(rank.train, 1).result()
                assert scheduler.thread is None
        assert scheduler.thread is None
        assert torch.autograd.Variable._execution_engine is original
        settled_from = rank.training.timer.step + SETTLED_STEPS - 1
        while scheduler.thread is None:
            second.submit(rank.train, 1).result()
        assert rank.training.timer.step >= settled_from
    assert scheduler.thread is None  # it was ended with its thread
    assert scheduler.skipped == {ANOTHER_THREAD: 1}
    rank.training.stop()
    assert rank.guard.errors == {}


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    rank.training.start()
    yield rank
    rank.training.stop()


def test_steps_become_records_and_the_last_ends_at_stop(rank: Rank) -> None:
    rank.train(5)
    assert [one.step for one in rank.drain()] == [0, 1, 2, 3]
    rank.training.stop()
    assert [(one.step, one.samples) for one in rank.drain()] == [(4, BATCH)]
    assert rank.guard.errors == {}


def test_counts_add_up_with_records_that_nobody_has_read() -> None:
    rank = Rank(RANKSCOPE_CONSTANT_RING_STEPS_MAX="64")
    rank.training.start()
    rank.train(3)
    reported = len(rank.drain())
    rank.train(2)
    rank.training.stop()
    assert rank.training.count_records(reported) == (5, 0, 3)
    rank.drain()
    assert rank.training.count_records(5) == (5, 0, 0)


def test_nothing_is_measured_before_the_start_and_after_the_end(rank: Rank) -> None:
    rank.training.stop()
    before = rank.training.count_events()
    rank.train(3)
    rank.calls.end_step(samples=3, tokens=None)
    rank.calls.begin_phase("checkpoint")
    rank.calls.end_phase()
    assert rank.drain() == []
    assert rank.training.count_events() == before
    assert rank.guard.errors == {}


def test_a_step_is_cut_at_the_user_s_call_with_the_declared_size(rank: Rank) -> None:
    for _ in range(2):
        rank.train(3)
        rank.calls.end_step(samples=77, tokens=700)
    assert [(one.batches, one.samples, one.tokens) for one in rank.drain()][-1] == (3, 77, 700)


def test_a_size_that_fails_costs_the_size_and_not_the_step(rank: Rank) -> None:
    class Broken:
        def __index__(self) -> int:
            raise RuntimeError("no size")

    rank.train(1)
    rank.calls.end_step(samples=Broken(), tokens=None)  # type: ignore[arg-type]
    assert [one.samples for one in rank.drain()] == [BATCH]
    assert rank.guard.errors == {BATCH_SIZES: 1}


def test_declared_flops_count_from_the_open_step_on(rank: Rank) -> None:
    rank.train(2)
    rank.calls.declare_flops(7, None, None)
    rank.train(3)
    steps = rank.drain()
    assert len(steps) == 4
    declared_ns = sum(one.duration_ns for one in steps[1:])
    assert rank.flops.totals.model == (3 * 7, 3, declared_ns)


def test_declaration_that_cannot_be_used_is_logged_once(rank: Rank, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        rank.calls.declare_flops("1e12", None, None)
    rank.calls.declare_flops(5, None, None)
    rank.train(2)
    assert rank.guard.errors == {MODEL_FLOPS: 2}
    assert capfd.readouterr().err.count("per_step is of type str; it must be a number of FLOPs") == 1
    rank.drain()
    assert rank.flops.totals.model.flops == 5


def test_an_evaluation_within_training_belongs_to_no_step(rank: Rank) -> None:
    rank.train(2)
    rank.calls.begin_evaluation()
    rank.calls.begin_evaluation()  # a nested one
    rank.train(3)
    rank.calls.end_evaluation()
    rank.train(1)
    rank.calls.end_evaluation()
    rank.train(2)
    rank.calls.end_evaluation()  # one too many
    rank.training.stop()
    assert [one.batches for one in rank.drain()] == [1, 1, 1, 1]


def test_a_phase_of_the_user_s_is_in_the_step(rank: Rank) -> None:
    rank.train(1)
    rank.calls.begin_phase("checkpoint")
    rank.calls.end_phase()
    rank.train(1)
    (first,) = rank.drain()
    assert first.phases_ns["checkpoint"] > 0


@pytest.mark.parametrize("is_phase", [True, False])
def test_steps_after_a_call_interrupted_at_any_line_are_as_ever(*, is_phase: bool) -> None:
    def make() -> Rank:
        rank = Rank()
        rank.training.start()
        rank.train(2)
        return rank

    def use(rank: Rank) -> None:
        with contextlib.ExitStack() as stack:  # the script's `with`, whose exit follows its begin
            if is_phase:
                rank.calls.begin_phase("checkpoint")
                stack.callback(rank.calls.end_phase)
            else:
                rank.calls.begin_evaluation()
                stack.callback(rank.calls.end_evaluation)

    lasting: list[int] = []

    def check(rank: Rank, _came_out: object) -> None:
        rank.train(4)
        rank.training.stop()
        records = rank.drain()
        lasting.append(len(records) < 5 or "checkpoint" in records[-1].phases_ns)
        assert rank.guard.errors == {}

    assert interrupt_each_line(make, use, check) > 200
    assert sum(lasting) <= ENTRY_LINES


def test_evaluation_or_phase_whose_begin_raised_has_ended(rank: Rank) -> None:
    for begin in (rank.calls.begin_evaluation, lambda: rank.calls.begin_phase("checkpoint")):
        rank.train(2)
        rank.guard.hold(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            begin()
        rank.train(2)
    records = rank.drain()
    assert [one.batches for one in records] == [1] * 7
    assert "checkpoint" not in records[-1].phases_ns


def test_a_framework_s_steps_end_at_its_calls_only(rank: Rank) -> None:
    rank.calls.use_explicit_steps()
    rank.train(3)
    assert rank.drain() == []
    rank.calls.end_step(samples=None, tokens=None)
    assert [one.backwards for one in rank.drain()] == [3]
    rank.calls.resume_auto_steps()
    rank.train(2)
    assert [one.backwards for one in rank.drain()] == [1]


def test_throughput_counts_what_was_trained(rank: Rank) -> None:
    rank.train(20)
    found = rank.calls.find_throughput(last_steps=4)
    assert found is not None
    assert found.steps == 4


def test_hooks_that_are_switched_off_count_no_events(rank: Rank) -> None:
    rank.train(2)
    assert (rank.training.count_events() or 0) > 0
    for _ in range(4):
        rank.guard.record(event_buffer.PART, RuntimeError("torch has changed"))
    assert rank.training.count_events() is None
    rank.train(2)
    assert rank.drain() == []


def test_calls_stop_after_too_many_errors_of_their_own(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_now_ns: int, _name: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rank.training.timer.user, "begin_phase", fail)
    for _ in range(8):
        rank.calls.begin_phase("checkpoint")
    assert rank.guard.errors == {PART: 3}
    rank.train(2)
    assert len(rank.drain()) == 1


def test_report_that_cannot_be_read_is_absent_and_counted(rank: Rank) -> None:
    def fail() -> RunReport:
        raise AttributeError("no connection")

    calls = UserCalls(rank.training, rank.guard, rank.flops, fail)
    reports = [calls.read_report() for _ in range(5)]
    assert all(report["absent"]["mfu"] == FAILED and report["findings"] is None for report in reports)
    assert set(reports[0]["absent"]) >= set(VALUES)
    assert rank.guard.errors[REPORT] == 3  # the budget
