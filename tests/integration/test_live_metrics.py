"""/metrics while a job runs and after it: accepted by promtool, scraped and computed with by a real Prometheus."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import DEVICE, PORT
from tests.integration.receivers import receiving
from tests.integration.serving import (
    Served,
    end_child,
    find_fixed_port,
    read_url,
    serving,
    wait_for,
)
from tests.integration.torchrun import forked_ranks, started
from tests.programs import find_program

RUN = "live/metrics 1"
SLOW_RANK = 1
SETTINGS = {
    "RANKSCOPE_RUN": RUN,
    "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.1",
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "1",
    "RANKSCOPE_CONSTANT_SAMPLE_INTERVAL_S": "0.5",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "1",
}
SCRAPES, RANGE_S = 20, 10
"""A rate over the last 10 s of 20: its first sample is far from 0, which Prometheus would otherwise extrapolate to."""
WHEN_SOMETHING_WENT_WRONG = {
    "rankscope_impossible_numbers_total",
    "rankscope_agent_errors_total", "rankscope_collector_errors_total", "rankscope_frames_refused_total",
    "rankscope_peers_refused_total", "rankscope_replies_failed_total", "rankscope_http_refused_total",
    "rankscope_rank_missing", "rankscope_node_missing",
    "rankscope_relay_frames_dropped_total", "rankscope_relay_refused_total",
    "rankscope_store_lost_total", "rankscope_finding_left_seconds",
}  # fmt: skip
OF_A_RANK_WITH_A_GPU = (
    "rankscope_device_step", "rankscope_device_phase", "rankscope_device_timings", "rankscope_device_tail",
    "rankscope_torch_memory", "rankscope_gpu_memory_headroom",
    "rankscope_run_gpu", "rankscope_run_energy", "rankscope_node_gpu", "rankscope_agent_step_effect",
    "rankscope_host_sync", "rankscope_nccl_bus_bandwidth", "rankscope_host_copy", "rankscope_exposed_host_copy",
)  # fmt: skip
OF_SOME_MACHINES = {
    "rankscope_node_cpu_pressure_seconds_total", "rankscope_node_group_cpu_pressure_seconds_total",
    "rankscope_node_cpu_steal_seconds_total", "rankscope_interface_errors_total",
    "rankscope_node_runs_held_up", "rankscope_node_runs", "rankscope_node_held_up_low_ratio",
    "rankscope_process_throttled_ratio", "rankscope_process_block_io_wait_seconds_total",
    "rankscope_process_major_faults_total",
}  # fmt: skip
"""A container need not have a network, a CPU limit, nor a kernel that counts pressure. That the straggler's node has
held up a run is read from the store once a minute, before or after its incident."""
ONLY_AFTER_THE_END = {"rankscope_rank_end_info"}
OF_A_COLLECTOR_THAT_PUSHES = {"rankscope_otlp_pushes_total", "rankscope_otlp_push_success_timestamp_seconds"}
OF_A_JOB_WITH_TOKENS = {"rankscope_tokens_total"}
OF_A_JOB_WITH_FLOPS = {
    "rankscope_model_flops_total", "rankscope_executed_flops_total", "rankscope_mfu_ratio", "rankscope_hfu_ratio",
    "rankscope_run_mfu_ratio", "rankscope_run_hfu_ratio", "rankscope_run_model_flops_per_step",
}  # fmt: skip
OF_A_JOB_THAT_SAVES = {
    "rankscope_checkpoints_total", "rankscope_checkpoint_seconds_total", "rankscope_last_checkpoint_timestamp_seconds",
    "rankscope_saves_total", "rankscope_save_seconds_total", "rankscope_saved_bytes_total",
}  # fmt: skip
OF_OTHER_JOBS = (
    "rankscope_compil", "rankscope_recompil", "rankscope_pipeline_", "rankscope_layer_", "rankscope_slow_layer_",
    "rankscope_expert_", "rankscope_gpus", "rankscope_idle_gpu", "rankscope_nodes_gpus_",
)  # fmt: skip
AFTER_THE_END = {
    "rankscope_run_info", "rankscope_ranks", "rankscope_rank_info", "rankscope_rank_up", "rankscope_report_gaps_total",
    "rankscope_step_records_created_total", "rankscope_step_records_published_total",
    "rankscope_step_records_acked_by_previous_collector_total", "rankscope_step_records_buffered",
    "rankscope_step_records_lost_total",
}  # fmt: skip
"""Who it was, and where all of its steps went."""

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Live:
    """Pages read one after the other while the job ran, the last after its end, and what Prometheus answered."""

    pages: list[str] = field(default_factory=list)
    last_page: str = ""
    answers: dict[str, Any] = field(default_factory=dict)


class Prometheus:
    """A running Prometheus that scrapes one collector every second. Made by `prometheus`."""

    def __init__(self, served: Served, folder: Path) -> None:
        port = find_fixed_port()
        self._url = f"http://127.0.0.1:{port}"
        scrape = {"job_name": "rankscope", "static_configs": [{"targets": [f"127.0.0.1:{served.ports[1]}"]}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": every, "scrape_configs": [scrape]}))  # JSON is YAML
        self.log = folder / "prometheus.log"
        command = [
            find_program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def ask(self, query: str, **parameters: str) -> list[dict[str, Any]]:
        """The result of an instant query; nothing as long as Prometheus is not ready."""
        try:
            body = read_url(f"{self._url}/api/v1/query?{urlencode({'query': query, **parameters})}")
        except URLError:
            assert self._child.poll() is None, self.log.read_text()
            return []
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def end(self) -> None:
        """End this very process."""
        end_child(self._child)


@contextlib.contextmanager
def prometheus(served: Served, folder: Path) -> Iterator[Prometheus]:
    """Start one; it does not outlive the block."""
    running = Prometheus(served, folder)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    """Two ranks, one of them slow, looked at by a Prometheus and by this test."""
    folder, seen = tmp_path_factory.mktemp("live"), Live()
    command = forked_ranks(2, "-m", "rankscope.agent", "paced.py", "--stop", str(folder / "stop"), "--slow-rank", "1")
    secret = folder / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    store = ("--store", str(folder / "store.db"))
    with (
        receiving() as receiver,
        serving(*store, "--notify-webhook-url", receiver.url, "--notify-webhook-secret-file", str(secret)) as served,
        started(command, {**SETTINGS, "RANKSCOPE_COLLECTOR": served.endpoint}) as job,
        prometheus(served, folder) as watching,
    ):
        for steps in (10, 20):
            served.wait_for_steps(RUN, steps)
            seen.pages.append(served.read_metrics())
        served.wait_for_run(RUN, lambda run: any(finding.rank == 1 for finding in run.open_findings))
        seen.pages.append(served.read_metrics())
        seen.answers = ask_for_ratios(watching)
        seen.pages.append(served.read_metrics())
        (folder / "stop").touch()
        assert job.wait().exit_code == 0
        seen.last_page = wait_for_last_page(served)
    return seen


def wait_for_last_page(served: Served) -> str:
    """The page when both ranks have ended; it shows only what the store has, and so later than the API."""

    def look() -> str | None:
        page = served.read_metrics()
        up = [value for (name, _), value in find_values(page, "gauge").items() if name == "rankscope_rank_up"]
        return page if up == [0, 0] else None

    return wait_for(look, served.read_metrics)


def ask_for_ratios(watching: Prometheus) -> dict[str, Any]:
    """Of each rank the ratio of two rates, and the samples behind it, all as of the time of one sample."""
    window, exposed = (
        f'rankscope_device_{part}_seconds_total{{run="{RUN}"}}' for part in ("window", "exposed_communication")
    )

    def look() -> str | None:
        for counter in (window, exposed):  # one that has begun within the range has a rate of another time
            counts = watching.ask(f"min(count_over_time({counter}[5m]))")
            if not counts or float(counts[0]["value"][1]) < SCRAPES:
                return None
        return str(watching.ask(f"max(timestamp({window}))")[0]["value"][1])

    at = wait_for(look, watching.log.read_text)
    queries = {
        "ratio": f"rate({exposed}[{RANGE_S}s]) / rate({window}[{RANGE_S}s])",
        "window": f"{window}[{RANGE_S}s]",
        "exposed": f"{exposed}[{RANGE_S}s]",
    }
    return {name: watching.ask(query, time=at) for name, query in queries.items()}


def parse(page: str) -> list[Metric]:
    """The families of a page."""
    return list(text_string_to_metric_families(page))


def find_values(page: str, *types: str) -> dict[Series, float]:
    """Every series of the page whose family is of one of these types, with its value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(page)
        if family.type in types
        for sample in family.samples
    }


