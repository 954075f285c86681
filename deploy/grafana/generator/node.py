"""Node and GPU dashboard: the GPUs of one node, one line each."""

from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.generator import thresholds
from deploy.grafana.generator.expressions import rate, recorded, series
from deploy.grafana.generator.frame import (
    LIVE_RUN,
    NODE,
    OF_NODE,
    OF_RUN,
    RANK,
    Placed,
    dashboard,
    lay_out,
    link_to,
    node_variable,
    ranks_of_node_variable,
    run_variable,
)
from deploy.grafana.generator.panels import (
    BYTES,
    BYTES_PER_S,
    CELSIUS,
    GREEN,
    HERTZ,
    NUMBER,
    PER_S,
    RATIO,
    RED,
    THIRD,
    TIMES,
    WATTS,
    WHOLE,
    YELLOW,
    Column,
    Query,
    lines,
    listing,
    number,
    states,
    too_high,
    too_low,
)

TO_RANK: Final = link_to(RANK, "The rank", run="run", rank="__data.fields.Rank")
TO_RANK_OF_LINE: Final = link_to(RANK, "The rank", run="run", rank="__field.labels.rank")
ON_NODE: Final = f"and on (cluster, run, rank) {series('rank_info', OF_NODE)}"
"""Appended to series without the label node."""
OF_MACHINE: Final = 'run="$run",node="$node"'
"""Of the whole node, whichever ranks are chosen."""
OF_RANKS: Final = 'run="$run",rank=~"$rank"'
MEMORY: Final = f"{series('gpu_memory_used_bytes', OF_NODE)} / {series('gpu_memory_total_bytes', OF_NODE)}"
UNCORRECTED: Final = f'{OF_NODE},kind="uncorrected"'
SLOWDOWN_COLORS: Final = too_high(yellow=thresholds.SLOWDOWN, red=thresholds.SLOWDOWN_LARGE)


HELP: Final = """\
**Is something wrong with this node?** One line for each of its GPUs; one that leaves the others is the one to
look at. *Clocks, power and heat* shows throttling, *Errors* Xid and ECC, *Network ports* and *CPUs and TCP*
what all ranks of the node share. `rankscope nodes` says how often a node has held up its runs."""


def build() -> Dashboard:
    """Return the dashboard."""
    page = dashboard(
        NODE,
        "rankscope / Node and GPU",
        "One node: clocks, power, temperature, memory, links and errors of its GPUs, its network ports and its CPUs.",
        run_variable(),
        node_variable(),
        ranks_of_node_variable(),
        live=LIVE_RUN,
    )
    rows = (
        ("Now", [*_now(), *_table()]),
        ("Clocks, power and heat", _clocks()),
        ("Work", _work()),
        ("Memory", _memory()),
        ("Links", _links()),
        ("Network ports", _ports()),
        ("CPUs and TCP", _machine()),
        ("Errors", _errors()),
    )
    return lay_out(page, HELP, rows, is_open=2)


def _now() -> list[Placed]:
    return [
        number(
            "Throttled GPUs",
            "GPUs whose clocks are limited by heat, power or a fault.",
            NUMBER,
            f"sum({series('gpu_throttled', OF_NODE)})",
            colors=too_high(yellow=1),
        ),
        number(
            "Hottest GPU", "Temperature.", CELSIUS, f"max({series('gpu_temperature_celsius', OF_NODE)})", decimals=0
        ),
        number("Power", "Of all GPUs together.", WATTS, f"sum({series('gpu_power_watts', OF_NODE)})"),
        number(
            "Fullest memory",
            "Memory in use of the fullest GPU.",
            RATIO,
            f"max({MEMORY})",
            colors=too_high(red=thresholds.MEMORY_NEARLY_FULL),
            decimals=1,
        ),
        number(
            "Xid errors",
            "Xid errors since the agents started to watch the GPUs.",
            NUMBER,
            f"sum({series('gpu_xid_errors_total', OF_NODE)})",
            colors=too_high(red=1),
        ),
        number(
            "Uncorrected ECC errors",
            "Uncorrected errors since the driver was loaded.",
            NUMBER,
            f"sum({series('gpu_ecc_errors_total', UNCORRECTED)})",
            colors=too_high(red=1),
        ),
    ]


