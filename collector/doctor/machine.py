"""Check this machine: profiling, open files, clock, network cards, CPU pressure, folders, ports."""

import ctypes
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rankscope.collector.doctor.check import Check, note, ok, problem

NVIDIA_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
INJECTIONS: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUDA_INJECTION32_PATH")
"""Variables through which other profilers (Nsight, DCGM's, sanitizers) enter a process. CUPTI has one subscriber."""
RECORDER_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
EVENT_CACHE: Final = "TORCH_NCCL_CUDA_EVENT_CACHE"
TIMING_ON: Final = frozenset({"1", "y", "yes", "t", "true"})
TIMING_OFF: Final = frozenset({"0", "n", "no", "f", "false"})
"""What torch takes for yes."""
FILES_WANTED: Final = 20_000
"""Open files of a collector with 16,384 ranks, one for each and some of its own."""
UNSYNCHRONIZED: Final = 0x0040
"""STA_UNSYNC of adjtimex(2): no program synchronizes the clock."""
INFINIBAND: Final = Path("/sys/class/infiniband")
CPU_PRESSURE: Final = Path("/proc/pressure/cpu")
PORTS_NAMED_MAX: Final = 16
"""As many as an agent reads."""
ACTIVE: Final = "ACTIVE"
_TIMEX_BYTES: Final = 512
"""More than struct timex has on any architecture (208)."""
_TIMEX_STATUS: Final = 10
"""Index of `status` in it, in ints, on 64-bit Linux: after modes, padding, offset, freq, maxerror, esterror."""


def check_machine(
    environment: Mapping[str, str], spill_dir: str, metrics_port: int, *, has_gpus: bool
) -> Iterator[Check]:
    """Yield the checks that do not need torch."""
    if has_gpus:
        yield check_profiling(NVIDIA_PARAMETERS, is_root=os.geteuid() == 0)
        yield check_nccl_timing(environment)
    yield check_other_profilers(environment)
    yield check_flight_recorder(environment)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_clock(read_clock_status())
    yield check_network_ports(INFINIBAND)
    yield check_cpu_pressure(CPU_PRESSURE)
    if spill_dir:
        yield check_folder(spill_dir)
    if metrics_port:
        yield check_port(metrics_port)


def check_profiling(parameters: Path, *, is_root: bool) -> Check:
    """Check that a user's process may profile GPU kernels, which the driver can restrict to administrators."""
    try:
        text = parameters.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ok("profiling", "the driver reports no restriction")
    if "RmProfilingAdminOnly: 1" in text and not is_root:
        return note(
            "profiling",
            "the driver lets only administrators profile kernels (RmProfilingAdminOnly: 1)",
            "windows without kernels: no compute, overlap and idle ratios, no collectives of GPUs",
            "As root: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d; reload the driver.",
        )
    return ok("profiling", "kernels can be profiled")


def check_other_profilers(environment: Mapping[str, str]) -> Check:
    """Check the environment for tools that CUDA loads into every process."""
    present = [name for name in INJECTIONS if environment.get(name)]
    if present:
        costs = "while it profiles, windows see no kernels, or the other profiler sees none"
        return note("other profilers", f"{', '.join(present)} is set", costs, "Unset it, or set full_windows = false.")
    return ok("other profilers", "none is set in the environment")


def check_flight_recorder(environment: Mapping[str, str]) -> Check:
    """Check that torch's flight recorder, which keeps the last collectives, is on."""
    off = [name for name in RECORDER_SIZES if environment.get(name) == "0"]
    if off:
        costs = "in a hang the collective of each rank is unknown"
        return note(
            "flight recorder", f"{', '.join(off)} is 0", costs, "Unset it: torch 2.11 and later keep 2,000 entries."
        )
    return ok("flight recorder", "not switched off here (on by default from torch 2.11)")


