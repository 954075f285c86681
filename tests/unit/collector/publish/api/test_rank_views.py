"""What the API says of ranks: which are the slowest, and how one stands beside its medians."""

import msgspec
import pytest

from rankscope.collector.publish.api.rank_views import RankAnswer, list_ranks, show_rank
from rankscope.collector.runs.blocked_lines import BlockingCalls
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.top.snapshot_fetch import FetchedRank, Gpu
from rankscope.measure.records import DeviceSample, Synchronization, WindowBreakdown, WindowSynchronizations
from tests.unit.collector.runs.run_snapshots import rank_of
from tests.unit.collector.runs.run_stories import MS, Story

PRESENT = RatioBasis(absent=None)


def run_of(*ranks: RankSnapshot) -> RunSnapshot:
    return RunSnapshot(run="bert", world_size=len(ranks), restart_count=0, ranks=ranks)


def window_of(compute_ns: int) -> WindowBreakdown:
    """A window of 100 ns without communication."""
    return WindowBreakdown(
        first_step=0, step_count=1, window_ns=100, compute_ns=compute_ns, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=100 - compute_ns,
    )  # fmt: skip


def answer_of(story: Story, rank: int) -> RankAnswer:
    """What is said of a rank that is known."""
    found = show_rank(story.snapshot(), rank, story.run.heat_map_steps)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("order", "offset", "limit", "expected"),
    [
        ("rank", 0, 100, [0, 1, 2, 3, 4]),
        ("rank", 1, 2, [1, 2]),
        ("slowdown", 0, 100, [3, 1, 2, 0, 4]),
        ("slowdown", 0, 1, [3]),
        ("slowdown", 1, 2, [1, 2]),
        ("slowdown", 9, 2, []),
    ],
)
def test_ranks_come_in_the_order_that_is_asked_for(order: str, offset: int, limit: int, expected: list[int]) -> None:
    slowdowns = (1.0, 1.5, 1.5, 3.0, None)
    run = run_of(*(rank_of(rank, slowdown_ratio=slowdown) for rank, slowdown in enumerate(slowdowns)))
    found = list_ranks(run, order, offset, limit)
    assert [line.rank for line in found.ranks] == expected
    assert found.ranks_known == 5


def test_rank_in_the_list_says_where_and_how_it_is() -> None:
    line = list_ranks(run_of(rank_of(0, up=False, ended="crashed", last_step=7)), "rank", 0, 1).ranks[0]
    assert (line.node, line.up, line.ended, line.last_step, line.slowdown_ratio) == ("n0", False, "crashed", 7, None)


def test_rank_is_compared_with_medians_of_ranks_of_the_same_work() -> None:
    # 10 ms in each of three phases, rank 2 with 40 ms of data, of which 8 ms outside of the loader: 5 ms of transfer
    # make 65 ms of own time against 35.
    story = Story(4).join().train(20, data={2: 40.0})
    answer = answer_of(story, 2)
    assert answer.peers is not None
    assert (answer.peers.do_same_work, answer.peers.count, answer.peers.ranks) == (True, 3, (0, 1, 3))
    assert (answer.rank.own_ns_median, answer.peers.own_ns_median) == (65 * MS, 35 * MS)
    assert (answer.rank.phases_ns_median["data"], answer.peers.phases_ns_median["data"]) == (32 * MS, 2 * MS)


def test_rank_steps_come_with_the_range_of_its_peers() -> None:
    story = Story(4).join().train(20, data={1: 20.0, 2: 40.0})
    recent = answer_of(story, 2).recent
    assert recent is not None
    assert recent.steps == tuple(range(3, 20))
    assert set(recent.own_ns) == {65.0 * MS}
    assert set(recent.peers_own_ns_median) == set(recent.peers_own_ns_min) == {35.0 * MS}
    assert set(recent.peers_own_ns_max) == {45.0 * MS}
    assert recent.slowdown_ratio[0] == pytest.approx(65 / 35)


def test_ratios_are_medians_over_peers_with_windows() -> None:
    story = Story(4).join().train(20)
    for rank, compute_ns in ((0, 90), (1, 60), (3, 80)):
        story.report(rank, [], [], (window_of(compute_ns),))
    medians = answer_of(story.tick(), 2).peers
    assert medians is not None
    assert medians.ratios == {"communication": 0.0, "compute": 0.8, "exposed_communication": 0.0, "idle": 0.2}
    assert answer_of(story, 2).ratios == {}
    assert answer_of(story, 0).ratios["compute"] == 0.9


