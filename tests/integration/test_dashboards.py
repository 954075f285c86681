"""Every query of the dashboards, asked of a real Prometheus that holds a simulated run, has an answer."""

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote, urlencode

import pytest
import yaml

from tests.contract.dashboard_queries import Asked, find_annotations, find_dashboards, find_queries, find_variables
from tests.integration.serving import end_child, find_fixed_port, read_url, wait_for
from tests.integration.simulated_history import SLOW_RANK, History, write_history
from tests.programs import find_program
from tests.simulation.ranks import RUN

LINES_MAX = 24
"""More cannot be told apart. The simulated run has 64 ranks: a panel with a line for each would have more."""
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "recording.yml"
DEPTH_OF_RULES = 2
"""Rules are made from measures, or from such rules."""
STEP_S = 2
RATE_INTERVAL_S = 12
"""Four times the longest time between two pages, as Grafana would choose."""
CHOSEN = {
    "run": RUN,
    "node": "node0000",
    "rank": str(SLOW_RANK),
    "datasource": "any",
    "cluster": ".*",
    "instance": ".*",
}
ALL_RANKS = {**CHOSEN, "rank": ".+"}
"""As Grafana sends the choice of all."""


class Series(NamedTuple):
    """Labels, and the values that are numbers."""

    labels: Mapping[str, str]
    values: tuple[float, ...]


class StoredPrometheus:
    """A Prometheus that scrapes nobody and answers from what it has stored: a history, and what the recording rules of
    deploy/prometheus make of it. Ended by `end`.
    """

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self._folder, self._stored, self._log = folder, folder / "tsdb", folder / "prometheus.log"
        (folder / "prometheus.yml").write_text("{}")
        page = folder / "history.txt"
        page.write_text(history.text)
        self._add_blocks("openmetrics", str(page), str(self._stored))
        self._start()

    def _start(self) -> None:
        port = find_fixed_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [
            find_program("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._stored}", "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

        def look() -> bool | None:
            try:
                read_url(f"{self._url}/-/ready")
            except URLError:
                assert self._child.poll() is None, self._log.read_text()
                return None
            return True

        wait_for(look, self._log.read_text)

    def record(self) -> None:
        """Store what the recording rules give. Those made from others need a Prometheus that has the others."""
        rules = self._folder / "rules.yml"
        groups = yaml.safe_load(RULES.read_text())["groups"]
        rules.write_text(json.dumps({"groups": [{"name": group["name"], "rules": group["rules"]} for group in groups]}))
        span = (f"--start={math.floor(self.history.begin_s)}", f"--end={math.ceil(self.history.end_s)}")
        for _ in range(DEPTH_OF_RULES):
            self._add_blocks(
                "rules", *span, f"--eval-interval={STEP_S}s", f"--url={self._url}", f"--output-dir={self._stored}",
                str(rules),
            )  # fmt: skip
            self.end()
            self._start()

    def _add_blocks(self, *source: str) -> None:
        command = [find_program("promtool"), "tsdb", "create-blocks-from", *source]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, asked: Asked, chosen: Mapping[str, str]) -> list[Series]:
        """What a panel would be given that shows the whole run."""
        expr = fill(asked.expr, chosen, self.history)
        begin_s, end_s = self.history.begin_s, self.history.end_s
        if asked.is_instant:
            found = self._get("query", query=expr, time=str(end_s))["result"]
            return [Series(series["metric"], read_numbers([series["value"]])) for series in found]
        found = self._get("query_range", query=expr, start=str(begin_s), end=str(end_s), step=str(STEP_S))["result"]
        return [Series(series["metric"], read_numbers(series["values"])) for series in found]

    def read_label_values(self, selector: str, label: str) -> list[str]:
        """The values that a label of these series has."""
        begin_s, end_s = str(self.history.begin_s), str(self.history.end_s)
        asked = {"match[]": selector, "start": begin_s, "end": end_s}
        values: list[str] = self._get(f"label/{quote(label)}/values", **asked)
        return values

    def _get(self, path: str, **parameters: str) -> Any:
        body = json.loads(read_url(f"{self._url}/api/v1/{path}?{urlencode(parameters)}"))
        assert body["status"] == "success", body
        return body["data"]

    def end(self) -> None:
        """End this very process."""
        end_child(self._child)


def read_numbers(values: list[tuple[float, str]]) -> tuple[float, ...]:
    """Those that are finite."""
    return tuple(number for number in (float(text) for _, text in values) if math.isfinite(number))


def fill(text: str, chosen: Mapping[str, str], history: History) -> str:
    """The expression with values for Grafana's variables. Fails where one is left."""
    known = {
        **chosen,
        "__rate_interval": f"{RATE_INTERVAL_S}s",
        "__range": f"{math.ceil(history.end_s - history.begin_s)}s",
    }
    filled = re.sub(r"\$\{?(\w+)\}?", lambda found: known[found[1]], text)
    assert "$" not in filled
    return filled


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredPrometheus]:
    """A Prometheus with the simulated run."""
    prometheus = StoredPrometheus(write_history(), tmp_path_factory.mktemp("prometheus"))
    try:
        prometheus.record()
        yield prometheus
    finally:
        prometheus.end()


