"""Highest rates of devices by their name, as their makers state them: dense arithmetic by type, and memory.

All are rates without sparsity. A rate that is not in the source, a device that is not here, or one of which sources
disagree (GeForce cards, H20, H200 NVL), is not known: `--peak-tflops` and `--peak-gbps` give it.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

TFLOP, GB = 10**12, 10**9
FP64, FP32, TF32, FP16, BF16, FP8, INT8 = "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"

_NUMBER_TYPES = {
    "double": FP64, "float": FP32, "half": FP16, "bfloat16": BF16, "float8_e4m3fn": FP8, "float8_e5m2": FP8,
    "float8_e4m3fnuz": FP8, "float8_e5m2fnuz": FP8, "signedchar": INT8, "char": INT8,
}  # fmt: skip


class Peaks(NamedTuple):
    """Highest rates of one device: operations each second by type in units of 10^12 (TFLOP/s), for `fp32` without
    tensor cores and for `tf32` with them; memory in units of 10^9 bytes each second (GB/s), None where it is not known;
    and where they are from, read when.
    """

    tflops: Mapping[str, float]
    memory_gbps: float | None
    source: str = "the maker's data sheet, 2026-11"


class PeakOverride(NamedTuple):
    """Peaks that the user gives, for all devices and types; None leaves those of the table."""

    tflops: float | None = None
    memory_gbps: float | None = None


def _tensor_peaks(tf32: float, half: float, fp8: float | None = None) -> dict[str, float]:
    return {TF32: tf32, FP16: half, BF16: half, **({FP8: fp8} if fp8 is not None else {})}


_A100 = {FP64: 19.5, FP32: 19.5, **_tensor_peaks(156, 312), INT8: 624}
_H100_SXM = {FP64: 67, FP32: 67, **_tensor_peaks(494.7, 989.4, 1978.9), INT8: 1978.9}
_H100_PCIE = {FP64: 51, FP32: 51, **_tensor_peaks(378, 756, 1513), INT8: 1513}
_MI300X = {FP64: 163.4, FP32: 163.4, **_tensor_peaks(653.7, 1307.4, 2614.9), INT8: 2614.9}
_LIGHTNING = "NVIDIA's data sheets, as Lightning Fabric's throughput.py has them, 2026-11"
_TORCHTITAN = "the maker's data sheets, as torchtitan's get_peak_flops has them, 2026-11"
DEVICES: tuple[tuple[str, Peaks], ...] = (
    (r"V100-SXM2|V100-DGXS", Peaks({FP64: 7.8, FP32: 15.7, FP16: 125}, 900)),
    (r"V100-PCIE", Peaks({FP64: 7, FP32: 14, FP16: 112}, 900)),
    (r"A100-SXM4-80GB", Peaks(_A100, 2039)),
    (r"A100 80GB PCIe", Peaks(_A100, 1935)),
    (r"A100-\w+-40GB", Peaks(_A100, 1555)),
    (r"A100", Peaks(_A100, None)),
    (r"H100 PCIe", Peaks(_H100_PCIE, 2000)),
    (r"H100 80GB HBM3", Peaks(_H100_SXM, 3350)),
    (r"(?<!G)H200(?! NVL)", Peaks(_H100_SXM, 4800)),
    (r"L40S", Peaks({FP32: 91.6, **_tensor_peaks(183, 362.05, 733)}, 864)),
    (r"\bL40$", Peaks({FP32: 90.5, **_tensor_peaks(90.5, 181, 362)}, None, _LIGHTNING)),
    (r"\bL4$", Peaks({FP32: 30.3, **_tensor_peaks(60, 121, 242)}, None, _LIGHTNING)),
    (r"\bT4$", Peaks({FP32: 8.1, FP16: 65}, None, _LIGHTNING)),
    (r"\bA40$", Peaks({FP32: 37.4, **_tensor_peaks(74.8, 149.7)}, None, _LIGHTNING)),
    (r"RTX A6000$", Peaks({FP32: 38.7, **_tensor_peaks(77.4, 154.85)}, None, _TORCHTITAN)),
    (r"H100 NVL", Peaks({FP32: 60, **_tensor_peaks(417.5, 835.5, 1671)}, None, _TORCHTITAN)),
    (r"\bGB[23]00\b", Peaks({FP16: 2500, BF16: 2500}, None, _TORCHTITAN)),
    (r"\bB[23]00\b", Peaks({FP16: 2250, BF16: 2250}, None, _TORCHTITAN)),
    (r"\bA10$", Peaks({FP32: 31.2, **_tensor_peaks(62.5, 125)}, 600)),
    (r"MI300X", Peaks(_MI300X, 5300)),
    (r"MI325X", Peaks(_MI300X, 6000)),
    (r"MI250X$", Peaks({FP16: 191.5, BF16: 191.5}, None, _TORCHTITAN)),  # of one of its two dies, which is a device
    (r"MI355X", Peaks({FP16: 2500, BF16: 2500}, None, _TORCHTITAN)),
)
"""Patterns on the names, the first that is found counts."""


def find_peaks(device: str | None) -> Peaks | None:
    """Return the peaks of a device by its name; None where they are not known, as of a part of a device (MIG).

    >>> found = find_peaks("NVIDIA A100-SXM4-80GB")
    >>> (found.tflops["bf16"], found.memory_gbps) if found else None
    (312, 2039)
    >>> find_peaks("NVIDIA GeForce 256") is None
    True
    """
    if " MIG " in (device or ""):
        return None
    return next((peaks for pattern, peaks in DEVICES if re.search(pattern, device or "")), None)


def find_tflops(device: str | None, number_type: str, override: PeakOverride) -> float | None:
    """Return the peak of a device for a type of numbers, in TFLOP/s: that of the user, else that of the data sheet.

    >>> find_tflops("NVIDIA A100-SXM4-80GB", "bf16", PeakOverride()), find_tflops("CPU", "fp32", PeakOverride(2))
    (312, 2)
    """
    if override.tflops is not None:
        return override.tflops
    peaks = find_peaks(device)
    return peaks.tflops.get(number_type) if peaks is not None else None


def name_number_type(dtype: str, *, on_tensor_cores: bool) -> str | None:
    """Return the type of a device's table for an operator's inputs; single precision on tensor cores is TF32.

    >>> [name_number_type("c10::BFloat16", on_tensor_cores=True), name_number_type("float", on_tensor_cores=True)]
    ['bf16', 'tf32']
    >>> name_number_type("float", on_tensor_cores=False), name_number_type("bool", on_tensor_cores=False)
    ('fp32', None)
    """
    found = _NUMBER_TYPES.get(dtype.lower().replace("c10::", "").replace(" ", ""))
    return TF32 if found == FP32 and on_tensor_cores else found
