"""Machines and collectives of a run, from the last reports of its ranks; every expected number is made by hand."""

import pytest
from msgspec.structs import replace

from rankscope.collector.publish.api.machine_views import (
    GROUPS_MAX,
    MACHINES_MAX,
    NO_COLLECTIVES,
    NO_GPU,
    NO_GPU_MEMORY,
    NO_HOST_MEMORY,
    NO_NVLINK,
    NO_PORTS,
    PORTS_MAX,
    Machine,
    NcclTraffic,
    NetworkPort,
    list_machines,
)
from rankscope.collector.runs.nccl_bandwidths import NO_INSPECTOR, NcclBandwidth, NcclBandwidths
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import DeviceSample, NodeSample, PortSample
from tests.unit.collector.runs.run_snapshots import rank_of

GIB = 2**30


def on_node(rank: int, node: str, **known: object) -> RankSnapshot:
    """A rank of a machine."""
    plain = replace(rank_of(rank), **known)
    return replace(plain, identity=replace(plain.identity, node=node))


def with_ports(rank: int, node: str, *ports: PortSample) -> RankSnapshot:
    """The rank of a machine that reads its ports."""
    return replace(on_node(rank, node), node=NodeSample(host_ns=3, ports=ports))


def gpu(uuid: str, **known: object) -> DeviceSample:
    return DeviceSample(host_ns=0, uuid=uuid, **known)  # type: ignore[arg-type]


def run_of(*ranks: RankSnapshot) -> RunSnapshot:
    return RunSnapshot(run="bert", world_size=len(ranks), restart_count=0, ranks=ranks)


def only(*ranks: RankSnapshot) -> Machine:
    """The only machine of these ranks."""
    (machine,) = list_machines(run_of(*ranks)).machines
    return machine


def test_gpus_of_a_machine_are_taken_together() -> None:
    first = gpu("a", model="H100", utilization_ratio=0.5, temperature_celsius=60.0, power_watts=400.0)
    second = gpu("b", utilization_ratio=1.0, temperature_celsius=81.0, power_watts=300.0, xid_last=63)
    machine = only(on_node(0, "n0", devices=(first,)), on_node(1, "n0", devices=(second,), up=False))
    assert (machine.ranks, machine.ranks_up, machine.gpus, machine.gpu_model) == (2, 1, 2, "H100")
    assert (machine.utilization_ratio, machine.temperature_celsius, machine.power_watts) == (0.75, 81.0, 700.0)
    assert (machine.xids, machine.throttle_reasons) == ((63,), ())


def test_memory_is_that_of_the_gpu_with_the_least_left() -> None:
    # 70 of 80 GiB leave an eighth, 75 of 140 nearly a half.
    nearly_full = gpu("a", memory_used_bytes=70 * GIB, memory_total_bytes=80 * GIB)
    larger = gpu("b", memory_used_bytes=75 * GIB, memory_total_bytes=140 * GIB)
    unknown = gpu("c", memory_used_bytes=79 * GIB)
    machine = only(on_node(0, "n0", devices=(larger,)), on_node(1, "n0", devices=(nearly_full, unknown)))
    assert (machine.memory_used_bytes, machine.memory_total_bytes) == (70 * GIB, 80 * GIB)


def test_gpu_that_two_ranks_share_is_one() -> None:
    shared = gpu("a", power_watts=400.0)
    machine = only(on_node(0, "n0", devices=(shared,)), on_node(1, "n0", devices=(shared,)))
    assert (machine.gpus, machine.power_watts) == (1, 400.0)


def test_reasons_for_throttling_are_named_once() -> None:
    devices = [gpu("a", throttle_reasons=("hw_thermal", "sw_power")), gpu("b", throttle_reasons=("hw_thermal",))]
    machine = only(*[on_node(rank, "n0", devices=(device,)) for rank, device in enumerate(devices)])
    assert machine.throttle_reasons == ("hw_thermal", "sw_power")


def test_memory_of_the_machine_is_that_which_its_rank_0_reads() -> None:
    sample = NodeSample(host_ns=0, memory_total_bytes=512 * GIB, memory_available_bytes=100 * GIB)
    machine = only(replace(on_node(0, "n0"), node=sample), on_node(1, "n0"))
    assert (machine.host_memory_available_bytes, machine.host_memory_total_bytes) == (100 * GIB, 512 * GIB)


def test_nothing_that_was_not_reported_is_a_number() -> None:
    found = list_machines(run_of(on_node(0, "n0")))
    (machine,) = found.machines
    known = {name for name in Machine.__struct_fields__ if getattr(machine, name) not in (None, ())}
    assert known == {"node", "ranks", "ranks_up", "gpus"}
    assert found.absent == {
        "gpus": NO_GPU, "gpu_memory": NO_GPU_MEMORY, "nvlink": NO_NVLINK, "host_memory": NO_HOST_MEMORY,
        "ports": NO_PORTS, "groups": NO_COLLECTIVES, "nccl": NO_INSPECTOR,
    }  # fmt: skip
    assert found.groups == ()