def check_nccl_timing(environment: Mapping[str, str]) -> Check:
    """Check whether torch will time the collectives of NCCL: only the environment is known, not the job's torch."""
    value, setting = environment.get("TORCH_NCCL_ENABLE_TIMING"), environment.get("RANKSCOPE_NCCL_TIMING", "auto")
    if environment.get(EVENT_CACHE, "").lower() in TIMING_OFF:
        found, cure = f"{EVENT_CACHE} is {environment[EVENT_CACHE]}", "Unset it: without the cache reading is unsafe."
        return note("NCCL timing", found, "collectives of NCCL are known in full windows only", cure)
    if setting == "measured" and value is None:
        return ok(
            "NCCL timing", "RANKSCOPE_NCCL_TIMING is measured: the log says what it does to the steps (docs/cost.md)"
        )
    if setting == "off" or (value is not None and value.lower() not in TIMING_ON):
        found = "RANKSCOPE_NCCL_TIMING is off" if setting == "off" else f"TORCH_NCCL_ENABLE_TIMING is {value}"
        costs = "the durations of NCCL's collectives, and who waits in them, are known in full windows only"
        return note("NCCL timing", found, costs, "Unset it: timing costs 2.5 to 3.7 us a collective (docs/cost.md).")
    return ok(
        "NCCL timing", "nothing in this environment prevents it; it costs 2.5 to 3.7 us a collective (docs/cost.md)"
    )


def check_open_files(soft_limit: int) -> Check:
    """Check the limit of open files for a collector of many ranks."""
    if soft_limit != resource.RLIM_INFINITY and soft_limit < FILES_WANTED:
        costs = f"a collector here can serve at most about {soft_limit} ranks"
        return note("open files", f"at most {soft_limit}", costs, "ulimit -n 65536, or LimitNOFILE in its unit.")
    return ok("open files", "as many as a collector of 16,384 ranks needs")


def read_clock_status() -> int | None:
    """Return the kernel's clock status (adjtimex(2) without modes, which changes nothing); None where that fails."""
    buffer = (ctypes.c_int * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_int)))()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else int(buffer[_TIMEX_STATUS])


def check_clock(status: int | None) -> Check:
    """Check that a program synchronizes this machine's clock."""
    if status is None or status & UNSYNCHRONIZED:
        costs = "times of day in incidents and history may be wrong; comparing ranks does not need them"
        found = "the clock's status is unknown" if status is None else "this machine's clock is not synchronized"
        return note("time", found, costs, "Run chrony or systemd-timesyncd.")
    return ok("time", "the clock is synchronized")


def check_network_ports(folder: Path) -> Check:
    """Check that the ports of InfiniBand and RoCE cards carry data; `folder` is like /sys/class/infiniband."""
    ports = sorted(folder.glob("*/ports/*"))
    if not ports:
        return ok("network ports", "no InfiniBand or RoCE card; errors of interfaces and of TCP are read")
    states = {f"{port.parts[-3]}/{port.name}": _read_first_line(port / "state").rpartition(" ")[2] for port in ports}
    states = {os.fsencode(name).decode(errors="replace"): state for name, state in states.items()}
    listed = ", ".join(f"{name} {state.lower() or 'unknown'}" for name, state in list(states.items())[:PORTS_NAMED_MAX])
    listed += f", {len(states) - PORTS_NAMED_MAX} more, which are not read" if len(states) > PORTS_NAMED_MAX else ""
    if all(state == ACTIVE for state in states.values()):
        return ok("network ports", listed)
    costs = "a port that is down moves no data, and its counters say nothing about slow links"
    return note("network ports", listed, costs, "Look at `ibstat` and the cable; a port that nobody uses may be down.")


def check_cpu_pressure(file: Path) -> Check:
    """Check that the kernel counts for how long tasks wait for a CPU (PSI)."""
    if _read_first_line(file).startswith("some"):
        return ok("CPU pressure", "counted by the kernel")
    costs = (
        "a rank that is slow because its machine lacks CPU time is reported as host_cpu, not cpu_pressure (steal is "
        "still seen)"
    )
    return note("CPU pressure", f"{file} cannot be read", costs, "Linux 4.20 or later; boot it with psi=1.")


def _read_first_line(file: Path) -> str:
    """Return the first line; empty where the file cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def check_folder(folder: str) -> Check:
    """Check that reports can be spilled to this folder."""
    if os.access(folder, os.W_OK | os.X_OK):
        return ok("spill_dir", folder)
    costs = "reports that do not fit into memory are lost, and counted"
    return problem("spill_dir", f"{folder} is not a writable folder", costs, "Create it, or name another.")


def check_port(port: int) -> Check:
    """Check that rank 0's own collector can serve its metrics on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            costs = "rank 0's collector takes a free port instead"
            return problem("metrics port", f"{port}: {error.strerror}", costs, "Set another embedded_metrics_port.")
    return ok("metrics port", f"{port} is free")