def test_rank_says_where_it_runs_and_on_what() -> None:
    device = DeviceSample(host_ns=0, uuid="GPU-1", model="H100")
    answer = show_rank(run_of(rank_of(0, devices=(device,))), 0, None)
    assert answer is not None
    assert (answer.number, answer.node, answer.local_rank, answer.pid, answer.gpu_model) == (0, "n0", 0, 7, "H100")
    assert answer_of(Story(2).join().train(8), 1).gpu_model is None


def test_blocking_calls_of_a_rank_are_means_per_step_in_one_line() -> None:
    kinds = (
        Synchronization(call="cudaMemcpy", line="a.py:1 (f\n)", count=6, waits_ns=40, longest_ns=30, idle_ns=10),
        Synchronization(call="cudaStreamSynchronize", operator="aten::item", count=1, waits_ns=4),
    )
    waits = WindowSynchronizations(first_step=3, step_count=4, kinds=kinds)
    answer = show_rank(run_of(rank_of(0, synchronizations=waits, ratio_basis=PRESENT)), 0, None)
    assert answer is not None
    assert answer.blocking_calls == (
        BlockingCalls(line="a.py:1 (f\\n)", operator=None, call="cudaMemcpy", count=1.5, wait_ns=10.0, idle_ns=2.5),
        BlockingCalls(
            line=None, operator="aten::item", call="cudaStreamSynchronize", count=0.25, wait_ns=1.0, idle_ns=0.0
        ),
    )


@pytest.mark.parametrize("step_count", [None, 0, -1])
def test_blocking_calls_of_no_step_are_not_known(step_count: int | None) -> None:
    waits = None if step_count is None else WindowSynchronizations(first_step=3, step_count=step_count)
    answer = show_rank(run_of(rank_of(0, synchronizations=waits, ratio_basis=PRESENT)), 0, None)
    assert answer is not None
    assert answer.blocking_calls is None


def test_blocking_calls_are_absent_where_the_ratios_are() -> None:
    waits = WindowSynchronizations(first_step=3, step_count=4)
    for basis, found in ((PRESENT, ()), (RatioBasis(absent="windows have ended"), None)):
        answer = show_rank(run_of(rank_of(0, synchronizations=waits, ratio_basis=basis)), 0, None)
        assert answer is not None
        assert answer.blocking_calls == found


def test_rank_before_the_first_detection_pass_has_no_peers() -> None:
    answer = show_rank(run_of(rank_of(0)), 0, None)
    assert answer is not None
    assert (answer.peers, answer.recent) == (None, None)


def test_lone_rank_has_peer_medians_without_values() -> None:
    answer = answer_of(Story(1).join().train(8), 0)
    assert answer.peers is not None
    assert (answer.peers.count, answer.peers.own_ns_median) == (0, None)
    assert answer.recent is not None
    assert set(answer.recent.peers_own_ns_median) == set(answer.recent.slowdown_ratio) == {None}
    assert set(answer.recent.own_ns) == {35.0 * MS}


def test_rank_that_is_not_there_is_not_found() -> None:
    assert show_rank(run_of(rank_of(0)), 1, None) is None


def test_listed_rank_has_its_first_gpu_as_top_reads_it() -> None:
    sample = {"utilization_ratio": 0.9, "memory_used_bytes": 7, "memory_total_bytes": 8, "power_watts": 500.0,
              "temperature_celsius": 61.0, "sm_clock_hertz": 1_700_000_000}  # fmt: skip
    devices = (DeviceSample(host_ns=1, uuid="GPU-0", **sample), DeviceSample(host_ns=1, uuid="GPU-1"))  # type: ignore[arg-type]
    run = run_of(rank_of(0, devices=devices), rank_of(1))
    read = msgspec.json.decode(msgspec.json.encode(list_ranks(run, "rank", 0, 2).ranks), type=tuple[FetchedRank, ...])
    assert [rank.gpu for rank in read] == [Gpu(**sample), None]  # type: ignore[arg-type]
