"""A real training with TorchHooks, on the stand-in for CUDA."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks
from rankscope.measure.records import StepRecord
from tests.cuda_stand_in import StandInCuda
from tests.cuda_stand_in.suite import FixedPlan

BATCHES = 6
FORWARD_NS, BACKWARD_NS = 3_000_000, 5_000_000


class Training:
    """A model of one layer whose forward and backward keep the device busy, with hooks as the session installs them."""

    def __init__(self, *, has_peers: bool = False) -> None:
        self.cuda = StandInCuda()
        self.records: list[StepRecord] = []
        self.guard = Guard(1)
        self.captures = GraphCaptures(self.cuda.is_current_stream_capturing)
        self.timers = DeviceTimers(
            self.cuda,
            FixedPlan(1),
            self.guard,
            self.records.append,
            captures=self.captures,
            has_peers=lambda: has_peers,
            read_clock_ns=self.cuda.read_clock_ns,
        )
        self.timer = StepTimer(
            self.timers.on_record, self.timers.on_boundary, self.timers.on_pause,
            on_charge=self.timers.on_charge, read_clock_ns=self.timers.read_event_ns,
        )  # fmt: skip
        self.hooks = TorchHooks(
            self.timer, self.guard, lambda _begins: None, device_timers=self.timers, captures=self.captures
        )
        self.model = nn.Linear(4, 1)
        self.model.weight.register_hook(lambda _gradient: self.cuda.work(BACKWARD_NS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = DataLoader(TensorDataset(torch.ones(2 * BATCHES, 4)), batch_size=2)

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.cuda.work(FORWARD_NS)
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def train(self, step: Callable[[Tensor], None] | None = None) -> list[StepRecord]:
        for (batch,) in self.batches:
            (step or self.step)(batch)
        self.cuda.now_ns = max(self.cuda.now_ns, self.cuda.stream.busy_until_ns)
        self.hooks.catch_up()
        self.timer.finish()
        self.timers.close()
        return self.records
