"""What alerts ask of a run: who is there, who is missing, and what is found."""

import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.publish.metrics import run_metrics
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.identity import RankIdentity


def rank_of(rank: int, *, node: str = "n0", ended: str | None = None, **known: object) -> RankSnapshot:
    identity = RankIdentity(
        run="a", rank=rank, local_rank=0, world_size=8, node=node, restart_count=0, boot_id=f"boot-{rank}", pid=7
    )  # fmt: skip
    return RankSnapshot(identity=identity, up=ended is None, ended=ended, **known)  # type: ignore[arg-type]


def snapshot_of(*ranks: RankSnapshot, world_size: int | None = None, findings: tuple[Finding, ...] = ()) -> Snapshot:
    size = len(ranks) if world_size is None else world_size
    run = RunSnapshot(run="a", world_size=size, restart_count=0, ranks=ranks, open_findings=findings)
    return Snapshot(wall_s=0.0, version="0", runs=(run,))


def states_of(snapshot: Snapshot) -> dict[str, float | None]:
    return {state: count for (_, state), count in run_metrics.count_states(snapshot) if count}


def missing_of(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [labels[1:] for labels, _ in run_metrics.find_missing_ranks(snapshot)]


def nodes_missing_of(snapshot: Snapshot) -> list[str]:
    return [node for (_, node), _ in run_metrics.find_missing_nodes(snapshot)]


def test_the_states_add_up_to_the_world() -> None:
    ends = ("silent", "crashed", "finished", "stopped", "terminated")
    ended = [rank_of(number, ended=reason) for number, reason in enumerate(ends)]
    snapshot = snapshot_of(*ended, rank_of(5), rank_of(6, awaited=True), world_size=9)
    found = {"silent": 1, "failed": 2, "ended": 2, "reporting": 1, "awaited": 1, "never_reported": 2}
    assert states_of(snapshot) == found
    assert sum(found.values()) == 9


def test_every_state_is_shown_also_when_no_rank_is_in_it() -> None:
    assert [labels for labels, _ in run_metrics.count_states(snapshot_of(rank_of(0)))] == [
        ("a", state) for state in run_metrics.STATES
    ]


@pytest.mark.parametrize(
    ("ended", "missing"),
    [
        ("silent", [("1", "n0", "silent")]),
        ("killed", [("1", "n0", "killed")]),
        ("finished", []),
        (None, []),
    ],
)
def test_a_rank_is_missing_when_it_is_silent_or_failed(ended: str | None, missing: list[tuple[str, ...]]) -> None:
    assert missing_of(snapshot_of(rank_of(0), rank_of(1, ended=ended))) == missing


def test_rank_nobody_has_heard_of_is_missing_without_a_node() -> None:
    assert missing_of(snapshot_of(rank_of(0), rank_of(2), world_size=3)) == [("1", "", "never_reported")]


def test_nobody_is_missed_in_a_run_in_which_nobody_reports() -> None:
    over = snapshot_of(rank_of(0, ended="failed"), rank_of(1, ended="silent"), rank_of(2, awaited=True), world_size=4)
    assert missing_of(over) == []
    assert nodes_missing_of(over) == []


def test_first_of_many_missing_ranks_are_named_and_all_counted() -> None:
    snapshot = snapshot_of(rank_of(0), *(rank_of(number, ended="killed") for number in range(1, 100)))
    assert [int(rank) for rank, _, _ in missing_of(snapshot)] == list(range(1, 1 + run_metrics.MISSING_SHOWN_MAX))
    assert states_of(snapshot)["failed"] == 99


def test_a_node_is_missing_when_all_of_its_ranks_are() -> None:
    there = (rank_of(0), rank_of(1))
    gone = tuple(rank_of(number, node="n1", ended=ended) for number, ended in ((2, "silent"), (3, "killed")))
    assert nodes_missing_of(snapshot_of(*there, *gone)) == ["n1"]
    assert nodes_missing_of(snapshot_of(*there, gone[0], rank_of(3, node="n1"))) == []


def test_a_node_of_one_rank_is_told_as_that_rank() -> None:
    assert nodes_missing_of(snapshot_of(rank_of(0), rank_of(1, node="n1", ended="killed"))) == []


def test_only_agents_that_report_have_a_version() -> None:
    ranks = (
        rank_of(0, agent_version="1"), rank_of(1, agent_version="2"), rank_of(2, agent_version="2"),
        rank_of(3, agent_version="0", ended="stopped"),
    )  # fmt: skip
    assert dict(run_metrics.count_agents(snapshot_of(*ranks))) == {("a", "1"): 1, ("a", "2"): 2}


@pytest.mark.parametrize(
    ("finding", "labels"),
    [
        (Finding(kind="straggler", ranks=(1,), cause="c", sentence=""), ("rank", "rank 1", "1", "n0", "c")),
        (
            Finding(kind="straggler", ranks=(2, 3), nodes=("n1",), cause="c", sentence=""),
            ("node", "node n1", "2", "n1", "c"),
        ),
        (Finding(kind="slow_link", group="dp/0-3", cause="c", sentence=""), ("group", "group dp/0-3", "", "", "c")),
        (Finding(kind="data_bound", cause="c", sentence=""), ("run", "the run", "", "", "c")),
    ],
)
def test_a_finding_says_what_it_is_about(finding: Finding, labels: tuple[str, ...]) -> None:
    ranks = (rank_of(0), rank_of(1), rank_of(2, node="n1"), rank_of(3, node="n1"))
    found = list(run_metrics.find_open(snapshot_of(*ranks, findings=(finding,))))
    assert found == [(("a", finding.kind, *labels), 1)]


def test_a_subject_of_thousands_of_ranks_is_cut() -> None:
    finding = Finding(kind="imbalance", ranks=tuple(range(0, 16_384, 2)), cause="c", sentence="")
    [(labels, _)] = run_metrics.find_open(snapshot_of(rank_of(0), findings=(finding,)))
    assert len(labels[3]) == run_metrics.SUBJECT_CHARS_MAX
    assert labels[3].startswith("ranks 0, 2, 4, ")


def test_a_slowdown_is_that_of_the_finding() -> None:
    finding = Finding(kind="straggler", ranks=(0,), cause="c", sentence="", slowdown_ratio=1.5)
    assert [ratio for _, ratio in run_metrics.find_slowdowns(snapshot_of(rank_of(0), findings=(finding,)))] == [1.5]


def test_what_was_found_in_a_run_that_is_over_is_open_no_longer() -> None:
    finding = Finding(kind="hang", ranks=(0,), cause="c", sentence="")
    over = snapshot_of(rank_of(0, ended="killed"), rank_of(1, ended="silent"), findings=(finding,))
    assert list(run_metrics.find_open(over)) == []


def test_ended_rank_is_no_straggler_but_may_be_part_of_a_hang() -> None:
    ranks = (rank_of(0), rank_of(1, ended="killed"))
    findings = tuple(Finding(kind=kind, ranks=(1,), cause="c", sentence="") for kind in ("straggler", "hang"))
    found = run_metrics.find_open(snapshot_of(*ranks, findings=findings))
    assert [labels[1] for labels, _ in found] == ["hang"]
