"""Two runs of one name: one after the other in lists, the latest where a name is asked for, and in the metrics."""

from http import HTTPStatus

import msgspec
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import Incident, begin
from rankscope.collector.publish.api.live_snapshot import build_live_snapshot
from rankscope.collector.publish.api.step_breakdown import Shares
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.publish.routes import Routes
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.records import Totals
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.run_snapshots import rank_of

FORMER, LATEST = "bert@20261125T103005Z", "bert@20261125T113005Z"


def run_of(run_id: str, steps: int, *findings: Finding) -> RunSnapshot:
    """A run of one rank, which has made so many steps."""
    rank = rank_of(0, world_size=1, reports_admitted=1, totals=Totals(steps=steps, step_ns=steps))
    return RunSnapshot(run="bert", run_id=run_id, world_size=1, restart_count=0, ranks=(rank,), open_findings=findings)


def snapshot_of(*runs: RunSnapshot, wall_s: float = 0.0) -> Snapshot:
    return Snapshot(wall_s=wall_s, version="0", runs=runs)


BOTH = snapshot_of(run_of(FORMER, 700), run_of(LATEST, 30))


def routes_of(snapshot: Snapshot, *incidents: Incident) -> Routes:
    return Routes(lambda: snapshot, lambda: incidents, is_healthy=lambda: None, is_ready=lambda: None)


@pytest.mark.parametrize("path", [METRICS_PATH, RANKS_PATH])
@pytest.mark.parametrize("ranks_max", [0, 64])
def test_metrics_are_of_the_latest_run_with_no_series_twice(path: str, ranks_max: int) -> None:
    pages = MetricPages(metrics_ranks_max=ranks_max)
    text = b"".join(pages.render(BOTH, Page(path), TextFormat.CLASSIC)).decode()
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)
    assert "700" not in text
    if path == METRICS_PATH:
        assert f'rankscope_run_info{{restart_count="0",run="bert",run_id="{LATEST}",world_size="1"}} 1.0' in text


def test_list_of_runs_has_both_the_former_one_first() -> None:
    runs = msgspec.json.decode(routes_of(BOTH).answer("/api/v1/runs").body)["runs"]
    assert [(run["run"], run["run_id"], run["steps"]) for run in runs] == [("bert", FORMER, 700), ("bert", LATEST, 30)]


def test_list_of_runs_says_whose_each_is() -> None:
    (rank,) = run_of(LATEST, 30).ranks
    named = msgspec.structs.replace(rank.identity, slurm_job_id="4711", user="ada", k8s_namespace="ml")
    run = msgspec.structs.replace(run_of(LATEST, 30), ranks=(msgspec.structs.replace(rank, identity=named),))
    (listed,) = msgspec.json.decode(routes_of(snapshot_of(run)).answer("/api/v1/runs").body)["runs"]
    assert listed["origin"] == {"slurm_job_id": "4711", "user": "ada", "k8s_namespace": "ml", "k8s_pod": None}


@pytest.mark.parametrize(("asked", "run_id"), [("bert", LATEST), (LATEST, LATEST), (FORMER, FORMER)])
def test_run_is_found_by_its_id_and_the_latest_by_the_name(asked: str, run_id: str) -> None:
    answer = routes_of(BOTH).answer(f"/api/v1/runs/{asked}")
    assert msgspec.json.decode(answer.body)["run_id"] == run_id
    picture = build_live_snapshot(BOTH, asked)
    assert picture.run is not None
    assert picture.run.run_id == run_id


def test_id_of_no_run_is_not_found_despite_runs_of_the_name() -> None:
    answer = routes_of(BOTH).answer("/api/v1/runs/bert@20261125T000000Z")
    assert answer.status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(("asked", "ids"), [("bert", [2, 1]), (FORMER, [1]), ("t5", [])])
def test_name_has_incidents_of_all_its_runs_and_id_only_its_own(asked: str, ids: list[int]) -> None:
    incidents = begin(1, FORMER, slow(), 0.0), begin(2, LATEST, slow(), 1.0)
    answer = routes_of(BOTH, *incidents).answer(f"/api/v1/incidents?run={asked}")
    assert [incident["id"] for incident in msgspec.json.decode(answer.body)["incidents"]] == ids


def test_shares_of_two_runs_of_a_name_are_not_mixed() -> None:
    """The ranks of both have the same numbers: between two looks the former made 3 steps, the latest 5."""
    shares = Shares()
    shares.record(snapshot_of(run_of(FORMER, 700), run_of(LATEST, 30)))
    shares.record(snapshot_of(run_of(FORMER, 703), run_of(LATEST, 35), wall_s=10.0))
    assert [[one.steps for one in shares.of(run_id)] for run_id in (FORMER, LATEST)] == [[3], [5]]


def test_incident_of_an_early_store_is_of_the_run_of_its_name() -> None:
    told = msgspec.to_builtins(begin(1, "bert", slow(), 0.0))
    del told["run_id"]
    incident = msgspec.convert(told, Incident)
    assert (incident.run_id, incident.is_of_run("bert")) == ("bert", True)
