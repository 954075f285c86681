"""Keys as an operator uses them: made by `rankscope keys`, given to a collector and to a job by its settings."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from tests.integration.serving import START_S_MAX, Served, serving, wait_for
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Forked, forked_ranks, run, started

EVERYWHERE = "tcp://0.0.0.0:0"
REFUSAL = re.compile("^rankscope: .*refuses.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of keys."""
    folder = tmp_path_factory.mktemp("keys")
    assert main(["keys", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def served(keys: Path) -> Iterator[Served]:
    """A collector that other machines can reach, with keys."""
    options = ("--key-file", f"{keys}/collector.key", "--allowed-keys", f"{keys}/allowed")
    with serving(*options, listen=EVERYWHERE) as served:
        yield served


def settings_of(served: Served, keys: Path | None, name: str) -> dict[str, str]:
    """The environment of a job of one rank."""
    given = {**ALONE, **OFTEN, "RANKSCOPE_RUN": name, "RANKSCOPE_COLLECTOR": f"tcp://127.0.0.1:{served.ports[0]}"}
    if keys is not None:
        given |= {
            "RANKSCOPE_KEY_FILE": f"{keys}/agent.key",
            "RANKSCOPE_COLLECTOR_KEY_FILE": f"{keys}/collector.pub",
        }
    return given


def test_job_with_keys_reports_and_its_sidecar_tells_its_end(served: Served, keys: Path) -> None:
    command = Forked((*AGENT, "paced.py", "--steps", "20", "--end", "exit", "--end-rank", "0"))
    ended = run(command, settings_of(served, keys, "keyed"))
    assert ended.exit_code == 7
    end = served.wait_for_rank("keyed", 0, lambda rank: rank.ended == "failed").end
    assert end is not None  # os._exit: only the sidecar can know
    assert end.exit_code == 7


def test_job_without_keys_trains_and_logs_what_lacks_once_a_node(served: Served, tmp_path: Path) -> None:
    stop, stderr = tmp_path / "stop", tmp_path / "stderr"
    stderr.touch()
    command = forked_ranks(2, *AGENT, "paced.py", "--stop", str(stop))
    with started(command, settings_of(served, None, "keyless"), stderr_path=str(stderr)) as job:
        wait_for(lambda: REFUSAL.search(stderr.read_text()), stderr.read_text)
        stop.touch()
        assert job.wait().exit_code == 0
    # A rank that is refused only after the other one has ended says it, too: `log_once_per_node` asks for a living one.
    said = REFUSAL.findall(stderr.read_text())
    opening = r"rankscope: the collector refuses rank ([01]) \(keys_wanted\): tcp://127\.0\.0\.1:"
    ranks = [found[1] for line in said if (found := re.match(opening, line))]
    assert len(said) == len(ranks) == len(set(ranks)) > 0
    assert all(line.endswith("Training continues without it.") for line in said)
    assert "keyless" not in served.read_run_names()


def test_unusable_key_file_is_told_and_training_goes_on(served: Served, tmp_path: Path) -> None:
    settings = settings_of(served, tmp_path, "unreadable")  # no keys are in that folder
    ended = run(Forked((*AGENT, "paced.py", "--steps", "1")), settings)
    assert (ended.exit_code, ended.stdout) == (0, "rank 0 has trained 1 steps\n")
    problem = f"collector_key_file is '{tmp_path}/collector.pub', which cannot be read"
    assert ended.stderr.startswith(f"rankscope: not started: {problem}")


def serve(*options: str) -> "subprocess.CompletedProcess[str]":
    """A collector that is not expected to start."""
    command = [sys.executable, "-m", "rankscope.collector", "serve", "--http-listen", "127.0.0.1:0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX, check=False)


def test_an_open_collector_that_others_reach_does_not_start() -> None:
    ended = serve("--listen", EVERYWHERE)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("rankscope: listen is tcp://0.0.0.0:0 (from the command line), which other machines")


def test_told_to_it_starts_and_its_log_says_what_that_means() -> None:
    with serving("--insecure", listen=EVERYWHERE) as served:
        assert "insecure is set: any client that can reach tcp://0.0.0.0:0 can send reports" in served.read_stderr()


def test_the_collector_shows_no_secret(served: Served, keys: Path) -> None:
    secret = (keys / "collector.key").read_text().split('"')[3]
    shown = [served.read_metrics(), served.read_stderr(), json.dumps(served.read_run_names())]
    assert len(secret) == 40
    assert not [text for text in shown if secret in text]
