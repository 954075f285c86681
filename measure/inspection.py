"""What the agent finds in an interpreter: `agent/inspection.py` looks and writes it as JSON, the doctor reads it."""

from collections.abc import Mapping

import msgspec


class TorchFound(msgspec.Struct, frozen=True, kw_only=True):
    """`backends` are those of torch.distributed, `gpus` the UUIDs of the devices it sees, empty for those it cannot
    tell. `has_autoload`: it loads packages of others by itself, as 2.5 and later do. `windows_problem`: why windows of
    its profiler cannot be used; `problem`: why torch could not be imported.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    backends: tuple[str, ...] = ()
    has_autoload: bool = True
    windows_problem: str = ""
    gpus: tuple[str, ...] = ()
    problem: str = ""


class GpuFound(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by NVML: what of it cannot be read, with the reason by field."""

    uuid: str
    model: str = ""
    absent: Mapping[str, str] = {}


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `settings_problem` is the agent's own word on its settings and keys; `nvml_problem` is why NVML cannot
    be used at all. `collector` is the endpoint the settings name, empty: rank 0 starts one.
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
