"""Nodes by how often they have held up a run: who is blamed, in which order, and what the command writes."""

from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.commands.nodes import choose_excluded
from rankscope.collector.incidents.incident import Incident, resolve
from rankscope.collector.incidents.kept_nodes import KEPT_S, KeptNodes, read_nodes
from rankscope.collector.incidents.nodes import (
    EXPORTED_MAX,
    HISTORIES_MAX,
    INCIDENTS_LISTED_MAX,
    GpuRecord,
    NodeList,
    NodeRecord,
    list_held_up,
    list_histories,
    rank_nodes,
)
from rankscope.collector.publish.api.routes_api import NODES_PATH, Api
from rankscope.collector.runs.former_attempts import FormerAttempts, PlacedRank
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.runs.snapshot import CollectorCounts, HeldUpNode, Snapshot
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.preflights import write_outcomes
from rankscope.collector.storage.run_reader import read_placed_ranks
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.preflights import NodeOutcome
from tests.unit.collector.incidents.bad_node import blame, keep_bad_node, keep_drawn_runs
from tests.unit.collector.runs.kept_runs import WALL_S, life_of, run_of

STARTED_S = 5.0


def place(since_s: float, *nodes: str) -> dict[int, PlacedRank]:
    """A rank on each of these nodes, with a GPU that is named after it."""
    return {rank: PlacedRank(node, since_s, (f"GPU-{rank}",)) for rank, node in enumerate(nodes)}


def ranks_on(*nodes: str) -> tuple[dict[int, PlacedRank]]:
    """A run of one attempt."""
    return (place(STARTED_S, *nodes),)


def find(found: NodeList, node: str) -> NodeRecord:
    return next(record for record in found.nodes if record.node == node)


def test_one_of_one_run_does_not_outrank_nine_of_twelve() -> None:
    runs = {f"run-{number}": ranks_on("good", "bad") for number in range(12)} | {"single": ranks_on("once")}
    incidents = [blame("single", 0), *(blame(f"run-{number}", 1) for number in range(9))]
    found = rank_nodes(runs, incidents)
    assert [(one.node, one.runs_held_up, one.runs) for one in found.nodes] == [
        ("bad", 9, 12), ("once", 1, 1), ("good", 0, 12),
    ]  # fmt: skip
    assert [(one.sentence, one.exclude) for one in found.nodes] == [
        ("bad has held up 9 of its last 12 runs", True), ("once has held up its last run", False), ("", False),
    ]  # fmt: skip
    # 1 of 1: 1 / (1 + 1.96^2) = 0.207. 9 of 12: (0.75 + 0.160 - 0.293) / 1.320 = 0.468
    assert [round(one.ratio_low, 3) for one in found.nodes] == [0.468, 0.207, 0.0]


def test_incidents_of_one_run_count_once_as_held_up() -> None:
    incidents = [
        blame("bert", 1, lost_rank_seconds=1_800.0),
        blame("bert", 1, opened_s=20.0, cause="gpu_throttled", lost_rank_seconds=5_400.0),
        blame("bert", 1, opened_s=15.0),
    ]
    bad = find(rank_nodes({"bert": ranks_on("good", "bad")}, incidents), "bad")
    assert (bad.runs_held_up, bad.incidents, bad.lost_rank_hours, bad.last_wall_s) == (1, 3, 2.0, 20.0)
    assert list(bad.causes.items()) == [("host_cpu", 2), ("gpu_throttled", 1)]
    assert bad.gpus == (GpuRecord("GPU-1", 3),)


def test_node_that_the_incident_names_is_blamed() -> None:
    incident = blame("bert", 0, nodes=("gone",))
    found = rank_nodes({"bert": ranks_on("good", "bad")}, [incident])
    assert [(one.node, one.runs, one.incidents) for one in found.nodes] == [
        ("gone", 1, 1), ("bad", 1, 0), ("good", 1, 0),
    ]  # fmt: skip


def test_rank_that_was_replaced_since_blames_no_node() -> None:
    # The rank that the store has began at 5 s; the incident is about the one before it.
    found = rank_nodes({"bert": ranks_on("good")}, [blame("bert", 0, opened_s=4.0)])
    assert (found.incidents_unplaced, [one.incidents for one in found.nodes]) == (1, [0])


