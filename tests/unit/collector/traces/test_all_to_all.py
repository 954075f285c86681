"""Imbalance of all-to-alls, on traces made with known sizes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.all_to_all import CALLS_MAX
from rankscope.collector.traces.report import AllToAlls
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

MEMBERS = 3
Rows = Sequence[Sequence[int]]
"""Rows that each rank sends to each member."""


def call_of(rows: Rows, rank: int, number: int, *, splits: bool = True, ranks: str = "[0, 1, 2]") -> Event:
    """Return one call, whose rows are 10 elements of 2 bytes; it lasts 100 us on rank 0, 10 us less on each next."""
    received = sum(of[rank] for of in rows)
    arguments: dict[str, Any] = {
        "Collective name": "all_to_allv", "Process Group Name": "7", "Process Group Description": "experts",
        "Process Group Ranks": ranks, "Group size": MEMBERS, "dtype": "BFloat16", "Seq": number,
        "In msg nelems": 10 * sum(rows[rank]), "Out msg nelems": 10 * received, "correlation": number + 1,
    }  # fmt: skip
    arguments |= {"In split size": str(list(rows[rank]))} if splits else {"In split size": "[]"}
    length_us = 100 - 10 * rank
    return kernel("ncclDevKernel_SendRecv", 1000 * (number + 1) - length_us, length_us, **arguments)


def write(folder: Path, calls: Sequence[Rows], **options: Any) -> str:
    for rank in range(MEMBERS):
        head = {
            "distributedInfo": {"rank": rank, "world_size": MEMBERS}, "baseTimeNanoseconds": 10**18, "host_name": "a",
        }  # fmt: skip
        events = [event("user_annotation", "ProfilerStep#1", 0, 10_000)]
        for number, rows in enumerate(calls):
            events += [launch(number + 1, number + 1), call_of(rows, rank, number, **options)]
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **head))
    return str(folder)


def sums_of(folder: Path, *calls: Rows, **options: Any) -> AllToAlls:
    report = analyze(write(folder, calls, **options), all_to_all=True)
    assert (report.errors, report.all_to_all is None) == ([], False)
    return report.all_to_all or AllToAlls(ranks=[], calls=[], left_out_count=0, refused=None)


# All send 20 rows (400 bytes); ranks 0, 1, 2 receive 9, 36, 15 rows (180, 720, 300 bytes).
UNEVEN: Rows = ((2, 15, 3), (5, 12, 3), (2, 9, 9))
EVEN: Rows = ((5, 5, 5),) * 3


def test_ranks_are_set_beside_the_median_rank(tmp_path: Path) -> None:
    found = sums_of(tmp_path, UNEVEN)
    assert [(row.rank, row.sent_bytes, row.received_bytes) for row in found.ranks] == [
        (0, 400, 180), (1, 400, 720), (2, 400, 300),
    ]  # fmt: skip
    assert [(row.sent_ratio, row.received_ratio) for row in found.ranks] == [(1, 0.6), (1, 2.4), (1, 1)]
    assert [(row.group, row.count, row.total_ns) for row in found.ranks][:2] == [
        ("experts", 1, 100_000), ("experts", 1, 90_000),
    ]  # fmt: skip


def test_member_that_was_sent_the_most_is_named(tmp_path: Path) -> None:
    found = sums_of(tmp_path, UNEVEN, EVEN)
    # Rank 0 sent 2 + 5, 15 + 5 and 3 + 5 rows: 20 to rank 1, beside 8 in the median; a row is 20 bytes.
    first = found.ranks[0]
    assert (first.split_count, first.peer_rank, first.peer_bytes, first.peer_ratio) == (2, 1, 400, 2.5)


def test_calls_of_one_receiving_most_above_the_median_come_first(tmp_path: Path) -> None:
    found = sums_of(tmp_path, EVEN, UNEVEN)
    assert [call.sequence for call in found.calls] == [1, 0]
    call = found.calls[0]
    assert (call.received_most_rank, call.received_most_bytes, call.received_median_bytes) == (1, 720, 300)
    assert (call.received_ratio, call.sent_most_rank, call.sent_ratio, call.rank_count) == (2.4, 0, 1, 3)
    assert (call.shortest_ns, call.longest_ns) == (80_000, 100_000)


def test_without_splits_the_sums_are_known_and_the_member_is_not(tmp_path: Path) -> None:
    found = sums_of(tmp_path, UNEVEN, splits=False)
    assert [(row.received_bytes, row.split_count, row.peer_bytes) for row in found.ranks] == [
        (180, 0, None), (720, 0, None), (300, 0, None),
    ]  # fmt: skip


def test_member_of_an_unknown_group_has_no_rank(tmp_path: Path) -> None:
    first = sums_of(tmp_path, UNEVEN, ranks="[0, ..., 2]").ranks[0]
    assert (first.peer_rank, first.peer_bytes) == (None, 300)


def test_rank_receiving_where_the_median_has_none_has_no_ratio(tmp_path: Path) -> None:
    found = sums_of(tmp_path, ((0, 4, 0), (0, 4, 0), (0, 4, 0)))
    assert [row.received_ratio for row in found.ranks] == [None, None, None]
    assert (found.calls[0].received_most_bytes, found.calls[0].received_ratio) == (240, None)


def test_one_rank_alone_is_compared_with_nobody(tmp_path: Path) -> None:
    path = write(tmp_path, [UNEVEN])
    found = analyze(path, rank=1, all_to_all=True).all_to_all
    assert found is not None
    assert [(row.rank, row.received_bytes, row.received_ratio) for row in found.ranks] == [(1, 720, None)]
    assert (found.calls, found.refused) == ([], "there is only one rank's trace")


def test_calls_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    found = sums_of(tmp_path, *[EVEN] * (CALLS_MAX + 2))
    assert (len(found.calls), found.left_out_count) == (CALLS_MAX, 2)


def test_other_collectives_are_in_no_row() -> None:
    traces = Path(__file__).parents[3] / "traces"
    found = analyze(str(traces / "gloo-2.13" / "ddp_2r_clean"), all_to_all=True).all_to_all
    assert found is not None
    assert (found.ranks, found.calls) == ([], [])


def test_tables_are_there_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = write(tmp_path, [UNEVEN]), tmp_path / "out" / "report.json"
    target.parent.mkdir()
    main(["analyze", path, "--all-to-all", "--json-file", str(target)])
    assert "ALL-TO-ALLS, BY RANK" in capsys.readouterr().out
    assert len(msgspec.json.decode(target.read_bytes())["all_to_all"]["ranks"]) == MEMBERS
    main(["analyze", path])
    assert "ALL-TO-ALLS" not in capsys.readouterr().out


def test_tables_show_the_ratios(tmp_path: Path) -> None:
    sections = build_sections(analyze(write(tmp_path, [UNEVEN]), all_to_all=True), 20)
    by_key = {one.key: one for one in sections}
    assert [cell.text for cell in by_key["all_to_all_ranks"].rows[0]] == [
        "experts", "0", "1", "400", "1.00", "180", "0.60", "1", "300", "5.00", "0.100",
    ]  # fmt: skip
    assert [cell.text for cell in by_key["all_to_all_calls"].rows[0]] == [
        "experts", "0", "3", "720", "300", "2.40", "1", "400", "400", "1.00", "0", "80.0", "100.0",
    ]  # fmt: skip


def test_frames_have_both_tables(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frames = analyze(write(tmp_path, [UNEVEN]), all_to_all=True).to_pandas()
    assert (len(frames["all_to_all_ranks"]), len(frames["all_to_all_calls"])) == (3, 1)