def _table() -> list[Placed]:
    return [
        listing(
            "GPUs",
            "The ranks of the node and the GPU of each.",
            {
                "rank": Column("Rank", link=TO_RANK),
                "local_rank": Column("Local rank"),
                "gpu_model": Column("Model"),
                "gpu": Column("GPU"),
                "up": Column(
                    "Reports",
                    f"{series('rank_info', OF_NODE)}"
                    " * on (cluster, run, rank) group_left () max by (cluster, run, rank) (rankscope_rank_up)",
                ),
                "slower": Column(
                    "Slowdown",
                    f"{series('rank_slowdown_ratio', OF_RANKS)} {ON_NODE}",
                    TIMES,
                    SLOWDOWN_COLORS,
                    decimals=3,
                ),
                "utilization": Column(
                    "Utilization",
                    series("gpu_utilization_ratio", OF_NODE),
                    RATIO,
                    too_low(red=thresholds.UTILIZATION_LOW, yellow=thresholds.UTILIZATION_LOW),
                ),
                "temperature": Column("Temperature", series("gpu_temperature_celsius", OF_NODE), CELSIUS, decimals=0),
                "power": Column("Power", series("gpu_power_watts", OF_NODE), WATTS, decimals=0),
                "xid": Column("Last Xid", series("gpu_last_xid", OF_NODE), decimals=0),
            },
            keys=["rank"],
            first="slower",
        ),
    ]


def each(title: str, description: str, unit: str, name: str, *, most: float | None = None) -> Placed:
    """Return a panel with a gauge of every GPU of the node."""
    return lines(
        title,
        description,
        unit,
        Query(series(name, OF_NODE), "rank {{rank}}"),
        link=TO_RANK_OF_LINE,
        most=most,
        width=THIRD,
    )


