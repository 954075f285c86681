"""Prometheus and Alertmanager with the configurations of deploy/, made quick, and a webhook that keeps what arrives.

What is changed of the configurations is where things are, and times: scrapes and evaluations come every second, and
each `for` becomes seconds. The order of the `for`s stays, since inhibition lives by it: a cause is told before its
symptoms. Ranges stay as they are: a rate over an hour needs two samples, and not an hour.
"""

import contextlib
import json
import subprocess
import threading
import urllib.error
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.integration.serving import end_child, find_fixed_port, read_url, wait_for
from tests.programs import find_program

DEPLOY = Path(__file__).parents[2] / "deploy"
GROUP_WAIT_S = 5
"""How long a new group waits for what belongs to it. Less, and on a busy machine an alert might be older than that when
it arrives, and be told at once, before Alertmanager has seen who silences it. (In deploy/ it is 10 s and more.)"""
FOR_S_MIN = 2
"""The shortest `for` becomes so many seconds: two scrapes, so that one odd look is no alert here either."""

Config = dict[str, Any]
Labels = Mapping[str, str]
Notice = tuple[str, Labels]
"""firing or resolved, and the labels of the alert."""


class Webhook:
    """Takes what Alertmanager sends and keeps it, on a port of its own."""

    def __init__(self) -> None:
        self.messages: list[Config] = []
        """Every message, in the order of their arrival."""
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def read_notices(self) -> list[Notice]:
        """Every alert of every message so far."""
        return [(alert["status"], alert["labels"]) for message in [*self.messages] for alert in message["alerts"]]

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Running:
    """A program that answers over HTTP at `url`; its log is in a file."""

    def __init__(self, command: list[str], url: str, log: Path) -> None:
        self.url = url
        self.log = log
        with log.open("wb") as out:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self.pid = self._child.pid

    def ask(self, path: str) -> Any:
        """The JSON at a path; None as long as the program does not listen."""
        try:
            return json.loads(read_url(f"{self.url}{path}"))
        except (urllib.error.URLError, ConnectionError):
            assert self._child.poll() is None, self.log.read_text()
            return None

    def wait_for_answer(self, path: str) -> Any:
        """The first JSON at a path."""
        return wait_for(lambda: self.ask(path), self.log.read_text)

    def end(self) -> None:
        """End this very process."""
        end_child(self._child)


def shorten_rules(rules: Config, order: list[str]) -> Config:
    """The groups with an interval of a second, and each `for` as its place in `order` tells."""
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{FOR_S_MIN + order.index(rule['for'])}s"
    return rules


def write_prometheus(folder: Path, collector: str, alertmanager: str) -> Path:
    """The configuration for a standing collector with its rules, quick, for these addresses."""
    source = DEPLOY / "prometheus"
    every = {path.stem: yaml.safe_load(path.read_text()) for path in (source / "rules").glob("*.yml")}
    waits = {
        rule["for"] for rules in every.values() for group in rules["groups"] for rule in group["rules"] if "for" in rule
    }
    order = sorted(waits, key=lambda wait: int(wait[:-1]) * {"s": 1, "m": 60}[wait[-1]])
    for name, rules in every.items():
        (folder / f"{name}.yml").write_text(json.dumps(shorten_rules(rules, order)))  # JSON is YAML
    config = yaml.safe_load((source / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(folder / f"{name}.yml") for name in every]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [alertmanager]
    for job in config["scrape_configs"]:
        for targets in job["static_configs"]:
            targets["targets"] = [collector]
    path = folder / "prometheus.json"
    path.write_text(json.dumps(config))
    return path


def write_alertmanager(folder: Path, webhook: str) -> Path:
    """The configuration with its routes, inhibitions and templates, quick, and everything sent to the webhook."""
    config = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    config["templates"] = [str(DEPLOY / "alertmanager" / "templates" / "*.tmpl")]
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": f"{GROUP_WAIT_S}s", "group_interval": "1s"}
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{webhook}/{receiver['name']}"}]
    path = folder / "alertmanager.json"
    path.write_text(json.dumps(config))
    return path


@contextlib.contextmanager
def alerting(collector_port: int, folder: Path) -> Iterator[tuple[Running, Running, Webhook]]:
    """Prometheus that watches a collector, Alertmanager behind it, and the webhook behind that, all of them ready."""
    with contextlib.ExitStack() as ends:
        webhook = Webhook()
        ends.callback(webhook.close)
        port = find_fixed_port()
        url = f"http://127.0.0.1:{port}"
        alertmanager = Running(
            [
                find_program("prometheus-alertmanager"),
                f"--config.file={write_alertmanager(folder, webhook.url)}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ],
            url,
            folder / "alertmanager.log",
        )
        ends.callback(alertmanager.end)
        config = write_prometheus(folder, f"127.0.0.1:{collector_port}", f"127.0.0.1:{port}")
        alertmanager.wait_for_answer("/api/v2/status")
        port = find_fixed_port()
        prometheus = Running(
            [
                find_program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            f"http://127.0.0.1:{port}",
            folder / "prometheus.log",
        )
        ends.callback(prometheus.end)
        prometheus.wait_for_answer("/api/v1/status/buildinfo")
        yield prometheus, alertmanager, webhook
