"""Prints as JSON what the agent would find in this interpreter: `python -m rankscope.agent.inspection`.

`rankscope doctor` runs this in a separate process with the training's Python, so that a driver or library that hangs or
crashes does not affect the doctor. Nothing is measured, and no connection is made but one to NCCL's RAS service.
"""

import os
import sys
from importlib.metadata import entry_points
from typing import Any

import msgspec

from rankscope.agent.collector_address import read_address
from rankscope.agent.config import OFF, AgentConfig, read_config
from rankscope.agent.guard import describe
from rankscope.agent.sidecar.inspector_place import PLUGIN, find_inspector_place
from rankscope.agent.sidecar.ras_address import find_ras_address
from rankscope.agent.sidecar.ras_client import NothingListensError, read_protocol
from rankscope.measure import __version__
from rankscope.measure.clock import SystemClock
from rankscope.measure.errors import SettingError, UnavailableError
from rankscope.measure.inspection import GpuFound, Inspection, InspectorFound, RasFound, TorchFound


def inspect() -> Inspection:
    """Inspect settings, torch and NVML once."""
    config, problem = AgentConfig(), ""
    try:
        config = read_config(os.environ)
        read_address(config, run="")
    except SettingError as error:
        problem = str(error)
    found = _inspect_torch()
    nvml_problem, gpus = _inspect_nvml(found)
    return Inspection(
        python=".".join(map(str, sys.version_info[:3])),
        release=__version__,
        torch=found,
        is_autoloaded=any(entry.name == "rankscope" for entry in entry_points(group="torch.backends")),
        settings_problem=problem,
        collector=config.collector,
        key_file=config.key_file,
        collector_key_file=config.collector_key_file,
        spill_dir=config.spill_dir,
        embedded_metrics_port=config.embedded_metrics_port,
        nvml_problem=nvml_problem,
        gpus=gpus,
        device_windows=config.device_windows if config.full_windows else OFF,
        takes_captures=config.capture_orders or bool(config.capture_folder),
        ras=_inspect_ras(config),
        inspector=_inspect_inspector(config),
    )


def _inspect_ras(config: AgentConfig) -> RasFound:
    """Greet NCCL's RAS service, if a stalled run would ask it."""
    address = "" if config.nccl_ras == OFF or not config.sidecar else find_ras_address(os.environ)
    if not address:
        return RasFound()
    try:
        return RasFound(address=address, protocol=read_protocol(address))
    except NothingListensError:
        return RasFound(address=address)
    except UnavailableError as error:
        return RasFound(address=address, problem=str(error))


def _inspect_inspector(config: AgentConfig) -> InspectorFound:
    """Find whether sidecars of ranks that are started with this environment would read dumps of NCCL's Inspector."""
    place = find_inspector_place(os.environ, pid=os.getpid(), wall_ns=SystemClock().wall_ns())
    if place is None:
        return InspectorFound()
    folder, plugin = os.path.dirname(place.path), os.environ.get(PLUGIN, "")
    problem = place.problem
    if not plugin:
        problem = f"{PLUGIN} is not set, so NCCL loads no plugin but one that is named libnccl-profiler.so"
    elif "/" in plugin and not os.path.exists(plugin):
        problem = f"{PLUGIN} names {plugin}, which is not there"
    elif not config.sidecar:
        problem = "sidecar is false"
    elif folder and not os.access(folder, os.R_OK | os.X_OK) and os.path.exists(folder):
        problem = f"{folder} cannot be read by this user"
    return InspectorFound(folder=folder or "not known", interval_us=place.interval_us, problem=problem)


def _inspect_torch() -> TorchFound:
    try:
        import torch  # noqa: PLC0415 - a failure is a result here
        from torch import distributed  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001 - a broken installation can raise anything
        return TorchFound(problem=describe(error))
    known = (("gloo", "is_gloo_available"), ("nccl", "is_nccl_available"), ("mpi", "is_mpi_available"))
    is_there = distributed.is_available()
    backends = tuple(name for name, asked in known if is_there and getattr(distributed, asked, lambda: False)())
    windows_problem, can_detach = _inspect_profiler(torch)
    return TorchFound(
        version=str(torch.__version__),
        cuda=str(torch.version.cuda or ""),
        hip=str(getattr(torch.version, "hip", "") or ""),
        backends=backends,
        has_autoload=hasattr(torch, "_import_device_backends"),
        windows_problem=windows_problem,
        can_detach=can_detach,
        gpus=tuple(_uuid_of(torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())),
    )


def _inspect_profiler(torch: Any) -> tuple[str, bool]:
    """Return why windows cannot be used, empty if they can, and whether CUPTI can be detached after them."""
    from rankscope.agent.profiler.torch_profiler import TorchProfiler  # noqa: PLC0415 - imports torch, as in training

    if not torch.profiler.kineto_available():
        return "this torch was built without Kineto", False
    try:
        return "", TorchProfiler.find().can_detach
    except UnavailableError as error:
        return str(error), False


def _uuid_of(properties: Any) -> str:
    uuid = getattr(properties, "uuid", None)
    return "" if uuid is None else f"GPU-{uuid}"


def _inspect_nvml(found: TorchFound) -> tuple[str, tuple[GpuFound, ...]]:
    """Return why NVML cannot be used, and the GPUs as the agent's sampler reads them."""
    from rankscope.agent.sample.nvml import NvmlSampler  # noqa: PLC0415 - after torch, as in training

    gpus = []
    for uuid in filter(None, found.gpus):
        sampler = NvmlSampler(SystemClock(), lambda uuid=uuid: uuid, on_unavailable=lambda _text: None)  # type: ignore[misc]
        try:
            sampler.sample()
            if sampler.unavailable is not None:
                return sampler.unavailable, ()
            # The second sample has the values that are differences.
            gpus += [GpuFound(uuid=one.uuid, model=one.model, absent=one.absent) for one in sampler.sample()]
        finally:
            sampler.close()
    return "", tuple(gpus)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(inspect()).decode())
