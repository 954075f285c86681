"""A pre-flight of real ranks with gloo, each as if on a node of its own, some with a bound of CPU time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cpu_quotas import cpu_quotas, why_none
from tests.integration.faults import IS_SOAK
from tests.integration.torchrun import Ended, forked_ranks, run, torchrun

NODES = 4
TRIES = range(10 if IS_SOAK else 1)
CORES = 0.3
"""Of each healthy node: together they have less than this machine's two."""
SLOW_CORES = 0.1

with_quotas = pytest.mark.skipif(bool(why_none()), reason=why_none())


def preflight(folder: Path, cores: Sequence[float], *options: str, dying: str = "-") -> tuple[Ended, Any]:
    """Run it, and return how it ended with its JSON; None without."""
    path = folder / "preflight.json"
    given = ["--budget-s", "20", "--json-file", str(path), "--disk-folder", str(folder), *options]
    with cpu_quotas(cores) as groups:
        places = ",".join(map(str, groups)) or "-"
        ended = run(forked_ranks(NODES, "preflight_nodes.py", places, dying, *given))
    return ended, json.loads(path.read_text()) if path.exists() else None


def name_nodes(report: Any) -> list[str]:
    return [named["node"] for named in report["named"]]


@with_quotas
@pytest.mark.parametrize("attempt", TRIES)
def test_node_with_a_third_of_the_cpu_is_named(tmp_path: Path, attempt: int) -> None:
    slow = (attempt + 2) % NODES
    cores = [SLOW_CORES if number == slow else CORES for number in range(NODES)]
    ended, report = preflight(tmp_path, cores, "--exclude-file", str(tmp_path / "exclude.txt"))
    assert report is not None, ended.stderr
    assert name_nodes(report) == [f"node-{slow}"], ended.stdout
    assert (ended.exit_code, report["status"], ended.left) == (1, "named", ())
    assert (tmp_path / "exclude.txt").read_text() == f"node-{slow}\n"
    # Which of the checks are slow both times depends on when others had the cores.
    products = [why for why in report["named"][0]["reasons"] if why.startswith("matmul ")]
    assert all("other processes, or a limit of CPU time, may be why" in why for why in products), products
    assert ended.stdout.splitlines()[-1] == f"verdict: 1 of 4 nodes was named: node-{slow}."


@with_quotas
@pytest.mark.parametrize("attempt", TRIES)
def test_no_equal_node_is_named(tmp_path: Path, attempt: int) -> None:
    ended, report = preflight(tmp_path, [CORES] * NODES)
    assert report is not None, ended.stderr
    assert (name_nodes(report), report["links"]) == ([], []), (attempt, ended.stdout)
    assert (ended.exit_code, report["status"]) == (0, "none_named")
    assert len(report["compared"]) == 5
    assert list(report["not_compared"]) == ["all-reduce in the node"]


def test_dead_rank_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    ended, report = preflight(tmp_path, [], "--wait-s", "5", dying="2")
    assert ended.exit_code != 0
    assert report is None
    assert ended.left == ()
    assert "rank 0 (node-0): " in ended.stderr
    assert "ended by SIGTERM" in ended.stderr or "rank 2 (node-2) did not answer" in ended.stderr


def test_ranks_of_one_node_under_torchrun(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    no_folder = str(tmp_path / "nowhere")
    given = ["--budget-s", "5", "--json-file", str(path), "--disk-folder", no_folder]
    ended = run(torchrun(2, "-m", "rankscope.agent.preflight", *given), {"RANKSCOPE": "1"})
    assert (ended.exit_code, ended.left) == (1, ())  # torchrun's own, of ranks that ended with 3
    report = json.loads(path.read_text())
    assert (report["status"], report["ranks"], len(report["nodes"])) == ("not_judged", 2, 1)
    assert report["sentence"].startswith("Not judged: nothing could be compared")
    assert report["not_compared"]["disk write and fsync"].startswith(f"{no_folder} cannot be written to: No such file")
    assert "exitcode  : 3" in ended.stderr
    rates = report["results"][0]["checks"]["node_all_reduce"]["values"]
    assert len(rates) == 12
    assert min(rates) > 0
