"""Define what the agent finds in an interpreter: `agent/inspection.py` writes it as JSON, the doctor reads it."""

from collections.abc import Mapping

import msgspec


class TorchFound(msgspec.Struct, frozen=True, kw_only=True):
    """Torch as found in an interpreter.

    `backends` are those of torch.distributed, `gpus` the UUIDs of the visible devices, empty for those without one.
    `has_autoload`: torch loads other packages by itself, as 2.5 and later do. `windows_problem`: why profiler windows
    cannot be used; `can_detach`: CUPTI can be detached from a process without CUDA graphs; `problem`: why torch could
    not be imported.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    backends: tuple[str, ...] = ()
    has_autoload: bool = True
    windows_problem: str = ""
    gpus: tuple[str, ...] = ()
    problem: str = ""
    can_detach: bool = False


class GpuFound(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by NVML: what of it cannot be read, with the reason by field."""

    uuid: str
    model: str = ""
    absent: Mapping[str, str] = {}


class RasFound(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's RAS service as found. `address` is where a stalled run would ask it, empty where it would not. `protocol`
    is the version that it answered with, None if it did not; `problem` is why not, empty if nothing listens there, as
    while no job runs.
    """

    address: str = ""
    protocol: int | None = None
    problem: str = ""


class InspectorFound(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's Inspector plugin as a rank started here would have it. `folder` is where it dumps, empty where it is
    switched off; `interval_us` how often; `problem`: why nothing of it is read while a run goes on.
    """

    folder: str = ""
    interval_us: int = 0
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an inspection.

    `settings_problem` is the agent's error about its settings and keys; `nvml_problem` is why NVML cannot be used at
    all. `collector` is the configured endpoint; empty: rank 0 starts one. `takes_captures`: whether captures may be
    ordered or have a folder. `ras` and `inspector` are None where that was not inspected.
    """

    python: str
    release: str
    torch: TorchFound
    is_autoloaded: bool
    settings_problem: str = ""
    collector: str = ""
    key_file: str = ""
    collector_key_file: str = ""
    spill_dir: str = ""
    embedded_metrics_port: int = 0
    nvml_problem: str = ""
    gpus: tuple[GpuFound, ...] = ()
    device_windows: str = "governed"
    takes_captures: bool = True
    ras: RasFound | None = None
    inspector: InspectorFound | None = None
