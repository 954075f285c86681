"""Incidents as an operator meets them: over the death of the collector, by `rankscope incidents` and `status`."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.incidents.kept_nodes import read_nodes
from rankscope.collector.incidents.store import IncidentStore
from tests.integration.killed_writer import kill_writer
from tests.integration.serving import Served, read_url, serving, wait_for
from tests.integration.torchrun import Ended, python, run
from tests.integration.wire_ranks import telling
from tests.unit.collector.runs.run_stories import Story

SLOW_RANK = 2
WRITES = 100
PATIENT = ("--rank-silent-s", "3600")
"""On a slow machine the ranks of the story are silent for long: that would be an incident of its own."""
WRITER = """
import itertools, sys
from pathlib import Path
from rankscope.collector.incidents.incident import begin
from rankscope.collector.incidents.store import IncidentStore
from tests.unit.collector.detect.findings import slow

store = IncidentStore(Path(sys.argv[1]))
for number in itertools.count(1):
    store.write([begin(number, "bert", slow(details={"stack": "f()" * number}), 0.0)], [number - 1000])
    print(number, flush=True)
"""

Known = dict[str, Any]


def rankscope(*arguments: str) -> Ended:
    """Run a command to its end."""
    return run(python("-m", "rankscope.collector", *arguments))


def read_incidents(served: Served) -> list[Known]:
    """What the API gives."""
    found: list[Known] = json.loads(read_url(f"{served.url}/api/v1/incidents"))["incidents"]
    return found


def wait_for_incident(served: Served, what: str) -> Known:
    """The one incident, once its last change is this."""
    seen: list[list[Known]] = [[]]

    def look() -> Known | None:
        seen[0] = read_incidents(served)
        return next((one for one in seen[0] if one["changes"][-1]["what"] == what), None)

    return wait_for(look, lambda: f"no incident is {what}: {seen[0]}")


@dataclass
class Seen:
    """What was seen of one incident over two collectors with one store, and of the store between and after them."""

    opened: Known
    while_open: dict[str, Ended]
    between: dict[str, Ended]
    at_start: list[Known]
    continued: Known
    resolved: Known
    after: dict[str, Ended]
    stderr: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Four ranks, one of which becomes slow; the collector is killed, started again, and sees the run's end."""
    path = str(tmp_path_factory.mktemp("incidents") / "incidents.db")
    story = Story(4)
    with serving("--store", path, *PATIENT) as first, telling(story, first.endpoint):
        story.train(40).train(60, forward={SLOW_RANK: 30.0})
        opened = wait_for_incident(first, "opened")
        while_open = {
            "table": rankscope("incidents", "--url", first.url),
            "json": rankscope("incidents", "--url", first.url, "--json", "--run", "story", "--open"),
            "other": rankscope("incidents", "--url", first.url, "--run", "nobody"),
            "status": rankscope("status", "--url", first.url),
            "status_json": rankscope("status", "--url", first.url, "--json"),
            "store": rankscope("incidents", "--store", path),
        }
        first.kill()
    between = {"open": rankscope("incidents", "--store", path, "--open")}
    with serving("--store", path, *PATIENT) as second:
        at_start = read_incidents(second)
        with telling(story, second.endpoint, again=True):
            story.train(60, forward={SLOW_RANK: 30.0})
            continued = wait_for_incident(second, "continued")
            for rank in range(4):
                story.say_goodbye(rank)
            resolved = wait_for_incident(second, "resolved")
        second.end(signal.SIGTERM)
        stderr = second.read_stderr()
    after = {
        "all": rankscope("incidents", "--store", path),
        "open": rankscope("incidents", "--store", path, "--open"),
        "json": rankscope("incidents", "--store", path, "--json"),
    }
    return Seen(opened, while_open, between, at_start, continued, resolved, after, stderr)


def test_a_slow_rank_is_an_open_incident(seen: Seen) -> None:
    assert (seen.opened["id"], seen.opened["run"], seen.opened["state"]) == (1, "story", "open")
    assert (seen.opened["subject"], seen.opened["ranks"]) == (f"rank {SLOW_RANK}", [SLOW_RANK])


def test_incident_is_there_when_a_killed_collector_starts_again(seen: Seen) -> None:
    (incident,) = seen.at_start
    assert (incident["id"], incident["state"]) == (1, "open")
    assert (incident["opened_wall_s"], incident["sentence"]) == (seen.opened["opened_wall_s"], seen.opened["sentence"])


def test_found_again_it_goes_on_and_does_not_replace_store(seen: Seen) -> None:
    assert (seen.continued["id"], seen.continued["opened_wall_s"]) == (1, seen.opened["opened_wall_s"])
    assert seen.continued["since_step"] == seen.opened["since_step"]
    assert [change["what"] for change in seen.continued["changes"]] == ["opened", "continued"]