def find_of_run(page: str) -> set[str]:
    """The names of the series of the page that are about the run."""
    return {sample.name for family in parse(page) for sample in family.samples if sample.labels.get("run") == RUN}


def test_promtool_has_no_complaint(live: Live) -> None:
    for page in (*live.pages, live.last_page):
        done = subprocess.run(
            [find_program("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_counters_never_decrease(live: Live) -> None:
    pages = [find_values(page, "counter") for page in live.pages]
    for before, after in pairwise(pages):
        assert {series for series in before if series not in after} == set()
        assert {series: (before[series], after[series]) for series in before if after[series] < before[series]} == {}


def test_every_measure_that_needs_no_gpu_is_there(live: Live) -> None:
    wanted = (
        {
            measure.name
            for measure in CATALOG
            if measure.labels[: len(DEVICE)] != DEVICE
            and measure.labels[: len(PORT)] != PORT
            and not measure.name.startswith((*OF_A_RANK_WITH_A_GPU, *OF_OTHER_JOBS))
        }
        - WHEN_SOMETHING_WENT_WRONG
        - ONLY_AFTER_THE_END
        - OF_A_JOB_WITH_TOKENS
        - OF_A_JOB_WITH_FLOPS
        - OF_A_JOB_THAT_SAVES
        - OF_SOME_MACHINES
        - OF_A_COLLECTOR_THAT_PUSHES
    )
    shown = (
        {
            family.name if family.type == "histogram" else sample.name
            for family in parse(live.pages[-1])
            for sample in family.samples
        }
        - OF_SOME_MACHINES
        - OF_A_JOB_WITH_FLOPS
    )
    assert sorted(wanted - shown) == []
    assert sorted(shown - wanted) == []


def test_ratios_are_ratios(live: Live) -> None:
    values = {name: value for (name, _), value in find_values(live.pages[-1], "gauge").items()}
    for name in ("compute", "communication", "overlap", "exposed_communication", "idle"):
        assert 0 <= values[f"rankscope_{name}_ratio"] <= 1


def test_the_straggler_is_on_the_page(live: Live) -> None:
    slow = [
        dict(labels) for (name, labels), value in find_values(live.pages[-1], "gauge").items()
        if name == "rankscope_straggler" and value == 1
    ]  # fmt: skip
    assert slow == [{"run": RUN, "rank": str(SLOW_RANK), "cause": slow[0]["cause"]}]


def test_a_departed_rank_is_down_and_its_other_series_are_gone(live: Live) -> None:
    gauges = find_values(live.last_page, "gauge")
    down = {labels: value for (name, labels), value in gauges.items() if name == "rankscope_rank_up"}
    assert list(down.values()) == [0, 0]
    assert find_of_run(live.last_page) == AFTER_THE_END | ONLY_AFTER_THE_END
    assert find_of_run(live.pages[-1]) > AFTER_THE_END


def test_a_rate_over_a_rate_is_the_exact_ratio(live: Live) -> None:
    """Each counter grows by what was measured, so the quotient is exposed time over window time between two scrapes."""
    ratios = {each["metric"]["rank"]: float(each["value"][1]) for each in live.answers["ratio"]}
    window_s, exposed_s = (
        {each["metric"]["rank"]: find_growth(each["values"]) for each in live.answers[name]}
        for name in ("window", "exposed")
    )
    assert set(ratios) == {"0", "1"}
    for rank, ratio in ratios.items():
        assert window_s[rank] > 0
        assert ratio == pytest.approx(exposed_s[rank] / window_s[rank], rel=1e-9)
    # Rank 0 waits 100 ms of about 125 for the slow rank, which itself waits for nobody.
    assert ratios["0"] > 0.5 > ratios["1"]


def find_growth(values: list[tuple[float, str]]) -> float:
    """How much a counter grew from the first sample to the last."""
    return float(values[-1][1]) - float(values[0][1])
