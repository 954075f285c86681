"""Find the GPU of this process, as the agent does."""

from rankscope.agent.sample.torch_device import TrainingDevice


def observe_device() -> TrainingDevice:
    """Return the GPU that this thread's torch computes on; CUDA must be in use."""
    device = TrainingDevice()
    device.observe()
    return device