def _clocks() -> list[Placed]:
    return [
        each("SM clock", "SM clock of each GPU.", HERTZ, "gpu_sm_clock_hertz"),
        lines(
            "Clock below the run's median",
            "How far the SM clock is below the median of the run. For a throttled GPU, an alert fires above the dashed "
            "line.",
            RATIO,
            Query(
                f"1 - {series('gpu_sm_clock_hertz', OF_NODE)} / on (cluster, run) group_left () "
                f"{recorded('run:gpu_sm_clock_hertz:median', OF_RUN)}",
                "rank {{rank}}",
            ),
            colors=too_high(red=thresholds.CLOCK_SLOWER),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        each("Memory clock", "Memory clock of each GPU.", HERTZ, "gpu_memory_clock_hertz"),
        each("Temperature", "Temperature of each GPU.", CELSIUS, "gpu_temperature_celsius"),
        lines(
            "Power",
            "Power draw of each GPU, and the lowest limit.",
            WATTS,
            Query(series("gpu_power_watts", OF_NODE), "rank {{rank}}"),
            Query(f"min({series('gpu_power_limit_watts', OF_NODE)})", "limit"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        states(
            "Throttled",
            "Times at which heat, power or a fault limits the GPU's clocks.",
            {0: ("free", GREEN), 1: ("throttled", RED)},
            Query(series("gpu_throttled", OF_NODE), "rank {{rank}}"),
            width=THIRD,
        ),
    ]


def _work() -> list[Placed]:
    return [
        each("Utilization", "Share of the time in which a kernel ran.", RATIO, "gpu_utilization_ratio", most=1),
        each(
            "Busy multiprocessors",
            "Share of the multiprocessors; Hopper and newer.",
            RATIO,
            "gpu_sm_active_ratio",
            most=1,
        ),
        each("Occupancy", "Active warps over the maximum; Hopper and newer.", RATIO, "gpu_sm_occupancy_ratio"),
        each(
            "Tensor cores",
            "Share of the time in which they were active; Hopper and newer.",
            RATIO,
            "gpu_tensor_active_ratio",
        ),
        each(
            "Memory bandwidth",
            "Bandwidth in use over the maximum; Hopper and newer.",
            RATIO,
            "gpu_dram_bandwidth_ratio",
        ),
        lines(
            "Slowdown",
            "Compute time of each rank excluding waits over that of its peer ranks.",
            TIMES,
            Query(f"{series('rank_slowdown_ratio', OF_RANKS)} {ON_NODE}", "rank {{rank}}"),
            colors=SLOWDOWN_COLORS,
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
    ]


def _memory() -> list[Placed]:
    return [
        lines(
            "Memory in use",
            "Memory used by all processes on the GPU over its total.",
            RATIO,
            Query(MEMORY, "rank {{rank}}"),
            colors=too_high(red=thresholds.MEMORY_NEARLY_FULL),
            link=TO_RANK_OF_LINE,
            most=1,
            width=THIRD,
        ),
        lines(
            "Reserved by torch",
            "Memory that torch's allocator has reserved from the driver.",
            BYTES,
            Query(f"{series('torch_memory_reserved_bytes', OF_RANKS)} {ON_NODE}", "rank {{rank}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        lines(
            "Retries of the allocator",
            "Retries a second. Each stalls the GPU until the cache is empty.",
            NUMBER,
            Query(f"{rate('torch_memory_retries_total', OF_RANKS)} {ON_NODE}", "rank {{rank}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
    ]


def _links() -> list[Placed]:
    return [
        lines(
            title,
            f"Bytes a second by {title}, in and out of each GPU.",
            BYTES_PER_S,
            Query(rate(f"gpu_{name}_bytes_total", OF_NODE), "rank {{rank}} {{direction}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        )
        for title, name in (("NVLink", "nvlink"), ("PCIe", "pcie"), ("XGMI (AMD)", "xgmi"))
    ]


def _ports() -> list[Placed]:
    return [
        lines(
            "Port traffic",
            "Bytes a second through each InfiniBand or RoCE port, of all that use it.",
            BYTES_PER_S,
            Query(rate("port_bytes_total", OF_MACHINE), "{{port}} {{direction}}"),
            width=THIRD,
        ),
        lines(
            "Port errors",
            "Errors of the link a second (symbol and receive errors, recoveries and losses of the link), and packets "
            "that were lost, late or refused. Compare with the same port of other nodes.",
            PER_S,
            Query(rate("port_errors_total", OF_MACHINE), "{{port}} {{kind}}"),
            Query(rate("port_transport_errors_total", OF_MACHINE), "{{port}} {{kind}}"),
            Query(rate("interface_errors_total", OF_MACHINE), "{{interface}} {{kind}}"),
            width=THIRD,
        ),
        lines(
            "Congestion",
            "Ticks a second in which data waited to be sent (how long one is depends on the card), and congestion "
            "notifications that a RoCE port received.",
            PER_S,
            Query(rate("port_transmit_wait_ticks_total", OF_MACHINE), "{{port}} ticks"),
            Query(rate("port_congestion_notifications_total", OF_MACHINE), "{{port}} notifications"),
            width=THIRD,
        ),
        states(
            "Port state",
            "Whether each InfiniBand or RoCE port carries data.",
            {0: ("down", RED), 1: ("up", GREEN)},
            Query(series("port_up", OF_MACHINE), "{{port}}"),
        ),
        lines(
            "PCIe link of each GPU",
            "Lanes and generation. A GPU lowers the generation while it is idle; lanes are lost by bad contacts.",
            NUMBER,
            Query(series("gpu_pcie_link_width", OF_NODE), "rank {{rank}} lanes"),
            Query(series("gpu_pcie_link_generation", OF_NODE), "rank {{rank}} generation"),
            link=TO_RANK_OF_LINE,
        ),
    ]


def _machine() -> list[Placed]:
    return [
        lines(
            "Memory of the host",
            "What new allocations can get, within the limit of the training's control group; beside all there is.",
            BYTES,
            Query(series("node_memory_available_bytes", OF_MACHINE), "available"),
            Query(series("node_memory_total_bytes", OF_MACHINE), "in all"),
        ),
        lines(
            "CPU pressure and steal",
            "Share of the time in which some task waited for a CPU: of the node, and of the control group of its first "
            "rank. Steal is what a hypervisor took from each CPU.",
            RATIO,
            Query(rate("node_cpu_pressure_seconds_total", OF_MACHINE), "node"),
            Query(rate("node_group_cpu_pressure_seconds_total", OF_MACHINE), "control group"),
            Query(rate("node_cpu_steal_seconds_total", OF_MACHINE), "steal"),
        ),
        lines(
            "TCP segments sent again",
            "Share of the TCP segments that the node sent again.",
            RATIO,
            Query(
                f"{rate('node_tcp_segments_retransmitted_total', OF_MACHINE)}"
                f" / {rate('node_tcp_segments_sent_total', OF_MACHINE)}",
                "node",
            ),
        ),
    ]


def _errors() -> list[Placed]:
    return [
        lines(
            "ECC errors",
            "ECC errors since the driver was loaded.",
            NUMBER,
            Query(series("gpu_ecc_errors_total", OF_NODE), "rank {{rank}} {{kind}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        lines(
            "Remapped rows",
            "Rows of memory that were replaced permanently.",
            NUMBER,
            Query(series("gpu_remapped_rows", OF_NODE), "rank {{rank}} {{kind}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        lines(
            "Xid errors",
            "Xid errors since the agent started to watch the GPU.",
            NUMBER,
            Query(series("gpu_xid_errors_total", OF_NODE), "rank {{rank}}"),
            link=TO_RANK_OF_LINE,
            width=THIRD,
        ),
        states(
            "Remapping",
            "Pending: a row of memory is replaced at the next reset of the GPU. Failed: exchange the GPU.",
            {0: ("sound", GREEN), 1: ("pending", YELLOW), 2: ("failed", RED)},
            Query(
                f"clamp_max({series('gpu_row_remapping_pending', OF_NODE)}"
                f" + 2 * {series('gpu_row_remapping_failed', OF_NODE)}, 2)",
                "rank {{rank}}",
            ),
            width=WHOLE,
        ),
    ]
