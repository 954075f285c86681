"""Define the collector's settings: configs/collector.toml is written from this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from rankscope.collector.store_address import StoreAddress, find_collector_problem, find_store_problem, parse_store
from rankscope.measure.errors import SettingError
from rankscope.measure.settings import Ordered, Setting, Settings, Value, constant, find_address_problem, read, setting

_MIB = 1024 * 1024

C = TypeVar("C", bound=Settings)


def _find_listen_problem(address: str) -> str | None:
    return find_address_problem(address, scheme="tcp://", listening=True)


def _find_http_problem(address: str) -> str | None:
    return find_address_problem(address, listening=True)


def _find_health_problem(address: str) -> str | None:
    return _find_http_problem(address) if address else None


def find_url_problem(url: str) -> str | None:
    """Return what is wrong with an address that a request or a link leads to; None for the empty one."""
    form = "it must be https://HOST[:PORT]/PATH or http://HOST[:PORT]/PATH"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is no number or above 65535, an IPv6 address without its last bracket
        return f"{form}: {error}"
    if url and (not is_usable or not url.isascii() or " " in url or "@" in parts.netloc or parts.fragment):
        return f"{form}, in ASCII, without a user and a fragment"
    return None


MEASURED_OF_FEW: Final = 128
MEASURED_CELLS_MAX: Final = 2**13
"""Of few ranks so many measured steps are kept, in all so many steps times ranks: up to 64 ranks 128 steps. That one
rank stalls in some steps only shows in its share of all stalls; of 3 ranks that takes 14 (`intermittent.py`)."""


NOTIFIED_SEVERITIES: Final = ("info", "warning", "critical")
"""Those of findings (`detect/finding.py`), which import this file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectorConfig(Settings):
    """All settings of a collector. `_s` are seconds, `_bytes` bytes, `_ratio` plain ratios."""

    TITLE: ClassVar[str] = "rankscope collector: compares the ranks of every run."
    PREFIX: ClassVar[str] = "RANKSCOPE_SERVE_"
    FILE_VARIABLE: ClassVar[str] = "RANKSCOPE_SERVE_CONFIG"
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = ("RANKSCOPE_SERVE_CONFIG",)
    RULES: ClassVar[tuple[Ordered, ...]] = (
        Ordered("detect_steps_min", "detect_steps", "a verdict cannot require more steps than it uses."),
        Ordered("detect_steps", "steps_kept", "a verdict cannot use steps that are not kept."),
    )

    listen: str = setting(
        "tcp://127.0.0.1:18490",
        Setting(
            "Address the agents connect to, tcp://HOST:PORT. Port 0 is any free one. The default accepts connections "
            "from this machine only.",
            find_problem=_find_listen_problem,
        ),
    )
    http_listen: str = setting(
        "127.0.0.1:18491",
        Setting(
            "Address of the HTTP server (metrics, API, live page), HOST:PORT. Port 0 is any free one. The default "
            "accepts connections from this machine only.",
            find_problem=_find_http_problem,
        ),
    )
    health_listen: str = setting(
        "",
        Setting(
            "Address where only /healthz is answered, HOST:PORT, for liveness probes: also while the HTTP server is "
            "busy. Plain HTTP, no token. Empty: only http_listen answers it.",
            find_problem=_find_health_problem,
        ),
    )
    key_file: str = setting(
        "",
        Setting(
            "File with the collector's pair of keys, made by `rankscope keys`. With it connections of agents are "
            "encrypted, and only agents whose key is allowed may connect."
        ),
    )
    allowed_keys: str = setting(
        "",
        Setting(
            "Folder with the public keys of clients that may send reports, files that end in .pub. Changes take effect "
            "within a second."
        ),
    )
    insecure: bool = setting(
        False,
        Setting("Allow agents of other machines to connect without keys. Without it such a `listen` is refused."),
    )
    http_token_file: str = setting(
        "",
        Setting(
            "File with the token that HTTP clients must send, as a bearer token or as the password of basic "
            "authentication with any user. /healthz and /readyz need none. Empty: any client may read."
        ),
    )
    http_control_token_file: str = setting(
        "",
        Setting(
            "File with the token that allows HTTP clients to order captures, as a bearer token. It also reads, and "
            "must be another one than that of http_token_file. Empty: nobody may order anything over HTTP."
        ),
    )
    http_certificate_file: str = setting(
        "",
        Setting("File with the certificate of the HTTP server and its chain, PEM. With it the server speaks HTTPS."),
    )
    http_key_file: str = setting("", Setting("File with the secret key of that certificate, PEM."))
    grafana_url: str = setting(
        "",
        Setting(
            "Address of a Grafana with the dashboards of deploy/grafana, https://HOST[:PORT][/PATH]: the live page "
            "links findings to them. Empty: no links.",
            find_problem=find_url_problem,
        ),
    )
    runbooks_url: str = setting(
        "",
        Setting(
            "Address of the folder with the runbooks of docs/runbooks, https://HOST[:PORT]/PATH: the live page links "
            "findings to them. Empty: to the copies of this release that the collector serves as text.",
            find_problem=find_url_problem,
        ),
    )
    # A report comes once a second: a shorter tick sees nothing new, a longer one delays each finding.
    tick_s: float = constant(
        1.0,
        Setting(
            "Time between two ticks: detection passes, liveness checks and new snapshots for metrics and API.",
            unit="seconds",
            smallest=0.05,
            largest=10,
        ),
    )
    metrics_ranks_max: int = setting(
        64,
        Setting(
            "Export per-rank metrics on /metrics while all runs together have at most this many ranks; above it, only "
            "on /metrics/ranks.",
            unit="ranks",
            smallest=0,
            largest=1_000_000,
        ),
    )
    # No larger frame can be decoded.
    message_bytes_max: int = constant(
        8 * _MIB,
        Setting(
            "Largest message accepted from an agent. Larger ones are refused; one of twice the size closes its "
            "connection.",
            unit="bytes",
            smallest=_MIB // 16,
            largest=8 * _MIB,
            above="No larger frame can be decoded.",
        ),
    )
    runs_max: int = setting(
        64,
        Setting(
            "Most runs known at a time. Beyond it the run that ended first is forgotten for a new one, else the one "
            "that has been silent for longest; a `store` keeps them. A new one is refused while all others report.",
            unit="runs",
            smallest=1,
            largest=10_000,
        ),
    )
    ranks_max: int = setting(
        16_384,
        Setting(
            "Most ranks of all runs together. Beyond it runs are forgotten as for `runs_max`; where that frees too "
            "little, further ranks are refused, with an error in their log.",
            unit="ranks",
            smallest=1,
            largest=1_000_000,
        ),
    )
    rank_silent_s: float = setting(
        15.0,
        Setting(
            "A rank without a report for this long counts as silent. An agent that exceeds its overhead budget reports "
            "every 4 s.",
            unit="seconds",
            smallest=2,
            largest=3600,
        ),
    )
    gpu_idle_after_s: float = setting(
        600.0,
        Setting(
            "A GPU that somebody holds counts as idle if no reading of its relay has found a kernel on it for this "
            "long (docs/idle-gpus.md).",
            unit="seconds",
            smallest=1,
            largest=7 * 86_400,
        ),
    )
    run_kept_s: float = setting(
        3600.0,
        Setting(
            "How long a run that has ended stays in metrics and API.",
            unit="seconds",
            smallest=0,
            largest=30 * 86_400,
        ),
    )
    restart_within_s: float = setting(
        900.0,
        Setting(
            "A start within this time after a run of the same name failed or was killed is a restart of that run; a "
            "later one is a new run. After a run that finished or was interrupted each start is a new run.",
            unit="seconds",
            smallest=0,
            largest=30 * 86_400,
        ),
    )
    # Eight times `detect_steps`: what was before a change, and reports that come late.
    steps_kept: int = constant(
        256,
        Setting("Steps of each rank that are kept for comparison.", unit="steps", smallest=32, largest=4096),
    )
    # Often enough to follow the drift of clocks; the frames are small beside reports of a second.
    clock_ping_s: float = constant(
        5.0,
        Setting(
            "Time between two clock measurements with one agent.",
            unit="seconds",
            smallest=0.1,
            largest=3600,
        ),
    )
    # Fewer make a verdict of noise, more delay it; the score (bench/results/score.md) is of this value.
    detect_steps: int = constant(
        32,
        Setting("How many of the last steps a verdict uses.", unit="steps", smallest=8, largest=256),
    )
    detect_steps_min: int = setting(
        12,
        Setting(
            "Steps that all compared ranks must have before there is a verdict. Fewer make findings of chance, more "
            "delay them; what detection is measured to find (docs/detection.md) is of the default.",
            unit="steps",
            smallest=4,
            largest=32,
        ),
    )
    slowdown_ratio_min: float = setting(
        1.05,
        Setting(
            "Smallest effect called slow: the rank's own time over the median of its peer ranks. For a node that is "
            "slow as a whole, four fifths of this effect: 1.04 at 1.05.",
            unit="ratio",
            smallest=1.01,
            largest=10,
        ),
    )
    # At 3 healthy ranks are named (docs/detection.md).
    robust_z_min: float = constant(
        5.0,
        Setting(
            "Minimum z-score called slow: the excess over the peer ranks, divided by the noise: the largest of the "
            "spread between the peers (1.4826 times the median absolute deviation) and the standard errors of the "
            "medians compared.",
            smallest=1,
            largest=100,
        ),
    )
    # Slower in seven of ten steps is steady; what is slow in fewer is judged as intermittent.
    persistence_ratio: float = constant(
        0.7,
        Setting("Share of the `detect_steps` steps that must be slow.", unit="ratio", smallest=0.5, largest=1.0),
    )
    # Healthy groups on other switches and rings differ by a tenth to a fifth.
    link_slowdown_ratio_min: float = constant(
        1.25,
        Setting(
            "Smallest effect called a slow link: the transfer time of a process group over that of similar groups, or "
            "over its own before. Healthy groups on other switches and rings differ by a tenth to a fifth.",
            unit="ratio",
            smallest=1.05,
            largest=10,
        ),
    )
    # One layer above a mean of seven is 1.14.
    imbalance_ratio_min: float = constant(
        1.15,
        Setting(
            "Smallest effect called an imbalance: the own time of ranks that do other work than the "
            "others (a pipeline stage, a group of experts) over the mean of all. One layer above a mean of seven is "
            "1.14.",
            unit="ratio",
            smallest=1.02,
            largest=10,
        ),
    )
    # A jitter of 0.02 costs 8 ranks 0.03 of the step and 1,024 ranks 0.06.
    uneven_work_ratio_min: float = constant(
        0.1,
        Setting(
            "Smallest share of the step lost to work that varies between steps, with another rank the slowest in each. "
            "A jitter of 0.02 costs 8 ranks 0.03 of the step and 1,024 ranks 0.06.",
            unit="ratio",
            smallest=0.01,
            largest=1,
        ),
    )
    # Nobody reads more of one run.
    findings_max: int = constant(
        256,
        Setting("Most findings kept for one run.", unit="findings", smallest=1, largest=100_000),
    )
    store: str = setting(
        "",
        Setting(
            "File for incidents, runs and their history, an SQLite database on a local disk; it is created if missing. "
            "Or the database of a PostgreSQL server that several collectors share, "
            "postgresql://USER@HOST/DATABASE. Empty: everything is kept in memory and lost when the collector ends.",
            find_problem=find_store_problem,
        ),
    )
    store_name: str = setting(
        "",
        Setting(
            "Name of this collector in a store that is shared. It must stay the same for the collector to go on where "
            "it ended. Empty: the name of the host.",
            find_problem=find_collector_problem,
        ),
    )
    store_folder: str = setting(
        "",
        Setting(
            "With a store on a server: local folder for captures, and for what receivers were notified of. Empty: "
            "there are no captures, and after a restart receivers are not told what ended meanwhile. A store in a file "
            "has them beside it."
        ),
    )
    history_kept_s: float = setting(
        30 * 86_400.0,
        Setting(
            "How long steps stay in the store, also for runs that have ended.",
            unit="seconds",
            smallest=60,
            largest=3650 * 86_400,
        ),
    )
    history_bytes_max: int = setting(
        2048 * _MIB,
        Setting(
            "Largest size of the store; beyond it the oldest history is deleted. A step a second is 13 MB a day, "
            "16,384 ranks at an interval of 60 s are 330 MB a day.",
            unit="bytes",
            smallest=_MIB,
            largest=1024 * 1024 * _MIB,
        ),
    )
    # A row a minute of all ranks: 330 MB a day for 16,384 ranks.
    history_interval_s: float = constant(
        60.0,
        Setting(
            "Interval for which the steps of each rank are aggregated into one row of the history. Aggregates over all "
            "ranks are kept for every step.",
            unit="seconds",
            smallest=1,
            largest=86_400,
        ),
    )
    # More than anybody reads; the one that was resolved first goes first.
    incidents_max: int = constant(
        1000,
        Setting(
            "Most incidents kept; beyond it the one that was resolved first is forgotten.",
            unit="incidents",
            smallest=1,
            largest=10_000,
        ),
    )
    # A rank that flaps does so within minutes; what comes back later is looked at anew.
    incident_reopen_s: float = constant(
        1800.0,
        Setting(
            "A finding that recurs within this time after its incident was resolved reopens that incident.",
            unit="seconds",
            smallest=0,
            largest=30 * 86_400,
        ),
    )
    # What is open for a day was overlooked.
    incident_escalate_s: float = constant(
        86_400.0,
        Setting(
            "An incident rises by one severity after this time, and by another at ten times it.",
            unit="seconds",
            smallest=1,
            largest=365 * 86_400,
        ),
    )
    # Ten hours of one rank: worth looking at before the day is over.
    incident_escalate_rank_s: float = constant(
        36_000.0,
        Setting(
            "An incident rises by one severity when it has cost this much time of all ranks together, and by another "
            "at ten times it.",
            unit="rank-seconds",
            smallest=1,
            largest=1e12,
        ),
    )
    # Ranks connect again within a minute, and a finding takes some windows.
    incident_restart_grace_s: float = constant(
        600.0,
        Setting(
            "How long a restarted collector keeps an open incident whose finding has not been found again.",
            unit="seconds",
            smallest=0,
            largest=30 * 86_400,
        ),
    )
    notify_webhook_url: str = setting(
        "",
        Setting(
            "Address that gets a signed POST of JSON when an incident opens, changes or is resolved, "
            "https://HOST[:PORT]/PATH (docs/notifications.md). Empty: none.",
            find_problem=find_url_problem,
        ),
    )
    notify_webhook_secret_file: str = setting(
        "",
        Setting(
            "File with the secret that signs these requests, one word of at least 16 characters, for example from "
            "`openssl rand -hex 32`. Only its owner, and optionally its group, may read it."
        ),
    )
    notify_webhook_ca_file: str = setting(
        "",
        Setting(
            "File with the certificate to trust, PEM, for a webhook whose certificate the system does not trust. "
            "Empty: the certificates that the system trusts."
        ),
    )
    notify_severity_min: str = setting(
        "warning",
        Setting("Incidents below this severity send no notifications.", choices=NOTIFIED_SEVERITIES),
    )
    notify_interval_s: float = setting(
        60.0,
        Setting(
            "Shortest time between two notifications about one incident to one receiver. Changes in between "
            "are combined in the next one; if they cancel out, none is sent.",
            unit="seconds",
            smallest=0,
            largest=86_400,
        ),
    )
    otlp: bool = setting(
        False,
        Setting(
            "Push metrics and incidents by OTLP to an OpenTelemetry Collector or another receiver "
            "(docs/opentelemetry.md). It needs `pip install 'rankscope[otlp]'`."
        ),
    )
    otlp_endpoint: str = setting(
        "",
        Setting(
            "Address of the receiver, http://HOST[:PORT] or https://HOST[:PORT], also with a path, to which "
            "/v1/metrics and /v1/logs are added over HTTP. Empty: that of the variables OTEL_EXPORTER_OTLP_..., else "
            "port 4317 (gRPC) or 4318 (HTTP) of this machine."
        ),
    )
    otlp_all_ranks: bool = setting(
        False,
        Setting(
            "Push the metrics of every rank also while all runs together have more than `metrics_ranks_max` ranks, as "
            "/metrics/ranks has them. For 16,384 ranks that takes 40 s of CPU time, at half a core: push "
            "less often, by OTEL_METRIC_EXPORT_INTERVAL."
        ),
    )
    otlp_incidents: bool = setting(
        True,
        Setting("Push incidents as log records too; false for a receiver that takes metrics only, as Prometheus does."),
    )
    # A capture shows how ranks differ; with more ranks it fills the store and shows no more.
    capture_ranks_max: int = constant(
        64,
        Setting("Most ranks of one capture that is ordered.", unit="ranks", smallest=1, largest=1024),
    )
    # 16 MiB for each of 64 ranks.
    capture_bytes_max: int = constant(
        1024 * _MIB,
        Setting(
            "Most bytes of one capture that is ordered, compressed, all its ranks together; each rank may have its "
            "share of them. A larger file is refused.",
            unit="bytes",
            smallest=_MIB,
            largest=1024 * 1024 * _MIB,
        ),
    )
    # The agent, which knows its training, has the limit of this name that counts; this is the most that it allows.
    capture_pause_s_max: float = constant(
        600.0,
        Setting(
            "Longest time for which a capture may be expected to stop the training of a rank. One that is expected to "
            "take longer is refused by the rank, unless it is forced. The agent has a limit of this name too; the "
            "smaller counts.",
            unit="seconds",
            smallest=0.01,
            largest=3600,
        ),
    )
    captures_on_incident: bool = setting(
        False,
        Setting(
            "Order a capture of 3 steps when an incident opens that names a slow rank: of that rank, its healthiest "
            "peer and a neighbor on its node. At most one for an incident, and 4 a day for a run. It needs a `store`."
        ),
    )
    capture_kept_s: float = setting(
        7 * 86_400.0,
        Setting(
            "How long captures are kept, in a folder beside the store.",
            unit="seconds",
            smallest=60,
            largest=3650 * 86_400,
        ),
    )
    capture_store_bytes_max: int = setting(
        8192 * _MIB,
        Setting(
            "Largest size of all captures together; beyond it the oldest is deleted.",
            unit="bytes",
            smallest=_MIB,
            largest=1024 * 1024 * _MIB,
        ),
    )
    # The last reports of the other ranks come within seconds.
    linger_s: float = constant(
        5.0,
        Setting(
            "How long a collector started by rank 0 waits for the other ranks after rank 0 is gone.",
            unit="seconds",
            smallest=0,
            largest=600,
        ),
    )

    @property
    def slowdown_close_ratio(self) -> float:
        """Ratio at which an open finding closes: half of the smallest effect that opens, so that none flickers.

        >>> CollectorConfig(slowdown_ratio_min=1.05).slowdown_close_ratio
        1.025
        """
        return (1.0 + self.slowdown_ratio_min) / 2.0

    def count_measured_min(self, world_size: int) -> int:
        """Return how many measured steps of so many ranks are kept at least, `detect_steps` or more.

        >>> [CollectorConfig().count_measured_min(ranks) for ranks in (3, 100, 1024)]
        [128, 81, 32]
        """
        return max(self.detect_steps, min(MEASURED_OF_FEW, MEASURED_CELLS_MAX // max(1, world_size)))


def find_store(config: CollectorConfig) -> StoreAddress | None:
    """Return where the store of a collector is; None without one."""
    return parse_store(config.store, config.store_name) if config.store else None


def find_beside_store(config: CollectorConfig) -> Path | None:
    """Return the path beside which a collector keeps files; None where it may keep none."""
    address = find_store(config)
    if address is None or isinstance(address, Path):
        return address
    return Path(config.store_folder) / "rankscope" if config.store_folder else None


def read_config(
    environment: Mapping[str, str], *, file_name: str = "", overrides: Mapping[str, Value] | None = None
) -> CollectorConfig:
    """Return the collector's configuration (`read_with_file`); RANKSCOPE_SERVE_CONFIG may name the file."""
    return read_with_file(CollectorConfig, environment, file_name, overrides)


def read_with_file(
    kind: type[C], environment: Mapping[str, str], file_name: str, overrides: Mapping[str, Value] | None
) -> C:
    """Return a configuration from a file, the environment and the caller's overrides.

    `file_name` is the argument of --config; when empty, the kind's FILE_VARIABLE may name the file. Raises SettingError
    when the file cannot be read, a value cannot be used or a name is no setting.
    """
    named_by = "--config" if file_name else kind.FILE_VARIABLE
    file_name = file_name or environment.get(kind.FILE_VARIABLE, "")
    return read(
        kind,
        file_text=_read_file(file_name, named_by) if file_name else None,
        file_name=file_name,
        environment=environment,
        overrides=overrides,
    )


def _read_file(name: str, named_by: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"{named_by} is {name!r}, which cannot be read: {error}. Name a readable file or leave {named_by} out."
        raise SettingError(text) from error
