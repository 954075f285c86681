"""InjectedFault in a real training of one layer: in which steps and phases it acts, and that it acts in no other."""

import os
import threading
import time

import pytest
import torch
import torch.utils.data.dataloader as loader_module
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.config import read_config
from rankscope.agent.fault_spec import FaultSpec, parse_fault
from rankscope.agent.faults.actions import Actions
from rankscope.agent.faults.injected_fault import NEVER, PART, InjectedFault, make_fault
from rankscope.agent.guard import Guard
from rankscope.agent.sample.torch_device import TrainingDevice
from rankscope.agent.training_thread import TrainingThread
from rankscope.measure.records import StepRecord
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

SETTINGS = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"}
SLEEP_NS = 30_000_000


class Noted(Actions):
    """Notes the step of the loop at each act, and sleeps so that the phase is seen; ends nothing."""

    def __init__(self, spec: FaultSpec, error: Exception | None = None) -> None:
        super().__init__(spec)
        self.loop_step = 0
        self.acted: list[int] = []
        self.ends = 0
        self._error = error

    def act(self) -> None:
        self.acted.append(self.loop_step)
        if self._error is not None:
            raise self._error
        time.sleep(SLEEP_NS / 1e9)

    def end(self) -> None:
        self.ends += 1


class Rank:
    """A training thread without windows, with a fault of which the acts are noted."""

    def __init__(self, fault: str, error: Exception | None = None) -> None:
        self.guard = Guard(error_budget=2)
        spec = parse_fault(fault)
        self.noted = Noted(spec, error)
        self.fault = InjectedFault(spec, self.guard, self.noted)
        self.training = TrainingThread(
            read_config(SETTINGS), identity_of(0, pid=1), {}, self.guard, TrainingDevice(),
            find_resident_bytes=lambda: None, fault=self.fault,
        )  # fmt: skip

    def train(self, steps: int) -> list[StepRecord]:
        """Train so many steps from 0 on and return their records."""
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = iter(DataLoader(TensorDataset(torch.ones(4 * steps, 4)), batch_size=4))
        self.training.start()
        try:
            for step in range(steps):
                self.noted.loop_step = step
                (rows,) = next(batches)
                model(rows).sum().backward()
                optimizer.step()
        finally:
            self.training.stop()
        return self.training.steps.drain()


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_fault_is_in_its_steps_and_in_its_phase(phase: str) -> None:
    rank = Rank(f"rank=0 kind=host_sleep phase={phase} steps=3:5")
    records = rank.train(9)
    assert rank.noted.acted == [3, 4, 5]
    assert [record.step for record in records] == list(range(9))
    for record in records[3:6]:
        assert record.phases_ns[phase] >= SLEEP_NS, record
        others_ns = sum(taken_ns for name, taken_ns in record.phases_ns.items() if name != phase)
        assert record.duration_ns - others_ns >= SLEEP_NS
    assert rank.guard.errors == {}
    assert rank.noted.ends >= 1


def test_what_happens_once_happens_in_the_first_step_alone() -> None:
    rank = Rank("rank=0 kind=hang ms=1 steps=3:5")
    rank.train(9)
    assert rank.noted.acted == [3]


def test_an_error_of_the_fault_is_counted_and_training_goes_on() -> None:
    rank = Rank("rank=0 kind=host_sleep steps=2:8", OSError("no more processes"))
    assert len(rank.train(9)) == 9
    assert rank.noted.acted == [2, 3]
    assert rank.guard.errors == {PART: 2}


def test_torch_is_restored() -> None:
    before = torch.autograd.Variable._execution_engine, loader_module._BaseDataLoaderIter.__next__
    for phase in ("data", "forward", "backward", "optimizer"):
        Rank(f"rank=0 kind=host_sleep phase={phase} steps=1:1").train(3)
        assert (torch.autograd.Variable._execution_engine, loader_module._BaseDataLoaderIter.__next__) == before


def test_other_threads_are_left_alone() -> None:
    rank = Rank("rank=0 kind=host_sleep steps=0:9")
    rank.fault.install_inside(lambda: threading.main_thread().ident)
    rank.fault.install_outside()
    rank.fault.on_boundary(0)
    try:
        weight = nn.Parameter(torch.ones(1))
        other = threading.Thread(target=lambda: weight.sum().backward())
        other.start()
        other.join()
        assert rank.noted.acted == []
        weight.sum().backward()
        assert rank.noted.acted == [0]
    finally:
        rank.fault.remove_outside()


def test_boundaries_are_those_where_it_begins_and_ends() -> None:
    fault = InjectedFault(parse_fault("rank=0 kind=host_sleep steps=3:5"), Guard(1))
    assert [fault.find_next(step) for step in (-1, 0, 2)] == [3, 3, 3]
    assert fault.find_next(3) == 4, "the boundary of step 3 was missed"
    fault.on_boundary(4)
    assert [fault.find_next(step) for step in (4, 5, 6)] == [6, 6, 7]
    fault.on_boundary(6)
    assert fault.find_next(6) == NEVER
    fault.on_boundary(4)
    assert fault.find_next(4) == NEVER


def made_by(rank: int, allowed: str) -> InjectedFault | None:
    text = "rank=2 kind=host_sleep ms=50 steps=200:400"
    config = read_config({"RANKSCOPE_FAULT": text, "RANKSCOPE_FAULTS_ALLOWED": allowed})
    return make_fault(config, rank, Guard(1), {})


def test_a_fault_is_made_for_its_rank_alone_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert made_by(1, "1") is None
    assert capfd.readouterr().err == ""
    assert made_by(2, "1") is not None
    what = "host_sleep of 50 ms in the forward, steps 200 to 400"
    assert capfd.readouterr().err == (
        f"rankscope: a fault is injected on rank 2 on purpose (RANKSCOPE_FAULT): {what}\n"
    )


def test_a_fault_that_is_not_allowed_is_said_once_with_the_cure(capfd: pytest.CaptureFixture[str]) -> None:
    assert [made_by(rank, "0") for rank in range(3)] == [None] * 3
    said = capfd.readouterr().err
    assert said.count("not injected") == 1
    assert "Set RANKSCOPE_FAULTS_ALLOWED=1" in said


def test_a_forked_child_does_not_act() -> None:
    rank = Rank("rank=0 kind=host_sleep steps=0:9")
    rank.training.start()
    try:
        rank.fault.on_boundary(0)
        rank.training.stop_in_child()  # what the child calls after fork
        nn.Parameter(torch.ones(1)).sum().backward()
        assert rank.noted.acted == []
        assert rank.noted.ends == 0, f"process {os.getpid()} ended what its parent had started"
    finally:
        rank.training.stop()