QUERIES = [asked for dashboard in find_dashboards() for asked in find_queries(dashboard)]
ANNOTATIONS = [asked for dashboard in find_dashboards() for asked in find_annotations(dashboard)]
VARIABLES = [(dashboard, *found) for dashboard in find_dashboards() for found in find_variables(dashboard)]


OF_NO_STORY = (
    "rankscope_finding_left_seconds", "rankscope_pipeline_", "rankscope_layer_", "rankscope_slow_layer_",
    "rankscope_expert_", "rankscope_gpus", "rankscope_idle_gpu", "host_copy",
)  # fmt: skip
"""No machine of the history runs out of memory or has a relay, and no run has stages, blocks, experts or copies."""


def choice_for(asked: Asked) -> Mapping[str, str]:
    """On a node all ranks are looked at, elsewhere one."""
    return ALL_RANKS if asked.dashboard == "node" else CHOSEN


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_every_query_of_a_panel_has_an_answer_of_few_lines(stored: StoredPrometheus, asked: Asked) -> None:
    found = stored.ask(asked, choice_for(asked))
    assert sum(len(series.values) for series in found) > 0 or any(one in asked.expr for one in OF_NO_STORY)
    assert len(found) <= LINES_MAX


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_every_label_that_names_a_line_is_one_of_its_own(stored: StoredPrometheus, asked: Asked) -> None:
    for series in stored.ask(asked, choice_for(asked)):
        assert set(asked.labels) <= set(series.labels), asked.legend


@pytest.mark.parametrize("asked", ANNOTATIONS, ids=str)
def test_every_annotation_has_something_to_say(stored: StoredPrometheus, asked: Asked) -> None:
    found = stored.ask(asked, CHOSEN)
    assert found
    assert all(set(asked.labels) <= set(series.labels) for series in found)


@pytest.mark.parametrize(("dashboard", "name", "selector", "label"), VARIABLES)
def test_every_variable_offers_what_there_is(
    stored: StoredPrometheus, dashboard: str, name: str, selector: str, label: str
) -> None:
    offered = stored.read_label_values(fill(selector, CHOSEN, stored.history), label)
    # The simulated run was not scraped: no series has the labels of a cluster or of a collector.
    assert CHOSEN[name] in offered if name not in {"cluster", "instance"} else not offered, dashboard


@pytest.mark.parametrize(
    ("dashboard", "title"), [("run", "Where the device's time goes"), ("rank", "Where its device's time goes")]
)
def test_the_parts_of_the_device_s_time_add_up_to_all_of_it(
    stored: StoredPrometheus, dashboard: str, title: str
) -> None:
    parts = [stored.ask(asked, CHOSEN) for asked in QUERIES if (asked.dashboard, asked.title) == (dashboard, title)]
    assert len(parts) == 5
    # Prometheus extrapolates each counter to where it would have been 0, and the range has the begin of the run.
    assert sum(series.values[-1] for (series,) in parts) == pytest.approx(1, rel=0.01)


def test_the_phases_of_a_step_add_up_to_the_step(stored: StoredPrometheus) -> None:
    (phases,) = [asked for asked in QUERIES if (asked.dashboard, asked.title) == ("run", "Phases of a step")]
    (mean,) = [asked for asked in QUERIES if (asked.dashboard, asked.title) == ("run", "Step")]
    (step,) = stored.ask(mean, CHOSEN)
    assert sum(series.values[-1] for series in stored.ask(phases, CHOSEN)) == pytest.approx(step.values[-1], rel=1e-6)


def test_slow_rank_leads_the_offenders_and_shows_in_heat_map(stored: StoredPrometheus) -> None:
    (cells,) = [asked for asked in QUERIES if asked.title == "Distribution of rank slowdown"]
    (worst, *_) = [asked for asked in QUERIES if (asked.dashboard, asked.title) == ("fleet", "Ranks")]
    rows = {float(series.labels["slowdown"]): series.values[-1] for series in stored.ask(cells, CHOSEN)}
    assert [slowdown for slowdown, ranks in rows.items() if slowdown > 1.2 and ranks == 1] == [1.5]
    assert [series.labels["rank"] for series in stored.ask(worst, CHOSEN)] == [str(SLOW_RANK)]
