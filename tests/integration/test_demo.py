"""`rankscope demo`: a real training of four ranks with one fault, and its verdict. With SOAK each of its faults."""

import json
import os
import re
import stat
import tempfile
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from rankscope.collector.demo.running_collector import RunningCollector, running_collector
from rankscope.collector.detect.finding_words import format_ratio
from tests.integration.faults import IS_SOAK
from tests.integration.serving import wait_for
from tests.integration.torchrun import Ended, python, run

STEPS, SLOW_FROM = 84, 40
SINCE_OFF_MAX = 10
"""Largest error of the first slow step."""

SLOW_RANKS = {"none": 2, "compute": 1, "data": 0, "host": 3}
FAULTS = tuple(SLOW_RANKS) if IS_SOAK else ("none", "compute")
"""Of the others test_quickstart.py (data) and test_ordered_captures_of_jobs.py (host) have a job."""
CAUSES = {"compute": {"host_cpu", "more_work", "gpu_compute"}, "data": {"data_loading"}, "host": {"unseen_wait"}}
RATIOS = (
    "compute_ratio", "communication_ratio", "overlap_ratio", "exposed_communication_ratio", "idle_ratio",
)  # fmt: skip


@dataclass
class Shown:
    """What one demo printed and wrote."""

    fault: str
    ended: Ended
    result: dict[str, Any]


@pytest.fixture(scope="module", params=FAULTS)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The demo with each of FAULTS."""
    fault: str = request.param
    path = tmp_path_factory.mktemp("demo") / "result.json"
    options = {
        "--ranks": 4, "--steps": STEPS, "--fault": fault, "--slow-rank": SLOW_RANKS[fault], "--slow-from": SLOW_FROM,
        "--json-file": path,
    }  # fmt: skip
    ended = demo(*(str(word) for option in options.items() for word in option))
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    return Shown(fault, ended, json.loads(path.read_text()))


def demo(*arguments: str) -> Ended:
    return run(python("-m", "rankscope.collector", "demo", *arguments))


def test_collector_of_a_demo_lets_nobody_else_in() -> None:
    with running_collector() as collector:
        files = [Path(collector.agents[name]) for name in ("RANKSCOPE_KEY_FILE", "RANKSCOPE_COLLECTOR_KEY_FILE")]
        assert [stat.S_IMODE(file.stat().st_mode) for file in (*files, files[0].parent)] == [0o600, 0o600, 0o700]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            RunningCollector(collector.url, "another-token-of-22-ch", {}).read("/metrics")
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(collector.agents["RANKSCOPE_COLLECTOR"])
            wait_for(lambda: find_refusal(collector), lambda: collector.read("/metrics").decode())
    assert not files[0].parent.exists()


def find_refusal(collector: RunningCollector) -> str | None:
    """The counter of refused peers, once it has counted one."""
    text = collector.read("/metrics").decode()
    found = re.search(r'rankscope_peers_refused_total\{reason="(no_keys|broken_handshake)"\} [1-9]', text)
    return found[0] if found else None


def test_result_has_these_keys_and_no_others(shown: Shown) -> None:
    result = shown.result
    assert list(result) == ["run", "world_size", "steps", "ranks", "findings", "metrics_sample_count"]
    for rank in result["ranks"]:
        assert list(rank) == ["rank", "steps", "step_ns_median", "phases_ns", "own_ns_median", *RATIOS]
    for finding in result["findings"]:
        assert list(finding) == ["kind", "rank", "since_step", "slowdown_ratio", "cause", "sentence"]


def test_every_rank_has_its_numbers(shown: Shown) -> None:
    assert (shown.result["world_size"], shown.result["steps"]) == (4, STEPS)
    assert [(rank["rank"], rank["steps"]) for rank in shown.result["ranks"]] == [(rank, STEPS) for rank in range(4)]
    for rank in shown.result["ranks"]:
        assert set(rank["phases_ns"]) == {"data", "forward", "backward", "optimizer", "other"}
        assert all(time_ns > 0 for time_ns in rank["phases_ns"].values())
        assert 0 < rank["own_ns_median"] <= rank["step_ns_median"]
        assert all(0 <= rank[name] <= 1 for name in RATIOS)
        assert rank["exposed_communication_ratio"] <= rank["communication_ratio"]
        parts = rank["compute_ratio"] + rank["exposed_communication_ratio"] + rank["idle_ratio"]
        assert parts == pytest.approx(1)  # on a CPU there are no copies


def test_its_own_metrics_were_scraped(shown: Shown) -> None:
    assert shown.result["metrics_sample_count"] > 100


def blaming(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings that name a rank. Others there may be: four ranks on a few busy cores do become slower together."""
    return [found for found in result["findings"] if found["rank"] is not None]