def test_idle_gpu_is_a_measurement() -> None:
    machine = only(
        on_node(0, "n0", devices=(gpu("a", utilization_ratio=0.0, memory_used_bytes=0, memory_total_bytes=1),))
    )
    assert (machine.utilization_ratio, machine.memory_used_bytes) == (0.0, 0)


def test_machines_that_need_a_look_come_first_then_the_slowest() -> None:
    ranks = [
        on_node(0, "sound", slowdown_ratio=1.0),
        on_node(1, "slow", slowdown_ratio=1.5),
        on_node(2, "slow", slowdown_ratio=None),
        on_node(3, "hot", devices=(gpu("a", throttle_reasons=("hw_thermal",)),)),
        on_node(4, "xid", devices=(gpu("b", xid_last=79),)),
        on_node(5, "gone", up=False),
    ]
    found = list_machines(run_of(*ranks))
    assert [one.node for one in found.machines] == ["gone", "hot", "xid", "slow", "sound"]
    assert found.machines[3].slowdown_ratio == 1.5


def collective(group: str, op: str = "all_reduce", **known: object) -> CollectiveTotals:
    plain = CollectiveTotals(group=group, op=op, count=10, duration_ns=1_000)
    return replace(plain, **known)


def test_collectives_are_means_of_the_calls_that_were_matched() -> None:
    # 300 ns in 2 + 4 calls are 50 ns a call; the third rank has matched none.
    first = collective("dp", matched=2, wait_ns=100, transfer_ns=60, bus_bandwidth_bytes_per_s=1.0)
    second = collective("dp", count=12, matched=4, wait_ns=200, transfer_ns=0, bus_bandwidth_bytes_per_s=5.0)
    ranks = [on_node(rank, "n0", collectives=(one,)) for rank, one in enumerate((first, second, collective("dp")))]
    (found,) = list_machines(run_of(*ranks)).groups
    assert (found.group, found.op, found.ranks, found.count) == ("dp", "all_reduce", 3, 12)
    assert (found.wait_ns, found.transfer_ns, found.bus_bandwidth_bytes_per_s) == (50.0, 10.0, 3.0)


def test_collective_that_was_never_matched_has_no_times() -> None:
    (found,) = list_machines(run_of(on_node(0, "n0", collectives=(collective("dp", wait_ns=0),)))).groups
    assert (found.wait_ns, found.transfer_ns, found.bus_bandwidth_bytes_per_s) == (None, None, None)


def test_collectives_that_took_longest_come_first() -> None:
    short, long = collective("tp", duration_ns=5), collective("dp", duration_ns=70)
    found = list_machines(run_of(on_node(0, "n0", collectives=(short, long)), on_node(1, "n0", collectives=(short,))))
    assert [one.group for one in found.groups] == ["dp", "tp"]
    assert "groups" not in found.absent


def test_nvlink_of_a_machine_is_the_sum_of_its_gpus() -> None:
    devices = [
        gpu("a", nvlink_tx_bytes_per_s=2e9, nvlink_rx_bytes_per_s=1e9),
        gpu("b", nvlink_tx_bytes_per_s=3e9),
        gpu("c"),
    ]
    machine = only(*[on_node(rank, "n0", devices=(device,)) for rank, device in enumerate(devices)])
    assert (machine.nvlink_tx_bytes_per_s, machine.nvlink_rx_bytes_per_s) == (5e9, 1e9)


def test_errors_of_a_port_are_summed_by_what_they_concern() -> None:
    port = PortSample(
        name="mlx5_0/1", is_active=True, rate_bits_per_s=400 * 10**9, tx_bytes=7, rx_bytes=8, xmit_wait=9,
        symbol_errors=1, receive_errors=20, link_recoveries=300, link_downs=4_000,
        receiver_not_ready=5, out_of_sequence=60, adaptive_retransmissions=None, ack_timeouts=700, cnps_handled=11,
    )  # fmt: skip
    found = list_machines(run_of(with_ports(0, "n0", port), on_node(1, "n0")))
    assert found.ports == (
        NetworkPort(
            node="n0", name="mlx5_0/1", read_host_ns=3, is_active=True, rate_bits_per_s=400 * 10**9, tx_bytes=7,
            rx_bytes=8, link_errors=4_321, transport_errors=765, transmit_wait_ticks=9, congestion_notifications=11,
        ),
    )  # fmt: skip
    assert "ports" not in found.absent