def test_it_is_resolved_with_the_end_of_the_run(seen: Seen) -> None:
    assert (seen.resolved["id"], seen.resolved["resolved_reason"]) == (1, "the run is over")
    assert seen.resolved["lost_rank_seconds"] > seen.opened["lost_rank_seconds"]
    assert [change["what"] for change in seen.resolved["changes"]] == ["opened", "continued", "resolved"]


def test_the_store_has_it_as_the_collector_had_it(seen: Seen) -> None:
    assert json.loads(seen.after["json"].stdout) == [seen.resolved]


def test_the_command_prints_a_table_for_people(seen: Seen) -> None:
    lines = seen.while_open["table"].stdout.splitlines()
    assert lines[0].split()[:3] == ["id", "state", "severity"]
    assert re.match(rf" 1  open   warning   .* story  straggler  rank {SLOW_RANK} ", lines[1])
    assert f"Rank {SLOW_RANK} (node-a): " in lines[2]
    assert lines[-1] == "1 incident, 1 open"


def test_the_command_prints_json_with_the_evidence(seen: Seen) -> None:
    (incident,) = json.loads(seen.while_open["json"].stdout)
    assert incident["evidence"]["peers_own_ns"] > 0
    assert (incident["id"], incident["changes"][0]["what"]) == (1, "opened")


def test_unknown_run_is_an_error_and_has_no_incidents(seen: Seen) -> None:
    other = seen.while_open["other"]
    assert (other.exit_code, other.stdout) == (1, "")
    assert "no run 'nobody' is known to" in other.stderr


def test_store_can_be_read_beside_the_collector_and_without_one(seen: Seen) -> None:
    for ended in (seen.while_open["store"], seen.between["open"]):
        assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (0, "1 incident, 1 open")
    assert seen.after["all"].stdout.splitlines()[-1] == "1 incident, 0 open"
    assert "      resolved: the run is over\n" in seen.after["all"].stdout
    assert seen.after["open"].stdout == "no incident\n"


def test_status_shows_what_is_open(seen: Seen) -> None:
    table = seen.while_open["status"].stdout.partition("open incidents:\n")[2].splitlines()
    assert [line.split()[0] for line in table] == ["id", "1"]
    (run_known,) = json.loads(seen.while_open["status_json"].stdout)
    assert [incident["id"] for incident in run_known["open_incidents"]] == [1]


def test_the_log_tells_of_it(seen: Seen) -> None:
    assert "Traceback" not in seen.stderr
    assert f"incident 1, rank {SLOW_RANK}, is continued: collector restarted, and it was found again" in seen.stderr


# -- what may go wrong ------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    """A collector whose store is no database."""
    path = tmp_path / "incidents.db"
    path.write_text("not a database " * 1_000)
    with serving("--store", str(path)) as served:
        yield served, path


def test_damaged_store_is_told_and_counted_and_collector_works(damaged: tuple[Served, Path]) -> None:
    served, path = damaged
    with telling(Story(4), served.endpoint) as story:
        story.train(40).train(60, forward={SLOW_RANK: 30.0})
        assert wait_for_incident(served, "opened")["ranks"] == [SLOW_RANK]
    assert f"the store {path} is damaged or not a database: " in served.read_stderr()
    served.wait_for_metrics('rankscope_collector_errors_total{part="incident_store"} 1.0\n')
    assert path.read_text() == "not a database " * 1_000


def test_killed_writer_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    written = kill_writer(WRITER, path, WRITES)
    with closing(IncidentStore(path)) as store:
        ids = [incident.id for incident in store.load().incidents]
    assert len(written) >= WRITES
    assert set(written) - set(range(written[-1] - 998)) <= set(ids)
    assert ids[-1] in {written[-1], written[-1] + 1}


def test_incidents_without_a_collector_name_address_and_cure() -> None:
    ended = rankscope("incidents", "--url", "http://127.0.0.1:1")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("rankscope: no collector answers at http://127.0.0.1:1/api/v1/incidents: ")


def test_a_store_that_is_not_there_is_named() -> None:
    ended = rankscope("incidents", "--store", "/nowhere/incidents.db")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("rankscope: there is no store at /nowhere/incidents.db; ")


def test_node_that_was_replaced_keeps_its_incident(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    story = Story(4)
    story.nodes, story.begun_wall_ns = {SLOW_RANK: "bad"}, time.time_ns()
    with serving("--store", str(path), *PATIENT) as served, telling(story, served.endpoint):
        story.train(40).train(60, forward={SLOW_RANK: 30.0})
        wait_for_incident(served, "opened")
        story.nodes, story.begun_wall_ns = {SLOW_RANK: "spare"}, time.time_ns()
        story.restart().train(10)
        found = wait_for(
            lambda: known if len(known := read_nodes(path).nodes) == 3 else None, lambda: str(read_nodes(path))
        )
    assert {one.node: (one.runs, one.runs_held_up) for one in found} == {
        "bad": (1, 1),
        "node-a": (1, 0),
        "spare": (1, 0),
    }
