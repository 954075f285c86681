"""The past of nodes in the store of a real collector: pre-flights ask it, directly, with keys and through a relay."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.preflight.checks import CPU, MEMORY, list_checks, name_matmul
from rankscope.agent.preflight.collector_history import CollectorHistory
from rankscope.agent.preflight.files import append_history, build_line, read_history
from rankscope.agent.preflight.local_checks import read_cpu_model
from rankscope.agent.preflight.past import NodesPast
from rankscope.agent.preflight.results import Measured, NamedNode, PreflightReport, RankResults
from rankscope.collector.commands.main import main
from rankscope.collector.storage.preflights import read_last_preflights
from rankscope.measure.errors import UnavailableError
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from tests.integration.relaying import relaying
from tests.integration.serving import Served, find_fixed_port, read_url, serving
from tests.integration.torchrun import forked_ranks, run

FLOAT32 = name_matmul("float32")
WAIT_S = 30.0
"""Of a collector on busy cores."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of keys."""
    folder = tmp_path_factory.mktemp("keys")
    assert main(["keys", str(folder), "--client", "agent", "--relay", "relay"]) == 0
    return folder


@pytest.fixture(scope="module")
def served(keys: Path) -> Iterator[Served]:
    """A collector with keys and a store."""
    options = ("--key-file", f"{keys}/collector.key", "--allowed-keys", f"{keys}/allowed")
    with serving(*options, "--store", f"{keys}/runs.db") as served:
        yield served


@pytest.fixture
def address(served: Served, keys: Path) -> CollectorAddress:
    """That collector, as an agent with its key has it."""
    own = ClientKeys(read_public_key(f"{keys}/collector.pub", ""), read_key_pair(f"{keys}/agent.key", ""))
    return CollectorAddress(served.endpoint, own)


def settings_of(address: CollectorAddress, keys: Path) -> dict[str, str]:
    """The environment of a pre-flight that uses this collector."""
    return {
        "RANKSCOPE_COLLECTOR": address.endpoint, "RANKSCOPE_KEY_FILE": f"{keys}/agent.key",
        "RANKSCOPE_COLLECTOR_KEY_FILE": f"{keys}/collector.pub",
    }  # fmt: skip


def result_of(node: str, rate: float, check: str = MEMORY) -> RankResults:
    """The only rank of a node."""
    measured = Measured(values=(rate,))
    return RankResults(rank=0, local_rank=0, node=node, kind=CPU, device=read_cpu_model(), checks={check: measured})


def report_of(node: str, rate: float, *, why: str = "", check: str = MEMORY) -> PreflightReport:
    """A pre-flight of one node."""
    return PreflightReport(
        wall_s=1.0, took_s=2.0, status="named" if why else "not_judged", sentence="", ranks=1, nodes=(node,),
        named=(NamedNode(node=node, reasons=(why,)),) if why else (), results=(result_of(node, rate, check),),
    )  # fmt: skip


def keep(
    address: CollectorAddress, node: str, rate: float, *, why: str = "", check: str = MEMORY, forgets_past: bool = False
) -> None:
    """Let a collector keep a pre-flight of one node."""
    report = report_of(node, rate, why=why, check=check)
    line = build_line(report, list_checks(CPU))
    CollectorHistory(address, WAIT_S).keep(report, line, forgets_past=forgets_past)


def test_kept_preflights_are_the_past_of_the_next_one(served: Served, address: CollectorAddress) -> None:
    for rate in (4.0, 5.0):
        keep(address, "plain", rate)
    keep(address, "plain", 1.0, why="memory bandwidth: 1 GB/s")
    nodes = {**{f"unknown-{number}": "EPYC" for number in range(40)}, "plain": read_cpu_model()}  # two messages
    assert CollectorHistory(address, WAIT_S).read_past(nodes) == {MEMORY: {"plain": [4.0, 5.0]}}
    last = json.loads(read_url(f"{served.url}/api/v1/nodes/plain"))["preflight"]
    assert (last["status"], last["reasons"]) == ("named", ["memory bandwidth: 1 GB/s"])


