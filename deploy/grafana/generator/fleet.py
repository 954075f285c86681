"""Fleet dashboard: all runs in a Prometheus, the time each loses, and the ranks and nodes that cost most."""

from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.generator import thresholds
from deploy.grafana.generator.expressions import NODE_OF_RANK, rate, recorded
from deploy.grafana.generator.frame import (
    FLEET,
    NODE,
    OF_COLLECTOR,
    RANK,
    RUN,
    Placed,
    dashboard,
    instance_variable,
    lay_out,
    link_to,
    link_to_live_page,
    select_in,
)
from deploy.grafana.generator.panels import (
    BYTES,
    BYTES_PER_S,
    GPU_HOURS,
    GPUS,
    HALF,
    NUMBER,
    PER_S,
    RATIO,
    SECONDS,
    THIRD,
    TIMES,
    Column,
    Query,
    areas,
    lines,
    listing,
    number,
    too_high,
    too_low,
)

RUNS_SHOWN: Final = 20
OFFENDERS_SHOWN: Final = 20
NODES_SHOWN: Final = 10
STORED_NODES_SHOWN: Final = 20
VERSIONS_SHOWN: Final = 10
"""Lines that fit a panel: a collector may know 64 runs with 16,384 ranks on 2,048 nodes."""

LOST_OF_RANKS: Final = 'sum by (cluster, run, rank) (rankscope_lost_gpu_seconds_total{rank!=""}) / 3600'
OFFENDERS: Final = f"topk({OFFENDERS_SHOWN}, {LOST_OF_RANKS})"
GOODPUT_COLORS: Final = too_low(red=thresholds.GOODPUT_LOW, yellow=thresholds.GOODPUT_GOOD)
SLOWDOWN_COLORS: Final = too_high(yellow=thresholds.SLOWDOWN, red=thresholds.SLOWDOWN_LARGE)

GOODPUT: Final = recorded("run:goodput:ratio_rate1h")
REPORTING_OF_RUN: Final = (
    'rankscope_run_info * on (cluster, run) group_left () sum by (cluster, run) (rankscope_ranks{state="reporting"})'
)

TO_RUN: Final = link_to(RUN, "The run", run="__data.fields.Run")
LIVE_PAGE_OF_RUN: Final = link_to_live_page(run="__data.fields.Run")
LIVE_PAGE_OF_RANK: Final = link_to_live_page(run="__data.fields.Run", rank="__data.fields.Rank")
TO_RUN_OF_LINE: Final = link_to(RUN, "The run", run="__field.labels.run")
TO_RANK: Final = link_to(RANK, "The rank", run="__data.fields.Run", rank="__data.fields.Rank")
TO_NODE: Final = link_to(NODE, "The node", run="__data.fields.Run", node="__data.fields.Node")


HELP: Final = """\
**Which runs lose time, and because of which ranks and nodes?** Begin with *Runs*, the most expensive one on
top; a click on a run opens it. *Worst offenders* has ranks and nodes over all runs. *The monitor itself* says
whether what you see is complete."""


def build() -> Dashboard:
    """Return the dashboard."""
    description = "All runs: lost time, and the ranks and nodes that caused it."
    page = dashboard(FLEET, "rankscope / Fleet", description, instance_variable())
    rows = (
        ("Now", _now()),
        ("Runs", _runs()),
        ("Worst offenders", _offenders()),
        ("Held GPUs", _held_gpus()),
        ("The monitor itself", select_in(_health(), OF_COLLECTOR)),
        ("Agents", _agents()),
        ("Collectors and relays", select_in(_collectors(), OF_COLLECTOR)),
    )
    return lay_out(page, HELP, rows, is_open=2)


def _now() -> list[Placed]:
    return [
        number(
            "Runs reporting",
            "Runs with at least one reporting rank.",
            NUMBER,
            'count(rankscope_ranks{state="reporting"} > 0)',
        ),
        number(
            "Ranks reporting",
            "Reporting ranks of all runs.",
            NUMBER,
            'sum(rankscope_ranks{state="reporting"})',
        ),
        number(
            "Ranks missing",
            "Silent, failed or never reported ranks of active runs; at most 64 a run are counted.",
            NUMBER,
            "count(rankscope_rank_missing) or vector(0)",
            colors=too_high(red=1),
        ),
        number(
            "Findings",
            "Open findings of all runs.",
            NUMBER,
            "count(rankscope_finding_open) or vector(0)",
            colors=too_high(red=1),
        ),
        number(
            "Worst goodput",
            "Of the run with the smallest share of the last hour in productive steps.",
            RATIO,
            f"min({GOODPUT})",
            colors=GOODPUT_COLORS,
        ),
        number(
            "Lost so far",
            "GPU time lost to slow ranks since the runs began.",
            GPU_HOURS,
            "(sum(rankscope_lost_gpu_seconds_total) or vector(0)) / 3600",
            decimals=1,
        ),
    ]


