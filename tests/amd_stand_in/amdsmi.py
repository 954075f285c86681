"""A stand-in for AMD's amdsmi (7.0): the names, shapes and exceptions of its Python interface, with two made-up GPUs.

It is strict where the real one is: a handle must be a handle, an enum the right one, and nothing answers before
amdsmi_init. What would wait for a measurement of its own is not there at all. Each test imports it anew and changes
`GPUS`.
"""

from enum import IntEnum
from typing import Any

NOT_SUPPORTED, NO_PERM, NOT_FOUND, NOT_INIT, DRIVER_NOT_LOADED = 2, 10, 31, 32, 34
NAMES = {
    NOT_SUPPORTED: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
    NO_PERM: "AMDSMI_STATUS_NO_PERM - Permission Denied",
    NOT_FOUND: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
    NOT_INIT: "AMDSMI_STATUS_NOT_INIT - Device not initialized",
    DRIVER_NOT_LOADED: "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded",
}
LINKS_MAX = 8


class AmdSmiException(Exception):  # noqa: N818 - its real name
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def get_error_info(self, detailed: bool = True) -> str:
        return NAMES[self.err_code] if detailed else NAMES[self.err_code].split(" - ")[0]


class AmdSmiParameterException(AmdSmiException):
    pass


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 0
    MEM = 4


class AmdSmiMemoryType(IntEnum):
    VRAM = 0
    GTT = 2


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    JUNCTION = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0
    MAX = 1


class Handle:
    """What ctypes has as a void pointer."""

    def __init__(self, bdf: str) -> None:
        self.bdf = bdf


def make_gpu(uuid: str, **changes: Any) -> dict[str, Any]:
    """Everything one GPU answers, by the name of the question. An exception is raised instead."""
    metrics = {
        "throttle_status": "N/A",
        "accumulation_counter": 1_000,
        "prochot_residency_acc": 0,
        "ppt_residency_acc": 500,
        "socket_thm_residency_acc": 70,
        "vr_thm_residency_acc": 0,
        "hbm_thm_residency_acc": 0,
        "xgmi_read_data_acc": [100, 200, "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"],
        "xgmi_write_data_acc": [10, 20, "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"],
        "pcie_bandwidth_acc": 12_345,
        "pcie_link_width": 16,
    }
    return {
        "uuid": uuid,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x0123456789ABCDEF"},
        "activity": {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"},
        "vram_used": 60 * 2**30,
        "vram_total": 192 * 2**30,
        "energy": {"energy_accumulator": 4_000_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "power": {
            "socket_power": 702, "current_socket_power": 702, "average_socket_power": "N/A", "gfx_voltage": "N/A",
            "soc_voltage": "N/A", "mem_voltage": "N/A", "power_limit": 750,
        },
        "cap": {
            "power_cap": 750_000_000, "default_power_cap": 750_000_000, "dpm_cap": 0, "min_power_cap": 0,
            "max_power_cap": 750_000_000,
        },
        "temperature": 71,
        "clocks": {
            AmdSmiClkType.GFX: {
                "clk": 1_905, "min_clk": 132, "max_clk": 2_100, "clk_locked": False, "clk_deep_sleep": "N/A"
            },
            AmdSmiClkType.MEM: {
                "clk": 1_300, "min_clk": 900, "max_clk": 1_300, "clk_locked": "N/A", "clk_deep_sleep": "N/A"
            },
        },
        "ecc": {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0},
        "metrics": metrics,
        **changes,
    }  # fmt: skip


FIRST, SECOND = "0000:05:00.0", "0000:c1:00.0"
GPUS = {FIRST: make_gpu("aaff74a1-0000-1000-80aa"), SECOND: make_gpu("bbff74a1-0000-1000-80bb")}
init_result = 0
users = 0
calls = 0


def _answer(handle: Any, question: str) -> Any:
    global calls  # noqa: PLW0603 - the real one is a module with one state, too
    if not isinstance(handle, Handle):
        raise AmdSmiParameterException(f"{handle!r} is no handle")
    if users == 0:
        raise AmdSmiLibraryException(NOT_INIT)
    calls += 1
    answer = GPUS[handle.bdf][question] if handle.bdf in GPUS else AmdSmiLibraryException(NOT_FOUND)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _expect(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise AmdSmiParameterException(f"{value!r} is no {kind.__name__}")


def amdsmi_init(flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    global users  # noqa: PLW0603
    _expect(flag, AmdSmiInitFlags)
    if init_result:
        raise AmdSmiLibraryException(init_result)
    users += 1


def amdsmi_shut_down() -> None:
    global users  # noqa: PLW0603
    users -= 1
    assert users >= 0, "shut down more often than opened"


def amdsmi_get_processor_handles() -> list[Handle]:
    if users == 0:
        raise AmdSmiLibraryException(NOT_INIT)
    return [Handle(bdf) for bdf in GPUS]


def amdsmi_get_processor_handle_from_bdf(bdf: str) -> Handle:
    if users == 0:
        raise AmdSmiLibraryException(NOT_INIT)
    if bdf not in GPUS:
        raise AmdSmiLibraryException(NOT_FOUND)
    return Handle(bdf)


def amdsmi_get_gpu_device_uuid(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "uuid")


def amdsmi_get_gpu_asic_info(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "asic")


def amdsmi_get_gpu_activity(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "activity")


def amdsmi_get_gpu_memory_usage(processor_handle: Handle, mem_type: AmdSmiMemoryType) -> Any:
    _expect(mem_type, AmdSmiMemoryType)
    return _answer(processor_handle, "vram_used")


def amdsmi_get_gpu_memory_total(processor_handle: Handle, mem_type: AmdSmiMemoryType) -> Any:
    _expect(mem_type, AmdSmiMemoryType)
    return _answer(processor_handle, "vram_total")


def amdsmi_get_power_info(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "power")


def amdsmi_get_energy_count(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "energy")


def amdsmi_get_power_cap_info(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "cap")


def amdsmi_get_temp_metric(
    processor_handle: Handle, sensor_type: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
) -> Any:
    _expect(sensor_type, AmdSmiTemperatureType)
    _expect(metric, AmdSmiTemperatureMetric)
    return _answer(processor_handle, "temperature")


def amdsmi_get_clock_info(processor_handle: Handle, clock_type: AmdSmiClkType) -> Any:
    _expect(clock_type, AmdSmiClkType)
    return _answer(processor_handle, "clocks")[clock_type]


def amdsmi_get_gpu_total_ecc_count(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "ecc")


def amdsmi_get_gpu_metrics_info(processor_handle: Handle) -> Any:
    return _answer(processor_handle, "metrics")
