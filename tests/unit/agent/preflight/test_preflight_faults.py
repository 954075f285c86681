"""Faults and notes found in counters."""

import pytest

from rankscope.agent.preflight.faults import (
    find_device_faults,
    find_interface_notes,
    find_nvlink_note,
    find_port_faults,
)
from rankscope.agent.sample.fabric import Interfaces, Ports
from rankscope.measure.records import DeviceSample, InterfaceSample, PortSample


def make_sample(**values: object) -> DeviceSample:
    return DeviceSample(host_ns=1, uuid="GPU-1", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrected ECC errors since the driver was loaded"),
        ({"remapping_failed": True}, "the remapping of a memory row failed: the GPU has to be replaced"),
        ({"remapping_pending": True}, "a memory row waits for its remapping: the GPU has to be reset"),
        ({"xid_count": 1, "xid_last": 79}, "1 Xid errors during the pre-flight, the last one 79"),
        ({"pcie_link_width": 8, "pcie_link_width_max": 16}, "its PCIe link has 8 of 16 lanes"),
    ],
)
def test_fault_of_a_gpu_is_found(values: dict[str, object], text: str) -> None:
    assert find_device_faults(make_sample(**values), None) == ([text], [])


def test_throttling_by_heat_is_a_fault_and_a_power_cap_is_none() -> None:
    load = make_sample(throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"))
    assert find_device_faults(make_sample(), load) == (["its clock is throttled under load (hw_thermal_slowdown)"], [])


def test_throttling_while_idle_is_no_fault() -> None:
    assert find_device_faults(make_sample(throttle_reasons=("hw_slowdown",)), make_sample()) == ([], [])


def test_healthy_and_unknown_counters_are_no_faults() -> None:
    healthy = make_sample(
        ecc_uncorrected=0, remapping_failed=False, xid_count=0, pcie_link_width=16, pcie_link_width_max=16
    )
    assert find_device_faults(healthy, healthy) == ([], [])
    assert find_device_faults(make_sample(), None) == ([], [])
    assert find_device_faults(None, None) == ([], [])


def test_corrected_errors_are_a_note() -> None:
    assert find_device_faults(make_sample(ecc_corrected=3), None) == ([], ["3 corrected ECC errors of the GPU"])


def test_nvlink_that_carried_nothing_is_a_note() -> None:
    idle, used = make_sample(nvlink_tx_bytes=5), make_sample(nvlink_tx_bytes=9)
    assert find_nvlink_note(idle, idle, 2) == ["the node's all-reduce sent nothing over NVLink"]
    assert find_nvlink_note(idle, used, 2) == []
    assert find_nvlink_note(idle, idle, 1) == []
    assert find_nvlink_note(make_sample(), make_sample(), 2) == []


def test_port_that_went_down_meanwhile_is_a_fault() -> None:
    before = Ports((PortSample(name="mlx5_0/1", is_active=True, link_downs=4, symbol_errors=1),), 0, {})
    after = Ports((PortSample(name="mlx5_0/1", is_active=True, link_downs=5, symbol_errors=3),), 0, {})
    assert find_port_faults(before, after) == (
        ["port mlx5_0/1 went down 1 times during the pre-flight"],
        ["port mlx5_0/1 had symbol errors 2 times during the pre-flight"],
    )


def test_errors_of_before_are_no_fault() -> None:
    same = Ports((PortSample(name="mlx5_0/1", is_active=True, link_downs=4, symbol_errors=1),), 0, {})
    assert find_port_faults(same, same) == ([], [])


def test_port_that_is_not_active_is_a_note() -> None:
    ports = Ports((PortSample(name="mlx5_1/1", is_active=False),), 0, {})
    assert find_port_faults(ports, ports) == ([], ["port mlx5_1/1 is not active"])


def test_errors_of_an_interface_meanwhile_are_a_note() -> None:
    before = Interfaces((InterfaceSample(name="eth0", bytes=1, errors=2, drops=0),), 0)
    after = Interfaces((InterfaceSample(name="eth0", bytes=9, errors=5, drops=0),), 0)
    assert find_interface_notes(before, after) == ["interface eth0 counted 3 errors during the pre-flight"]
