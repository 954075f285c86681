"""The samplers of one rank: of its process, its GPU and torch's allocator, and in one rank of a node of the machine.

What samples a GPU is imported on the agent's thread, once the script has initialized CUDA.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard, is_debugging, log_line
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.sample.host import GcMeter, HostSampler
from rankscope.agent.sample.loop import SampleLoop
from rankscope.agent.sample.step_flops import StepFlopsReader
from rankscope.agent.sample.torch_device import TrainingDevice, find_cuda, is_built_for_amd
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.measure.clock import Clock
from rankscope.measure.identity import RankIdentity
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import (
    NO_COMPILATIONS,
    AllocatorSample,
    Compilations,
    DeviceSample,
    HostSample,
    NodeSample,
    StepRecord,
)
from rankscope.measure.units import s_to_ns

if TYPE_CHECKING:
    from rankscope.agent.sample.amd import AmdSampler
    from rankscope.agent.sample.compilations import CompilationReader
    from rankscope.agent.sample.nvml import NvmlSampler
    from rankscope.agent.sample.out_of_memory import OutOfMemoryWatch
    from rankscope.agent.sample.torch_memory import TorchMemorySampler

OUT_OF_MEMORY: Final = "out_of_memory"


class MemoryWatch(NamedTuple):
    """What an error of the GPU's allocator is told to, inside the allocation (`OutOfMemoryWatch.start`)."""

    add_event: Callable[..., None]
    find_place: Callable[[], tuple[int | None, str]]
    wake: Callable[[], None]
    identity: RankIdentity


class RankSamplers:
    """The samplers of one rank and their last results. Used on the agent thread, but for `find_resident_bytes` and
    `flops`.

    The rank that `reads_machine` samples the machine too, for all ranks of the node.
    """

    def __init__(
        self, config: AgentConfig, clock: Clock, guard: Guard, device: TrainingDevice, *, reads_machine: bool = True
    ) -> None:
        self._gc_meter = GcMeter()
        self._host = HostSampler(clock, self._gc_meter)
        self._config, self._clock, self._guard, self._device = config, clock, guard, device
        self._devices: NvmlSampler | AmdSampler | None = None
        samplers: dict[str, Callable[[], Any]] = {"host": self._host.sample}
        if config.gpu:
            samplers["gpu"] = self._sample_devices
        self._cuda = find_cuda()
        self._memory_watch: MemoryWatch | None = None
        self.out_of_memory: OutOfMemoryWatch | None = None
        """None until the script has initialized CUDA."""
        self._torch_memory = None if self._cuda is None else _make_allocator_sampler(clock, device, self._cuda)
        if self._torch_memory is not None:
            samplers["torch_memory"] = self._torch_memory.sample
        if config.node_samples and reads_machine:
            from rankscope.agent.sample.node import NodeSampler  # noqa: PLC0415 - in one rank of a node

            samplers["node"] = NodeSampler(clock).sample
        self.flops = ModelFlops()
        """The FLOPs of the steps, which the training thread adds."""
        self.step_flops = StepFlopsReader(self.flops, device.seen, config.peak_tflops)
        self._node_reported: NodeSample | None = None
        self._compilations: CompilationReader | None = None
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

    def _sample_devices(self) -> tuple[DeviceSample, ...]:
        if self._devices is None:
            if self._device.seen() is None:
                return ()
            with LATE_IMPORTS:
                self._devices = _make_device_sampler(self._clock, self._device)
        return self._devices.sample()

    def watch_memory(self, watch: "MemoryWatch") -> None:
        """Note errors of the GPU's allocator, by `attach_memory` once CUDA has been initialized."""
        self._memory_watch = watch

    def attach_memory(self) -> None:
        """Begin to note errors of the GPU's allocator, once CUDA has been initialized by the script; cheap when called
        again.
        """
        try:
            if self.out_of_memory is None:
                watch, cuda = self._memory_watch, self._cuda
                if watch is None or cuda is None or self._guard.is_off(OUT_OF_MEMORY) or not cuda.is_initialized():
                    return
                with LATE_IMPORTS:
                    from rankscope.agent.sample.out_of_memory import OutOfMemoryWatch  # noqa: PLC0415 - see above

                self.out_of_memory = OutOfMemoryWatch.make(self._clock, self._guard, cuda, self._config, watch.identity)
                self.out_of_memory.start(watch.add_event, watch.find_place, watch.wake)
            self.out_of_memory.attach()
            device = self._device.seen()
            if device is not None:
                self.out_of_memory.watch_headroom(device.index, self.devices, self.allocator)
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(OUT_OF_MEMORY, error)

    @property
    def has_memory_error(self) -> bool:
        """Whether there is an error of the GPU's allocator to report at once."""
        return self.out_of_memory is not None and self.out_of_memory.is_due

    def collect_memory_errors(self, *, last: bool) -> tuple[OutOfMemory, ...]:
        """Return the errors of the GPU's allocator since the last call."""
        return () if self.out_of_memory is None else self.out_of_memory.collect(last=last)

    def collect_compilations(self, steps: Sequence[StepRecord], *, last: bool) -> Compilations | None:
        """Return what torch.compile has done so far, also in these steps; None where this torch does not tell."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        kept = () if dynamo is None else getattr(dynamo, "_compilation_metrics", None)
        if self._compilations is None:
            if kept is None and last and is_debugging():
                log_line("this torch does not tell what torch.compile has compiled: it keeps no _compilation_metrics")
            if not kept:
                return None if kept is None else NO_COMPILATIONS
            with LATE_IMPORTS:
                from rankscope.agent.sample.compilations import CompilationReader  # noqa: PLC0415 - see above

            self._compilations = CompilationReader(self._clock, self._guard)
        return self._compilations.read(kept or (), steps, last=last)

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
        self._memory_watch = None
        if self.out_of_memory is not None:
            self.out_of_memory.stop()

    def close(self) -> None:
        """Close the files and libraries of the samplers."""
        if self._devices is not None:
            self._devices.close()
        self._host.close()


def _make_allocator_sampler(clock: Clock, device: TrainingDevice, cuda: Any) -> "TorchMemorySampler":
    """Return the sampler of the allocator, which sees all steps: by them it knows when the peak was reached."""
    from rankscope.agent.sample.torch_memory import TorchMemorySampler  # noqa: PLC0415 - only with a torch for GPUs

    return TorchMemorySampler(clock, device.seen, cuda)


def _make_device_sampler(clock: Clock, device: TrainingDevice) -> "NvmlSampler | AmdSampler":
    if not is_built_for_amd():
        from rankscope.agent.sample.nvml import NvmlSampler  # noqa: PLC0415 - see above

        return NvmlSampler(clock, device.uuid)
    from rankscope.agent.sample.amd import AmdSampler  # noqa: PLC0415 - only for AMD GPUs

    return AmdSampler(clock, device.seen)
