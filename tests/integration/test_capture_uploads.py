"""Captures uploaded to a real S3 server on loopback, and to ones that are gone, silent or full."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.integration.faults import IS_SOAK
from tests.integration.listening_collector import listening
from tests.integration.test_captures import find_losses
from tests.integration.torchrun import AGENT, OFTEN, Ended, forked_ranks, name_job, python, run

SCHEDULE = "skip_first=10, wait=10, warmup=1, active=3"
SCRIPT = ("small_ddp.py", "--epochs", "1", "--steps", "40")
JOB = name_job()
LOST = f"it could not be uploaded to s3://runs/captures/{JOB}/steps-21-23/rank-"


def credentials(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint, "AWS_MAX_ATTEMPTS": "1",
    }  # fmt: skip


def capture(endpoint: str, temporary: Path, drain_s: float) -> Ended:
    """Run the job. A collector of its own it has none: the job may be over before rank 1 has that one's address, and
    rank 0 would wait all of `drain_s` for its end.
    """
    temporary.mkdir()
    with listening() as collector:
        ended = run(
            forked_ranks(2, *AGENT, *SCRIPT),
            {
                **OFTEN, **credentials(endpoint), "TMPDIR": str(temporary), "RANKSCOPE_DRAIN_S": str(drain_s),
                "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_RUN": JOB,
                "RANKSCOPE_CAPTURE_FOLDER": "s3://runs/captures", "RANKSCOPE_CAPTURE_SCHEDULE": SCHEDULE,
            },
        )  # fmt: skip
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    assert not list(temporary.glob("rankscope-captures-*"))
    return ended


@pytest.fixture(scope="module")
def plain_losses() -> str:
    return find_losses(run(forked_ranks(2, *SCRIPT)))


@pytest.fixture
def server() -> Iterator[tuple[str, Any]]:
    """An S3 server with the bucket `runs`: its address, and a client."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b",  # noqa: S106 - of the server that this very test starts
    )  # fmt: skip
    client.create_bucket(Bucket="runs")
    yield endpoint, client
    moto.stop()


def test_files_of_all_ranks_are_uploaded_and_analyze_reads_them(server: tuple[str, Any], tmp_path: Path) -> None:
    endpoint, client = server
    ended = capture(endpoint, tmp_path / "temporary", drain_s=30)
    folder = f"captures/{JOB}/steps-21-23"
    assert [one["Key"] for one in client.list_objects_v2(Bucket="runs")["Contents"]] == [
        f"{folder}/rank-0.pt.trace.json.gz", f"{folder}/rank-1.pt.trace.json.gz",
    ]  # fmt: skip
    assert f"rankscope: captured steps 21 to 23 into s3://runs/{folder} (rank 0: " in ended.stderr
    read = run(python("-m", "rankscope.collector", "analyze", f"s3://runs/{folder}"), credentials(endpoint))
    assert read.exit_code == 0, read.stderr


def test_server_that_is_gone_costs_the_capture_not_the_training(tmp_path: Path, plain_losses: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    ended = capture(endpoint, tmp_path / "temporary", drain_s=45)
    assert LOST in ended.stderr
    assert "onnect" in ended.stderr.partition(LOST)[2].splitlines()[0]
    assert find_losses(ended) == plain_losses


def test_silent_server_costs_the_capture_and_at_most_drain_s(tmp_path: Path, plain_losses: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts; nobody answers
        ended = capture(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "temporary", drain_s=1)
    assert LOST in ended.stderr
    assert "drain_s has passed" in ended.stderr
    assert find_losses(ended) == plain_losses


class Full(BaseHTTPRequestHandler):
    """Answers each upload as a store without space does."""

    protocol_version = "HTTP/1.1"  # answers `Expect: 100-continue`, without which the body does not come

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>InsufficientStorage</Code><Message>no space is left</Message></Error>"
        self.send_response(507)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@pytest.mark.skipif(not IS_SOAK, reason="a minute; make soak has it")
def test_full_server_costs_the_capture_and_its_reason_is_said(tmp_path: Path, plain_losses: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Full) as full:
        Thread(target=full.serve_forever, daemon=True).start()
        ended = capture(f"http://127.0.0.1:{full.server_address[1]}", tmp_path / "temporary", drain_s=45)
        full.shutdown()
    assert LOST in ended.stderr
    assert "no space is left" in ended.stderr
    assert find_losses(ended) == plain_losses
