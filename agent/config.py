"""The agent's settings: configs/agent.toml is written from this file."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from rankscope.measure.errors import SettingError
from rankscope.measure.rank_settings import COLLECTIVE_WINDOW, FULL_WINDOW_INTERVAL, LINE_SAMPLES
from rankscope.measure.settings import (
    Mistake,
    Setting,
    Settings,
    Value,
    constant,
    find_endpoint_problem,
    read,
    read_leniently,
    setting,
)
from rankscope.measure.shards import parse_collectors

_DAY_S = 86_400
_MIB = 1024 * 1024

AUTO: Final = "auto"
YES: Final = "yes"
NO: Final = "no"
ON: Final = "on"
GOVERNED: Final = "governed"
ALWAYS: Final = "always"
ON_DEMAND: Final = "on_demand"
MEASURED: Final = "measured"
OFF: Final = "off"

NEEDED: Final = frozenset({"enabled", "collector", "key_file", "collector_key_file"})
"""Settings that decide whether to measure and where reports go. With a mistake in one of them the process is not
measured, since a default could report to the wrong place."""


def _find_collector_problem(text: str) -> str | None:
    return next((problem for problem in map(find_endpoint_problem, parse_collectors(text)) if problem), None)


def _find_capture_problem(name: str) -> Callable[[str], str | None]:
    """Return a check of a setting of captures, imported when there is something to check."""

    def find_problem(text: str) -> str | None:
        if not text:
            return None
        from rankscope.agent import capture_settings  # noqa: PLC0415 - mostly nothing of captures is set

        found: str | None = getattr(capture_settings, name)(text)
        return found

    return find_problem


def _find_folder_problem(folder: str) -> str | None:
    if not folder or folder.startswith("/"):
        return None
    return "it must be an absolute path, since ranks may run in different directories"


def _find_pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it must be a regular expression: {error}"
    return None


def _find_fault_problem(text: str) -> str | None:
    if not text:
        return None
    from rankscope.agent.fault_spec import find_fault_problem  # noqa: PLC0415 - hardly any training has a fault

    return find_fault_problem(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig(Settings):
    """Settings of the agent of one rank. `_s` are seconds, `_bytes` bytes, `_ratio` shares of 1."""

    TITLE: ClassVar[str] = "rankscope agent: the part that runs inside each training process."
    PREFIX: ClassVar[str] = "RANKSCOPE_"
    FILE_VARIABLE: ClassVar[str] = "RANKSCOPE_CONFIG"
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = (
        "RANKSCOPE_CA_FILE",
        "RANKSCOPE_CLIENT_CONFIG",
        "RANKSCOPE_CONFIG",
        "RANKSCOPE_CONTROL_TOKEN_FILE",
        "RANKSCOPE_DEBUG",
        "RANKSCOPE_NCCL_TIMING_SET",
        "RANKSCOPE_PID",
        "RANKSCOPE_RELAY_*",
        "RANKSCOPE_SERVE_*",
        "RANKSCOPE_TOKEN_FILE",
        "RANKSCOPE_URL",
        "RANKSCOPE_WORKER_PAGE",
    )

    enabled: bool = setting(True, Setting("Measure this process."))
    strict: bool = setting(
        False,
        Setting(
            "End the process with exit status 2 when these settings contain a mistake or the keys cannot be used. "
            "Otherwise the mistake is reported once on each node and training continues."
        ),
    )
    collector: str = setting(
        "",
        Setting(
            "Address of the collector, tcp://HOST:PORT, or of this node's relay, which may also be ipc:///PATH. With "
            "several addresses, separated by commas, the name of the run selects one, so the list must be the same on "
            "all ranks. Empty: rank 0 starts a collector for this run.",
            find_problem=_find_collector_problem,
        ),
    )
    key_file: str = setting(
        "",
        Setting("File with the key pair of this agent (made by `rankscope keys`), for a collector that requires keys."),
    )
    collector_key_file: str = setting(
        "", Setting("File with the public key of that collector. Nothing is sent to a collector with another key.")
    )
    run: str = setting(
        "",
        Setting(
            "Name of the run, which is the label `run` of its metrics. Empty: TORCHELASTIC_RUN_ID, after the name of "
            "the script where that is a UUID, else a name made of the host and MASTER_PORT or the process id.",
            length_max=128,
        ),
    )
    node: str = setting(
        "",
        Setting(
            "Name of the machine in metrics and findings. Empty: its host name, which in a container is often the "
            "container's.",
            length_max=128,
        ),
    )
    report_user: bool = setting(
        True,
        Setting(
            "Report whose run it is: the owner of the Slurm job, else the login name. It is shown in the list of runs "
            "and is a label of rankscope_rank_info."
        ),
    )
    fault: str = setting(
        "",
        Setting(
            "Fault that one rank does to itself on purpose, to see what is reported of it (docs/selftest.md), such as "
            "`rank=2 kind=host_sleep ms=50 phase=forward steps=200:400`. Every report and page states it.",
            find_problem=_find_fault_problem,
        ),
    )
    faults_allowed: bool = setting(
        False,
        Setting("Let `fault` disturb or end this training. Without it no fault is injected."),
    )
    report_interval_s: float = setting(
        1.0,
        Setting(
            "Time between two reports of a rank. A report also serves as heartbeat.",
            unit="seconds",
            smallest=0.1,
            largest=60,
            below="Below that the agent would cost more than 1 % of a core.",
            above="Beyond that a rank would look silent to the collector.",
        ),
    )
    # An hour of reports; for longer there is `spill_dir`.
    resend_bytes_max: int = constant(
        16 * _MIB,
        Setting(
            "Largest total size of reports kept in memory until the collector acknowledges them. Above it, the oldest "
            "are dropped and counted.",
            unit="bytes",
            smallest=_MIB // 16,
            largest=1024 * _MIB,
        ),
    )
    # More than an hour of reports of a second; `resend_bytes_max` is usually reached before.
    resend_reports_max: int = constant(
        4096,
        Setting(
            "Largest number of reports kept in memory until the collector acknowledges them. Above it, the oldest are "
            "dropped and counted.",
            unit="reports",
            smallest=16,
            largest=1_000_000,
        ),
    )
    spill_dir: str = setting(
        "",
        Setting(
            "Folder on a local disk where every report is also kept until the collector acknowledges it. The sidecar "
            "of the node delivers the reports of a killed rank from there, at once or at the next start of the run; "
            "undelivered reports are removed after a day. Empty: reports are kept in memory only.",
            find_problem=_find_folder_problem,
        ),
    )
    spill_bytes_max: int = setting(
        64 * _MIB,
        Setting(
            "Largest total size of the reports of one rank in spill_dir. Above it, the oldest are dropped and counted.",
            unit="bytes",
            smallest=_MIB,
            largest=16 * 1024 * _MIB,
        ),
    )
    # In reports of a second, steps of 0.12 ms fill it.
    ring_steps_max: int = constant(
        8192,
        Setting(
            "Largest number of steps kept between two reports. Above it, the oldest are overwritten and counted.",
            unit="steps",
            smallest=16,
            largest=1_000_000,
        ),
    )
    drain_s: float = setting(
        3.0,
        Setting(
            "Longest time that the process waits at its end for the collector to acknowledge the last reports, and to "
            "fetch the files of captures that it has ordered.",
            unit="seconds",
            smallest=0,
            largest=60,
            above="Above that a launcher would consider the waiting process hung.",
        ),
    )
    collective_windows: bool = setting(
        True,
        Setting("Measure each collective operation in short profiler windows (light windows)."),
    )
    collective_window_s: float = setting(2.0, COLLECTIVE_WINDOW)
    full_windows: bool = setting(
        True,
        Setting("Measure compute, overlap and idle time in occasional full profiler windows."),
    )
    device_windows: str = setting(
        GOVERNED,
        Setting(
            "Full windows while a GPU is in use. On NVIDIA the first one loads the profiling library CUPTI into the "
            "process, which can make every later step longer. governed: compare the steps between windows with those "
            "before, and end the windows if steps have become longer (docs/cost.md); always: do not compare; "
            "on_demand: begin none; compute, communication and idle ratios of a GPU come from captures without "
            "options, as these are ordered or scheduled; off: begin none, so that there are no such ratios. With "
            "on_demand and off FLOPs are counted from the operators of the host, without CUPTI.",
            choices=(GOVERNED, ALWAYS, ON_DEMAND, OFF),
        ),
    )
    cuda_graphs: str = setting(
        AUTO,
        Setting(
            "Whether profiler sessions wait until the first CUDA graph is captured, or 64 steps and 60 s have passed: "
            "one before it may leave the process without kernel records for good. auto: wait where torch.compile was "
            "called with CUDA graphs, or Megatron's arguments ask for them; yes: always wait; no: never wait "
            "(docs/cost.md).",
            choices=(AUTO, YES, NO),
        ),
    )
    nccl_timing: str = setting(
        AUTO,
        Setting(
            "Let torch time each collective of NCCL, so that the collectives between windows are measured too. auto: "
            "set TORCH_NCCL_ENABLE_TIMING=1 before the first process group, if the job has not set it and torch's "
            "flight recorder is on; on: even if that is unknown; measured: where auto would set it, begin without "
            "timing, then switch it on and compare the steps before and after; off: do not set it and do not read the "
            "recorder between windows. If torch does not time them, the times at which they are enqueued are read. "
            "With torch before 2.6, or without its event cache, nothing is read. Timing costs about 3 us a collective "
            "(docs/cost.md).",
            choices=(AUTO, ON, MEASURED, OFF),
        ),
    )
    line_samples: bool = setting(True, LINE_SAMPLES)
    # The shortest that has a whole step between two boundaries.
    full_window_steps: int = constant(
        2,
        Setting("Length of a full window.", unit="steps", smallest=1, largest=16),
    )
    full_window_interval_s: float = setting(20.0, FULL_WINDOW_INTERVAL)
    measure_flops: bool = setting(
        True,
        Setting(
            "Count the FLOPs of a step, for MFU: now and then a full window also records the shapes of all operators. "
            "Such a window costs twice the CPU time (measured on a CPU; estimated up to 15 times on a GPU), and begins "
            "only when overhead_ratio_max allows it."
        ),
    )
    # The batch changes seldom, and such a window costs twice the CPU time: every hour or two is enough.
    flops_interval_s: float = constant(
        300.0,
        Setting(
            "When the FLOPs of a step are counted again: once in this time if the batch has had another size for 16 "
            "steps, and in any case once in twelve times this time; early in a run each time its steps have doubled. "
            "Both times are rounded up to a power of two of steps, and all ranks do so at the same step of each.",
            unit="seconds",
            smallest=1,
            largest=_DAY_S,
        ),
    )
    # Windows in these steps would show what no later step does.
    warmup_steps: int = constant(
        4,
        Setting(
            "Steps before the first window: the first steps compile, allocate and tune.",
            unit="steps",
            smallest=1,
            largest=10_000,
        ),
    )
    # It bounds the CPU time and the memory of the analysis.
    window_events_max: int = constant(
        200_000,
        Setting(
            "Largest number of profiler events of a window that is analyzed. A window with more is skipped and "
            "counted, and the next one is shorter.",
            unit="events",
            smallest=1000,
            largest=10_000_000,
        ),
    )
    communication_kernels: str = setting(
        "",
        Setting(
            "Regular expression: kernels in whose names it is found count as communication in full windows of a GPU, "
            "beside those known, and not as compute. They are no collectives: waiting in them is not seen.",
            find_problem=_find_pattern_problem,
        ),
    )
    capture_folder: str = setting(
        "",
        Setting(
            "Folder for captures: traces of whole steps as torch.profiler writes them, one file a rank, in RUN/STEPS. "
            "A folder that all ranks share keeps the ranks of a capture together, for `rankscope analyze`. Or a URL of "
            "fsspec, as s3://bucket/path, to which a process of low priority uploads each file. "
            "Empty: only captures that the collector orders. A path also gets the memory snapshots of allocations that "
            "fail.",
            find_problem=_find_capture_problem("find_folder_problem"),
        ),
    )
    capture_schedule: str = setting(
        "",
        Setting(
            "Steps that all ranks capture, in the words of torch.profiler.schedule, for example `skip_first=10, "
            "wait=1000, warmup=1, active=3, repeat=2`. Words left out: skip_first=0, wait=0, warmup=1, active=3, "
            "repeat=1; repeat=0 goes on until the end. Empty: none.",
            find_problem=_find_capture_problem("find_schedule_problem"),
        ),
    )
    capture_options: str = setting(
        "",
        Setting(
            "What captures record beside operators, kernels and copies: shapes, stacks, memory, modules, separated by "
            "commas. Shapes and stacks each make what a capture costs more than 3 times as much, memory 1.5 times; "
            "modules added 1 % for one model.",
            find_problem=_find_capture_problem("find_options_problem"),
        ),
    )
    capture_orders: bool = setting(
        True,
        Setting(
            "Whether this rank takes captures that the collector orders. Their files go to the collector, and stay in "
            "`capture_folder` too, where that is set.",
        ),
    )
    setting_orders: str = setting(
        AUTO,
        Setting(
            "Whether the collector may change `collective_window_s`, `full_window_interval_s` and `line_samples` of "
            "this rank while it trains (`rankscope set`). auto: where `capture_orders` allows captures; yes; no.",
            choices=(AUTO, YES, NO),
        ),
    )
    capture_pause_s_max: float = setting(
        2.0,
        Setting(
            "A capture is refused if it is expected to stop training for longer, at its end and while its file is "
            "written.",
            unit="seconds",
            smallest=0.01,
            largest=600,
            above="Above that the timeout of other ranks' collectives may end the run.",
        ),
    )
    capture_bytes_max: int = setting(
        1024 * _MIB,
        Setting(
            "Largest total size of the captures of one rank process. A capture that would exceed it is discarded, and "
            "there are no more.",
            unit="bytes",
            smallest=_MIB,
            largest=1024 * 1024 * _MIB,
        ),
    )
    memory_history_headroom: float = setting(
        0.05,
        Setting(
            "Share of a GPU's memory: once less than this was left at the peak, or an allocation had to be tried "
            "again, torch records the history of its memory, if that costs at most overhead_ratio_max, for the "
            "snapshot of an allocation that fails (docs/memory.md). 0: never.",
            unit="ratio",
            smallest=0,
            largest=1,
        ),
    )
    overhead_ratio_max: float = setting(
        0.005,
        Setting(
            "Largest share of the training time that the agent may cost. Above it windows run less often, then parts "
            "of the agent are switched off, in the order given in docs/cost.md.",
            unit="ratio",
            smallest=0.0001,
            largest=1.0,
        ),
    )
    # Temperature, power and memory change slowly; what is faster is in their counters.
    sample_interval_s: float = constant(
        2.0,
        Setting("Time between two samples of the process and of its GPU.", unit="seconds", smallest=0.5, largest=600),
    )
    device_times: bool = setting(
        True,
        Setting("Time the phases of some steps on the GPU as well, if torch is built for one."),
    )
    layer_times: bool = setting(
        True, Setting("Time the model's repeated blocks in some steps; GPUs need device_times.")
    )
    peak_tflops: float = setting(
        0.0,
        Setting(
            "Peak of the rank's device for the type of numbers that it trains with, without sparsity, for MFU and HFU. "
            "0: the maker's figure (docs/flops.md); there is no MFU then without a GPU, or with one not in the table.",
            unit="10^12 FLOP/s",
            smallest=0,
            largest=1_000_000,
        ),
    )
    gpu: bool = setting(True, Setting("Sample the GPU through NVML or amdsmi, if there is one."))
    # One rank of a node reads some files of /proc and /sys, and the budget counts what that costs.
    node_samples: bool = constant(
        True,
        Setting(
            "Read the counters of the machine, in one rank per node (that with local rank 0): InfiniBand and RoCE "
            "ports, network interfaces, TCP, CPU pressure and steal."
        ),
    )
    embedded_metrics_port: int = setting(
        0,
        Setting(
            "Port of /metrics of a collector started by rank 0. 0 selects any free port; a free port is also used when "
            "the given one is not available.",
            smallest=0,
            largest=65_535,
        ),
    )
    stall_s: float = setting(
        30.0,
        Setting(
            "A rank counts as stalled after this time without any hook event, and at least ten median steps.",
            unit="seconds",
            smallest=0.5,
            largest=_DAY_S,
        ),
    )
    sidecar: bool = setting(
        True,
        Setting("Start one sidecar process per node that reports how ranks exit and where a frozen rank is blocked."),
    )
    nccl_ras: str = setting(
        AUTO,
        Setting(
            "In a stall, ask NCCL's RAS service which ranks are missing or behind, as a second witness beside the "
            "flight recorder. auto: the sidecar that watches rank 0 asks at NCCL_RAS_ADDR (localhost:28028), at most "
            "once a minute while a rank on its machine is stalled, unless NCCL_RAS_ENABLE is 0; off: never. It needs "
            "the sidecar, and NCCL 2.24 or later.",
            choices=(AUTO, OFF),
        ),
    )
    # One error may be an accident of the script; twenty of one part are a fault of the part.
    error_budget: int = constant(
        20,
        Setting(
            "Number of exceptions after which a part of the agent is switched off.",
            unit="exceptions",
            smallest=1,
            largest=1_000_000,
        ),
    )
    # More names say nothing on a page, and the collector keeps 27 of a run.
    phases_max: int = constant(
        16,
        Setting(
            "Largest number of user-defined phases. Time inside further ones is charged to the phase `other`. "
            "The collector keeps 27 names of a run.",
            unit="phases",
            smallest=0,
            largest=46,
            above="Above that the phases would not fit into the 64 columns of a report's table.",
        ),
    )


def read_config(environment: Mapping[str, str], overrides: Mapping[str, Value] | None = None) -> AgentConfig:
    """Read the agent's settings from the file named by RANKSCOPE_CONFIG, the environment and the caller's overrides.

    Raise SettingError when the file cannot be read, a value cannot be used or a name is no setting.
    """
    file_name = environment.get(AgentConfig.FILE_VARIABLE, "")
    return read(
        AgentConfig,
        file_text=_read_file(file_name) if file_name else None,
        file_name=file_name,
        environment=environment,
        overrides=overrides,
    )


class LaunchConfig(NamedTuple):
    """The settings of a training process, which is not measured unless `is_usable`.

    `mistakes` describe what is wrong; `notes` add what was done about each.
    """

    config: AgentConfig
    is_usable: bool
    mistakes: tuple[str, ...]
    notes: tuple[str, ...]


def read_launch_config(environment: Mapping[str, str], given: Mapping[str, str]) -> LaunchConfig:
    """Read the settings with their mistakes; never raise.

    `given` are the options of the launch line, which override the environment; `config` among them names the file.
    """
    overrides = dict(given)
    file_name = overrides.pop("config", environment.get(AgentConfig.FILE_VARIABLE, ""))
    file_text, unreadable = None, []
    try:
        file_text = _read_file(file_name) if file_name else None
    except SettingError as error:
        unreadable = [Mistake("", str(error))]
    config, mistakes = read_leniently(
        AgentConfig, file_text=file_text, file_name=file_name, environment=environment, overrides=overrides
    )
    found = (*unreadable, *mistakes)
    return LaunchConfig(
        config,
        is_usable=not any(map(_is_grave, found)),
        mistakes=tuple(mistake.text for mistake in found),
        notes=tuple(_note(mistake, config) for mistake in found),
    )


def describe_not_started(problem: str) -> str:
    """Return the message for a mistake because of which the process is not measured."""
    return f"not started: {problem} Training continues without it."


def _is_grave(mistake: Mistake) -> bool:
    return mistake.key in NEEDED or (not mistake.key and not mistake.is_unknown)  # or the whole file


def _note(mistake: Mistake, config: AgentConfig) -> str:
    if _is_grave(mistake):
        return describe_not_started(mistake.text)
    if mistake.is_unknown:
        return f"{mistake.text} It is ignored."
    return f"{mistake.text} {mistake.key} stays {getattr(config, mistake.key)!r} ({config.source(mistake.key)})."


def _read_file(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:  # pathlib would take longer to import than all the rest
            return file.read()
    except (OSError, ValueError) as error:
        variable = AgentConfig.FILE_VARIABLE
        text = f"{variable} is {name!r}, which cannot be read: {error}. Name a readable file or unset {variable}."
        raise SettingError(text) from error
