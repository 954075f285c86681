"""What the rules cost Prometheus: `python -m bench.rules [--ranks 512 1024]`; writes results/rules.md.

A real Prometheus scrapes a page with every family that the rules ask for, of one run of so many ranks on nodes of
eight: counters grow, but those of faults. After 40 scrapes, as many as ten minutes have at 15 s, the page is gone, and
each rule's expression is asked for again and again; what that takes is the CPU time of the process, so that others on
the machine do not count. Nothing is recorded here: rules that only ask for what is recorded find nothing and cost what
asking does.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import psutil
import yaml

from bench.machine import RESULTS, describe_run
from rankscope.collector.publish.metrics.catalog import CATALOG
from rankscope.collector.publish.metrics.measures import Measure
from tests.contract.promql_names import find_uses
from tests.integration.monitoring import DEPLOY, Running
from tests.integration.serving import find_fixed_port, wait_for
from tests.programs import find_program

SIZES = (512, 1_024)
RANKS_PER_NODE = 8
SCRAPES = 40
SCRAPE_S = 2
"""Time between scrapes here. How many samples are in a range matters to its cost, and not how far apart they are."""
SERIES_OF = {
    "phase": ("data", "forward", "backward", "optimizer", "other"),
    "reason": ("overwritten", "dropped_in_reports", "late"),
    "state": ("reporting", "silent", "failed", "ended", "awaited", "never_reported"),
    "kind": ("corrected", "uncorrected"),
}
"""The values of labels that a rank or run has several of; all others have one."""
FAULTS = frozenset(
    {
        "rankscope_gpu_xid_errors_total", "rankscope_gpu_ecc_errors_total", "rankscope_gpu_row_remapping_pending",
        "rankscope_gpu_row_remapping_failed", "rankscope_gpu_throttled", "rankscope_torch_memory_retries_total",
        "rankscope_step_records_lost_total", "rankscope_reports_dropped_total", "rankscope_agent_overhead_ratio",
        "rankscope_gpu_memory_used_bytes", "rankscope_device_idle_seconds_total",
    }
)  # fmt: skip
"""What stays 0, so that no alert writes messages but the one about the slow rank."""
ASKED = 10
"""Times each expression is asked for: the kernel counts CPU time in hundredths of a second."""
LARGE = 16_384
"""Ranks for which the table says what the largest size measured comes to: the cost is one for each series."""
WRONG = frozenset({"rankscope_rank_missing", "rankscope_node_missing", "rankscope_gpu_last_xid"})
"""What is only there when something is wrong."""


class Cost(NamedTuple):
    """Of one group of rules: how many, the interval in s, and the CPU time of one evaluation of all of them in ms."""

    group: str
    rules: int
    interval_s: float
    evaluation_ms: float

    @property
    def share(self) -> float:
        """Of one core."""
        return self.evaluation_ms / 1e3 / self.interval_s


def find_families(groups: Sequence[dict[str, Any]]) -> list[Measure]:
    """The families of the catalogue that any of the rules asks for."""
    asked = {name for group in groups for rule in group["rules"] for name in find_uses(rule["expr"])}
    return [measure for measure in CATALOG if measure.name in asked - WRONG]


def list_series(measure: Measure, ranks: int) -> Iterator[str]:
    """The series of a family, without values. Of a family about findings one; of one about runs one for each kind."""
    several = next((label for label in measure.labels if label in SERIES_OF and "finding" not in measure.name), None)
    is_of_ranks = "rank" in measure.labels and "finding" not in measure.name and "lost_gpu" not in measure.name
    for rank in range(ranks if is_of_ranks else 1):
        known = {"run": "bert", "rank": str(rank), "node": f"node-{rank // RANKS_PER_NODE}", "gpu": f"GPU-{rank}"}
        for value in SERIES_OF[several] if several else ("",):
            labels = {label: known.get(label, "x") for label in measure.labels} | ({several: value} if several else {})
            text = ",".join(f'{name}="{said}"' for name, said in labels.items())
            yield f"{measure.name}{{{text}}}"


class Page:
    """The page of one run; every counter on it but those of faults grows by one each second."""

    def __init__(self, families: Sequence[Measure], ranks: int) -> None:
        self._counters: list[str] = []
        still: list[str] = []
        for each in families:
            lines = list(list_series(each, ranks))
            if each.kind == "counter" and each.name not in FAULTS:
                self._counters += lines
            else:
                still += [f"{line} {int(each.name not in FAULTS)}\n" for line in lines]
        self._still = "".join(still)
        self.series = len(self._counters) + len(still)
        self._begun_s = time.monotonic()

    def render(self) -> bytes:
        """The page at this moment."""
        grown = f" {time.monotonic() - self._begun_s + 1:.3f}\n"
        return (grown.join(self._counters) + grown + self._still).encode()


class PageServer:
    """Serves a page to whoever asks."""

    def __init__(self, page: Page) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.render()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Free the port. Twice does no harm."""
        self._server.shutdown()
        self._server.server_close()


