"""A job that is started again and again under one name, as Kubernetes and nightly jobs do, at a collector that is
killed in between: every start is a run of its own.
"""

import contextlib
import json
from pathlib import Path

import msgspec

from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.storage.run_reader import opening_run
from rankscope.measure.errors import UnavailableError
from tests.integration.light_ranks import Crew, LightRank, light_identity, wait_for_acknowledgements
from tests.integration.serving import Served, find_fixed_port, have_ended, read_url, serving, wait_for

RUN = "nightly"


def start(endpoint: str) -> Crew:
    """Start the job: two ranks in processes that the collector cannot see."""
    lives = [msgspec.structs.replace(light_identity(RUN, rank, 2), machine_id="") for rank in range(2)]
    return Crew([LightRank(life, endpoint) for life in lives])


def train(served: Served) -> RunSnapshot:
    """Start the job and let it finish; the run that it was."""
    crew = start(served.endpoint)
    wait_for_acknowledgements(crew, 5)
    assert crew.stop()
    boots = {rank.identity.boot_id for rank in crew.ranks}
    return served.wait_for_run(RUN, lambda run: have_ended(run) and boots_of(run) == boots)


def boots_of(run: RunSnapshot) -> set[str]:
    """The lives of a run."""
    return {rank.identity.boot_id for rank in run.ranks}


def wait_until_kept(store: Path, run_id: str) -> None:
    """Wait until the store has a run with both of its ranks."""

    def look() -> bool | None:
        with contextlib.suppress(UnavailableError), opening_run(store, run_id) as history:
            return len(history.kept.ranks) == 2 or None
        return None

    wait_for(look, lambda: f"{run_id} is not in the store")


def test_starts_of_one_name_are_separate_runs_after_restart_too(tmp_path: Path) -> None:
    store, address = tmp_path / "store.db", f"tcp://127.0.0.1:{find_fixed_port()}"
    with serving("--store", str(store), listen=address) as served:
        first = train(served)
        crew = start(served.endpoint)
        wait_for_acknowledgements(crew, 5)
        second = served.wait_for_run(RUN, lambda run: run.run_id != first.run_id and len(run.ranks) == 2)
        wait_until_kept(store, second.run_id)
        served.kill()
    with serving("--store", str(store), listen=address) as served:
        wait_for_acknowledgements(crew, 5)
        assert crew.stop()
        ended = served.wait_for_run(second.run_id, have_ended)
        third = train(served)
        listed = json.loads(read_url(f"{served.url}/api/v1/runs"))["runs"]
        assert [run["run_id"] for run in listed] == [first.run_id, second.run_id, third.run_id]
        assert boots_of(ended) == boots_of(second) == {rank.identity.boot_id for rank in crew.ranks}
        assert [run.goodput.restart_ns for run in (first, ended, third)] == [0, 0, 0]
        same = served.wait_for_run(first.run_id, have_ended)
        assert [(rank.totals, rank.reports_admitted) for rank in same.ranks] == [
            (rank.totals, rank.reports_admitted) for rank in first.ranks
        ]
        wait_until_kept(store, third.run_id)
        for asked, run_id in ((RUN, third.run_id), (second.run_id, second.run_id)):
            report = msgspec.json.decode(read_url(f"{served.url}/api/v1/runs/{asked}/report"), type=RunReport)
            assert (report.run, report.run_id, report.attempts) == (RUN, run_id, 1)
