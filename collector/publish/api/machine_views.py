"""Build the answer of the API about what a run runs on: its machines with their GPUs, and its process groups. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Final

import msgspec

from rankscope.collector.runs.nccl_bandwidths import NO_INSPECTOR, NOT_READ, NcclBandwidth
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import DeviceSample, PortSample

MACHINES_MAX: Final = 100
"""Machines in one answer, those with something to see first: more than a screen shows."""
GROUPS_MAX: Final = 50
"""Kinds of collectives in one answer, those that took longest."""

PORTS_MAX: Final = 100
"""Network ports in one answer: a dozen machines of eight cards."""

NO_GPU: Final = "no rank has reported a GPU"
NO_GPU_MEMORY: Final = "no rank has reported the memory of its GPU"
NO_HOST_MEMORY: Final = "no rank has reported the memory of its machine"
NO_NVLINK: Final = (
    "no rank has reported the NVLink traffic of its GPU, which only a GPU with GPM (Hopper or newer) measures"
)
NO_PORTS: Final = "no rank has reported an InfiniBand or RoCE port"
NO_COLLECTIVES: Final = "no collective has been measured in this attempt of the run"


COUNT_MAX: Final = 2**62
"""Bound of a sum of counts, so that it can be encoded."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a run, as of the last reports of its ranks. `slowdown_ratio` is the largest of its ranks. Over its
    GPUs: `utilization_ratio` is the mean, `temperature_celsius` the highest, `power_watts` and `nvlink_` the sums of
    those that are known, and the bytes are those of the GPU with the least memory left. `throttle_reasons` and `xids`
    are of any of them, without repetition. `host_memory_` is the machine's, or the limit of the job in it. None: not
    known.
    """

    node: str
    ranks: int
    ranks_up: int
    slowdown_ratio: float | None
    gpus: int
    gpu_model: str | None
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    nvlink_tx_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    throttle_reasons: tuple[str, ...]
    xids: tuple[int, ...]
    host_memory_available_bytes: int | None
    host_memory_total_bytes: int | None


class GroupTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of the process groups of one dimension, of which `group` is the one whose transfers take longest,
    in this attempt of the run. `dimension` is the name that its `groups` groups share, `others_transfer_ns` the median
    of the others. All else is of `group`: `count` is the most calls of any of its `ranks`.
    `wait_ns` and `transfer_ns` are means of a call and rank, over the calls found on all members of the group: waiting
    for the last of them, and the data movement. `bus_bandwidth_bytes_per_s` is the median over the ranks. None: not
    known of any.
    """

    dimension: str
    groups: int
    group: str
    op: str
    ranks: int
    count: int
    wait_ns: float | None
    transfer_ns: float | None
    others_transfer_ns: float | None
    bus_bandwidth_bytes_per_s: float | None


class NcclTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of NCCL in one communicator, or in all of the same name, as its Inspector plugin has dumped it on
    `ranks` ranks. `count` is the most operations of any rank between two readings. The bandwidths are the median and
    the highest of the ranks' own medians: a rank that waited for others has a lower one.
    """

    communicator: str
    op: str
    ranks: int
    count: int
    bus_bandwidth_bytes_per_s: float
    bus_bandwidth_max_bytes_per_s: float


class NetworkPort(msgspec.Struct, frozen=True, kw_only=True):
    """One InfiniBand or RoCE port of a machine, `mlx5_0/1`, as of its last sample, read at `read_host_ns` by its own
    clock. All but the state and the rate count up since the card was reset, of everything that uses the port:
    `link_errors` are symbol and receive errors, recoveries and losses of the link; `transport_errors` packets that were
    lost, late or refused; `transmit_wait_ticks` ticks of the card in which data waited to be sent. None: not known.
    """

    node: str
    name: str
    read_host_ns: int
    is_active: bool | None
    rate_bits_per_s: int | None
    tx_bytes: int | None
    rx_bytes: int | None
    link_errors: int | None
    transport_errors: int | None
    transmit_wait_ticks: int | None
    congestion_notifications: int | None


class MachineList(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a run, at most MACHINES_MAX of the `machines_known`: those first that throttle, have had an Xid
    error or a rank that is not up, then the slowest. `groups`: its collectives, at most GROUPS_MAX of the
    `groups_known`, those first that took longest. `ports`: at most PORTS_MAX of the `ports_known`, those first that
    carry no data, then those with the most errors. `nccl`: at most GROUPS_MAX of the `nccl_known`, those first with
    the most operations. `absent` says why there is nothing about `gpus`, `gpu_memory`, `nvlink`, `host_memory`,
    `ports`, `groups` or `nccl`.
    """

    run: str
    run_id: str
    machines_known: int
    machines: tuple[Machine, ...]
    groups_known: int
    groups: tuple[GroupTraffic, ...]
    ports_known: int
    ports: tuple[NetworkPort, ...]
    nccl_known: int
    nccl: tuple[NcclTraffic, ...]
    absent: Mapping[str, str]