def measure_rules(ranks: int, folder: Path) -> tuple[int, list[Cost]]:
    """How many series there were, and what each group cost."""
    files = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"), reverse=True)  # what is recorded comes first
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    page = Page(find_families(groups), ranks)
    port = find_fixed_port()
    command = [
        find_program("prometheus"), f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with closing(PageServer(page)) as server:
        scrape = {"job_name": "rankscope", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        every = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"}
        (folder / "prometheus.json").write_text(json.dumps({"global": every, "scrape_configs": [scrape]}))
        prometheus = Running(command, f"http://127.0.0.1:{port}", folder / "prometheus.log")
        try:
            at = wait_for(lambda: find_full_range(prometheus), prometheus.log.read_text, 5.0 * SCRAPES * SCRAPE_S)
            server.close()
            return page.series, [measure_group(prometheus, group, at) for group in groups]
        finally:
            prometheus.end()


def find_full_range(prometheus: Running) -> str | None:
    """The time of the last sample, once there are enough of them."""
    answer = prometheus.ask(f"/api/v1/query?{urlencode({'query': 'sum(sum_over_time(up[1h]))'})}")
    if not answer or not answer["data"]["result"] or float(answer["data"]["result"][0]["value"][1]) < SCRAPES:
        return None
    (last,) = prometheus.ask(f"/api/v1/query?{urlencode({'query': 'timestamp(up)'})}")["data"]["result"]
    return str(last["value"][1])


def measure_group(prometheus: Running, group: dict[str, Any], at: str) -> Cost:
    """What one evaluation of all rules of the group takes, as of that time."""
    process = psutil.Process(prometheus.pid)

    def spent_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    begin_s = spent_s()
    for rule in group["rules"]:
        for _ in range(ASKED):
            prometheus.ask(f"/api/v1/query?{urlencode({'query': rule['expr'], 'time': at})}")
    interval_s = float(group["interval"].removesuffix("s"))
    return Cost(group["name"], len(group["rules"]), interval_s, 1e3 * (spent_s() - begin_s) / ASKED)


def report(head: str, results: dict[int, tuple[int, list[Cost]]]) -> str:
    """The results as a page."""
    lines = [
        "# What the rules cost Prometheus",
        f"\n{head}\n",
        f"One run; a page with every family that a rule asks for, {SCRAPES} samples of each series in the range.",
        f"CPU time of one evaluation, mean of {ASKED}.\n",
        "| ranks | series | group | rules | one evaluation | every | of one core |",
        "|---|---|---|---|---|---|---|",
    ]
    for ranks, (series, costs) in results.items():
        size = f"| {ranks:,} | {series:,}"
        lines += [
            f"{size} | {cost.group} | {cost.rules} | {cost.evaluation_ms:.0f} ms | {cost.interval_s:.0f} s "
            f"| {100 * cost.share:.2f} % |"
            for cost in costs
        ]
        lines.append(f"{size} | all | {sum(c.rules for c in costs)} | | | {100 * sum(c.share for c in costs):.2f} % |")
    ranks = max(results)
    share = sum(cost.share for cost in results[ranks][1])
    lines.append(
        f"\nAt {LARGE:,} ranks, at the same cost for each series: {100 * share * LARGE / ranks:.0f} % of one core."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure each size, print the page, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    head, results = describe_run("python -m bench.rules"), {}
    for ranks in parser.parse_args().ranks:
        with tempfile.TemporaryDirectory() as folder:
            results[ranks] = measure_rules(ranks, Path(folder))
    text = report(head, results)
    (RESULTS / "rules.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
