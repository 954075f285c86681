"""Tests of the AMD sampler with a strict stand-in for the amdsmi package."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankscope.agent.sample import amd
from rankscope.agent.sample.amd import AmdSampler
from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.measure.records import DeviceSample
from rankscope.measure.units import NS_PER_S, HostNs, WallNs
from tests.amd_stand_in import FOLDER

PLACE = "0000:c1:00.0"
GIB = 2**30


def device_at(pci_address: str | None = PLACE, *, is_amd: bool = True) -> TorchDevice:
    return TorchDevice(index=1, uuid=None, pci_address=pci_address, is_amd=is_amd)


class Machine:
    """A clock, the amdsmi package, and a sampler of the GPU in PLACE."""

    def __init__(self, module: Any, device: TorchDevice | None = None) -> None:
        self.amdsmi = module
        self.now_s = 0
        self.said: list[str] = []
        self.device = device or device_at()
        self.sampler = AmdSampler(self, lambda: self.device, on_unavailable=self.said.append)

    def monotonic_ns(self) -> HostNs:
        return HostNs(self.now_s * NS_PER_S)

    def wall_ns(self) -> WallNs:
        return WallNs(0)

    def sample(self, at_s: int = 0) -> DeviceSample:
        self.now_s = at_s
        (sample,) = self.sampler.sample()
        return sample

    @property
    def gpu(self) -> dict[str, Any]:
        gpu: dict[str, Any] = self.amdsmi.GPUS[PLACE]
        return gpu

    def error(self, code: str) -> Exception:
        error: Exception = self.amdsmi.AmdSmiLibraryException(getattr(self.amdsmi, code))
        return error


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    sys.modules.pop("amdsmi", None)
    yield importlib.import_module("amdsmi")
    sys.modules.pop("amdsmi", None)


@pytest.fixture
def machine(amdsmi: ModuleType) -> Machine:
    return Machine(amdsmi)


def test_gpu_that_torch_uses_is_read_in_our_units(machine: Machine) -> None:
    sample = machine.sample()
    expected = {
        "uuid": "bbff74a1-0000-1000-80bb",
        "model": "AMD Instinct MI300X",
        "utilization_ratio": 0.97,
        "memory_used_bytes": 60 * GIB,
        "memory_total_bytes": 192 * GIB,
        "power_watts": 702.0,
        "power_limit_watts": 750.0,
        "temperature_celsius": 71.0,
        "sm_clock_hertz": 1_905_000_000,
        "memory_clock_hertz": 1_300_000_000,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "xgmi_tx_bytes": (10 + 20) * 1024,
        "xgmi_rx_bytes": (100 + 200) * 1024,
        "pcie_link_width": 16,
        "energy_joules": 0.0,
    }
    assert {field: getattr(sample, field) for field in expected} == expected


def test_every_field_has_a_value_or_a_reason(machine: Machine) -> None:
    machine.sample()
    sample = machine.sample(2)
    fields = set(DeviceSample.__struct_fields__) - {"host_ns", "uuid", "model", "absent"}
    missing = {field for field in fields if getattr(sample, field) is None}
    assert missing == set(sample.absent) == set(amd.NEVER)
    assert fields - missing == set(amd.FIELDS)


def test_throttle_reasons_have_growing_counters(machine: Machine) -> None:
    first = machine.sample()
    assert (first.throttle_reasons, first.absent["throttle_reasons"]) == (None, "needs_two_samples")
    machine.gpu["metrics"].update(ppt_residency_acc=512, hbm_thm_residency_acc=1)
    assert machine.sample(2).throttle_reasons == ("package_power", "memory_thermal")
    assert machine.sample(4).throttle_reasons == ()


def test_older_gpu_has_an_unspecified_throttle_reason(machine: Machine) -> None:
    machine.gpu["metrics"].update(dict.fromkeys(amd.THROTTLE_COUNTERS, "N/A"), throttle_status=True)
    assert machine.sample().throttle_reasons == ("unspecified",)
    machine.gpu["metrics"].update(throttle_status=False)
    assert machine.sample(2).throttle_reasons == ()


@pytest.mark.parametrize("count", ["N/A", 0])
def test_uncounted_energy_is_absent_and_all_else_is_read(machine: Machine, count: Any) -> None:
    machine.gpu["energy"]["energy_accumulator"] = count
    sample = machine.sample()
    assert (sample.energy_joules, sample.absent["energy_joules"], sample.power_watts) == (None, "not_available", 702.0)


@pytest.mark.parametrize("name", ["energy_accumulator", "power"])
def test_energy_is_what_was_used_since_the_first_reading(machine: Machine, name: str) -> None:
    energy = machine.gpu["energy"]
    energy[name] = energy.pop("energy_accumulator")
    assert machine.sample().energy_joules == 0.0
    energy[name] += 2_000_000
    assert machine.sample(2).energy_joules == pytest.approx(30.6)
    energy[name] = 5  # the driver has been loaded again
    assert machine.sample(4).energy_joules == 0.0


def test_gpu_with_only_mean_power(machine: Machine) -> None:
    machine.gpu["power"].update(current_socket_power="N/A", average_socket_power=288)
    assert machine.sample().power_watts == 288.0


def test_clock_is_found_under_its_older_name(machine: Machine) -> None:
    clock = machine.gpu["clocks"][machine.amdsmi.AmdSmiClkType.GFX]
    clock["cur_clk"] = clock.pop("clk")
    assert machine.sample().sm_clock_hertz == 1_905_000_000


@pytest.mark.parametrize(
    ("question", "field", "change", "reason"),
    [
        ("activity", "utilization_ratio", {"gfx_activity": "N/A"}, "not_available"),
        ("activity", "utilization_ratio", {"gfx_activity": 65_000}, "out_of_range"),
        ("ecc", "ecc_corrected", {"correctable_count": "N/A"}, "not_available"),
        ("metrics", "xgmi_tx_bytes", {"xgmi_write_data_acc": ["N/A"] * 8}, "not_available"),
        ("power", "power_watts", {"current_socket_power": "N/A"}, "not_available"),
    ],
)
def test_only_a_missing_value_is_absent(
    machine: Machine, question: str, field: str, change: dict[str, Any], reason: str
) -> None:
    machine.gpu[question].update(change)
    sample = machine.sample()
    assert (getattr(sample, field), sample.absent[field]) == (None, reason)
    assert sample.temperature_celsius == 71.0


def test_question_that_is_refused_costs_its_own_fields_only(machine: Machine) -> None:
    machine.gpu["cap"] = machine.error("NO_PERM")
    del machine.amdsmi.amdsmi_get_gpu_total_ecc_count  # an older release
    sample = machine.sample()
    assert sample.absent["power_limit_watts"] == "no_perm"
    assert sample.absent["ecc_corrected"] == sample.absent["ecc_uncorrected"] == "not_in_this_amdsmi"
    assert sample.power_watts == 702.0


def test_lost_gpu_is_absent_and_retried_later(machine: Machine) -> None:
    machine.sample()
    gone = machine.amdsmi.GPUS.pop(PLACE)
    lost = machine.sample(2)
    assert lost.uuid == "bbff74a1-0000-1000-80bb"
    assert {lost.absent[field] for field in amd.FIELDS} == {"not_found"}
    machine.amdsmi.GPUS[PLACE] = gone
    calls = machine.amdsmi.calls
    assert machine.sample(11).power_watts is None  # the wait of 10 s is not over
    assert machine.amdsmi.calls == calls
    assert machine.sample(12).power_watts == 702.0


def test_wait_for_a_gpu_that_is_not_found_grows(machine: Machine) -> None:
    del machine.amdsmi.GPUS[PLACE]
    looked_for: list[str] = []
    find = machine.amdsmi.amdsmi_get_processor_handle_from_bdf

    def note(bdf: str) -> Any:
        looked_for.append(bdf)
        return find(bdf)

    machine.amdsmi.amdsmi_get_processor_handle_from_bdf = note
    for at_s in range(0, 80, 5):
        assert machine.sample(at_s).absent["power_watts"] == "not_found"
    assert len(looked_for) == 4  # at 0, 10, 30 and 70 s


def test_without_address_only_a_single_gpu_is_used(amdsmi: ModuleType) -> None:
    several = Machine(amdsmi, device_at(None)).sample()
    assert {several.absent[field] for field in amd.FIELDS} == {"torch_tells_no_pci_address"}
    del amdsmi.GPUS["0000:05:00.0"]
    assert Machine(amdsmi, device_at(None)).sample().power_watts == 702.0


@pytest.mark.parametrize("device", [None, device_at(is_amd=False)])
def test_package_is_not_imported_without_an_amd_gpu(
    monkeypatch: pytest.MonkeyPatch, device: TorchDevice | None
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # an import would raise
    said: list[str] = []
    sampler = AmdSampler(Machine(None), lambda: device, on_unavailable=said.append)
    assert (sampler.sample(), said, sampler.unavailable) == ((), [], None)


def test_missing_package_is_logged_once_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    machine = Machine(None)
    assert (machine.sampler.sample(), machine.sampler.sample()) == ((), ())
    assert machine.sampler.unavailable == "not_installed"
    assert len(machine.said) == 1
    assert "install the amdsmi package that comes with ROCm" in machine.said[0]


def test_package_without_its_library_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")  # as the real one ends without it
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("amdsmi", None)
    machine = Machine(None)
    assert (machine.sampler.sample(), machine.sampler.unavailable) == ((), "library_not_found")


def test_missing_driver_is_logged_once(machine: Machine) -> None:
    machine.amdsmi.init_result = machine.amdsmi.DRIVER_NOT_LOADED
    assert (machine.sampler.sample(), machine.sampler.sample()) == ((), ())
    assert (machine.sampler.unavailable, len(machine.said), machine.amdsmi.calls) == ("driver_not_loaded", 1, 0)


def test_close_undoes_open_once(machine: Machine) -> None:
    machine.amdsmi.amdsmi_init()  # torch's own
    machine.sample()
    machine.sampler.close()
    machine.sampler.close()
    assert (machine.amdsmi.users, machine.sampler.sample()) == (1, ())


def test_stand_in_has_no_answer_before_it_is_opened(amdsmi: Any) -> None:
    with pytest.raises(amdsmi.AmdSmiLibraryException) as caught:
        amdsmi.amdsmi_get_processor_handles()
    assert caught.value.get_error_info(detailed=False) == "AMDSMI_STATUS_NOT_INIT"
