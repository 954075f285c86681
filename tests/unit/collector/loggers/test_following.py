"""What is written to a logger of a run's nodes and ranks, and what happens while collector or logger are away."""

from collections.abc import Mapping

import pytest

from rankscope.collector.loggers import following
from rankscope.collector.loggers.following import Follower
from rankscope.collector.loggers.rows import NODES_MAX, build_row, find_step, name_node
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.top.snapshot_fetch import FetchedRank, FetchedRun, Gpu
from rankscope.measure.errors import UnavailableError

MS = 1_000_000
RANKS = (
    FetchedRank(
        rank=0, node="a", last_step=7, step_ns_median=80.0 * MS, own_ns_median=20.0 * MS, slowdown_ratio=1.0,
        gpu=Gpu(utilization_ratio=0.5, power_watts=300.0, temperature_celsius=60.0),
    ),
    FetchedRank(
        rank=1, node="a", last_step=8, step_ns_median=80.0 * MS, own_ns_median=60.0 * MS, slowdown_ratio=1.5,
        wait_caused_ns_median=40.0 * MS, gpu=Gpu(utilization_ratio=0.25, power_watts=200.0, temperature_celsius=70.0),
    ),
    FetchedRank(rank=2, node="b", up=False, step_ns_median=80.0 * MS),
)  # fmt: skip


def test_node_has_mean_sum_or_highest_of_its_live_ranks() -> None:
    row = {name: value for name, value in build_row(RANKS, 8).items() if "/node/" in name}
    assert row == pytest.approx({
        "rankscope/node/a/ranks_up": 2, "rankscope/node/a/step_s": 0.08, "rankscope/node/a/own_s": 0.04,
        "rankscope/node/a/caused_wait_s": 0.04, "rankscope/node/a/slowdown_ratio": 1.5,
        "rankscope/node/a/gpu_utilization_ratio": 0.375, "rankscope/node/a/gpu_power_watts": 500.0,
        "rankscope/node/a/gpu_temperature_celsius": 70.0, "rankscope/node/b/ranks_up": 0,
    })  # fmt: skip


def test_rank_has_what_is_known_of_it_and_no_zero_instead() -> None:
    row = build_row(RANKS, 8)
    assert {name.rpartition("/")[2] for name in row if "/rank/0/" in name} == {
        "step_s", "own_s", "slowdown_ratio", "gpu_utilization_ratio", "gpu_power_watts", "gpu_temperature_celsius",
    }  # fmt: skip
    assert not [name for name in row if "/rank/2/" in name]


def test_of_many_ranks_and_nodes_the_slowest_are_written() -> None:
    many = [FetchedRank(rank=n, node=f"n{n}", slowdown_ratio=1 + n / 1000, step_ns_median=1.0) for n in range(300)]
    row = build_row(many, 2)
    assert {name.split("/")[2] for name in row if "/rank/" in name} == {"298", "299"}
    nodes = {name.split("/")[2] for name in row if "/node/" in name}
    assert (len(nodes), "n299" in nodes, "n0" in nodes) == (NODES_MAX, True, False)
    assert not [name for name in build_row(many, 0) if "/rank/" in name]


def test_step_is_the_last_that_any_rank_has_made() -> None:
    assert (find_step(RANKS), find_step(())) == (8, 0)
    assert name_node("") == "_"


class Kept:
    """A logger that refuses the rows of these numbers."""

    def __init__(self, *refused: int) -> None:
        self.rows: list[tuple[int, float]] = []
        self._refused = refused
        self._calls = 0

    def write(self, row: Mapping[str, float], step: int, _wall_s: float) -> None:
        self._calls += 1
        if self._calls in self._refused:
            raise ConnectionError("no server")
        self.rows.append((step, row["rankscope/node/a/ranks_up"]))

    def close(self) -> None: ...


def view_of(*, is_over: bool = False) -> FetchedRun:
    end = RunEnd(reason="finished") if is_over else None
    return FetchedRun(
        wall_s=5.0, run=RunSnapshot(run="a", world_size=3, restart_count=0, ranks=(), end=end), ranks=RANKS
    )


def follow(states: list[FetchedRun | None], sink: Kept, said: list[str]) -> Follower:
    """Follow a run through these states; None is a collector that is away."""
    left = iter(states)

    def fetch() -> FetchedRun:
        state = next(left)
        if state is None:
            raise UnavailableError("no collector answers.")
        return state

    follower = Follower(fetch, sink, ranks_max=8, interval_s=100.0, wait=lambda _s: False, say=said.append)
    follower.follow()
    return follower


def test_rows_are_written_until_the_run_has_ended() -> None:
    sink, said = Kept(), list[str]()
    follower = follow([view_of(), view_of(), view_of(is_over=True)], sink, said)
    assert (sink.rows, follower.rows, follower.problem, said) == ([(8, 2.0)] * 3, 3, "", [])


def test_collector_that_is_away_is_said_once_and_asked_again() -> None:
    sink, said = Kept(), list[str]()
    follow([None, None, view_of(is_over=True)], sink, said)
    assert (len(sink.rows), said) == (1, ["no collector answers. It is asked again every 100 s"])


def test_collector_that_is_gone_ends_it() -> None:
    gone = int(following.AWAY_S_MAX / 100.0) + 1
    with pytest.raises(UnavailableError, match="no collector answers"):
        follow([view_of(), *[None] * gone], Kept(), [])


def test_row_that_is_not_taken_is_said_and_the_next_is_tried() -> None:
    said = list[str]()
    follower = follow([view_of(), view_of(), view_of(is_over=True)], Kept(1, 3), said)
    assert (follower.rows, follower.problem) == (1, "ConnectionError: no server")
    assert said == ["the logger has not taken a row (ConnectionError: no server); the next one is tried"] * 2


def test_who_waits_may_end_it() -> None:
    follower = Follower(view_of, Kept(), ranks_max=8, interval_s=1.0, wait=lambda _s: True, say=lambda _text: None)
    follower.follow()
    assert follower.rows == 1
