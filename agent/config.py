"""The agent's settings: configs/agent.toml is written from this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from rankscope.measure.errors import SettingError
from rankscope.measure.settings import (
    Mistake,
    Setting,
    Settings,
    Value,
    find_endpoint_problem,
    read,
    read_leniently,
    setting,
)
from rankscope.measure.shards import parse_collectors

_DAY_S = 86_400
_MIB = 1024 * 1024

NEEDED: Final = frozenset({"enabled", "collector", "key_file", "collector_key_file"})
"""They say whether anything is to be measured and who may hear of it. A mistake in one of them is not mended with a
default: the process is not measured."""


def _find_collector_problem(text: str) -> str | None:
    return next((problem for problem in map(find_endpoint_problem, parse_collectors(text)) if problem), None)


def _find_folder_problem(folder: str) -> str | None:
    if not folder or folder.startswith("/"):
        return None
    return "it must be an absolute path, since ranks may run in different directories"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig(Settings):
    """Everything that can be set for the agent of one rank. `_s` are seconds, `_bytes` bytes, `_ratio` shares of 1."""

    TITLE: ClassVar[str] = "rankscope agent: the part that rides inside each training process."
    PREFIX: ClassVar[str] = "RANKSCOPE_"
    FILE_VARIABLE: ClassVar[str] = "RANKSCOPE_CONFIG"
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = (
        "RANKSCOPE_CA_FILE",
        "RANKSCOPE_CLIENT_CONFIG",
        "RANKSCOPE_CONFIG",
        "RANKSCOPE_DEBUG",
        "RANKSCOPE_PID",
        "RANKSCOPE_RELAY_*",
        "RANKSCOPE_SERVE_*",
        "RANKSCOPE_TOKEN_FILE",
        "RANKSCOPE_URL",
    )

    enabled: bool = setting(True, Setting("Whether the process is measured at all."))
    strict: bool = setting(
        False,
        Setting(
            "Whether a mistake in these settings, or keys that cannot be used, ends the process with exit status 2. "
            "Otherwise the mistake is reported once on each node and training continues."
        ),
    )
    collector: str = setting(
        "",
        Setting(
            "Address of the collector, tcp://HOST:PORT, or of this node's relay, which may be ipc:///PATH too. Several "
            "with commas between them: the name of the run chooses, and everybody must have the same ones. Empty: rank "
            "0 starts a collector of its own for this run.",
            find_problem=_find_collector_problem,
        ),
    )
    key_file: str = setting(
        "",
        Setting(
            "File with this agent's pair of keys (`rankscope keys`), for a collector that lets in nobody without keys."
        ),
    )
    collector_key_file: str = setting(
        "", Setting("File with the public key of that collector. A collector that does not have it is told nothing.")
    )
    run: str = setting(
        "",
        Setting(
            "Name of the run, the label `run` of its metrics. Empty: TORCHELASTIC_RUN_ID, else a name made of the "
            "host and the process.",
            length_max=128,
        ),
    )
    node: str = setting(
        "",
        Setting(
            "Name of the machine in metrics and verdicts. Empty: its host name, which in a container is often the "
            "container's.",
            length_max=128,
        ),
    )
    report_interval_s: float = setting(
        1.0,
        Setting(
            "Time between two reports of a rank. A report is the heartbeat too.",
            unit="seconds",
            smallest=0.1,
            largest=60,
            below="Below that the agent would cost more than 1 % of a core.",
            above="Beyond that a rank would look silent to the collector.",
        ),
    )
    resend_bytes_max: int = setting(
        16 * _MIB,
        Setting(
            "Most bytes of reports kept until the collector acknowledges them. Beyond, the oldest are dropped and "
            "counted.",
            unit="bytes",
            smallest=_MIB // 16,
            largest=1024 * _MIB,
        ),
    )
    resend_reports_max: int = setting(
        4096,
        Setting(
            "Most reports kept until the collector acknowledges them. Beyond, the oldest are dropped and counted.",
            unit="reports",
            smallest=16,
            largest=1_000_000,
        ),
    )
    spill_dir: str = setting(
        "",
        Setting(
            "Folder on a local disk to which every report is written as well until the collector acknowledges it. What "
            "a killed rank leaves there is delivered by the sidecar of its node, then or with the next start of the "
            "run; what nobody has asked for within a day is removed. Empty: reports are kept in memory only.",
            find_problem=_find_folder_problem,
        ),
    )
    spill_bytes_max: int = setting(
        64 * _MIB,
        Setting(
            "Most bytes of reports that a rank keeps in spill_dir. Beyond, the oldest are dropped and counted.",
            unit="bytes",
            smallest=_MIB,
            largest=16 * 1024 * _MIB,
        ),
    )
    ring_steps_max: int = setting(
        8192,
        Setting(
            "Most steps kept between two reports. Beyond, the oldest are overwritten and counted.",
            unit="steps",
            smallest=16,
            largest=1_000_000,
        ),
    )
    drain_s: float = setting(
        3.0,
        Setting(
            "How long the end of the process may wait for the collector to acknowledge the last reports.",
            unit="seconds",
            smallest=0,
            largest=60,
            above="Beyond that a launcher would take the waiting process for a hanging one.",
        ),
    )
    collective_windows: bool = setting(
        True,
        Setting("Whether short windows of the profiler measure each collective operation."),
    )
    collective_window_s: float = setting(
        2.0,
        Setting(
            "About how long a collective window lasts. One that sees much in each step lasts fewer steps.",
            unit="seconds",
            smallest=0.1,
            largest=600,
        ),
    )
    full_windows: bool = setting(
        True,
        Setting("Whether now and then a window of the profiler measures compute, overlap and idle time."),
    )
    full_window_steps: int = setting(
        2,
        Setting("How many steps a full window spans.", unit="steps", smallest=1, largest=16),
    )
    full_window_interval_s: float = setting(
        20.0,
        Setting("Shortest time between two full windows.", unit="seconds", smallest=1, largest=_DAY_S),
    )
    warmup_steps: int = setting(
        4,
        Setting(
            "Steps before the first window: the first ones compile, allocate and tune.",
            unit="steps",
            smallest=1,
            largest=10_000,
        ),
    )
    window_events_max: int = setting(
        200_000,
        Setting(
            "Most profiler events that a window is reduced from. A window with more is skipped and counted, and the "
            "next one is shorter.",
            unit="events",
            smallest=1000,
            largest=10_000_000,
        ),
    )
    overhead_ratio_max: float = setting(
        0.005,
        Setting(
            "Largest share of the training time that the agent may cost. Above it windows come less often, then parts "
            "are dropped, in the order of docs/cost.md.",
            unit="ratio",
            smallest=0.0001,
            largest=1.0,
        ),
    )
    sample_interval_s: float = setting(
        2.0,
        Setting("Time between two samples of the process and of its GPU.", unit="seconds", smallest=0.5, largest=600),
    )
    device_times: bool = setting(
        True,
        Setting("Whether the phases of some steps are timed on the GPU as well, where torch is built for one."),
    )
    gpu: bool = setting(True, Setting("Whether the GPU is sampled, through NVML or amdsmi, where there is one."))
    embedded_metrics_port: int = setting(
        0,
        Setting(
            "Port of the metrics of a collector that rank 0 has started; 0 stands for any free one, and a free one is "
            "used where the port cannot be had.",
            smallest=0,
            largest=65_535,
        ),
    )
    embedded_summary: bool = setting(
        True,
        Setting("Whether a collector that rank 0 has started prints its verdict in one line at the end."),
    )
    throughput_summary: bool = setting(
        False,
        Setting(
            "Whether rank 0 prints at its end how fast it trained: steps, samples and tokens per second, and what "
            "waiting for data took. The collector's last words have it in one line in any case.",
        ),
    )
    stall_s: float = setting(
        30.0,
        Setting(
            "A rank is stalled when nothing has happened for so long that the hooks see, and for ten median steps.",
            unit="seconds",
            smallest=0.5,
            largest=_DAY_S,
        ),
    )
    sidecar: bool = setting(
        True,
        Setting(
            "Whether a small process on each node tells how ranks end, and what a rank is in that can no longer speak."
        ),
    )
    crash_stacks: bool = setting(
        True,
        Setting(
            "Whether a fatal signal (SIGSEGV, SIGABRT) leaves the Python stacks for the sidecar. A script that has "
            "enabled faulthandler itself keeps its own."
        ),
    )
    error_budget: int = setting(
        20,
        Setting(
            "Exceptions after which a part of the agent is switched off.",
            unit="exceptions",
            smallest=1,
            largest=1_000_000,
        ),
    )
    phases_max: int = setting(
        16,
        Setting(
            "Most phases of the user's own. Time inside further ones is charged to the phase `other`.",
            unit="phases",
            smallest=0,
            largest=46,
            above="Beyond that the phases would not fit into the 64 columns of a report's table.",
        ),
    )


def read_config(environment: Mapping[str, str], overrides: Mapping[str, Value] | None = None) -> AgentConfig:
    """The agent's configuration from the file that RANKSCOPE_CONFIG names, the environment and the caller's overrides.

    Raises SettingError when the file cannot be read, a value cannot be used or a name is no setting.
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
    """What a training process begins with. Unless `is_usable` it is not measured. `notes` say every mistake and what
    was made of it, `mistakes` are the same without the latter.
    """

    config: AgentConfig
    is_usable: bool
    mistakes: tuple[str, ...]
    notes: tuple[str, ...]


def read_launch_config(environment: Mapping[str, str], given: Mapping[str, str]) -> LaunchConfig:
    """Return what can be used of the settings, and what cannot; never raises. `given` is what the launch line gave on
    top of the environment; `config` in there names the file.
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
    """What is said of a mistake for which the process is not measured."""
    return f"not started: {problem} Training goes on without it."


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
