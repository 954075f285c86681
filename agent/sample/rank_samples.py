"""The samplers of one rank: of its process, its GPU and torch's allocator, and in one rank of a node of the machine."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.sample.host import GcMeter, HostSampler
from rankscope.agent.sample.loop import SampleLoop
from rankscope.agent.sample.node import NodeSampler
from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.agent.sample.out_of_memory import OutOfMemoryWatch
from rankscope.agent.sample.step_flops import StepFlopsReader
from rankscope.agent.sample.torch_device import TrainingDevice, is_built_for_amd
from rankscope.agent.sample.torch_memory import TorchMemorySampler
from rankscope.agent.steps.device_timers import find_cuda
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.clock import Clock
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, NodeSample, StepRecord
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.sample.amd import AmdSampler


class RankSamples:
    """The samplers of one rank and their last results. Used on the agent thread, but for `find_resident_bytes` and
    `flops`.

    The rank that `reads_machine` samples the machine too, for all ranks of the node.
    """

    def __init__(
        self, config: AgentConfig, clock: Clock, guard: Guard, device: TrainingDevice, *, reads_machine: bool = True
    ) -> None:
        self._gc_meter = GcMeter()
        self._host = HostSampler(clock, self._gc_meter)
        self._devices = _make_device_sampler(clock, device)
        samplers: dict[str, Callable[[], Any]] = {"host": self._host.sample}
        if config.gpu:
            samplers["gpu"] = self._devices.sample
        cuda = find_cuda()
        self.out_of_memory = OutOfMemoryWatch(clock, guard, cuda)
        self._torch_memory = None if cuda is None else TorchMemorySampler(clock, device.seen, cuda)
        if self._torch_memory is not None:
            samplers["torch_memory"] = self._torch_memory.sample
        if config.node_samples and reads_machine:
            samplers["node"] = NodeSampler(clock).sample
        self.flops = ModelFlops()
        """The FLOPs of the steps, which the training thread adds."""
        self.step_flops = StepFlopsReader(self.flops, device.seen, config.peak_tflops)
        self._node_reported: NodeSample | None = None
        # A slow sampler is no news for the user: not logged.
        self.loop: SampleLoop[Any] = SampleLoop(
            samplers, clock, s_to_ns(config.sample_interval_s), guard.record, on_notice=lambda _text: None
        )

    @property
    def host(self) -> HostSample | None:
        """The last sample of the process."""
        return self.loop.latest.get("host")

    @property
    def devices(self) -> tuple[DeviceSample, ...]:
        """The last sample of the GPU; empty if there is none."""
        return self.loop.latest.get("gpu") or ()

    @property
    def allocator(self) -> AllocatorSample | None:
        """The last sample of torch's allocator, with the steps by which its peak was reached as known by now."""
        last: AllocatorSample | None = self.loop.latest.get("torch_memory")
        return last if last is None or self._torch_memory is None else self._torch_memory.with_peak_steps(last)

    def add_steps(self, steps: Sequence[StepRecord]) -> None:
        """Add the records of steps that have ended."""
        if self._torch_memory is not None:
            self._torch_memory.add_steps(steps)

    def pop_node(self) -> NodeSample | None:
        """Return the last sample of the machine once; None until there is a newer one, and in all other ranks."""
        found: NodeSample | None = self.loop.latest.get("node")
        if found is self._node_reported:
            return None
        self._node_reported = found
        return found

    def find_resident_bytes(self) -> int | None:
        """Return the resident memory of this process, None if it cannot be read. For the training thread."""
        return self._host.find_resident_bytes()

    def start(self) -> None:
        """Begin to measure pauses of the garbage collector."""
        self._gc_meter.install()

    def run(self, now_ns: int, *, last: bool) -> None:
        """Run the samplers that are due; before the last report all, so that it has the final state."""
        if last:
            self.loop.run_all(now_ns)
        elif self.loop.due(now_ns):
            self.loop.run(now_ns)

    def stop(self) -> None:
        """Stop measuring pauses of the garbage collector, and noting errors of the allocator."""
        self._gc_meter.remove()
        self.out_of_memory.stop()

    def close(self) -> None:
        """Close the files and libraries of the samplers."""
        self._devices.close()
        self._host.close()


def _make_device_sampler(clock: Clock, device: TrainingDevice) -> "NvmlSampler | AmdSampler":
    if not is_built_for_amd():
        return NvmlSampler(clock, device.uuid)
    from rankscope.agent.sample.amd import AmdSampler  # noqa: PLC0415 - only for AMD GPUs, to keep the start short

    return AmdSampler(clock, device.seen)
