"""What the API answers about runs, without a socket."""

from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from rankscope.collector.captures.capture import Capture, RankCapture
from rankscope.collector.captures.incident_views import CaptureLinks, IncidentRunView, StatusView
from rankscope.collector.detect.finding import Finding
from rankscope.collector.incidents.incident import begin
from rankscope.collector.publish.api.heat_map import unpack
from rankscope.collector.publish.api.machine_views import NO_GPU, MachineList
from rankscope.collector.publish.api.rank_views import RankAnswer, RankList
from rankscope.collector.publish.api.routes_api import Api, FindingList, RunHistory
from rankscope.collector.publish.api.step_breakdown import TimeSlice
from rankscope.collector.publish.routes import Response, Routes
from rankscope.collector.runs.rank_orders import ORDERS
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import WALL_S, keep_run
from tests.unit.collector.runs.run_stories import Story

NAMED = "bert/large 100% ü"
OF_RUN = f"/api/v1/runs/{quote(NAMED, safe='')}"
STRETCH = TimeSlice(begin_wall_s=1.0, end_wall_s=3.0, steps=4, step_ns=40, phases_ns={"data": 40})


def api_of(*runs: RunSnapshot, story: Story | None = None, store: Path | None = None) -> Api:
    """An API of these runs; `story` is the one that is NAMED."""
    steps = {NAMED: story.run.heat_map_steps} if story is not None and story.run.heat_map_steps is not None else {}
    told = () if story is None else (msgspec.structs.replace(story.snapshot(), run=NAMED, run_id=NAMED),)
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(*runs, *told), steps=steps)
    return Api(lambda: snapshot, lambda run: (STRETCH,) if run == NAMED else (), store)


@pytest.fixture(scope="module")
def api() -> Api:
    """An API that knows one run of four ranks, the third of which is slow."""
    return api_of(story=Story(4).join().train(20, data={2: 40.0}))


def ask(api: Api, target: str) -> Response:
    """An answer that is the API's own."""
    answer = api.answer(target)
    assert answer is not None
    return answer


def error_of(answer: Response) -> str:
    return str(msgspec.json.decode(answer.body)["error"])


def test_run_may_be_asked_for_without_its_ranks(api: Api) -> None:
    run = msgspec.json.decode(ask(api, f"{OF_RUN}?ranks=none").body, type=RunSnapshot)
    assert (run.run, run.world_size, run.ranks) == (NAMED, 4, ())
    assert len(msgspec.json.decode(ask(api, f"{OF_RUN}?ranks=all").body, type=RunSnapshot).ranks) == 4


def test_slowest_rank_comes_first_when_that_is_asked_for(api: Api) -> None:
    found = msgspec.json.decode(ask(api, f"{OF_RUN}/ranks?order=slowdown&limit=2").body, type=RankList)
    assert ([line.rank for line in found.ranks], found.ranks_known) == ([2, 0], 4)


def test_rank_comes_with_its_peers_and_its_last_steps(api: Api) -> None:
    found = msgspec.json.decode(ask(api, f"{OF_RUN}/ranks/2").body, type=RankAnswer)
    assert found.rank.identity.rank == 2
    assert found.peers is not None
    assert found.recent is not None


def test_heat_map_is_that_of_the_run(api: Api) -> None:
    answer = ask(api, f"{OF_RUN}/heatmap")
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, "application/octet-stream")
    head, cells = unpack(answer.body)
    assert head.run == NAMED
    assert cells[-1].argmax() == 2


def test_ended_findings_follow_the_open_ones_latest_first() -> None:
    findings = tuple(Finding(kind="straggler", cause="host_cpu", number=n, sentence=f"No {n}.") for n in range(1, 5))
    run = RunSnapshot(run="r", world_size=1, restart_count=0, ranks=(), findings=findings, open_findings=(findings[1],))
    found = msgspec.json.decode(ask(api_of(run), "/api/v1/runs/r/findings").body, type=FindingList)
    assert [finding.number for finding in found.open] == [2]


@pytest.mark.parametrize("target", ["?ranks=none", "/status", ""])
def test_findings_of_a_run_have_the_captures_about_them(target: str) -> None:
    finding = slow(2, number=4)
    run = RunSnapshot(run="r", world_size=1, restart_count=0, ranks=(), findings=(finding,), open_findings=(finding,))
    snapshot = Snapshot(wall_s=0.0, version="0", runs=(run,))
    capture = Capture(
        id="c1",
        run="r",
        run_id="r",
        state="complete",
        asked_wall_s=5.0,
        changed_wall_s=5.0,
        ranks=(RankCapture(rank=2),),
    )
    links = CaptureLinks(lambda: [begin(7, "r", finding, 1.0)], lambda: [capture])
    api = Api(lambda: snapshot, lambda _run: (), links=links)
    routes = Routes(
        lambda: snapshot, tuple, is_healthy=lambda: None, is_ready=lambda: None, answer_first=api.answer, links=links
    )
    found = msgspec.json.decode(routes.answer(f"/api/v1/runs/r{target}").body)
    shown = found["run"] if target == "/status" else found
    for findings in (shown["findings"], shown["open_findings"]):
        assert [(one["number"], one["captures"]) for one in findings] == [(4, ["c1"])]
    kind = StatusView if target == "/status" else IncidentRunView
    assert msgspec.json.encode(msgspec.convert(found, kind)) == msgspec.json.encode(found)


