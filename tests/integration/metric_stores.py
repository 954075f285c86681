"""Programs that keep metrics as an operator starts them: Prometheus and VictoriaMetrics, on loopback, for one test."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode

from tests.integration.serving import end_child, find_fixed_port, read_url
from tests.programs import find_program

Labels = frozenset[tuple[str, str]]
Samples = dict[int, float]
"""Values by the time of the scrape, in ms."""


class Store:
    """One that runs. Both programs answer Prometheus' queries. Made by `running`."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("wb") as output:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def read_samples(self, selector: str) -> dict[Labels, Samples]:
        """What it keeps of these series, as it was scraped; nothing as long as it is not ready."""
        try:
            body = read_url(f"{self.url}/api/v1/query?{urlencode({'query': f'{selector}[1h]'})}")
        except URLError:
            assert self._child.poll() is None, self.log.read_text()
            return {}
        found: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return {
            frozenset(series["metric"].items()): {round(1000 * at_s): float(value) for at_s, value in series["values"]}
            for series in found
        }

    def end(self) -> None:
        """End this very process."""
        end_child(self._child)


@contextlib.contextmanager
def victoria_metrics(folder: Path, job: str, target: str) -> Iterator[Store]:
    """A VictoriaMetrics that scrapes a collector every second; it does not outlive the block."""
    port = find_fixed_port()
    config = folder / "scrape.yml"
    config.write_text(json.dumps(to_scrape(job, target)))
    command = [
        find_program("victoria-metrics"), f"-httpListenAddr=127.0.0.1:{port}", f"-promscrape.config={config}",
        f"-storageDataPath={folder / 'victoria'}", "-search.latencyOffset=1s", "-loggerLevel=WARN",
        "-memory.allowedBytes=256MB",
    ]  # fmt: skip
    with running(command, port, folder / "victoria.log") as store:
        yield store


@contextlib.contextmanager
def prometheus(folder: Path, job: str, target: str, *, writes_to: str) -> Iterator[Store]:
    """A Prometheus that scrapes a collector every second, and writes all it has to another store."""
    port = find_fixed_port()
    config = folder / "prometheus.yml"
    write = {"url": f"{writes_to}/api/v1/write", "queue_config": {"batch_send_deadline": "1s"}}
    config.write_text(json.dumps({**to_scrape(job, target), "remote_write": [write]}))
    command = [
        find_program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with running(command, port, folder / "prometheus.log") as store:
        yield store


def to_scrape(job: str, target: str) -> Mapping[str, object]:
    """What both programs are configured by; JSON is YAML."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [target]}]}],
    }


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[Store]:
    """Start one."""
    store = Store(command, port, log)
    try:
        yield store
    finally:
        store.end()
