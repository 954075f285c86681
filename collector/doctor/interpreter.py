"""Check an interpreter for training: torch, how the agent is started, its settings, the GPUs."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from rankscope.collector.doctor.check import Check, note, ok, problem
from rankscope.measure.child_command import build_child_command
from rankscope.measure.inspection import Inspection, InspectorFound, RasFound, TorchFound
from rankscope.measure.units import NS_PER_US, format_duration

INSPECTION: Final = "rankscope.agent.inspection"
TIMEOUT_S: Final = 120.0
"""`import torch` from a network disk may need a minute."""
RANK_VARIABLES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "RANKSCOPE")
"""Removed from the environment of the inspection: with them torch starts an agent."""
EXPECTED_ABSENCES: Final = frozenset({"not_supported", "none_seen", "needs_two_samples"})
"""Reasons that are no fault: the model lacks the value, nothing has happened yet, or it is a rate of two samples."""


def inspect_interpreter(program: str = sys.executable) -> Inspection | Check:
    """Return the inspection made by a child process, or a problem when that hangs, dies or cannot be started."""
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    name = "python"
    cure = f"Run `{program} -m {INSPECTION}` and see where it stops."
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            build_child_command(program, INSPECTION),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return problem(name, f"inspecting torch and the GPU took over {TIMEOUT_S:.0f} s", "training may hang too", cure)
    except OSError as error:
        return problem(
            name, f"{program} cannot be run: {error}", "nothing can be measured", "Name another interpreter."
        )
    try:
        return msgspec.json.decode(done.stdout, type=Inspection)
    except msgspec.MsgspecError:
        errors = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return problem(name, f"inspecting torch and the GPU failed: {errors[0]}", "training would fail too", cure)


def check_interpreter(found: Inspection, environment: Mapping[str, str]) -> Iterator[Check]:
    """Yield a check for each part of the inspection."""
    yield ok("python", f"Python {found.python}, rankscope {found.release}")
    yield _check_torch(found.torch)
    if not found.torch.problem:
        yield _check_launch(found, environment)
        yield _check_backends(found.torch)
        yield _check_profiler(found.torch)
        if found.torch.gpus and not found.torch.windows_problem:
            yield _check_device_windows(found)
        yield from _check_gpus(found)
        if found.ras is not None and "nccl" in found.torch.backends:
            yield _check_ras(found.ras)
        if found.inspector is not None and "nccl" in found.torch.backends:
            yield _check_inspector(found.inspector)
    yield _check_settings(found)


def _check_torch(torch: TorchFound) -> Check:
    if torch.problem:
        return note(
            "torch",
            f"cannot be imported ({torch.problem})",
            "no rank can be measured from this Python; a collector needs no torch",
            "Run the doctor with the Python that trains.",
        )
    built = f" for CUDA {torch.cuda}" if torch.cuda else f" for ROCm {torch.hip}" if torch.hip else " for the CPU"
    return ok("torch", f"{torch.version}{built}, {len(torch.gpus)} GPUs")


def _check_launch(found: Inspection, environment: Mapping[str, str]) -> Check:
    by_hand = "Start with `torchrun ... -m rankscope.agent train.py`."
    if not found.is_autoloaded:
        return note("launch", "torch has not registered the package", "RANKSCOPE=1 alone starts no agent", by_hand)
    if not found.torch.has_autoload:
        reason = "torch before 2.5 has no autoload"
        return note("launch", reason, "RANKSCOPE=1 alone starts no agent", by_hand)
    if environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        cure = f"Unset it. {by_hand}"
        return note("launch", "TORCH_DEVICE_BACKEND_AUTOLOAD is 0", "RANKSCOPE=1 alone starts no agent", cure)
    return ok("launch", "RANKSCOPE=1 starts the agent with `import torch`")


def _check_backends(torch: TorchFound) -> Check:
    have = ", ".join(torch.backends) or "none"
    if torch.cuda and torch.gpus and "nccl" not in torch.backends:
        return note("backends", have, "GPUs cannot communicate through NCCL", "Install a build of torch that has NCCL.")
    if not torch.backends:
        costs = "no ranks can be compared: torch.distributed is missing"
        return note("backends", have, costs, "Install a build of torch that has torch.distributed.")
    return ok("backends", have)


def _check_profiler(torch: TorchFound) -> Check:
    if torch.windows_problem:
        costs = "no windows: no collectives, no compute, overlap and idle ratios; steps and phases stay"
        return note("profiler", torch.windows_problem, costs, "docs/torch.md has the versions that were tried.")
    return ok("profiler", "available, with all features that windows use")


def _check_device_windows(found: Inspection) -> Check:
    """Say what governs the full windows of GPUs in this interpreter."""
    name, torch = "windows of GPUs", found.torch
    if found.device_windows == "off":
        costs = "no compute, communication, overlap and idle ratios of GPUs"
        return note(name, "off", costs, "Set device_windows = governed, and full_windows = true.")
    if found.device_windows == "on_demand":
        said = "on_demand: none begins by itself; the ratios of a GPU come from captures"
        if found.takes_captures:
            return ok(name, said)
        return note(name, f"{said}, of which there are none", "no ratios of GPUs", "Set capture_orders = true.")
    if torch.hip:
        return ok(name, f"{found.device_windows}; on AMD nothing is detached after them")
    detached = "can" if torch.can_detach else "cannot"
    cuda = f"CUPTI {detached} be detached with CUDA {torch.cuda or 'unknown'} (never beside a CUDA graph)"
    if found.device_windows == "always":
        costs = "on NVIDIA steps may be longer for the rest of the job after the first window, and nothing ends that"
        return note(name, "always: what they cost is not measured", costs, "Set device_windows = governed.")
    return ok(name, f"governed: they end if steps between them are longer than before the first; {cuda}")


def _check_ras(ras: RasFound) -> Check:
    """Say whether NCCL's RAS service answers here, which a stalled run asks who is missing or behind."""
    name, costs = "NCCL RAS", "a hang has one witness less: torch's flight recorder, the stacks and the sidecar remain"
    if not ras.address:
        cure = "Set nccl_ras = auto and sidecar = true, and unset NCCL_RAS_ENABLE."
        return note(name, "not asked in a stall", costs, cure)
    if ras.problem:
        cure = "Set NCCL_RAS_ADDR to a free HOST:PORT of this machine, the same for all ranks on it."
        return note(name, ras.problem, costs, cure)
    if ras.protocol is None:
        found = f"nothing listens at {ras.address}: a job listens there while it runs, with NCCL 2.24 or later"
        return ok(name, f"{found}; a stalled run asks it which ranks are missing or behind")
    found = f"a job answers at {ras.address}, protocol {ras.protocol}"
    return ok(name, f"{found}; a stalled run asks it which ranks are missing or behind")


