"""The GPU of this process, found as the agent finds it."""

from rankscope.agent.sample.torch_device import TrainingDevice


def observe_device() -> TrainingDevice:
    """The GPU that this thread's torch computes on; CUDA has to be in use."""
    device = TrainingDevice()
    device.observe()
    return device
