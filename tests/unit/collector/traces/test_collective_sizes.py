"""Collectives by size, on traces made with known sizes, arrivals and transfers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import CollectiveSizeRow
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

MIB = 1 << 20


class Made(NamedTuple):
    """One collective: all ranks leave it at `end_us`, and it moves its bytes in `transfer_us`. Each rank enters as long
    before the last one as `early_us` says.
    """

    end_us: int
    size: int
    transfer_us: int
    early_us: Sequence[int]
    op: str = "allreduce"
    members: str = "[0, 1]"
    group_size: int = 2


def kernel_of(made: Made, rank: int, number: int) -> Event:
    length_us = made.transfer_us + made.early_us[rank]
    arguments = {
        "Collective name": made.op, "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": made.members, "Group size": made.group_size, "dtype": "Byte",
        "In msg nelems": made.size, "Out msg nelems": made.size, "Seq": number, "correlation": number + 1,
    }  # fmt: skip
    return kernel("ncclDevKernel_x", made.end_us - length_us, length_us, **arguments)


def write(folder: Path, made: Sequence[Made], hosts: Sequence[str | None], world_size: int = 2) -> str:
    """Write a trace for each host, one rank each."""
    for rank, host in enumerate(hosts):
        info = {"rank": rank, "world_size": world_size, "pg_count": 1, "backend": "nccl"}
        head: dict[str, Any] = {"distributedInfo": info, "baseTimeNanoseconds": 10**18}
        head |= {} if host is None else {"host_name": host}
        events = [event("user_annotation", "ProfilerStep#1", 0, 10_000)]
        for number, one in enumerate(made):
            events += [launch(number + 1, number + 1), kernel_of(one, rank, number)]
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **head))
    return str(folder)


def rows_of(
    folder: Path, *made: Made, hosts: Sequence[str | None] = ("a", "a"), world_size: int = 2
) -> list[CollectiveSizeRow]:
    report = analyze(write(folder, made, hosts, world_size))
    assert report.errors == []
    return report.collective_sizes


def bandwidths(row: CollectiveSizeRow) -> tuple[float | None, ...]:
    return (
        row.algorithm_bandwidth_min_bytes_per_s,
        row.algorithm_bandwidth_median_bytes_per_s,
        row.algorithm_bandwidth_max_bytes_per_s,
    )


# Three of one class: 1.0, 1.5 and 1.9 MiB (in decimal: 1,000,000 is below 1 MiB).
THREE = (
    Made(3_000, 1_100_000, 100, (50, 0)),
    Made(4_000, 1_500_000, 100, (0, 200)),
    Made(5_000, 2_000_000, 400, (20, 0)),
)


def test_sizes_of_one_power_of_two_are_one_row(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, *THREE)
    assert (row.op, row.size_from_bytes, row.size_to_bytes) == ("all_reduce", MIB, 2 * MIB)
    # Rank 0: 150, 100 and 420 us; rank 1: 100, 300 and 400 us.
    assert (row.count, row.total_ns, row.matched_count) == (6, 1_470_000, 3)
    assert (row.duration_min_ns, row.duration_median_ns, row.duration_max_ns) == (100_000, 225_000, 420_000)


def test_skew_is_the_time_between_first_and_last_arrival(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, *THREE)
    assert (row.skew_min_ns, row.skew_median_ns, row.skew_max_ns) == (20_000, 50_000, 200_000)


def test_bandwidth_is_over_the_transfer_without_waiting(tmp_path: Path) -> None:
    # 1.1 MB in 100 us, 1.5 MB in 100 us, 2 MB in 400 us.
    (row,) = rows_of(tmp_path, *THREE)
    assert (row.bandwidth_from, bandwidths(row)) == ("transfers", (5e9, 11e9, 15e9))


def test_bus_bandwidth_has_the_factor_of_nccl_tests(tmp_path: Path) -> None:
    # All-gather among two: (2 - 1) / 2 of 4 MB in 1 ms.
    (row,) = rows_of(tmp_path, Made(3_000, 4_000_000, 1_000, (0, 5), op="allgather"))
    found = (row.bus_bandwidth_min_bytes_per_s, row.bus_bandwidth_median_bytes_per_s, row.bus_bandwidth_max_bytes_per_s)
    assert found == (2e9, 2e9, 2e9)


def test_another_class_of_size_is_another_row(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, Made(3_000, 4 * MIB - 1, 100, (0, 9)), Made(4_000, 4 * MIB, 200, (0, 9)))
    assert [(row.size_from_bytes, row.count) for row in rows] == [(4 * MIB, 2), (2 * MIB, 2)]


@pytest.mark.parametrize(
    ("hosts", "inside"), [(("a", "a"), True), (("a", "b"), False), (("a", None), None), ((None, None), None)]
)
def test_hosts_of_all_members_say_whether_it_stays_in_a_node(
    hosts: Sequence[str | None], inside: bool | None, tmp_path: Path
) -> None:
    (row,) = rows_of(tmp_path, Made(3_000, 64, 100, (0, 9)), hosts=hosts)
    assert row.is_inside_node is inside


@pytest.mark.parametrize(("hosts", "inside"), [(("a", "a"), None), (("a", "b"), False)])
def test_group_with_a_missing_rank_may_span_nodes(hosts: Sequence[str], inside: bool | None, tmp_path: Path) -> None:
    made = Made(3_000, 64, 100, (0, 9), members="[0, 1, 2]", group_size=3)
    (row,) = rows_of(tmp_path, made, hosts=hosts, world_size=3)
    assert row.is_inside_node is inside


@pytest.mark.parametrize("members", ["[0, 1]", "[0, ..., 1]"])
def test_group_smaller_than_the_run_is_judged_by_its_members(members: str, tmp_path: Path) -> None:
    # Where the list of members is shortened, the two that took part are all of a group of two.
    (row,) = rows_of(tmp_path, Made(3_000, 64, 100, (0, 9), members=members), world_size=4)
    assert row.is_inside_node is True


def test_missing_rank_leaves_bandwidth_a_lower_bound(tmp_path: Path) -> None:
    # A third rank may have entered later still: 1 MB in the 200 us of rank 0 and the 100 us of rank 1.
    made = Made(3_000, 1_000_000, 100, (100, 0), members="[0, 1, 2]", group_size=3)
    (row,) = rows_of(tmp_path, made, world_size=3)
    assert (row.bandwidth_from, row.skew_max_ns, bandwidths(row)) == ("durations", 100_000, (5e9, 7.5e9, 10e9))


def test_one_trace_has_bandwidth_by_durations_and_no_skew(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, Made(3_000, 1_000_000, 100, (100, 0)), hosts=("a",))
    assert (row.count, row.matched_count, row.skew_median_ns) == (1, 0, None)
    assert (row.bandwidth_from, bandwidths(row)) == ("durations", (5e9, 5e9, 5e9))


def test_trace_without_a_rank_has_its_collectives_too(tmp_path: Path) -> None:
    made = kernel_of(Made(3_000, 64, 100, (0,), group_size=1), 0, 0)
    (tmp_path / "one.json").write_bytes(to_json(made))
    (row,) = analyze(str(tmp_path)).collective_sizes
    assert (row.count, row.is_inside_node) == (1, None)


def test_refused_matching_leaves_each_call_by_itself(tmp_path: Path) -> None:
    # The 2nd operation differs: what rank 0 calls an all-reduce is an all-gather on rank 1.
    made = [Made(3_000, 64, 100, (0, 9)), Made(4_000, 64, 100, (0, 9))]
    folder = write(tmp_path, made, ("a", "a"))
    write_rank_1(tmp_path, [made[0], made[1]._replace(op="allgather")])
    report = analyze(folder)
    assert report.cross_rank is not None
    assert report.cross_rank.refused is not None
    assert {(row.matched_count, row.skew_max_ns, row.bandwidth_from) for row in report.collective_sizes} == {
        (0, None, "durations")
    }


def write_rank_1(folder: Path, made: Sequence[Made]) -> None:
    """Write rank 1's trace anew, with other collectives."""
    info = {"rank": 1, "world_size": 2, "pg_count": 1, "backend": "nccl"}
    events = [kernel_of(one, 1, number) for number, one in enumerate(made)]
    text = to_json(*events, distributedInfo=info, host_name="a", baseTimeNanoseconds=10**18)
    (folder / "rank1.json").write_bytes(text)


def test_barrier_and_unknown_size_have_no_bandwidth(tmp_path: Path) -> None:
    barrier = Made(3_000, 4, 100, (0, 9), op="barrier")
    unsized = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5_000, 50)
    write(tmp_path, [barrier], ("a",))
    (tmp_path / "rank0.json").write_bytes(to_json(kernel_of(barrier, 0, 0), unsized))
    rows = analyze(str(tmp_path)).collective_sizes
    assert [(row.op, row.size_from_bytes, row.bandwidth_from) for row in rows] == [
        ("barrier", 4, None),
        ("all_reduce", None, None),
    ]


def test_transfer_without_length_has_no_bandwidth(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, Made(3_000, 64, 0, (0, 100)))
    assert (row.bandwidth_from, row.skew_max_ns, bandwidths(row)) == (None, 100_000, (None, None, None))
