"""`rankscope analyze` on good traces, broken ones, in a bucket, on a Dask cluster."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from rankscope.collector.commands.main import main
from rankscope.collector.traces import analyze

TRACES = Path(__file__).parents[1] / "traces"
GLOO = TRACES / "gloo-2.13" / "ddp_2r_slow1_data"
LIMIT_S = 500
DOCUMENT = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}, '


def rankscope(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rankscope.collector", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_folder_of_ranks_ends_in_tables_a_verdict_and_json(tmp_path: Path) -> None:
    ended = rankscope("analyze", GLOO, "--json-file", tmp_path / "report.json", "--html", tmp_path / "report.html")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Rank 1 (vm): 1.63x slower than the other rank, steps 1-3." in " ".join(ended.stdout.split())
    report = json.loads((tmp_path / "report.json").read_text())
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert [found["rank"] for found in report["cross_rank"]["findings"]] == [1]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_steps_and_rank_choose_what_is_analyzed(tmp_path: Path) -> None:
    ended = rankscope("analyze", GLOO, "--rank", "1", "--steps", "2:3", "--json-file", tmp_path / "report.json")
    assert ended.returncode == 0
    (rank,) = json.loads((tmp_path / "report.json").read_text())["ranks"]
    assert (rank["rank"], [step["step"] for step in rank["steps"]]) == (1, [2])


def test_comparison_is_in_text_json_and_page(tmp_path: Path) -> None:
    outputs = ("--json-file", tmp_path / "report.json", "--html", tmp_path / "report.html")
    ended = rankscope("analyze", GLOO, "--against", GLOO.with_name("ddp_2r_clean"), *outputs)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "DIFFERENCE BY OPERATOR" in ended.stdout
    assert "DISTRIBUTED OVERVIEW" not in ended.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["comparison"]["refused"], report["comparison"]["ranks"]) == (None, [0, 1])
    assert '<section id="difference_operators"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("how", ["gzip through a pipe", "text through a pipe", "a redirected file"])
def test_trace_on_standard_input_gives_the_report_of_the_file(how: str) -> None:
    path = TRACES / "h100_bert_small.json.gz"
    command = [sys.executable, "-m", "rankscope.collector", "analyze", "-", "--json"]
    packed = path.read_bytes()
    with path.open("rb") as file:
        piped = gzip.decompress(packed) if how == "text through a pipe" else packed
        source: dict[str, Any] = {"stdin": file} if how == "a redirected file" else {"input": piped}
        ended = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, **source)
    assert (ended.returncode, ended.stderr) == (0, b"")
    found, expected = json.loads(ended.stdout), json.loads(rankscope("analyze", path, "--json").stdout)
    assert found["ranks"][0].pop("file") == "/dev/stdin"
    del expected["ranks"][0]["file"]
    assert found == expected


@pytest.mark.parametrize(
    ("options", "piped", "reason"),
    [
        ([], b"", "/dev/stdin: the file is empty"),
        ([], DOCUMENT[:-30], "/dev/stdin: "),
        (["--list"], DOCUMENT, "- is standard input, which is read once"),
        (["--against", "-"], DOCUMENT, "- is standard input, which is read once"),
        (["--rank-from", r"(\d+)"], DOCUMENT, "- is standard input, which is read once"),
        ([str(GLOO)], DOCUMENT, "- is standard input, which is read once"),
    ],
)  # fmt: skip
def test_standard_input_that_cannot_be_used_is_one_line(options: list[str], piped: bytes, reason: str) -> None:
    command = [sys.executable, "-m", "rankscope.collector", "analyze", "-", *options]
    ended = subprocess.run(command, input=piped, capture_output=True, timeout=LIMIT_S, check=False)
    (line,) = ended.stderr.decode().splitlines()
    assert (ended.returncode, line.startswith(f"rankscope: {reason}")) == (2, True)


def test_refused_comparison_ends_with_status_two() -> None:
    ended = rankscope("analyze", GLOO, "--against", TRACES / "a100_nccl_2ranks_r0.json.gz")
    assert ended.returncode == 2
    assert ended.stderr.startswith("rankscope: not compared: these traces are of a CPU")


def test_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "rankscope.collector", "analyze", str(TRACES / "a100_nccl_2ranks_r0.json.gz")]
    with subprocess.Popen([*command, "--top", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == b""


# -- what is broken ---------------------------------------------------------------------------------------------------

WHOLE = (GLOO / "rank0.json.gz").read_bytes()
BROKEN = {
    "cut_gzip.json.gz": (WHOLE[:20], "cut off"),
    "flipped.json.gz": (WHOLE[:5000] + bytes(256) + WHOLE[5256:], "broken"),
    "cut.json": (DOCUMENT[:40], "it ends inside its events"),
    "prose.json": (b"this is no JSON", "not JSON: it begins with b'this is no J'"),
    "empty.json": (b"", "the file is empty"),
    "other.json": (b'{"a": [1, 2]}', 'JSON without "traceEvents"'),
    "comma.json": (b'{"traceEvents": [{"ph": "X" "cat": 1}]}', "the JSON is broken"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_file_is_named_with_reason_and_byte(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    assert main(["analyze", str(tmp_path / name)]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    last = stderr.splitlines()[-1]  # on a slow machine there is progress before it
    assert last.startswith(f"rankscope: {tmp_path / name}: ")
    assert reason in last
    assert "at byte" in stderr


def test_file_cut_off_is_analyzed_up_to_the_cut_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rank0.json.gz").write_bytes(WHOLE[: len(WHOLE) // 2])
    ended = rankscope("analyze", tmp_path, "--json-file", tmp_path / "out")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "the file is cut off at byte 2,298,807: what follows is missing" in ended.stdout
    (rank,) = json.loads((tmp_path / "out").read_text())["ranks"]
    assert rank["event_count"] > 0


def test_other_files_are_still_analyzed(tmp_path: Path) -> None:
    shutil.copy(GLOO / "rank0.json.gz", tmp_path)
    (tmp_path / "rank1.json.gz").write_bytes(BROKEN["cut_gzip.json.gz"][0])
    ended = rankscope("analyze", tmp_path, "--json-file", tmp_path / "out")
    assert ended.returncode == 1
    report = json.loads((tmp_path / "out").read_text())
    assert [rank["rank"] for rank in report["ranks"]] == [0]
    assert [error["file"] for error in report["errors"]] == [str(tmp_path / "rank1.json.gz")]


def test_two_files_of_one_rank_are_an_error(tmp_path: Path) -> None:
    shutil.copy(GLOO / "rank0.json.gz", tmp_path / "a.json.gz")
    (tmp_path / "b.json.gz").write_bytes(WHOLE + gzip.compress(b" "))
    ended = rankscope("analyze", tmp_path)
    assert ended.returncode == 1
    assert f"b.json.gz: it claims rank 0, as {tmp_path}/a.json.gz does" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["/no/such/file.json"], "there is no such file or folder"),
        ([str(TRACES / "gloo-2.13")], "holds no trace"),
        ([str(GLOO), "--steps", "3"], "it is FIRST:END"),
        ([str(GLOO), "--steps", "5:3"], "the end must come after the first"),
        ([str(GLOO), "--top", "0"], "it must be 1 or more"),
        ([str(GLOO), "--force"], "without --against"),
        ([str(GLOO), "--rank", "7"], "no trace of rank 7"),
        ([str(GLOO), "--cycle", "2"], "--cycle is 2; each rank has one cycle here"),
        ([str(GLOO), "--rank-from", "("], "--rank-from is '(', which is not a valid regular expression"),
        (
            [str(GLOO), "--communication-kernels", "("],
            "--communication-kernels is '(', which is not a valid regular expression",
        ),
        ([str(GLOO), "--rank-from", "rank"], "it needs a group around the rank"),
        ([str(GLOO), "--rank-from", "host(.)"], "its groups match no number in any path"),
        ([str(GLOO), "--executor", "spark://host"], "it is dask://HOST:PORT"),
        (["s4://bucket/trace.json"], "s4"),
    ],
)
def test_mistake_of_the_user_is_one_line_and_status_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_list_says_what_each_file_is_without_analyzing(tmp_path: Path) -> None:
    shutil.copy(GLOO / "rank1.json.gz", tmp_path / "b.json.gz")
    (tmp_path / "a.json").write_text("no trace")
    ended = rankscope("analyze", tmp_path, "--list")
    assert ended.returncode == 1
    header, bad, good = ended.stdout.splitlines()
    assert re.split("  +", header)[:5] == ["RANK", "KNOWN FROM", "CYCLE", "WORLD", "HOST"]
    assert re.split("  +", header)[5:] == ["FIRST EVENT (UTC)", "LENGTH", "STEPS", "FILE"]
    assert re.split("  +", bad) == ["-", "-", "1 of 1", "-", "-", "-", "-", "-", f"{tmp_path}/a.json"]
    # Its baseTimeNanoseconds 1,790,857,026 s and first ts 4,361,665.028 s; the last event ends 931.581 ms later.
    span = ["2026-11-20 23:51:31.028", "931.6 ms", "1-3"]
    assert re.split("  +", good) == ["1", "the trace", "1 of 1", "2", "vm", *span, f"{tmp_path}/b.json.gz"]
    assert ended.stderr.startswith(f"rankscope: {tmp_path}/a.json: not JSON")


def test_rank_is_found_by_the_users_pattern(tmp_path: Path) -> None:
    for node in (5, 6):
        (tmp_path / f"n{node}").mkdir()
        shutil.copy(GLOO / f"rank{node - 5}.json.gz", tmp_path / f"n{node}" / "x.json.gz")
    paths = [tmp_path / "n5", tmp_path / "n6"]
    ended = rankscope("analyze", *paths, "--rank-from", r"/n(\d+)/", "--json-file", tmp_path / "out")
    assert ended.returncode == 0
    assert [rank["rank"] for rank in json.loads((tmp_path / "out").read_text())["ranks"]] == [5, 6]


def test_unwritable_page_is_an_error(tmp_path: Path) -> None:
    ended = rankscope("analyze", GLOO / "rank0.json.gz", "--html", tmp_path / "no" / "such" / "folder.html")
    assert ended.returncode == 1
    assert "(from --html) cannot be written" in ended.stderr


def test_output_that_would_overwrite_trace_or_output_is_refused(tmp_path: Path) -> None:
    shutil.copy(GLOO / "rank0.json.gz", tmp_path)
    trace = tmp_path / "rank0.json.gz"
    ended = rankscope("analyze", trace, "--json-file", trace)
    assert ended.returncode == 1
    assert "it is a trace, which would be lost. Name another file." in ended.stderr
    assert trace.read_bytes() == WHOLE
    ended = rankscope("analyze", trace, "--json-file", tmp_path / "out", "--html", tmp_path / "out")
    assert ended.returncode == 2
    assert "--json-file and --html are both" in ended.stderr


# -- a bucket ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """A real S3 server on loopback with a run's traces; what the environment needs to reach it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    credentials = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**credentials, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    client = boto3.client(
        "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
        aws_access_key_id="a", aws_secret_access_key="b",  # noqa: S106 - of the server that this very test starts
    )  # fmt: skip
    client.create_bucket(Bucket="runs")
    for rank in (0, 1):
        client.put_object(
            Bucket="runs", Key=f"job/rank{rank}.json.gz", Body=(GLOO / f"rank{rank}.json.gz").read_bytes()
        )
    client.put_object(Bucket="runs", Key="empty/readme.txt", Body=b"nothing here")
    yield environment
    server.stop()