def test_rank_of_an_earlier_attempt_blames_its_node() -> None:
    # Attempts that began at 5, 3 and 1 s. The incident of 4 s is about rank 1 of the second, that of 2 s of the first.
    attempts = (place(STARTED_S, "a", "spare"), place(3.0, "a", "second"), place(1.0, "a", "first"))
    found = rank_nodes({"bert": attempts}, [blame("bert", 1, opened_s=4.0), blame("bert", 1, opened_s=2.0)])
    assert [(one.node, one.runs, one.runs_held_up) for one in found.nodes] == [
        ("first", 1, 1), ("second", 1, 1), ("a", 1, 0), ("spare", 1, 0),
    ]  # fmt: skip
    assert found.incidents_unplaced == 0


def test_reopened_incident_is_about_the_ranks_of_then() -> None:
    incident = msgspec.structs.replace(blame("bert", 0, opened_s=4.0), reopened_wall_s=6.0)
    found = rank_nodes({"bert": ranks_on("bad")}, [incident])
    assert [(one.node, one.incidents, one.last_wall_s) for one in found.nodes] == [("bad", 1, 6.0)]


@pytest.mark.parametrize(
    "incident",
    [
        blame("bert", 0, kind="slow_link", nodes=("a", "b")),
        blame("bert", 0, kind="run_failure"),
        blame("bert", 0, kind="hang", cause="data_wait"),
        blame("bert", 0, kind="hang", cause="deadlock"),
        blame("bert", 0, ranks=(), kind="hang", cause="unattributed"),
        resolve(blame("bert", 0), "part of incident 2", 20.0, lost_rank_seconds=None, merged_into=2),
        blame("of no stored run", 0),
    ],
    ids=["link", "failure", "pause", "script", "nobody", "merged", "other run"],
)
def test_incident_that_is_not_counted(incident: Incident) -> None:
    found = rank_nodes({"bert": ranks_on("a", "b")}, [incident])
    assert (found.incidents_unplaced, [one.incidents for one in found.nodes]) == (0, [0, 0])


