"""`rankscope serve` and `rankscope status` as an operator meets them, and several jobs on one collector."""

import contextlib
import json
import random
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.codec import MAGIC, PROTOCOL, decode, encode
from rankscope.measure.messages import Ack, Refused
from tests.integration.serving import Served, have_ended, read_url, serving
from tests.integration.torchrun import Ended, forked_ranks, python, run, started

RUNS = ("serve-a", "serve/b")
GARBAGE = {"bad_magic": 3, "protocol_too_new": 2, "unknown_kind": 1, "too_short": 1, "bad_body": 1}
ANSWER_MS_MAX = 30_000


def rankscope(*arguments: str, **environment: str) -> Ended:
    """Run a command to its end."""
    return run(python("-m", "rankscope.collector", *arguments), environment)


# -- a collector that cannot start ------------------------------------------------------------------------------------


def test_value_outside_its_limits_is_named_with_limit_and_source() -> None:
    ended = rankscope("serve", "--rank-silent-s", "1")
    assert ended.exit_code == 2
    problem = "rank_silent_s is 1.0 (from the command line); the smallest allowed is 2."
    assert ended.stderr == f"rankscope: {problem} Give a value from 2 to 3_600.\n"


def test_a_variable_that_cannot_be_used_is_named() -> None:
    ended = rankscope("serve", RANKSCOPE_SERVE_CONSTANT_DETECT_STEPS="a few")
    assert ended.exit_code == 2
    assert ended.stderr.startswith(
        "rankscope: detect_steps is 'a few' (from RANKSCOPE_SERVE_CONSTANT_DETECT_STEPS); it must be "
    )


def test_unknown_key_is_named_with_its_file_and_nearest_setting(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    path.write_text("silent_s = 20.0\n")
    ended = rankscope("serve", "--config", str(path))
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"rankscope: silent_s is no setting (from {path}). The nearest is rank_silent_s")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    ended = rankscope("serve", "--config", str(path))
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"rankscope: --config is {str(path)!r}, which cannot be read: ")
    assert ended.stderr.endswith("Name a readable file or leave --config out.\n")