def is_held_up(shown: Shown) -> bool:
    """Whether other work took the cores from the ranks, by their own waits, and from one of them by a little more."""
    waited = any(found["kind"] == "cpu_pressure" for found in shown.result["findings"])
    return waited and all(found["slowdown_ratio"] < UNEQUAL_MAX for found in blaming(shown.result))


def test_only_the_slow_rank_is_found(shown: Shown) -> None:
    findings = blaming(shown.result)
    if shown.fault == "none":
        assert findings == [] or is_held_up(shown), findings
        return
    assert [(found["kind"], found["rank"]) for found in findings] == [("straggler", SLOW_RANKS[shown.fault])]
    assert abs(findings[0]["since_step"] - SLOW_FROM) <= SINCE_OFF_MAX
    assert findings[0]["slowdown_ratio"] >= 1.1
    assert findings[0]["cause"] in CAUSES[shown.fault]


UNEQUAL_MAX = 1.2
"""Four ranks that queue for two cores beside other work get unequal shares of them."""
PLANTED = {
    "none": "no rank is slow",
    "compute": "rank 1 multiplies matrices for 75 ms in each forward from step 40 on",
    "data": "rank 0 waits 150 ms longer for each batch from step 40 on",
    "host": "rank 3 sleeps 150 ms in each forward from step 40 on",
}
LINES_MAX = 60
"""Of all that it says to a pipe, as `make demo` does."""


def test_first_line_announces_training_and_duration(shown: Shown) -> None:
    first = shown.ended.stdout.splitlines()[0]
    said = re.fullmatch(
        r"demo: trains a small transformer for 84 steps on 4 ranks; (.*)\. Takes about \d+ s, .*", first
    )
    assert said is not None, first
    assert said[1] == PLANTED[shown.fault]


def test_planted_is_followed_by_what_was_found(shown: Shown) -> None:
    lines = shown.ended.stdout.splitlines()
    assert len(lines) < LINES_MAX
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("PLANTED  ")]
    found = lines[begin + 1].removeprefix("FOUND    ")
    if shown.fault == "none":
        # Beside a busy neighbor some steps are long, and whose they are is not known.
        is_clean = found == "no rank is slower than the others" or found.startswith("nothing: ")
        assert is_clean or is_held_up(shown), found
        return
    (straggler,) = blaming(shown.result)
    ratio = format_ratio(straggler["slowdown_ratio"])
    assert re.match(rf"Rank {SLOW_RANKS[shown.fault]} \(.+\): {ratio} slower than its 3 peers, steps ", found), found


def test_ranks_say_nothing_when_all_is_well(shown: Shown) -> None:
    assert shown.ended.stderr == ""


def test_training_that_fails_says_why() -> None:
    """Without the demo's text to learn: a module of its name stands before Python's."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pydoc_data").mkdir()
        (Path(folder) / "pydoc_data" / "__init__.py").touch()
        (Path(folder) / "pydoc_data" / "topics.py").write_text("raise RuntimeError('no text to learn')")
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        command = python("-m", "rankscope.collector", "demo", "--ranks", "1", "--steps", "4")
        ended = run(command, {"PYTHONPATH": path})
    assert ended.exit_code == 1
    assert "RuntimeError: no text to learn" in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "0"), "rankscope: --ranks is 0; it must be from 1 to 64\n"),
        (("--steps", "0"), "rankscope: --steps is 0; it must be from 1 to 1000000\n"),
        (("--ranks", "2", "--slow-rank", "2"), "rankscope: --slow-rank is 2; it must be from 0 to 1\n"),
        (("--slow-from", "-1"), "rankscope: --slow-from is -1; it must be from 0 to 1000000\n"),
        (("--steps", "many"), "argument --steps: invalid int value: 'many'\n"),
        (("--fault", "disk"), "argument --fault: invalid choice: 'disk'"),
    ],
)
def test_invalid_option_is_an_error_with_status_2(arguments: tuple[str, ...], message: str) -> None:
    ended = demo(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_unwritable_result_is_an_error_before_training(tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "result.json"
    ended = demo("--json-file", str(path))
    assert (ended.exit_code, ended.stdout) == (1, "")
    reason = f"{path} (from --json-file) cannot be written: there is no folder {path.parent}. Name another file."
    assert ended.stderr == f"rankscope: {reason}\n"