def _runs() -> list[Placed]:
    return [
        listing(
            "Runs",
            "One line a run. Goodput is the share of the run's time in steps, less the time lost to slow ranks; slower "
            "is its step duration over the duration without the straggler.",
            {
                "run": Column("Run", link=TO_RUN, also=LIVE_PAGE_OF_RUN),
                "cluster": Column("Cluster"),
                "world_size": Column("World size"),
                "restart_count": Column("Restarts"),
                "up": Column("Ranks reporting", REPORTING_OF_RUN),
                "goodput": Column("Goodput of the hour", GOODPUT, RATIO, GOODPUT_COLORS, decimals=1),
                "so_far": Column("Goodput so far", "rankscope_goodput_ratio", RATIO, decimals=1),
                "slower": Column("Slower", "rankscope_run_slowdown_ratio", TIMES, SLOWDOWN_COLORS, decimals=2),
                "step": Column("Step", recorded("run:step_seconds:mean_rate5m"), SECONDS),
                "findings": Column(
                    "Findings", "count by (cluster, run) (rankscope_finding_open)", colors=too_high(red=1)
                ),
                "without_peers": Column("Ranks without peers", "rankscope_ranks_without_peers"),
                "lost": Column(
                    "Lost", "sum by (cluster, run) (rankscope_lost_gpu_seconds_total) / 3600", GPU_HOURS, decimals=1
                ),
            },
            keys=["run"],
            first="lost",
        ),
        lines(
            "Goodput of an hour",
            f"The {RUNS_SHOWN} runs with the smallest mean over the time shown.",
            RATIO,
            Query(
                f"{GOODPUT} and on (cluster, run) bottomk({RUNS_SHOWN}, avg_over_time({GOODPUT}[$__range] @ end()))",
                "{{run}}",
            ),
            colors=GOODPUT_COLORS,
            link=TO_RUN_OF_LINE,
            most=1,
        ),
        areas(
            "GPUs lost, by cause",
            "GPU-seconds a second that all runs together lose to slow ranks.",
            GPUS,
            Query(f"sum by (cause) ({rate('lost_gpu_seconds_total')})", "{{cause}}"),
        ),
    ]


def _offenders() -> list[Placed]:
    of_node = (
        f"sum by (cluster, run, node) ({LOST_OF_RANKS.replace('sum by (cluster, run, rank) ', '')} * {NODE_OF_RANK})"
    )
    return [
        listing(
            "Ranks",
            f"The {OFFENDERS_SHOWN} ranks that have cost their runs the most GPU time.",
            {
                "run": Column("Run", link=TO_RUN),
                "rank": Column("Rank", link=TO_RANK, also=LIVE_PAGE_OF_RANK),
                "node": Column("Node", link=TO_NODE),
                "lost": Column("Lost", f"{OFFENDERS} * {NODE_OF_RANK}", GPU_HOURS, decimals=2),
                "slower": Column(
                    "Slower now",
                    f"rankscope_rank_slowdown_ratio and on (cluster, run, rank) {OFFENDERS}",
                    TIMES,
                    SLOWDOWN_COLORS,
                    decimals=2,
                ),
            },
            keys=["run", "rank"],
            first="lost",
            width=HALF,
        ),
        listing(
            "Nodes",
            f"The {NODES_SHOWN} nodes whose ranks have cost their runs the most GPU time.",
            {
                "run": Column("Run", link=TO_RUN),
                "node": Column("Node", link=TO_NODE),
                "lost": Column("Lost", f"topk({NODES_SHOWN}, {of_node})", GPU_HOURS, decimals=2),
            },
            keys=["run", "node"],
            first="lost",
            width=HALF,
        ),
        listing(
            "Nodes over all runs in the store",
            f"The {STORED_NODES_SHOWN} nodes with the largest share of their runs held up, ended runs included, as "
            "`rankscope nodes` lists them. At least: the lower end of the 95 % interval of the share of its runs that "
            "it has held up, so that 9 of 12 come before 1 of 1. A recommendation to look at, and to exclude.",
            {
                "node": Column("Node"),
                "least": Column(
                    "At least",
                    f"topk({STORED_NODES_SHOWN}, max by (cluster, node) (rankscope_node_held_up_low_ratio))",
                    RATIO,
                    too_high(red=thresholds.NODE_HELD_UP),
                    decimals=0,
                ),
                "held_up": Column("Runs held up", "sum by (cluster, node) (rankscope_node_runs_held_up)"),
                "runs": Column("Runs", "sum by (cluster, node) (rankscope_node_runs)"),
            },
            keys=["node"],
            first="least",
        ),
    ]