def test_history_without_a_store_is_what_this_process_has_seen(api: Api) -> None:
    found = msgspec.json.decode(ask(api, f"{OF_RUN}/history").body, type=RunHistory)
    assert (found.run, found.shares, found.steps) == (NAMED, (STRETCH,), None)


def test_past_of_a_run_that_is_over_comes_from_the_store(tmp_path: Path) -> None:
    store = keep_run(tmp_path, "old", steps=12)
    found = msgspec.json.decode(ask(api_of(store=store), "/api/v1/runs/old/history?points=4").body, type=RunHistory)
    assert found.shares == ()
    assert found.steps is not None
    assert [point.steps for point in found.steps] == [3, 3, 3, 3]
    latest = ask(api_of(store=store), f"/api/v1/runs/old/history?since_wall_s={WALL_S + 10:.0f}").body
    assert [point.first_step for point in msgspec.json.decode(latest, type=RunHistory).steps or ()] == [10, 11]
    live = api_of(story=Story(2).join(), store=store)
    assert msgspec.json.decode(ask(live, f"{OF_RUN}/history?points=0").body, type=RunHistory).steps is None
    head, _ = unpack(ask(api_of(store=store), "/api/v1/runs/old/heatmap?source=intervals").body)
    assert head.source == "intervals"


def test_live_run_that_the_store_does_not_have_yet_has_a_history(tmp_path: Path) -> None:
    store = keep_run(tmp_path, "old", steps=2)
    api = api_of(story=Story(2).join(), store=store)
    found = msgspec.json.decode(ask(api, f"{OF_RUN}/history").body, type=RunHistory)
    assert (found.shares, found.steps) == ((STRETCH,), None)


@pytest.mark.parametrize("view", ["?ranks=none", "/ranks", "/ranks/0", "/findings", "/history", "/heatmap"])
def test_run_that_is_not_known_is_not_found(api: Api, view: str) -> None:
    answer = ask(api, f"/api/v1/runs/nobody{view}")
    assert answer.status == HTTPStatus.NOT_FOUND
    assert error_of(answer) == "no run 'nobody' is known to this collector. It has 'bert/large 100% ü'."


def test_what_is_not_there_yet_is_said_with_the_reason(api: Api) -> None:
    assert error_of(ask(api, f"{OF_RUN}/ranks/9")) == f"run {NAMED!r} has no rank 9 yet; its world size is 4"
    untold = api_of(story=Story(2))
    assert error_of(ask(untold, f"{OF_RUN}/heatmap")) == (
        f"no step of run {NAMED!r} has been compared yet; try again after the next detection pass"
    )
    said = error_of(ask(api, f"{OF_RUN}/heatmap?source=intervals"))
    assert said == "this collector keeps no history; set `store` to a file to keep it"


@pytest.mark.parametrize(
    ("view", "error"),
    [
        ("?ranks=some", "ranks is 'some'; it must be all or none"),
        ("?rank=none", "'rank' is no parameter here; ranks is"),
        ("/ranks?order=node", f"order is 'node'; it must be {', '.join(ORDERS[:-1])} or {ORDERS[-1]}"),
        ("/ranks?limit=0", "limit is '0'; it must be a whole number from 1 to 16384"),
        ("/ranks?limit=", "limit is ''; it must be a whole number from 1 to 16384"),
        ("/ranks?offset=-1", "offset is '-1'; it must be a whole number from 0 to 2147483647"),
        ("/ranks?offset=٣", "offset is '٣'; it must be a whole number from 0 to 2147483647"),
        ("/ranks/first", "'first' is no rank; a rank is a whole number from 0"),
        ("/ranks/1?deep=1", "'deep' is no parameter here"),
        ("/history?points=5001", "points is '5001'; it must be a whole number from 0 to 5000"),
        ("/heatmap?source=stars", "source is 'stars'; it must be steps or intervals"),
    ],
)  # fmt: skip
def test_question_that_means_nothing_is_refused_with_what_would(api: Api, view: str, error: str) -> None:
    answer = ask(api, f"{OF_RUN}{view}")
    assert answer.status == HTTPStatus.BAD_REQUEST
    assert error_of(answer) == error


@pytest.mark.parametrize("target", ["/", "/metrics", "/api/v1/runs", OF_RUN, f"{OF_RUN}/report", f"{OF_RUN}/stars"])
def test_what_others_answer_is_left_to_them(api: Api, target: str) -> None:
    assert api.answer(target) is None


def test_machines_of_a_run_are_listed_with_what_is_absent(api: Api) -> None:
    found = msgspec.json.decode(ask(api, f"{OF_RUN}/machines").body, type=MachineList)
    assert [(one.node, one.ranks) for one in found.machines] == [("node-a", 4)]
    assert found.absent["gpus"] == NO_GPU
    assert ask(api, "/api/v1/runs/unknown/machines").status == HTTPStatus.NOT_FOUND
    assert ask(api, f"{OF_RUN}/machines?limit=1").status == HTTPStatus.BAD_REQUEST
