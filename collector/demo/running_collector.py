"""Run a collector for a training that a command starts: with keys and a token of its own, as one that rank 0 starts."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError
from rankscope.measure.key_files import PRIVATE_FILE, ClientKeys, format_key_file

HTTP_TIMEOUT_S: Final = 10.0
PROCESS_END_S_MAX: Final = 20.0
COLLECTOR_ENVIRONMENT: Final = {
    # Such a training lasts a minute: what is found is shown half a second earlier.
    "RANKSCOPE_SERVE_CONSTANT_TICK_S": "0.5",
    "RANKSCOPE_SERVE_CONSTANT_CLOCK_PING_S": "1",
}


class RunningCollector(NamedTuple):
    """A collector on free ports of this machine. `agents` are the variables by which agents find it, and `url` is
    without a trailing slash.
    """

    url: str
    token: str
    agents: Mapping[str, str]

    @property
    def page(self) -> str:
        """The address of the live page, with the token."""
        return f"{self.url}/?token={self.token}"

    def read(self, path: str, timeout_s: float = HTTP_TIMEOUT_S) -> bytes:
        """Return the body of one of its pages. Raises OSError, of which urllib's errors are subclasses."""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            body: bytes = answer.read()
        return body

    def read_run(self, name: str, timeout_s: float = HTTP_TIMEOUT_S) -> RunSnapshot | None:
        """Return the run from its API; None while it does not know it, or does not answer in time: a busy machine is no
        reason to end.
        """
        try:
            body = self.read(f"/api/v1/runs/{quote(name, safe='')}", timeout_s)
        except urllib.error.HTTPError as error:
            if error.code == 404:  # noqa: PLR2004
                return None
            raise
        except (TimeoutError, urllib.error.URLError) as error:
            if isinstance(error, TimeoutError) or isinstance(error.reason, TimeoutError):
                return None
            raise
        return msgspec.json.decode(body, type=RunSnapshot)


@contextmanager
def running_collector() -> Iterator[RunningCollector]:
    """Run a collector until the block is left; its keys are in a folder of this user meanwhile. Raises
    UnavailableError.
    """
    command = build_child_command(
        sys.executable, "rankscope.collector", "serve", "--announce", "--fresh-keys",
        "--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0",
    )  # fmt: skip
    # Settings of a standing collector are not for this one.
    others = {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE_SERVE_")}
    environment = {**others, **COLLECTOR_ENVIRONMENT}
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-keys-") as folder,
        subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as child,
    ):
        try:
            announced = json.loads(_first_line(child.stdout))
            url = announced["metrics_url"].removesuffix("/metrics")
            yield RunningCollector(url, announced["http_token"], _hand_over(announced, Path(folder)))
        finally:
            end_process(child)


def _hand_over(announced: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write the keys of the agents to files in this folder, and return the variables that name them."""
    keys = msgspec.convert(announced["keys"], ClientKeys)
    own, collector = folder / "agent.key", folder / "collector.pub"
    for path, text in (
        (own, format_key_file(*msgspec.structs.astuple(keys.own))),
        (collector, format_key_file(keys.collector)),
    ):
        path.touch(PRIVATE_FILE)
        path.write_text(text)
    return {
        "RANKSCOPE_COLLECTOR": announced["endpoint"],
        "RANKSCOPE_KEY_FILE": str(own),
        "RANKSCOPE_COLLECTOR_KEY_FILE": str(collector),
    }


def _first_line(stream: IO[str] | None) -> str:
    line = stream.readline() if stream is not None else ""
    if not line:
        text = "the collector did not start; `rankscope serve` prints the reason"
        raise UnavailableError(text)
    return line


def end_process(child: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Stop a child process: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(PROCESS_END_S_MAX)