def _held_gpus() -> list[Placed]:
    return [
        areas(
            "GPUs by state",
            "GPUs of nodes with a relay. watched: used by a rank that reports through the relay; idle: held by "
            "somebody else, no kernel at any reading for gpu_idle_after_s (10 min by default; docs/idle-gpus.md).",
            GPUS,
            Query("sum by (state) (rankscope_gpus)", "{{state}}"),
            width=HALF,
        ),
        listing(
            "Idle GPUs, by who holds them",
            f"The {OFFENDERS_SHOWN} users and jobs with most; `rankscope nodes --gpus` has the nodes.",
            {
                "user": Column("User"),
                "batch_job": Column("Job"),
                "gpus": Column(
                    "Idle GPUs",
                    f"topk({OFFENDERS_SHOWN}, sum by (cluster, user, batch_job) (rankscope_idle_gpus))",
                    GPUS,
                    decimals=0,
                ),
                "longest": Column(
                    "Longest", "max by (cluster, user, batch_job) (rankscope_idle_gpu_longest_seconds)", SECONDS
                ),
            },
            keys=["user", "batch_job"],
            first="gpus",
            width=HALF,
        ),
        number(
            "Nodes not read",
            "Nodes with a relay whose GPUs cannot be read, for example without driver or pynvml.",
            NUMBER,
            "sum(rankscope_nodes_gpus_unread) or vector(0)",
            decimals=0,
        ),
    ]


def _health() -> list[Placed]:
    return [*_errors_and_stores(), *_notifications()]


def _errors_and_stores() -> list[Placed]:
    return [
        number(
            "Errors of collectors",
            "Errors in the selected time range; other runs were not affected.",
            NUMBER,
            "sum(increase(rankscope_collector_errors_total[$__range]))",
            colors=too_high(red=1),
            decimals=0,
        ),
        number(
            "Errors of agents",
            "Errors in the selected time range; training was not affected.",
            NUMBER,
            "sum(increase(rankscope_agent_errors_total[$__range]))",
            colors=too_high(yellow=1),
            decimals=0,
        ),
        number(
            "Series dropped",
            "Series missing on the pages of metrics because of the limit of series a page or a rank.",
            NUMBER,
            "sum(rankscope_series_dropped)",
            colors=too_high(red=1),
        ),
        number(
            "Stores not writable",
            "Collectors that cannot write their store of incidents and history.",
            NUMBER,
            "count(rankscope_store_writable == 0) or vector(0)",
            colors=too_high(red=1),
        ),
        number(
            "Stores lost",
            "Times the file of a store was removed, replaced, truncated or damaged while its collector ran.",
            NUMBER,
            "sum(rankscope_store_lost_total) or vector(0)",
            colors=too_high(red=1),
            decimals=0,
        ),
        number("Store size", "Data in the stores of the collectors.", BYTES, "sum(rankscope_store_used_bytes)"),
        number(
            "History rows dropped",
            "History rows dropped in the selected time range while a store was not writable.",
            NUMBER,
            "sum(increase(rankscope_history_rows_dropped_total[$__range]))",
            colors=too_high(red=1),
            decimals=0,
        ),
    ]


def _notifications() -> list[Placed]:
    return [
        number(
            "Notifications lost",
            "Events about incidents that a webhook, a command or a hook has not got, in the selected time range.",
            NUMBER,
            'sum(increase(rankscope_notifications_total{outcome=~"failed|dropped"}[$__range]))',
            colors=too_high(red=1),
            decimals=0,
        ),
        number(
            "Notifications waiting",
            "Events about incidents that are still to be delivered.",
            NUMBER,
            "sum(rankscope_notifications_waiting)",
            decimals=0,
        ),
        number(
            "Since the last notification",
            "Time since an event about an incident was delivered to any receiver.",
            SECONDS,
            "time() - max(rankscope_notification_success_timestamp_seconds)",
            decimals=0,
        ),
    ]


