"""Compute how much memory a rank's GPU has left for tensors. Pure.

headroom = memory of the device - in use on it by all processes + reserved by torch and used by no tensor
"""

from rankscope.measure.records import AllocatorSample, DeviceSample


def find_device_headroom(device: DeviceSample | None, allocator: AllocatorSample | None) -> int | None:
    """Return the memory that tensors of a rank may still take, in bytes, at least 0; None where the device's memory is
    not known. Without a sample of torch's allocator, it is what the device has free.

    Not all of it fits one allocation: the pieces that torch has reserved and does not use may be small. Source: NVML's
    memory.total and memory.used, torch's reserved_bytes and allocated_bytes.

    >>> device = DeviceSample(host_ns=0, uuid="GPU", memory_total_bytes=80, memory_used_bytes=70)
    >>> find_device_headroom(device, AllocatorSample(host_ns=0, reserved_bytes=60, allocated_bytes=45))
    25
    >>> find_device_headroom(device, None), find_device_headroom(None, None)
    (10, None)
    """
    if device is None or device.memory_total_bytes is None or device.memory_used_bytes is None:
        return None
    unused = 0
    if allocator is not None and allocator.reserved_bytes is not None and allocator.allocated_bytes is not None:
        unused = max(0, allocator.reserved_bytes - allocator.allocated_bytes)
    return max(0, device.memory_total_bytes - device.memory_used_bytes) + unused
