"""Define the relay's settings: configs/relay.toml is written from this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankscope.collector.config import read_with_file
from rankscope.measure.settings import Setting, Settings, Value, constant, find_endpoint_problem, setting
from rankscope.measure.shards import parse_collectors

_MIB = 1024 * 1024


def _find_listen_problem(endpoint: str) -> str | None:
    return find_endpoint_problem(endpoint, listening=True)


def _find_collector_problem(text: str) -> str | None:
    endpoints = parse_collectors(text)
    if not endpoints:
        return "it must name a collector, for example tcp://10.0.0.1:18490"
    return next((problem for problem in map(find_endpoint_problem, endpoints) if problem is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayConfig(Settings):
    """Everything that can be set for a relay. `_s` are seconds, `_bytes` bytes."""

    TITLE: ClassVar[str] = "rankscope relay: forwards the reports of a node's ranks to their collector."
    PREFIX: ClassVar[str] = "RANKSCOPE_RELAY_"
    FILE_VARIABLE: ClassVar[str] = "RANKSCOPE_RELAY_CONFIG"
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = ("RANKSCOPE_RELAY_CONFIG",)

    listen: str = setting(
        "tcp://127.0.0.1:18492",
        Setting(
            "Address the ranks connect to, tcp://HOST:PORT or, for ranks of this machine, ipc:///PATH: users with "
            "access to the folder of PATH may connect. The default accepts connections from this machine only.",
            find_problem=_find_listen_problem,
        ),
    )
    collector: str = setting(
        "tcp://127.0.0.1:18490",
        Setting(
            "Address of the collector, tcp://HOST:PORT. Several, separated by commas: the name of a run selects one, "
            "so all agents and relays must have the same list.",
            find_problem=_find_collector_problem,
        ),
    )
    key_file: str = setting(
        "",
        Setting(
            "File with the relay's pair of keys (`rankscope keys --relay`), for a collector that requires keys. Where "
            "allowed_keys is set, the relay uses the same pair towards its ranks."
        ),
    )
    collector_key_file: str = setting(
        "", Setting("File with the public key of that collector; several collectors have the same one.")
    )
    allowed_keys: str = setting(
        "",
        Setting(
            "Folder with the public keys of clients whose ranks may connect, files that end in .pub. Empty: ranks "
            "connect without keys, and count as having the relay's."
        ),
    )
    insecure: bool = setting(
        False,
        Setting("Allow ranks of other machines to connect without keys. Without it such a `listen` is refused."),
    )
    name: str = setting("", Setting("Name of the relay in the collector's log. Empty: the host name.", length_max=128))
    gpus: bool = setting(
        True,
        Setting(
            "Read who holds the GPUs of this machine (NVIDIA), and tell the collector: user, batch job, name of the "
            "program, and whether a kernel ran."
        ),
    )
    gpu_jobs: str = setting(
        "/run/gpustat",
        Setting(
            "Folder with a file for each GPU that the scheduler has given to a job, written by its prolog. The name is "
            "the GPU's index or UUID; it contains the job's id and its user's number. Missing or empty: only jobs "
            "with a process on a GPU are known."
        ),
    )
    # A reading takes the driver some ms for each GPU.
    gpu_interval_s: float = constant(
        15.0, Setting("Time between two readings of the GPUs.", unit="seconds", smallest=0.05, largest=60)
    )
    # Agents report once a second.
    batch_interval_s: float = constant(
        1.0,
        Setting(
            "Shortest time between two batches of reports. Messages of ranks that start or end are sent at once.",
            unit="seconds",
            smallest=0.01,
            largest=1.0,
            above="A rank without an acknowledgement for 2 s sends its Hello again.",
        ),
    )
    # Half a minute of reports of 1,024 ranks.
    buffer_bytes_max: int = constant(
        32 * _MIB,
        Setting(
            "Most bytes of frames that wait for one collector. Further frames are dropped and counted; their ranks "
            "hold them and send them again.",
            unit="bytes",
            smallest=_MIB,
            largest=1024 * _MIB,
        ),
    )


def read_config(
    environment: Mapping[str, str], *, file_name: str = "", overrides: Mapping[str, Value] | None = None
) -> RelayConfig:
    """Return the relay's configuration (`read_with_file`); RANKSCOPE_RELAY_CONFIG may name the file."""
    return read_with_file(RelayConfig, environment, file_name, overrides)