def _agents() -> list[Placed]:
    return [
        areas(
            "Agents by version",
            "Reporting ranks; a run should have one version of the agent.",
            NUMBER,
            Query(f"topk({VERSIONS_SHOWN}, sum by (version) (rankscope_agents))", "{{version}}"),
            width=THIRD,
        ),
        lines(
            "Overhead of agents",
            f"Share of the training process's time, of the rank with most in each of the {RUNS_SHOWN} runs with most.",
            RATIO,
            Query(
                f"topk({RUNS_SHOWN}, max by (cluster, run) ({recorded('run:agent_overhead_ratio:top5')}))",
                "{{run}}",
            ),
            colors=too_high(red=thresholds.OVERHEAD),
            width=THIRD,
        ),
        lines(
            "Step records lost",
            "Step records of all ranks, by reason; docs/delivery.md explains the reasons.",
            PER_S,
            Query(f"sum by (reason) ({rate('step_records_lost_total')})", "{{reason}}"),
            Query(f"sum({rate('reports_dropped_total')})", "reports dropped"),
            width=THIRD,
        ),
    ]


def _collectors() -> list[Placed]:
    return [*_frames(), *_processes(), *_captures()]


def _frames() -> list[Placed]:
    return [
        lines(
            "Frames received",
            "Frames received by all collectors.",
            PER_S,
            Query(f"sum({rate('frames_received_total')})", "received"),
            Query(f"sum({rate('relay_batches_total')})", "batches from relays"),
            width=THIRD,
        ),
        lines(
            "Longest ingest stall",
            "Longest time in the last 30 to 60 s in which a collector read nothing while messages may have been "
            "waiting.",
            SECONDS,
            Query("max(rankscope_ingest_stall_max_seconds)", "longest"),
            width=THIRD,
        ),
        lines(
            "Refused",
            "Frames that could not be decoded, peers that may not report, and HTTP requests, by reason.",
            PER_S,
            Query(f"sum by (reason) ({rate('frames_refused_total')})", "frames: {{reason}}"),
            Query(f"sum by (reason) ({rate('peers_refused_total')})", "peers: {{reason}}"),
            Query(f"sum by (reason) ({rate('relay_refused_total')})", "by relays: {{reason}}"),
            Query(f"sum by (reason) ({rate('http_refused_total')})", "HTTP: {{reason}}"),
            width=THIRD,
        ),
        lines(
            "Undelivered",
            "Frames that relays dropped, which their ranks resend, and replies of collectors that could not be sent.",
            PER_S,
            Query(f"sum by (reason) ({rate('relay_frames_dropped_total')})", "by relays: {{reason}}"),
            Query(f"sum by (reason) ({rate('replies_failed_total')})", "replies: {{reason}}"),
            width=THIRD,
        ),
    ]


def _processes() -> list[Placed]:
    return [
        areas(
            "Collectors by version",
            "Collectors that are scraped; each supports the agents of its own release.",
            NUMBER,
            Query(f"topk({VERSIONS_SHOWN}, sum by (version) (rankscope_collector_info))", "{{version}}"),
            width=THIRD,
        ),
        lines(
            "Connections",
            "Open connections of ranks, relays and sidecars, and reachable relays.",
            NUMBER,
            Query("sum(rankscope_connections)", "all"),
            Query("sum(rankscope_relays)", "relays"),
            width=THIRD,
        ),
        lines(
            "Runs evicted",
            "Ended runs removed from memory to make room for others.",
            PER_S,
            Query(f"sum({rate('runs_evicted_total')})", "runs"),
            width=THIRD,
        ),
    ]


def _captures() -> list[Placed]:
    return [
        lines(
            "Captures",
            "Captures that have ended, and orders of captures that were refused.",
            PER_S,
            Query(f"sum by (state) ({rate('captures_total')})", "{{state}}"),
            width=THIRD,
        ),
        lines(
            "Training stopped by captures",
            "Share of the time for which captures have stopped training, all runs together.",
            RATIO,
            Query(f"sum({rate('capture_pause_seconds_total')})", "stopped"),
            width=THIRD,
        ),
        lines(
            "Captured",
            "Size of the trace files that ranks have delivered to the collectors.",
            BYTES_PER_S,
            Query(f"sum({rate('capture_bytes_total')})", "trace files"),
            width=THIRD,
        ),
    ]
