"""Which modules or kernels are longer on a rank than on peers that launched them as often. Times in ms."""

from collections.abc import Mapping

import msgspec

from rankscope.collector.traces.longer_work import NAME_LENGTH_MAX, describe_longer
from rankscope.collector.traces.report import KernelRow, ModuleRow, RankReport
from tests.unit.collector.reports.test_trace_tables import kernel, rank_of

MS = 1_000_000


def module(path: str, ms: float, count: int = 4, backward_ms: float | None = None) -> ModuleRow:
    return ModuleRow(
        path=path, name=path, depth=path.count("/"), count=count, host_total_ns=0, host_self_ns=0,
        backward_host_total_ns=0, backward_host_self_ns=0, device_total_ns=round(ms * MS), device_self_ns=0,
        backward_device_total_ns=None if backward_ms is None else round(backward_ms * MS), backward_device_self_ns=None,
    )  # fmt: skip


def report(kernels: Mapping[str, int], *modules: ModuleRow, rows: tuple[KernelRow, ...] = ()) -> RankReport:
    made = [kernel(name, ms, 4) for name, ms in kernels.items()]
    return msgspec.structs.replace(rank_of(0), kernels=[*made, *rows], modules=list(modules) or None)


def blocks(attention_ms: float, feed_forward_ms: float = 10.0) -> list[ModuleRow]:
    """Return a net of four blocks. Attention takes 10 ms, half of it backward; in the last two as given."""
    rows, whole_ms = [], 0.0
    for number in range(4):
        mine_ms = attention_ms if number >= 2 else 10.0
        place = f"Net_0/Block_{number}"
        rows += [
            module(f"{place}/Attention_{number}", mine_ms / 2, backward_ms=mine_ms / 2),
            module(f"{place}/FeedForward_{number}", feed_forward_ms),
            module(place, mine_ms + feed_forward_ms),
        ]
        whole_ms += mine_ms + feed_forward_ms
    return [*rows, module("Net_0", whole_ms)]


def test_modules_that_are_longer_are_told_with_their_numbers() -> None:
    # Of 20 ms of two blocks' attention 32: 1.6 times. The blocks are 1.3 times as long, the net 1.15 times.
    mine, peer = report({"flash": 52}, *blocks(16.0)), report({"flash": 40}, *blocks(10.0))
    assert describe_longer(mine, [peer, peer]) == (
        "longer at as many launches: Attention 2-3 1.60x (12.0 ms more in the trace)"
    )


def test_kernels_are_told_where_modules_are_not_known() -> None:
    mine = report({"gemm": 60, "flash": 30, "copy": 11, "same": 10})
    peers = [report({"gemm": 40, "flash": 20, "copy": 10, "same": 10}) for _ in range(2)]
    # 20, 10 and 1 ms more: the last is less than a tenth of it.
    assert describe_longer(mine, peers) == (
        "longer at as many launches: gemm 1.50x (20.0 ms more in the trace), flash 1.50x (10.0 ms more in the trace)"
    )


def test_kernels_are_told_where_no_module_holds_half() -> None:
    mine, peer = report({"gemm": 100}, *blocks(16.0)), report({"gemm": 50}, *blocks(10.0))
    assert describe_longer(mine, [peer]).startswith("longer at as many launches: gemm 2.00x")


def test_other_launches_and_collectives_are_not_compared() -> None:
    waits = msgspec.structs.replace(kernel("ncclAllReduce", 90), is_communication=True)
    mine = report({"gemm": 60}, rows=(waits, kernel("more", 50, 5)))
    peer = report(
        {"gemm": 60}, rows=(msgspec.structs.replace(waits, total_ns=MS), kernel("more", 10, 4), kernel("other", 1))
    )
    assert describe_longer(mine, [peer]) == ""


def test_module_inside_one_of_its_class_counts_once() -> None:
    mine = report({"gemm": 30}, module("Sequential_0", 30), module("Sequential_0/Sequential_1", 30))
    peer = report({"gemm": 20}, module("Sequential_0", 20), module("Sequential_0/Sequential_1", 20))
    assert "Sequential 0 1.50x (10.0 ms more" in describe_longer(mine, [peer])


def test_modules_without_a_device_or_an_instance_are_left_out() -> None:
    hidden = msgspec.structs.replace(module("Net", 30), device_total_ns=None)
    mine = report({"g" * 80: 30}, hidden, msgspec.structs.replace(hidden, path=None))
    net, peers_net = report({"g": 30}, module("Net", 20)), report({"g": 20}, module("Net", 10))
    assert "launches: Net 2.00x (10.0" in describe_longer(net, [peers_net])
    told = describe_longer(mine, [report({"g" * 80: 20}, module("Net", 5))])
    assert f"launches: {'g' * (NAME_LENGTH_MAX - 3)}... 1.50x" in told
