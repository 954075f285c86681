"""Folders of traces in which one rank, several, or none computes for longer: all of them are named, and nobody else.

A step of a rank is four products on its GPU, then an all_reduce that ends on all ranks at once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import Advice, TraceReport
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

PRODUCTS, PRODUCT_US, TRANSFER_US, STEPS = 4, 5_000.0, 4_000.0, 6
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def write(
    folder: Path,
    ranks: int,
    longer: Mapping[int, float],
    *,
    products: Mapping[int, int] | None = None,
    hosts: Sequence[str] = (),
    steps: Sequence[bool] = (True,) * STEPS,
) -> str:
    """Write a trace of each rank. `longer`: how many times as long a rank's products take; `products`: how many it
    has in a step, PRODUCTS else; `hosts`: the host of each, not known else;
    `steps`: in which steps they take longer.
    """
    chance, now_us = Random(3), 1_000.0
    events: list[list[Event]] = [[] for _ in range(ranks)]
    for step, is_longer in enumerate(steps):
        ends = [now_us] * ranks
        for rank, mine in enumerate(events):
            for place in range((products or {}).get(rank, PRODUCTS)):
                length_us = PRODUCT_US * (longer.get(rank, 1.0) if is_longer else 1.0) * chance.uniform(0.995, 1.005)
                on_device = kernel("gemm", ends[rank], length_us, correlation=100 * step + place)
                mine.extend(launched("aten::mm", now_us + 5 * place, on_device))
                ends[rank] += length_us
        end_us = max(ends) + TRANSFER_US
        told = {
            "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(ranks))), "Group size": ranks, "dtype": "Float",
            "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000, "Seq": step,
        }  # fmt: skip
        for rank, mine in enumerate(events):
            told["correlation"] = 100 * step + 99
            on_device = kernel(NCCL, ends[rank], end_us - ends[rank], **told)
            mine.extend(launched("record_param_comms", now_us + 90, on_device))
            mine.append(event("user_annotation", f"ProfilerStep#{step}", now_us, end_us - now_us))
        now_us = end_us
    folder.mkdir()
    for rank, mine in enumerate(events):
        head: dict[str, Any] = {
            "distributedInfo": {"rank": rank, "world_size": ranks, "pg_count": 1, "backend": "nccl"},
            "deviceProperties": [{"id": 0, "name": "A100"}],
            **({"host_name": hosts[rank]} if hosts else {}),
        }
        (folder / f"rank{rank}.json").write_bytes(to_json(*mine, **head))
    return str(folder)


def launched(operator: str, host_us: float, on_device: Event) -> list[Event]:
    return [event("cpu_op", operator, host_us, 2), launch(host_us, on_device["args"]["correlation"]), on_device]


def found_in(report: TraceReport) -> list[tuple[str, list[int], str | None]]:
    assert report.cross_rank is not None
    return [(one.kind, one.ranks, one.cause) for one in report.cross_rank.findings]


def advice_of(report: TraceReport, key: str) -> Advice:
    return next(one for one in report.advice if one.key == key)


def test_nobody_is_named_where_all_take_as_long(tmp_path: Path) -> None:
    assert found_in(analyze(write(tmp_path / "a", 8, {}))) == []


@pytest.mark.parametrize(("ranks", "slow"), [(8, (2, 5)), (8, (0, 1, 6)), (4, (1, 3)), (4, (2,))])
def test_all_slow_ranks_are_named_and_nobody_else(ranks: int, slow: tuple[int, ...], tmp_path: Path) -> None:
    report = analyze(write(tmp_path / "a", ranks, dict.fromkeys(slow, 1.2)))
    assert found_in(report) == [("straggler", list(slow), "gpu_compute")]
    assert advice_of(report, "straggler").ranks == list(slow)
    assert report.cross_rank is not None
    (found,) = report.cross_rank.findings
    # 4 products of 6 ms and a transfer of 4 against 4 of 5 and that transfer; all others wait for that.
    assert found.slowdown_ratio == pytest.approx(28 / 24, abs=0.03)
    assert found.run_slowdown_ratio == pytest.approx(28 / 24, abs=0.03)


def test_ranks_of_a_slow_node_are_told_as_the_node(tmp_path: Path) -> None:
    # Nodes of two ranks; those of the second one take 1.2 times as long.
    report = analyze(write(tmp_path / "a", 8, dict.fromkeys((2, 3), 1.2), hosts=[f"n{rank // 2}" for rank in range(8)]))
    assert report.cross_rank is not None
    (found,) = report.cross_rank.findings
    assert (found.ranks, found.nodes) == ([2, 3], ["n1"])
    assert found.sentence.startswith("Node n1 (ranks 2-3): up to 1.1")


def only_sentence(folder: str) -> str:
    report = analyze(folder)
    assert report.cross_rank is not None
    (found,) = report.cross_rank.findings
    return found.sentence


def test_begin_is_told_where_there_are_enough_steps(tmp_path: Path) -> None:
    said = only_sentence(write(tmp_path / "a", 8, {2: 1.3}, steps=[step >= 12 for step in range(24)]))
    assert said.startswith(
        "Rank 2: 1.25x slower than its 7 peers, steps 12-23. Own time 30.0 ms per step, peers 24.0 ms."
    )


def test_rank_that_is_slow_now_and_then_is_told_so(tmp_path: Path) -> None:
    # 4 products of 10 ms beside 5, and 4 ms of transfer.
    said = only_sentence(write(tmp_path / "a", 8, {2: 2.0}, steps=[step % 3 == 0 for step in range(30)]))
    assert said.startswith("Rank 2: 1.83x slower than its 7 peers every 3 steps, steps 0-29.")
    assert "Cause gpu_compute: 20.0 ms more per step on its GPU, in 5 kernels, 5 on its peers." in said


def test_wait_for_a_slow_rank_is_no_communication_to_hide(tmp_path: Path) -> None:
    report = analyze(write(tmp_path / "a", 4, {2: 1.25}))
    # The all_reduces of its peers last for 9 ms of 29, of which they wait 5.
    advice = advice_of(report, "serial_communication")
    assert advice.evidence["hideable_ratio"] == pytest.approx(4 / 29, abs=0.01)


def test_slow_rank_is_the_difference_to_a_healthy_run(tmp_path: Path) -> None:
    healthy = write(tmp_path / "healthy", 4, {})
    found = analyze(write(tmp_path / "slow", 4, {2: 1.25}), against=healthy).comparison
    assert found is not None
    largest = sorted(found.tables[0].rows, key=lambda row: -row.difference_ns)[:2]
    assert [(row.kind, row.name) for row in largest] == [("waiting", "waiting for rank 2"), ("compute", "gemm")]
    # In the mean of four ranks: three wait for 5 ms a step, one computes as much longer.
    assert [row.difference_ns / 1e6 for row in largest] == pytest.approx([3.75, 1.25], abs=0.05)


def test_ranks_with_more_products_have_more_work_without_blame(tmp_path: Path) -> None:
    report = analyze(write(tmp_path / "a", 8, {}, products={2: 5, 5: 5}))
    assert found_in(report) == [("imbalance", [2, 5], "more_work")]
    advice = advice_of(report, "load_imbalance")
    assert advice.ranks == [2, 5]
    assert "Cause more_work: 6 operators per step, 5 on its peers." in advice.sentence
    assert "straggler" not in {one.key for one in report.advice}