def test_port_without_counters_has_no_errors_rather_than_zero() -> None:
    (port,) = list_machines(run_of(with_ports(0, "n0", PortSample(name="mlx5_0/1")))).ports
    assert (port.link_errors, port.transport_errors, port.tx_bytes, port.is_active) == (None, None, None, None)


def test_ports_without_data_come_first_then_those_with_errors() -> None:
    ports = (
        PortSample(name="a/1", is_active=True), PortSample(name="b/1", symbol_errors=2, ack_timeouts=3),
        PortSample(name="c/1", is_active=True, link_downs=4), PortSample(name="d/1", is_active=False),
    )  # fmt: skip
    found = list_machines(run_of(with_ports(0, "n0", *ports)))
    assert [one.name for one in found.ports] == ["d/1", "b/1", "c/1", "a/1"]


def nccl(*kinds: NcclBandwidth, absent: str = "") -> NcclBandwidths:
    return NcclBandwidths(kinds, absent)


def test_nccl_operations_have_median_and_highest_of_the_ranks() -> None:
    ranks = [
        on_node(number, "n0", nccl=nccl(NcclBandwidth("TP 0", "AllReduce", 10 + number, bandwidth)))
        for number, bandwidth in enumerate((3e9, 1e9, 7e9))
    ]
    other = on_node(3, "n1", nccl=nccl(NcclBandwidth("DP 0", "AllReduce", 99, 5e9)))
    found = list_machines(run_of(*ranks, other, on_node(4, "n1")))
    assert found.nccl == (
        NcclTraffic(
            communicator="DP 0", op="AllReduce", ranks=1, count=99, bus_bandwidth_bytes_per_s=5e9,
            bus_bandwidth_max_bytes_per_s=5e9,
        ),
        NcclTraffic(
            communicator="TP 0", op="AllReduce", ranks=3, count=12, bus_bandwidth_bytes_per_s=3e9,
            bus_bandwidth_max_bytes_per_s=7e9,
        ),
    )  # fmt: skip
    assert "nccl" not in found.absent


def test_why_there_are_no_operations_of_nccl() -> None:
    assert list_machines(run_of(on_node(0, "n0"))).absent["nccl"] == NO_INSPECTOR
    ranks = (on_node(0, "n0"), on_node(1, "n0", nccl=nccl(absent="it cannot be read")))
    assert list_machines(run_of(*ranks)).absent["nccl"] == "rank 1: it cannot be read"


@pytest.mark.parametrize("more", [0, 3])
def test_ports_are_bounded_and_say_how_many_there_are(more: int) -> None:
    port = PortSample(name="a/1")
    found = list_machines(run_of(*[with_ports(number, f"n{number}", port) for number in range(PORTS_MAX + more)]))
    assert (len(found.ports), found.ports_known) == (PORTS_MAX, PORTS_MAX + more)


@pytest.mark.parametrize("more", [0, 3])
def test_lists_are_bounded_and_say_what_there_is(more: int) -> None:
    groups = tuple(collective(f"g{number}") for number in range(GROUPS_MAX + more))
    ranks = [on_node(number, f"n{number}", collectives=groups) for number in range(MACHINES_MAX + more)]
    found = list_machines(run_of(*ranks))
    assert (len(found.machines), found.machines_known) == (MACHINES_MAX, MACHINES_MAX + more)
    assert (len(found.groups), found.groups_known) == (GROUPS_MAX, GROUPS_MAX + more)
    kinds = [NcclBandwidth(f"g{number}", "AllReduce", 1, 1e9) for number in range(GROUPS_MAX + more)]
    found = list_machines(run_of(on_node(0, "n0", nccl=nccl(*kinds))))
    assert (len(found.nccl), found.nccl_known) == (GROUPS_MAX, GROUPS_MAX + more)


def test_groups_of_a_dimension_are_one_row_with_the_slowest() -> None:
    def traffic(group: str, transfer_ns: int) -> CollectiveTotals:
        return CollectiveTotals(
            group=group, op="all_reduce", count=9, duration_ns=1, matched=2, wait_ns=0, transfer_ns=transfer_ns,
            bus_bandwidth_bytes_per_s=None,
        )  # fmt: skip

    groups = {"mesh_tp/0-1": 4_000_000, "mesh_tp/2-3": 10_000_000, "mesh_tp/4-5": 6_000_000}
    ranks = tuple(rank_of(rank, collectives=(traffic(group, ns),)) for rank, (group, ns) in enumerate(groups.items()))
    (row,) = list_machines(RunSnapshot(run="bert", world_size=6, restart_count=0, ranks=ranks)).groups
    assert (row.dimension, row.groups, row.group) == ("mesh_tp", 3, "mesh_tp/2-3")
    assert (row.transfer_ns, row.others_transfer_ns) == (5_000_000, 2_500_000)  # 2 calls: 10 / 2; median of 2 and 3