@pytest.mark.parametrize(
    ("option", "address", "other", "cure"),
    [
        ("--listen", "tcp://127.0.0.1:{}", "--http-listen=127.0.0.1:0", "stop it, or choose another port."),
        ("--http-listen", "127.0.0.1:{}", "--listen=tcp://127.0.0.1:0", "Stop what listens there, or give another "),
    ],
)
def test_a_port_that_is_taken_is_named_with_the_cure(option: str, address: str, other: str, cure: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address.format(taken.getsockname()[1])
        ended = rankscope("serve", option, address, other)
    assert ended.exit_code == 1
    assert ended.stderr.startswith("rankscope: ")
    assert f"cannot listen at {address}: Address already in use. " in ended.stderr
    assert cure in ended.stderr


def test_it_starts_where_torch_cannot_be_imported() -> None:
    """As far as to a wrong setting, with all its modules imported."""
    program = (
        "import sys; sys.modules['torch'] = None; "
        "from rankscope.collector import service, embedded; from rankscope.collector.demo import run; "
        "from rankscope.collector.commands.main import main; "
        "sys.exit(main(['serve', '--rank-silent-s', '1']))"
    )
    ended = run(python("-c", program))
    assert ended.exit_code == 2
    assert "rank_silent_s is 1.0" in ended.stderr


# -- two jobs and garbage on one collector ----------------------------------------------------------------------------


@dataclass
class Shared:
    """What was seen of two jobs on one collector, with strangers talking to it between them."""

    while_training: dict[str, RunSnapshot]
    status: Ended
    status_json: Ended
    metrics: str
    refusals: list[Refused]
    at_the_end: dict[str, RunSnapshot]
    ended: dict[str, Ended]
    collector_stderr: str
    collector_maps: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Two jobs at the same time; while both train strangers send garbage and `rankscope status` is asked."""
    stop = tmp_path_factory.mktemp("serve") / "stop"
    with serving() as served, contextlib.ExitStack() as ends:
        jobs = {}
        for name in RUNS:
            settings = {
                "RANKSCOPE_RUN": name, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
            }  # fmt: skip
            command = forked_ranks(2, "-m", "rankscope.agent", "paced.py", "--stop", str(stop))
            jobs[name] = ends.enter_context(started(command, settings))
        before = {name: served.wait_for_steps(name, 5).ranks[0].totals.steps for name in RUNS}
        refusals = talk_garbage(served)
        while_training = {name: served.wait_for_steps(name, before[name] + 10) for name in RUNS}
        status = rankscope("status", "--url", served.url)
        status_json = rankscope("status", "--url", served.url, "--json")
        metrics = served.read_metrics()
        stop.touch()
        ended = {name: job.wait() for name, job in jobs.items()}
        at_the_end = {name: served.wait_for_run(name, have_ended) for name in RUNS}
        maps = Path(f"/proc/{served.pid}/maps").read_text()
        return Shared(
            while_training=while_training,
            status=status,
            status_json=status_json,
            metrics=metrics,
            refusals=refusals,
            at_the_end=at_the_end,
            ended=ended,
            collector_stderr=served.read_stderr(),
            collector_maps=maps,
        )


def talk_garbage(served: Served) -> list[Refused]:
    """Send what is no message, over bare TCP and over ZeroMQ; the answers to it."""
    with socket.create_connection(("127.0.0.1", served.ports[0])) as bare:
        bare.sendall(b"GET / HTTP/1.0\r\n\r\n" + random.Random(7).randbytes(4096))
    frames = [b"x" * 7] * GARBAGE["bad_magic"]
    frames += [struct.pack(">4sHB", MAGIC, PROTOCOL + 1, 3)] * GARBAGE["protocol_too_new"]
    frames += [struct.pack(">4sHB", MAGIC, PROTOCOL, 200), b"RS", struct.pack(">4sHB", MAGIC, PROTOCOL, 3) + b"\xc1"]
    # A collector sends these; from a rank it is no use, and is counted elsewhere.
    frames.append(encode(Ack(through=1)))
    with stranger(served) as dealer:
        for frame in frames:
            dealer.send(frame)
        refusals = []
        for _ in range(GARBAGE["protocol_too_new"]):
            assert dealer.poll(ANSWER_MS_MAX), "no answer to a frame of a future protocol"
            answer = decode(dealer.recv())
            assert isinstance(answer, Refused)
            refusals.append(answer)
    return refusals


@contextlib.contextmanager
def stranger(served: Served) -> Iterator["zmq.Socket[bytes]"]:
    """A connection of one who is no rank."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.connect(served.endpoint)
        yield dealer
    finally:
        context.destroy(linger=0)


def test_two_jobs_on_one_collector_do_not_mix(shared: Shared) -> None:
    boots = []
    for name in RUNS:
        picture = shared.at_the_end[name]
        assert [(rank.identity.run, rank.identity.rank) for rank in picture.ranks] == [(name, 0), (name, 1)]
        trained = dict(re.findall(r"rank (\d) has trained (\d+) steps", shared.ended[name].stdout))
        assert {str(rank.identity.rank): str(rank.totals.steps) for rank in picture.ranks} == trained
        boots += [rank.identity.boot_id for rank in picture.ranks]
    assert len(set(boots)) == 4


def test_garbage_is_counted_by_reason(shared: Shared) -> None:
    """At least: bytes over bare TCP may pass for frames of ZeroMQ's first protocol, and are counted then too."""
    found = re.findall(r'^rankscope_frames_refused_total{reason="(\w+)"} (\d+).0$', shared.metrics, re.MULTILINE)
    counts = {reason: int(count) for reason, count in found}
    assert {reason: count for reason, count in GARBAGE.items() if counts.get(reason, 0) < count} == {}
    assert counts["protocol_too_new"] == GARBAGE["protocol_too_new"]
    assert 'rankscope_collector_errors_total{part="unexpected_message"} 1.0' in shared.metrics


def test_future_protocol_is_told_both_versions_and_the_upgrade(shared: Shared) -> None:
    assert [refusal.reason for refusal in shared.refusals] == ["protocol_too_new"] * 2
    for refusal in shared.refusals:
        assert f"protocol {PROTOCOL + 1}" in refusal.detail
        assert f"1 to {PROTOCOL}" in refusal.detail
        assert "upgrade rankscope" in refusal.detail


def test_garbage_does_no_harm_to_real_runs(shared: Shared) -> None:
    for name in RUNS:
        assert (shared.ended[name].exit_code, shared.ended[name].left) == (0, ())
        for rank in shared.at_the_end[name].ranks:
            assert (rank.ended, rank.report_gaps, rank.losses.reports_dropped) == ("finished", 0, 0)
            assert rank.reports_admitted == rank.last_sequence
    assert "Traceback" not in shared.collector_stderr


def test_a_collector_at_work_has_loaded_no_torch(shared: Shared) -> None:
    assert "zmq" in shared.collector_maps
    assert "torch" not in shared.collector_maps


def test_status_prints_a_table_of_each_run(shared: Shared) -> None:
    assert shared.status.exit_code == 0
    assert shared.status.stderr == ""
    for name in RUNS:
        about = shared.status.stdout.partition(f"run {name}: ")[2].partition("\n\n")[0].splitlines()
        assert any(line.startswith("  2 of 2 ranks: 2 up; ") for line in about), about  # below what was found
        head, *table = about[-3:]
        assert head.split()[:4] == ["rank", "steps", "step", "ms"]
        assert sorted(row.split()[0] for row in table) == ["0", "1"]
        assert [row.split()[-2] for row in table] == ["up", "up"]


def test_status_as_json_is_what_the_api_gives(shared: Shared) -> None:
    assert shared.status_json.exit_code == 0
    runs = {run["run"]: run for run in json.loads(shared.status_json.stdout)}
    assert set(runs) == set(RUNS)
    for name in RUNS:
        boots = [rank.identity.boot_id for rank in shared.while_training[name].ranks]
        assert all(boot in json.dumps(runs[name]) for boot in boots)


def test_collector_without_runs_says_so_and_shows_its_settings() -> None:
    with serving("--grafana-url", "https://g.example/graf/", "--runbooks-url", "https://d.example/r") as served:
        ended = rankscope("status", "--url", served.url)
        event = read_url(f"{served.url}/api/v1/events?count=1").decode()
    assert (ended.exit_code, ended.stdout) == (0, "no run has reported to this collector\n")
    assert json.loads(event.partition("data: ")[2])["settings"] == {
        "listen": "tcp://127.0.0.1:0",
        "needs_keys": False,
        "grafana_url": "https://g.example/graf",
        "runbooks_url": "https://d.example/r",
    }


def test_status_without_a_collector_names_address_and_cure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = rankscope("status", "--url", url)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"rankscope: no collector answers at {url}/api/v1/runs: ")
    assert ended.stderr.endswith(
        "`rankscope serve` starts one; --url (RANKSCOPE_URL) must name the collector's HTTP address.\n"
    )


def test_status_of_something_not_http_is_a_mistake_of_usage() -> None:
    ended = rankscope("status", "--url", "127.0.0.1:18491")
    assert ended.exit_code == 2
    assert ended.stderr == (
        "rankscope: url is '127.0.0.1:18491' (from the command line); an HTTP address begins with http:// or https://.\n"
    )
