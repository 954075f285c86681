"""Asks torch which GPUs it is built for, and which is that of the training thread."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class TorchDevice(msgspec.Struct, frozen=True):
    """The GPU of the training thread.

    `index` is torch's, among the devices visible to the process. `uuid` is NVIDIA's name of the GPU, for example
    'GPU-8f6d...'; None on AMD, whose management library uses another one. A slice (MIG) has the prefix 'GPU-' too,
    since torch does not distinguish slices. `pci_address` is for example '0000:c1:00.0'. Fields that an older torch
    lacks are None. `name` is for example 'NVIDIA H100 80GB HBM3'; that of a slice has 'MIG' in it.
    """

    index: int
    uuid: str | None
    pci_address: str | None
    is_amd: bool
    name: str | None = None


def is_built_for_amd(modules: Mapping[str, Any] = sys.modules) -> bool:
    """Return whether the imported torch is built for AMD GPUs (ROCm)."""
    version = getattr(modules.get("torch"), "version", None)
    return getattr(version, "hip", None) is not None


def may_have_device(modules: Mapping[str, Any] = sys.modules) -> bool:
    """Return False if torch is imported and built without GPU support: then read_torch_device never finds one."""
    version = getattr(modules.get("torch"), "version", None)
    return version is None or getattr(version, "cuda", None) is not None or is_built_for_amd(modules)


def read_torch_device(modules: Mapping[str, Any] = sys.modules) -> TorchDevice | None:
    """Return the GPU that the calling thread computes on; None if torch is not imported or has not used CUDA yet.

    Call it on the training thread: CUDA's current device is per thread, and other threads get device 0. It neither
    imports torch nor initializes CUDA. Errors of torch are passed on.
    """
    torch = modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while another thread is still importing torch
    if torch is None or cuda is None or not cuda.is_initialized():
        return None
    index = cuda.current_device()
    properties = cuda.get_device_properties(index)
    is_amd = is_built_for_amd(modules)
    uuid = None if is_amd else getattr(properties, "uuid", None)
    return TorchDevice(
        index=index,
        uuid=None if uuid is None else f"GPU-{uuid}",
        pci_address=_read_pci_address(properties),
        is_amd=is_amd,
        name=getattr(properties, "name", None),
    )


def _read_pci_address(properties: Any) -> str | None:
    domain, bus, device = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


class TrainingDevice:
    """The GPU of the training thread, remembered for the thread that samples."""

    def __init__(
        self,
        read_device: Callable[[], TorchDevice | None] = read_torch_device,
        may_have_device: Callable[[], bool] = may_have_device,
    ) -> None:
        self._read_device = read_device
        self._may_have_device = may_have_device
        self._device: TorchDevice | None = None
        self._is_known = False

    def observe(self) -> None:
        """Determine the GPU of this thread, until it is known. Call it repeatedly on the training thread."""
        if not self._is_known:
            self._device = self._read_device()
            self._is_known = self._device is not None or not self._may_have_device()

    def seen(self) -> TorchDevice | None:
        """Return the GPU, on any thread; None while it is not known."""
        return self._device

    def uuid(self) -> str | None:
        """Return its UUID for NvmlSampler; None while there is no NVIDIA GPU."""
        return None if self._device is None else self._device.uuid


def find_cuda() -> Any:
    """Return torch.cuda if torch is built for GPUs and has what is needed, else None. Does not initialize CUDA."""
    import torch  # noqa: PLC0415 - the user's torch, imported by now

    needed = ("Event", "CUDAGraph", "current_stream", "is_current_stream_capturing", "is_initialized")
    version = getattr(torch, "version", None)
    built = any(getattr(version, toolkit, None) is not None for toolkit in ("cuda", "hip"))
    return torch.cuda if built and all(hasattr(torch.cuda, name) for name in needed) else None


def is_current_stream_capturing() -> bool:
    """Return whether this thread's CUDA stream is being captured. Initializes nothing."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())