def test_hang_that_is_no_pause_blames() -> None:
    found = rank_nodes({"bert": ranks_on("a", "b")}, [blame("bert", 1, kind="hang", cause="stuck_rank")])
    assert find(found, "b").causes == {"stuck_rank": 1}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of four runs on node-a and node-b; rank 1 on node-b held up three of them."""
    return keep_bad_node(tmp_path)


def test_store_has_nodes_and_gpus(path: Path) -> None:
    found = read_nodes(path)
    assert [(one.node, one.runs_held_up, one.runs) for one in found.nodes] == [("node-b", 3, 4), ("node-a", 0, 4)]
    assert found.nodes[0].gpus == (GpuRecord("GPU-b", 3),)
    assert (found.runs, found.runs_left_out) == (4, 0)


@pytest.mark.parametrize("seed", range(3))
def test_bad_nodes_of_200_runs_are_first(tmp_path: Path, seed: int) -> None:
    """Of 40 nodes, each in 40 of the runs on average, three hold up 60 to 80 % of theirs, each other one 3 %."""
    planted = {"node-07": 0.8, "node-21": 0.6, "node-33": 0.7}
    keep_drawn_runs(tmp_path / "runs.db", seed, runs=200, nodes=40, bad_ratios=planted)
    found = read_nodes(tmp_path / "runs.db")
    assert (found.runs, found.runs_left_out, len(found.nodes)) == (200, 0, 40)
    assert {one.node for one in found.nodes[:3]} == set(planted), [(one.node, one.ratio_low) for one in found.nodes]
    assert {one.node for one in found.nodes if one.exclude} == set(planted)
    assert any(one.runs_held_up for one in found.nodes[3:])  # by chance


def test_latest_runs_are_read_up_to_the_limit(path: Path) -> None:
    found = read_placed_ranks(path, ranks_max=5)
    assert (list(found.runs), found.runs_left_out) == (["run-3", "run-2"], 2)


def test_store_has_the_nodes_of_earlier_attempts(path: Path) -> None:
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        batch = WriteBatch()
        batch.put_run(run_of("run-3", changed_wall_s=WALL_S + 3.0))
        hello = life_of("run-3", 0, node="node-c").hello
        batch.stories["run-3"] = SavedStory(former_attempts=FormerAttempts().add([hello]))
        store.write(batch)
    assert [(one.node, one.runs) for one in read_nodes(path).nodes] == [("node-b", 4), ("node-a", 4), ("node-c", 1)]
    # The ranks of run-3 are now three: with those of run-2 five.
    assert list(read_placed_ranks(path, ranks_max=4).runs) == ["run-3"]


def test_story_that_cannot_be_read_has_no_earlier_attempts(path: Path) -> None:
    with closing(Database(path)) as database:
        database.connection.execute("UPDATE runs SET story = ?", ['{"former_attempts": 3}'])
        database.connection.commit()
    assert [(one.node, one.runs) for one in read_nodes(path).nodes] == [("node-b", 4), ("node-a", 4)]


def test_store_without_runs_has_no_nodes(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "new.db")):
        pass
    assert read_nodes(tmp_path / "new.db") == NodeList(nodes=(), runs=0)


def test_command_prints_and_writes_hosts(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "exclude.txt"
    target.write_text("of before\n")
    assert main(["nodes", "--store", str(path), "--exclude-file", str(target)]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[1].split() == [
        "node-b", "3", "4", "0.30", "3", "-", "1970-01-01", "00:00:10", "-", "host_cpu", "3",
    ]  # fmt: skip
    assert told.out.splitlines()[2] == "1 other node held up none of 4 runs"
    assert told.err == f"1 node (held up at least 3 runs, ratio at least 0.3) in {target}\n"
    assert target.read_text() == "node-b\n"
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []


def test_last_preflight_of_a_node_is_listed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Database(path)) as database:
        named = NodeOutcome(node="new", device="EPYC", status="named", reasons=("memory bandwidth: 2 GB/s",))
        passed = NodeOutcome(node="node-b", device="EPYC", status="not_named")
        write_outcomes(database, "p1", (named, passed), 60.0)
    assert main(["nodes", "--store", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[6:] == ["1970-01-01", "00:00:10", "not", "named", "1970-01-01", "00:01:00", "host_cpu", "3"]
    assert lines[2].split() == ["new", "0", "0", "0.00", "0", "-", "-", "named", "1970-01-01", "00:01:00"]
    assert lines[3] == "new: pre-flight of 1970-01-01 00:01:00 UTC: memory bandwidth: 2 GB/s"
    assert lines[4] == "1 other node held up none of 4 runs"


def test_preflights_exclude_no_node(path: Path) -> None:
    with closing(Database(path)) as database:
        for number in range(5):
            named = NodeOutcome(node="node-a", device="EPYC", status="named")
            write_outcomes(database, str(number), (named,), 60.0)
    assert choose_excluded(read_nodes(path), 3, 0.3) == ["node-b"]


def test_command_says_where_it_cannot_write(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "nowhere" / "exclude.txt"
    assert main(["nodes", "--store", str(path), "--json", "--exclude-file", str(target)]) == 1
    assert f"{target} (from --exclude-file) cannot be written: No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize("limit", [("--ratio-min", "nan"), ("--ratio-min", "1.5"), ("--runs-min", "0")])
def test_limit_that_would_exclude_every_node_or_none_is_refused(
    limit: tuple[str, str], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No ratio is below nan: every node that has held up enough runs would be excluded.
    target = tmp_path / "exclude.txt"
    assert main(["nodes", "--store", str(path), "--exclude-file", str(target), *limit]) == 2
    assert f"{limit[0]} is {limit[1]}; it must be " in capsys.readouterr().err
    assert not target.exists()


def test_names_that_are_no_hosts_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("node-1", "--all", "a b", "a\nb", "$(id)", "node.example.com")
    found = NodeList(
        nodes=tuple(NodeRecord(node=name, runs=4, runs_held_up=4, ratio_low=0.5) for name in names), runs=4
    )
    assert choose_excluded(found, 3, 0.3) == ["node-1", "node.example.com"]
    assert capsys.readouterr().err.count("which is no host name") == 4


@pytest.mark.parametrize(("runs_min", "ratio_min"), [(5, 0.3), (3, 0.6)])
def test_both_limits_have_to_be_reached(runs_min: int, ratio_min: float) -> None:
    found = NodeList(nodes=(NodeRecord(node="a", runs=4, runs_held_up=4, ratio_low=0.5),), runs=4)
    assert choose_excluded(found, runs_min, ratio_min) == []


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_api(store: Path | None) -> Api:
    snapshot = Snapshot(wall_s=0.0, version="0", counts=CollectorCounts())
    return Api(lambda: snapshot, lambda _run: (), store, None if store is None else KeptNodes(store).show)


def test_store_is_read_at_most_once_a_minute(path: Path) -> None:
    clock = Clock()
    kept = KeptNodes(path, clock)
    first = kept.read()
    clock.now_s = KEPT_S - 1.0
    assert kept.read() is first
    clock.now_s = KEPT_S
    again = kept.read()
    assert (again == first, again is first) == (True, False)


def test_refresh_reads_on_a_thread_when_the_list_is_outdated(path: Path) -> None:
    clock = Clock()
    kept = KeptNodes(path, clock)
    assert kept.latest is None
    thread = kept.refresh()
    assert thread is not None
    thread.join()
    assert kept.latest == read_nodes(path)
    assert kept.refresh() is None
    clock.now_s = KEPT_S
    assert kept.refresh() is not None


def test_list_of_a_store_that_is_gone_is_not_kept(path: Path) -> None:
    clock = Clock()
    kept = KeptNodes(path, clock)
    kept.read()
    path.unlink()
    clock.now_s = KEPT_S
    thread = kept.refresh()
    assert thread is not None
    thread.join()
    assert kept.latest is None


def test_error_while_the_list_is_read_is_contained(path: Path) -> None:
    def break_down() -> float:
        raise ZeroDivisionError

    told: list[str] = []
    thread = KeptNodes(path, break_down, told.append).refresh()
    assert thread is not None
    thread.join()
    assert told == ["the list of nodes"]


def test_incident_tells_the_history_of_four_nodes() -> None:
    nodes = tuple(f"node-{number}" for number in range(6))
    runs = {"bert": ranks_on(*nodes), "gpt": ranks_on(*nodes)}
    hang = blame("bert", 0, kind="hang", cause="stuck_rank", ranks=tuple(range(6)), number=5)
    found = list_histories(rank_nodes(runs, [hang]))
    # All six have held up 1 of 2, and are in the order of their names.
    assert found == {5: tuple(f"node-{number} has held up 1 of its last 2 runs" for number in range(HISTORIES_MAX))}


def test_node_without_another_run_has_no_history() -> None:
    found = rank_nodes({"bert": ranks_on("a")}, [blame("bert", 0)])
    assert (found.nodes[0].sentence, list_histories(found)) == ("a has held up its last run", {})


def test_history_recommends_above_the_limits(path: Path) -> None:
    text = "node-b has held up 3 of its last 4 runs: consider excluding it (rankscope nodes --exclude-file)"
    assert list_histories(read_nodes(path)) == dict.fromkeys((1, 2, 3), (text,))


def test_incidents_of_a_node_are_listed_up_to_a_limit() -> None:
    many = [blame("bert", 0, number=number + 1) for number in range(INCIDENTS_LISTED_MAX + 2)]
    (record,) = rank_nodes({"bert": ranks_on("a")}, many).nodes
    assert (record.incidents, len(record.incident_ids), record.incident_ids[0]) == (66, 64, 3)


def test_command_about_incidents_tells_the_history_of_the_node(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--store", str(path)]) == 0
    text = "node: node-b has held up 3 of its last 4 runs: consider excluding it (rankscope nodes --exclude-file)"
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if "node:" in line] == [text] * 3


def test_first_nodes_that_held_up_a_run_have_metrics() -> None:
    bad = [
        NodeRecord(node=f"node-{number:03}", runs=4, runs_held_up=3, ratio_low=0.3)
        for number in range(EXPORTED_MAX + 1)
    ]
    found = list_held_up(NodeList(nodes=tuple(bad), runs=4))
    assert (len(found), found[0]) == (
        EXPORTED_MAX, HeldUpNode(node="node-000", runs=4, runs_held_up=3, ratio_low=0.3),
    )  # fmt: skip
    good = NodeRecord(node="good", runs=4, runs_held_up=0, ratio_low=0.0)
    assert list_held_up(NodeList(nodes=(good,), runs=4)) == ()


def test_api_answers_what_the_store_has(path: Path) -> None:
    answer = make_api(path).answer(NODES_PATH)
    assert answer is not None
    assert msgspec.json.decode(answer.body, type=NodeList) == read_nodes(path)


@pytest.mark.parametrize(("node", "runs", "exclude"), [("node-b", 4, True), ("node%2Da", 4, False), ("new", 0, False)])
def test_api_answers_about_one_node(path: Path, node: str, runs: int, exclude: bool) -> None:
    answer = make_api(path).answer(f"{NODES_PATH}/{node}")
    assert answer is not None
    found = msgspec.json.decode(answer.body, type=NodeRecord)
    assert (found.node, found.runs, found.exclude) == (unquote(node), runs, exclude)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"{NODES_PATH}/node-b", HTTPStatus.NOT_FOUND),
        (NODES_PATH, HTTPStatus.NOT_FOUND),
        (f"{NODES_PATH}?order=rank", HTTPStatus.BAD_REQUEST),
    ],
)
def test_api_refuses(tmp_path: Path, target: str, status: HTTPStatus) -> None:
    for store in (None, tmp_path / "missing.db"):
        answer = make_api(store).answer(target)
        assert answer is not None
        assert answer.status == status
