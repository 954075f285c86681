"""Intervals of all ranks: their columns, and how they are packed."""

import zlib

import msgspec
import numpy as np
import pytest

from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.storage.rank_intervals import (
    COLUMNS,
    SUM_MAX,
    SUMS,
    RankInterval,
    RankIntervals,
    pack,
    unpack,
    unpack_sums,
)
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import Totals


def rank_of(number: int, steps: int, *, life: int = 0, data_ns: int | None = None) -> RankSnapshot:
    """A rank that has made so many steps of 10 ms."""
    identity = RankIdentity(
        run="r", rank=number, local_rank=0, world_size=2, node="n", restart_count=0,
        boot_id=f"boot-{life}-{number:03d}", pid=1,
    )  # fmt: skip
    phases = {} if data_ns is None else {"data": data_ns}
    totals = Totals(steps=steps, step_ns=steps * 10_000_000, phases_ns=phases)
    return RankSnapshot(identity=identity, up=True, totals=totals, slowdown_ratio=1.5 if number else None)


def run_of(*ranks: RankSnapshot) -> RunSnapshot:
    return RunSnapshot(run="r", world_size=2, restart_count=0, ranks=ranks)


def read(interval: RankInterval | None, name: str) -> list[float]:
    assert interval is not None
    return [round(float(value), 3) for value in interval.columns[name]]


def test_interval_has_the_steps_since_its_start() -> None:
    intervals = RankIntervals(60.0)
    assert intervals.update(run_of(rank_of(0, 5, data_ns=50), rank_of(1, 5)), 0, 100.0) is None
    assert intervals.update(run_of(rank_of(0, 9, data_ns=80), rank_of(1, 9)), 0, 159.0) is None
    found = intervals.update(run_of(rank_of(0, 15, data_ns=150), rank_of(1, 7)), 0, 160.0)
    assert found is not None
    assert (found.attempt, found.begin_wall_s, found.end_wall_s) == (0, 100.0, 160.0)
    assert (read(found, "rank"), read(found, "steps")) == ([0, 1], [10, 2])
    assert read(found, "step_ns") == [10_000_000, 10_000_000]
    assert read(found, "data_ns")[0] == 10
    assert np.isnan(found.columns["data_ns"][1])
    assert np.isnan(found.columns["slowdown_ratio"][0])
    assert read(found, "slowdown_ratio")[1] == 1.5


def test_next_interval_begins_where_the_last_ended() -> None:
    intervals = RankIntervals(60.0)
    for steps, wall_s in ((0, 0.0), (10, 60.0)):
        intervals.update(run_of(rank_of(0, steps)), 0, wall_s)
    assert read(intervals.update(run_of(rank_of(0, 14)), 0, 120.0), "steps") == [4]


def test_minute_without_steps_has_no_interval() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(rank_of(0, 5)), 0, 0.0)
    assert intervals.update(run_of(rank_of(0, 5)), 0, 60.0) is None


def test_late_rank_counts_from_its_first_step() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(rank_of(0, 5)), 0, 0.0)
    found = intervals.update(run_of(rank_of(0, 6, life=1), rank_of(1, 4)), 0, 60.0)
    assert read(found, "steps") == [6, 4]


def test_a_new_attempt_begins_a_new_interval() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(rank_of(0, 5)), 0, 0.0)
    assert intervals.update(run_of(rank_of(0, 1, life=1)), 1, 60.0) is None
    assert read(intervals.update(run_of(rank_of(0, 3, life=1)), 1, 120.0), "steps") == [2]


def test_last_interval_is_short_and_forgotten_runs_start_over() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(rank_of(0, 5)), 0, 0.0)
    assert read(intervals.update(run_of(rank_of(0, 8)), 0, 2.0, is_last=True), "steps") == [3]
    intervals.forget("r")
    assert intervals.update(run_of(rank_of(0, 9)), 0, 100.0) is None


def test_a_wall_clock_that_was_set_back_begins_a_new_interval() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(rank_of(0, 5)), 0, 1_000.0)
    assert intervals.update(run_of(rank_of(0, 6)), 0, 10.0) is None
    assert read(intervals.update(run_of(rank_of(0, 8)), 0, 70.0), "steps") == [2]


def test_packed_columns_can_be_unpacked() -> None:
    columns = {name: np.array([0.0, 1.5, np.nan], dtype=np.float32) for name in COLUMNS}
    found = unpack(pack(RankInterval(0, 0.0, 1.0, columns)))
    assert tuple(found) == COLUMNS
    for name in COLUMNS:
        np.testing.assert_array_equal(found[name], columns[name])


def test_unknown_columns_are_dropped_and_missing_ones_nan() -> None:
    body = {"rank": np.array([3], dtype="<f4").tobytes(), "of_a_later_release": b"\0\0\0\0"}
    found = unpack(zlib.compress(msgspec.msgpack.encode(body)))
    assert tuple(found) == COLUMNS
    assert (found["rank"].tolist(), bool(np.isnan(found["steps"]).all())) == ([3.0], True)
    assert unpack(zlib.compress(msgspec.msgpack.encode({})))["rank"].tolist() == []


# -- sums over the ranks ----------------------------------------------------------------------------------------------


def with_totals(rank: RankSnapshot, **totals: int) -> RankSnapshot:
    return msgspec.structs.replace(rank, totals=msgspec.structs.replace(rank.totals, **totals))


def test_sums_are_what_all_ranks_added_since_the_start() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(with_totals(rank_of(0, 5), window_ns=100, compute_ns=70), rank_of(1, 5)), 0, 0.0)
    ranks = (
        with_totals(rank_of(0, 9), window_ns=150, compute_ns=100, samples=40),
        with_totals(rank_of(1, 7, life=1), window_ns=30, exposed_communication_ns=20),  # another process: all of it
    )
    found = intervals.update(run_of(*ranks), 0, 60.0)
    assert found is not None
    known = {"steps": 4 + 7, "step_ns": 11 * 10_000_000, "window_ns": 50 + 30, "compute_ns": 30, "samples": 40}
    known["exposed_communication_ns"] = 20
    assert found.sums == {name: known.get(name, 0) for name in SUMS}


def test_totals_that_shrink_add_nothing_and_huge_ones_fit() -> None:
    intervals = RankIntervals(60.0)
    intervals.update(run_of(with_totals(rank_of(0, 5), idle_ns=9)), 0, 0.0)
    ranks = (with_totals(rank_of(0, 6), idle_ns=4, tokens=2**62), with_totals(rank_of(1, 6), tokens=2**62))
    found = intervals.update(run_of(*ranks), 0, 60.0)
    assert found is not None
    assert (found.sums["idle_ns"], found.sums["tokens"]) == (0, SUM_MAX)
    assert unpack_sums(pack(found)) == found.sums


def test_row_without_all_sums_has_none() -> None:
    columns = {name: np.array([1.0], dtype=np.float32) for name in COLUMNS}
    assert unpack_sums(pack(RankInterval(0, 0.0, 1.0, columns))) == {}
    assert unpack_sums(pack(RankInterval(0, 0.0, 1.0, columns, {"steps": 5}))) == {}
    with pytest.raises(ValueError, match="no packed columns"):
        unpack_sums(b"no zlib")


@pytest.mark.parametrize("body", [b"", b"no zlib", zlib.compress(b"\xc1")])
def test_invalid_interval_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no packed columns"):
        unpack(body)