def test_forgotten_past_is_not_compared_with(address: CollectorAddress) -> None:
    keep(address, "renewed", 4.0)
    keep(address, "renewed", 1.0, forgets_past=True)
    found = CollectorHistory(address, WAIT_S).read_past({"renewed": read_cpu_model()})
    assert found == {MEMORY: {"renewed": [1.0]}}


def test_file_of_history_is_compared_with_and_both_keep(
    address: CollectorAddress, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings_of(address, keys).items():
        monkeypatch.setenv(name, value)
    keep(address, "both", 4.0)
    path = tmp_path / "history.jsonl"
    append_history(str(path), build_line(report_of("both", 7.0), list_checks(CPU)))
    past = NodesPast(str(path), None, WAIT_S)
    past.read({"both": read_cpu_model()})
    assert (past.find([result_of("both", 1.0)]), past.mistakes) == ({MEMORY: {"both": [7.0]}}, [])
    past.keep(report_of("both", 8.0), list_checks(CPU))
    assert CollectorHistory(address, WAIT_S).read_past({"both": read_cpu_model()}) == {MEMORY: {"both": [4.0, 8.0]}}
    assert read_history(str(path)).find_past([result_of("both", 1.0)]) == {MEMORY: {"both": [7.0, 8.0]}}


def test_past_is_reached_through_a_relay(served: Served, keys: Path, address: CollectorAddress) -> None:
    keep(address, "relayed", 4.0)
    given = ("--key-file", f"{keys}/relay.key", "--collector-key-file", f"{keys}/collector.pub")
    with relaying(served.endpoint, *given) as relay:
        there = CollectorAddress(relay.endpoint)
        keep(there, "relayed", 5.0)
        found = CollectorHistory(there, WAIT_S).read_past({"relayed": read_cpu_model()})
    assert found == {MEMORY: {"relayed": [4.0, 5.0]}}


def test_collector_that_wants_keys_is_not_waited_for(served: Served) -> None:
    with pytest.raises(UnavailableError, match=r"did not send the past of the nodes: .* admits only agents with keys"):
        CollectorHistory(CollectorAddress(served.endpoint), wait_s=600.0).read_past({"a": "EPYC"})


def test_collector_without_a_store_says_so() -> None:
    with serving() as storeless, pytest.raises(UnavailableError, match="the collector has no store: name its file"):
        CollectorHistory(CollectorAddress(storeless.endpoint), WAIT_S).read_past({"a": "EPYC"})


def test_collector_that_does_not_answer_is_given_up() -> None:
    nowhere = CollectorAddress(f"tcp://127.0.0.1:{find_fixed_port()}")
    with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s.*Nodes are compared with their peers only"):
        CollectorHistory(nowhere, wait_s=0.2).read_past({"a": "EPYC"})


def test_node_alone_is_judged_by_its_past_and_kept(keys: Path, address: CollectorAddress, tmp_path: Path) -> None:
    for _ in range(3):
        keep(address, "node-0", 1e9, check=FLOAT32)  # of a matrix product: no CPU reaches it
    path = tmp_path / "preflight.json"
    options = ("--budget-s", "5", "--json-file", str(path), "--disk-folder", str(tmp_path))
    ended = run(forked_ranks(1, "preflight_nodes.py", "-", "-", *options), settings_of(address, keys))
    report = json.loads(path.read_text())
    assert ended.exit_code == 1, ended.stderr
    assert [one["node"] for one in report["named"]] == ["node-0"], ended.stdout
    assert "against 1e+09 in its last 3 pre-flights" in report["named"][0]["reasons"][0]
    where = f"the store of the collector at {address.endpoint}"
    assert f"past: 1 of 1 nodes has 3 or more earlier pre-flights in {where}\n" in ended.stdout
    last = read_last_preflights(keys / "runs.db")["node-0"]  # the list of the API is kept for a minute
    assert last.status == "named"
    assert last.reasons[0].startswith("matmul float32")