def list_machines(run: RunSnapshot) -> MachineList:
    """Return what a run runs on."""
    by_node: dict[str, list[RankSnapshot]] = {}
    for rank in run.ranks:
        by_node.setdefault(rank.identity.node, []).append(rank)
    machines = sorted((_build_machine(node, ranks) for node, ranks in by_node.items()), key=_find_place)
    groups, ports, nccl = _sum_groups(run.ranks), _list_ports(run.ranks), _sum_nccl(run.ranks)
    return MachineList(
        run=run.run,
        run_id=run.run_id,
        machines_known=len(machines),
        machines=tuple(machines[:MACHINES_MAX]),
        groups_known=len(groups),
        groups=groups[:GROUPS_MAX],
        ports_known=len(ports),
        ports=ports[:PORTS_MAX],
        nccl_known=len(nccl),
        nccl=nccl[:GROUPS_MAX],
        absent=_find_absent(machines, groups, ports) | _explain_nccl(run.ranks),
    )


def _build_machine(node: str, ranks: Sequence[RankSnapshot]) -> Machine:
    devices = list({device.uuid: device for rank in ranks for device in rank.devices}.values())
    samples = [rank.node for rank in ranks if rank.node is not None]
    fullest = min(devices, key=_find_room, default=None)
    is_known = fullest is not None and _find_room(fullest) < float("inf")
    return Machine(
        node=node,
        ranks=len(ranks),
        ranks_up=sum(rank.up for rank in ranks),
        slowdown_ratio=_of_known(max, (rank.slowdown_ratio for rank in ranks)),
        gpus=len(devices),
        gpu_model=next((device.model for device in devices if device.model), None),
        utilization_ratio=_of_known(mean, (device.utilization_ratio for device in devices)),
        memory_used_bytes=fullest.memory_used_bytes if fullest is not None and is_known else None,
        memory_total_bytes=fullest.memory_total_bytes if fullest is not None and is_known else None,
        temperature_celsius=_of_known(max, (device.temperature_celsius for device in devices)),
        power_watts=_of_known(sum, (device.power_watts for device in devices)),
        nvlink_tx_bytes_per_s=_of_known(sum, (device.nvlink_tx_bytes_per_s for device in devices)),
        nvlink_rx_bytes_per_s=_of_known(sum, (device.nvlink_rx_bytes_per_s for device in devices)),
        throttle_reasons=tuple(sorted({reason for device in devices for reason in device.throttle_reasons or ()})),
        xids=tuple(sorted({device.xid_last for device in devices if device.xid_last is not None})),
        host_memory_available_bytes=next((one.memory_available_bytes for one in samples), None),
        host_memory_total_bytes=next((one.memory_total_bytes for one in samples), None),
    )


def _find_room(device: DeviceSample) -> float:
    """Return the share of the GPU's memory that is left; infinity where it is not known."""
    if device.memory_used_bytes is None or not device.memory_total_bytes:
        return float("inf")
    return 1.0 - device.memory_used_bytes / device.memory_total_bytes


