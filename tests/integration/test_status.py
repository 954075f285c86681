"""`rankscope status` of a collector of several runs, over a real socket."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.detect.finding import Finding
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from tests.unit.collector.runs.run_snapshots import rank_of

RANKS = 64
SLOW = Finding(kind="straggler", ranks=(3,), cause="host_cpu", sentence="Rank 3 is slow.")


def run_of(name: str, **known: object) -> RunSnapshot:
    ranks = tuple(rank_of(number, run=name, world_size=RANKS, slowdown_ratio=1.0) for number in range(RANKS))
    fields: dict[str, object] = {"world_size": RANKS, "restart_count": 0, "ranks": ranks} | known
    return RunSnapshot(run=name, **fields)  # type: ignore[arg-type]


def end_all(run: RunSnapshot) -> RunSnapshot:
    ranks = tuple(msgspec.structs.replace(rank, up=False, ended="finished") for rank in run.ranks)
    return msgspec.structs.replace(run, ranks=ranks, end=RunEnd(reason="finished", ranks={"finished": RANKS}))


def serve(*runs: RunSnapshot) -> HttpServer:
    """A collector of these runs."""
    return HttpServer(
        listen_http("127.0.0.1:0"), lambda: Snapshot(wall_s=0.0, version="0", runs=runs), lambda: (),
        is_healthy=lambda: None, is_ready=lambda: None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A collector of a run that is over, a healthy one, and one with a slow rank."""
    runs = end_all(run_of("a/over")), run_of("healthy"), run_of("slow", open_findings=(SLOW,))
    with closing(serve(*runs)) as server:
        yield server.url


@pytest.fixture(autouse=True)
def address(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKSCOPE_URL", url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # not the client.toml of whoever runs the tests


def ask(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["status", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_run_with_findings_is_first_and_ended_run_last(capsys: pytest.CaptureFixture[str]) -> None:
    heads = [line for line in ask(capsys) if line.startswith("run ")]
    assert heads == [
        "run slow: Rank 3 is slow.",
        "run healthy: no rank is slower than the others",
        "run a/over: No rank was slower than the others.",
    ]


def test_running_run_lists_ten_ranks_and_ended_run_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overview, *blocks = "\n".join(ask(capsys)).split("\n\n")
    assert overview == "3 runs: 1 with findings (slow)"
    assert [sum(line.endswith(" n0") for line in block.splitlines()) for block in blocks] == [10, 10, 0]


def test_selected_run_is_shown_alone_with_its_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ask(capsys, "--run", "a/over")
    assert [line for line in lines if line.startswith("run ")] == ["run a/over: No rank was slower than the others."]
    assert sum(line.endswith(" n0") for line in lines) == 10


def test_all_lists_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [line.split()[0] for line in ask(capsys, "--run", "slow", "--all") if line.endswith(" n0")]
    assert ranks == [str(number) for number in range(RANKS)]


def test_one_rank_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ask(capsys, "--run", "slow", "--rank", "3")
    assert lines[:2] == ["run slow, rank 3: up (node n0, local rank 3, pid 7)", "  Rank 3 is slow."]
    assert len(lines) == 4


def test_runs_of_one_name_have_ids_and_the_name_is_the_latest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    former, latest = "bert@20261125T103005Z", "bert@20261125T113005Z"
    runs = end_all(run_of("bert", run_id=former)), run_of("bert", run_id=latest)
    with closing(serve(*runs)) as server:
        monkeypatch.setenv("RANKSCOPE_URL", server.url)
        assert [line.partition(":")[0] for line in ask(capsys) if line.startswith("run ")] == [
            f"run bert ({latest})",
            f"run bert ({former})",
        ]
        assert "run bert: no rank is slower than the others" in ask(capsys, "--run", "bert")
        assert "run bert: No rank was slower than the others." in ask(capsys, "--run", former)


def test_json_keeps_its_form_also_for_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = json.loads("\n".join(ask(capsys, "--run", "slow", "--json")))
    assert (run["run"], len(run["ranks"]), run["open_incidents"]) == ("slow", RANKS, [])


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (
            ("--run", "slwo"), 1,
            "no run 'slwo' is known to the collector at {url}. Did you mean 'slow'?",
        ),
        (
            ("--run", "xyz"), 1,
            "no run 'xyz' is known to the collector at {url}. It has 'a/over', 'healthy', 'slow'.",
        ),
        (
            ("--rank", "3"), 2,
            "--rank is 3; name its run in front of it. This collector knows: a/over, healthy, slow.",
        ),
        (("--run", "slow", "--rank", "-1"), 2, "--rank is -1; ranks are whole numbers from 0."),
    ],
)  # fmt: skip
def test_invalid_selection_is_an_error_with_its_cure(
    capsys: pytest.CaptureFixture[str], url: str, options: tuple[str, ...], status: int, said: str
) -> None:
    assert main(["status", *options]) == status
    assert capsys.readouterr().err == f"rankscope: {said.format(url=url)}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["status", "slwo"],
        ["incidents", "slwo"],
        ["top", "slwo", "--once"],
        ["log", "slwo", "--to", "wandb"],
    ],
    ids=lambda words: words[0],
)
def test_all_commands_say_the_same_of_a_run_that_nobody_knows(
    words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    said = f"no run 'slwo' is known to the collector at {url}. Did you mean 'slow'?"
    assert capsys.readouterr() == ("", f"rankscope: {said}\n")


def test_run_without_incidents_is_not_one_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "healthy"]) == 0
    assert "no run" not in capsys.readouterr().err


def test_unknown_rank_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run", "slow", "--rank", "64"]) == 1
    assert "run 'slow' has no rank 64 yet; its world size is 64" in capsys.readouterr().err