@pytest.mark.parametrize("path", ["s3://runs/job/", "s3://runs/job/rank*.json.gz"])
def test_traces_in_a_bucket_give_the_same_report(path: str, bucket: dict[str, str], tmp_path: Path) -> None:
    ended = rankscope("analyze", path, "--json-file", tmp_path / "report.json", **bucket)
    told = [line for line in ended.stderr.splitlines() if " of 2 files" not in line]  # how far, on a slow machine
    assert (ended.returncode, told) == (0, [])
    report = json.loads((tmp_path / "report.json").read_text())
    local = analyze(str(GLOO))
    assert [rank["compute_ns"] for rank in report["ranks"]] == [rank.compute_ns for rank in local.ranks]
    assert report["ranks"][0]["file"] == "s3://runs/job/rank0.json.gz"


@pytest.mark.parametrize("path", ["s3://runs/job/rank7.json.gz", "s3://runs/empty/", "s3://nowhere/job/"])
def test_missing_object_is_an_error_in_one_line(path: str, bucket: dict[str, str]) -> None:
    ended = rankscope("analyze", path, **bucket)
    told = [line for line in ended.stderr.splitlines() if " files, " not in line]
    assert (ended.returncode, len(told)) == (2, 1)
    assert path in told[0]


# -- a cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment_restored() -> Iterator[None]:
    """Dask sets OMP_NUM_THREADS and its like for its workers in this very process, and leaves them there."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment_restored")
def test_dask_cluster_gives_the_same_report() -> None:
    from distributed import LocalCluster  # noqa: PLC0415 - imports a web server

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        if not address.startswith("tcp://"):
            pytest.fail(f"the cluster listens at {address}, not on TCP")
        spread = analyze(str(GLOO), executor=f"dask://{address.removeprefix('tcp://')}")
    assert spread == analyze(str(GLOO))


def test_uncompressed_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_bytes(gzip.decompress(WHOLE))
    assert analyze(str(tmp_path / "plain.json")).ranks[0].compute_ns == analyze(str(GLOO)).ranks[0].compute_ns