def _of_known(reduce: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return reduce(known) if known else None


def _find_place(machine: Machine) -> tuple[bool, float, str]:
    is_sound = not machine.throttle_reasons and not machine.xids and machine.ranks_up == machine.ranks
    return is_sound, -(machine.slowdown_ratio or 0.0), machine.node


def _sum_groups(ranks: Iterable[RankSnapshot]) -> tuple[GroupTraffic, ...]:
    """Return the operations of all dimensions, those that took longest first."""
    kinds: dict[tuple[str, str], dict[str, list[CollectiveTotals]]] = {}
    for rank in ranks:
        for one in rank.collectives:
            dimension = one.group.partition("/")[0]  # measure.identity.group_label
            kinds.setdefault((dimension, one.op), {}).setdefault(one.group, []).append(one)
    durations = {
        kind: sum(one.duration_ns for found in groups.values() for one in found) for kind, groups in kinds.items()
    }
    order = sorted(kinds, key=lambda kind: (-durations[kind], kind))
    return tuple(_build_dimension(*kind, kinds[kind]) for kind in order)


def _build_dimension(dimension: str, op: str, groups: Mapping[str, Sequence[CollectiveTotals]]) -> GroupTraffic:
    transfers_ns = {
        group: _mean_of_call((one.transfer_ns, one.matched) for one in found) for group, found in groups.items()
    }
    worst = min(groups, key=lambda group: (-(transfers_ns[group] or 0.0), group))
    found = groups[worst]
    return GroupTraffic(
        dimension=dimension,
        groups=len(groups),
        others_transfer_ns=_of_known(median, (transfers_ns[group] for group in groups if group != worst)),
        group=worst,
        op=op,
        ranks=len(found),
        count=max(one.count for one in found),
        wait_ns=_mean_of_call((one.wait_ns, one.matched) for one in found),
        transfer_ns=transfers_ns[worst],
        bus_bandwidth_bytes_per_s=_of_known(median, (one.bus_bandwidth_bytes_per_s for one in found)),
    )


def _mean_of_call(sums: Iterable[tuple[int | None, int]]) -> float | None:
    known = [(spent_ns, calls) for spent_ns, calls in sums if spent_ns is not None and calls]
    return sum(spent_ns for spent_ns, _ in known) / sum(calls for _, calls in known) if known else None


def _sum_nccl(ranks: Iterable[RankSnapshot]) -> tuple[NcclTraffic, ...]:
    """Return NCCL's operations of all communicators, those with most operations first."""
    kinds: dict[tuple[str, str], list[NcclBandwidth]] = {}
    for rank in ranks:
        for one in rank.nccl.kinds:
            kinds.setdefault((one.communicator, one.op), []).append(one)
    found = [
        NcclTraffic(
            communicator=communicator,
            op=op,
            ranks=len(every),
            count=max(one.count for one in every),
            bus_bandwidth_bytes_per_s=median(one.bus_bandwidth_bytes_per_s for one in every),
            bus_bandwidth_max_bytes_per_s=max(one.bus_bandwidth_bytes_per_s for one in every),
        )
        for (communicator, op), every in kinds.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.count, one.communicator, one.op)))


def _explain_nccl(ranks: Sequence[RankSnapshot]) -> dict[str, str]:
    """Return why no rank has a bandwidth of NCCL: of the ranks that say more than that nothing was read, the first."""
    if any(rank.nccl.kinds for rank in ranks):
        return {}
    said = next((rank for rank in ranks if rank.nccl != NOT_READ), None)
    return {"nccl": NO_INSPECTOR if said is None else f"rank {said.identity.rank}: {said.nccl.absent}"}


def _list_ports(ranks: Iterable[RankSnapshot]) -> tuple[NetworkPort, ...]:
    """Return the ports of all machines, those with something to see first."""
    samples = {rank.identity.node: rank.node for rank in ranks if rank.node is not None and rank.node.ports}
    ports = [_build_port(node, sample.host_ns, port) for node, sample in samples.items() for port in sample.ports]
    return tuple(sorted(ports, key=_find_port_place))


def _find_port_place(port: NetworkPort) -> tuple[bool, int, str, str]:
    errors = (port.link_errors or 0) + (port.transport_errors or 0)
    return port.is_active is not False, -errors, port.node, port.name


def _build_port(node: str, read_host_ns: int, port: PortSample) -> NetworkPort:
    link = (port.symbol_errors, port.receive_errors, port.link_recoveries, port.link_downs)
    transport = (port.out_of_sequence, port.ack_timeouts, port.adaptive_retransmissions, port.receiver_not_ready)
    return NetworkPort(
        node=node,
        name=port.name,
        read_host_ns=read_host_ns,
        is_active=port.is_active,
        rate_bits_per_s=port.rate_bits_per_s,
        tx_bytes=port.tx_bytes,
        rx_bytes=port.rx_bytes,
        link_errors=_sum_known(link),
        transport_errors=_sum_known(transport),
        transmit_wait_ticks=port.xmit_wait,
        congestion_notifications=port.cnps_handled,
    )


def _sum_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; None where none is. Bounded, so that it can be encoded."""
    known = [count for count in counts if count is not None]
    return min(COUNT_MAX, sum(known)) if known else None


def _find_absent(
    machines: Sequence[Machine], groups: Sequence[GroupTraffic], ports: Sequence[NetworkPort]
) -> dict[str, str]:
    reasons = {
        "gpus": (NO_GPU, any(one.gpus for one in machines)),
        "gpu_memory": (NO_GPU_MEMORY, any(one.memory_used_bytes is not None for one in machines)),
        "host_memory": (NO_HOST_MEMORY, any(one.host_memory_available_bytes is not None for one in machines)),
        "nvlink": (NO_NVLINK, any(one.nvlink_tx_bytes_per_s is not None for one in machines)),
        "ports": (NO_PORTS, bool(ports)),
        "groups": (NO_COLLECTIVES, bool(groups)),
    }
    return {name: reason for name, (reason, is_known) in reasons.items() if not is_known}
