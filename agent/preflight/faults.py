"""Find faults in counters of the GPU and the network that need no comparison: errors, throttling, links that failed."""

from collections.abc import Sequence
from typing import Final

from rankscope.agent.preflight.results import ClockOffset
from rankscope.agent.sample.fabric import Interfaces, Ports, read_interfaces, read_ports
from rankscope.agent.sample.node import REAL_PLACES, Places
from rankscope.agent.sample.nvml import NvmlSampler
from rankscope.agent.sample.torch_device import read_torch_device
from rankscope.measure.clock import SystemClock
from rankscope.measure.records import DeviceSample

THROTTLED: Final = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)  # fmt: skip
"""Reasons by which a GPU under load is slower than it should be. A power cap is normal under load."""
CLOCK_OFFSET_S_MAX: Final = 0.1
"""A synchronized clock is within some ms. Logs are out of order by more, and tokens and leases may expire."""


def find_device_faults(sample: DeviceSample | None, load: DeviceSample | None) -> tuple[list[str], list[str]]:
    """Return faults and notes of a GPU, from a sample after all checks and one under load; None: NVML has none."""
    if sample is None:
        return [], []
    throttling = THROTTLED.intersection((load.throttle_reasons if load is not None else None) or ())
    faults = [f"its clock is throttled under load ({reason})" for reason in sorted(throttling)]
    if sample.ecc_uncorrected:
        faults.append(f"{sample.ecc_uncorrected} uncorrected ECC errors since the driver was loaded")
    if sample.remapping_failed:
        faults.append("the remapping of a memory row failed: the GPU has to be replaced")
    if sample.remapping_pending:
        faults.append("a memory row waits for its remapping: the GPU has to be reset")
    if sample.xid_count:
        faults.append(f"{sample.xid_count} Xid errors during the pre-flight, the last one {sample.xid_last}")
    width, width_max = sample.pcie_link_width, sample.pcie_link_width_max
    if width and width_max and width < width_max:
        faults.append(f"its PCIe link has {width} of {width_max} lanes")
    notes = [] if not sample.ecc_corrected else [f"{sample.ecc_corrected} corrected ECC errors of the GPU"]
    return faults, notes


def find_nvlink_note(before: DeviceSample | None, after: DeviceSample | None, ranks_of_node: int) -> list[str]:
    """Return a note where GPUs of a node have NVLink, and no byte went over it between the two samples."""
    if before is None or after is None or ranks_of_node < 2:  # noqa: PLR2004 - a rank alone has nobody to send to
        return []
    if (
        before.nvlink_tx_bytes is None
        or after.nvlink_tx_bytes is None
        or after.nvlink_tx_bytes > before.nvlink_tx_bytes
    ):
        return []
    return ["the node's all-reduce sent nothing over NVLink"]


def find_port_faults(before: Ports, after: Ports) -> tuple[list[str], list[str]]:
    """Return faults and notes of InfiniBand and RoCE ports from their counters before and after the checks."""
    faults: list[str] = []
    notes: list[str] = []
    earlier = {port.name: port for port in before.samples}
    for port in after.samples:
        if port.is_active is False:
            notes.append(f"port {port.name} is not active")
        known = earlier.get(port.name)
        for field, what in (
            ("link_downs", "went down"),
            ("link_recoveries", "recovered from errors"),
            ("symbol_errors", "had symbol errors"),
            ("receive_errors", "received damaged packets"),
        ):
            count = _increase(known, port, field)
            if count:
                text = f"port {port.name} {what} {count} times during the pre-flight"
                (faults if field == "link_downs" else notes).append(text)
    return faults, notes


def find_interface_notes(before: Interfaces, after: Interfaces) -> list[str]:
    """Return a note for each network interface whose counts of errors rose."""
    earlier = {one.name: one for one in before.samples}
    counts = ((one.name, _increase(earlier.get(one.name), one, "errors")) for one in after.samples)
    return [f"interface {name} counted {count} errors during the pre-flight" for name, count in counts if count]


def find_clock_notes(clocks: Sequence[ClockOffset]) -> list[str]:
    """Return a note for each node whose wall clock is certainly farther off than CLOCK_OFFSET_S_MAX.

    >>> find_clock_notes([ClockOffset(node="node-1", offset_s=-2.5, error_s=0.001)])
    ["the clock of node-1 is 2.500 s behind that of rank 0's node: check its NTP or PTP"]
    >>> find_clock_notes([ClockOffset(node="node-1", offset_s=0.5, error_s=0.45)])
    []
    """
    return [
        f"the clock of {one.node} is {abs(one.offset_s):.3f} s {'ahead of' if one.offset_s > 0 else 'behind'} "
        "that of rank 0's node: check its NTP or PTP"
        for one in clocks
        if abs(one.offset_s) - one.error_s > CLOCK_OFFSET_S_MAX
    ]


def _increase(before: object, after: object, field: str) -> int:
    """Return by how much a counter rose; 0 where it is not known."""
    first, last = getattr(before, field, None), getattr(after, field, None)
    return last - first if isinstance(first, int) and isinstance(last, int) else 0


class Sensors:
    """The counters of one rank. `is_reader`: it reads the node's ports. What cannot be read becomes a note."""

    def __init__(self, *, is_reader: bool, places: Places = REAL_PLACES) -> None:
        self._is_reader = is_reader
        self._places = places
        self._unavailable: list[str] = []
        self._sampler = NvmlSampler(SystemClock(), self._read_uuid, on_unavailable=self._unavailable.append)
        self._ports: tuple[Ports, Interfaces] | None = None
        self._first: DeviceSample | None = None
        self._load: DeviceSample | None = None

    def begin(self) -> None:
        """Read all counters for the first time. Raise nothing."""
        self._first = self._sample()
        self._ports = self._read_ports() if self._is_reader else None

    def note_load(self) -> None:
        """Sample the GPU, which is computing: whether its clock is throttled. Raise nothing."""
        self._load = self._sample()

    def end(self, ranks_of_node: int) -> tuple[list[str], list[str]]:
        """Return faults and notes, and close NVML."""
        last = self._sample()
        found, notes = find_device_faults(last, self._load)
        notes += find_nvlink_note(self._first, last, ranks_of_node)
        if self._ports is not None:
            ports, interfaces = self._read_ports()
            port_faults, port_notes = find_port_faults(self._ports[0], ports)
            found += port_faults
            notes += [*port_notes, *find_interface_notes(self._ports[1], interfaces)]
        self._sampler.close()
        return found, [*notes, *self._unavailable]

    def _sample(self) -> DeviceSample | None:
        samples = self._sampler.sample()
        return samples[0] if samples else None

    def _read_ports(self) -> tuple[Ports, Interfaces]:
        return read_ports(self._places.infiniband), read_interfaces(self._places.interfaces)

    @staticmethod
    def _read_uuid() -> str | None:
        device = read_torch_device()
        return None if device is None else device.uuid