def _check_inspector(inspector: InspectorFound) -> Check:
    """Say whether NCCL's Inspector plugin dumps what sidecars read."""
    name = "NCCL Inspector"
    if not inspector.folder:
        return ok(name, "not switched on (NCCL_INSPECTOR_ENABLE); with it the bandwidths that NCCL measures are read")
    if inspector.problem:
        costs = "no bandwidths by NCCL itself, and a hang has one witness less; all else is measured"
        cure = "Change that where the ranks are started (docs/definitions.md, section 6)."
        return note(name, f"its dumps would not be read: {inspector.problem}", costs, cure)
    interval = format_duration(inspector.interval_us * NS_PER_US)
    often = f"every {interval}" if inspector.interval_us else "all the time (before NCCL 2.30: never)"
    return ok(name, f"ranks started here would dump to {inspector.folder} {often}; their sidecar reads that")


def _check_gpus(found: Inspection) -> Iterator[Check]:
    if not found.torch.gpus:
        costs = "no GPU metrics: that is right on a machine without GPUs"
        yield note(
            "gpu", "torch sees no GPU", costs, "On a machine with GPUs check the driver and CUDA_VISIBLE_DEVICES."
        )
        return
    if found.torch.hip:
        return
    if not any(found.torch.gpus):
        cure = "Train with torch 2.5 or later."
        yield note("gpu", "this torch does not report the UUIDs of its GPUs", "no GPU metrics through NVML", cure)
        return
    if found.nvml_problem:
        costs = "no utilization, clocks, power, temperature, throttling, ECC and Xid"
        cure = "In a container: run it with NVIDIA_DRIVER_CAPABILITIES=compute,utility."
        yield problem("nvml", found.nvml_problem, costs, cure)
        return
    for gpu in found.gpus:
        missing = {field: why for field, why in gpu.absent.items() if why not in EXPECTED_ABSENCES}
        name = f"nvml {gpu.uuid}"
        if missing:
            listed = "; ".join(f"{why}: {', '.join(_fields_of(missing, why))}" for why in sorted(set(missing.values())))
            yield note(
                name,
                f"{gpu.model}: {listed}",
                "these values are absent",
                "Each group of values has NVML's reason before it.",
            )
        else:
            yield ok(name, f"{gpu.model}: all its values can be read")


def _fields_of(missing: Mapping[str, str], reason: str) -> list[str]:
    return sorted(field for field, why in missing.items() if why == reason)


def _check_settings(found: Inspection) -> Check:
    if found.settings_problem:
        cure = "The error names the setting, where it was set, and its allowed values."
        return problem("settings", found.settings_problem, "training runs without it, or without the agent", cure)
    return ok("settings", f"collector {found.collector}" if found.collector else "rank 0 starts its own collector")
