"""`make dist`: the same commit gives the same bytes, and what comes out works where nothing else is installed."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from rankscope.measure import __version__
from tests.integration.environments import LONGEST_S, clean_environment, lend_torch, make_environment, run
from tests.integration.torchrun import ALONE
from tests.lowest_versions import read_lowest, render

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "traces"

pytestmark = pytest.mark.xdist_group("dist")  # one worker builds, once


def build(tree: Path, out: Path, umask: int = 0o022) -> list[Path]:
    done = run(sys.executable, tree / "deploy" / "dist.py", "--out", out, umask=umask)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel and the source distribution of this commit, in this order."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def empty(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, what it asks for, and nothing else."""
    return make_environment(built[0], tmp_path_factory.mktemp("empty"))


def test_same_commit_gives_the_same_bytes_elsewhere_and_by_somebody_else(built: list[Path], tmp_path: Path) -> None:
    done = run("git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "clone")
    assert done.returncode == 0, done.stderr
    again = build(tmp_path / "clone", tmp_path / "out", umask=0o077)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_what_is_not_committed_is_not_built(built: list[Path], tmp_path: Path) -> None:
    assert run("git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "clone").returncode == 0
    (tmp_path / "clone" / "measure" / "left_lying.py").write_text("")
    again = build(tmp_path / "clone", tmp_path / "out")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_unknown_commit_is_said_and_builds_nothing(tmp_path: Path) -> None:
    done = run(sys.executable, ROOT / "deploy" / "dist.py", "--out", tmp_path, "--commit", "no-such-commit")
    assert done.returncode == 1
    assert "no-such-commit" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wheel_works_without_torch(empty: Path, tmp_path: Path) -> None:
    environment = clean_environment()
    assert run(empty / "python", "-c", "import torch", env=environment).returncode != 0
    assert run(empty / "rankscope", "--version", env=environment).stdout == f"rankscope {__version__}\n"
    trace = next(TRACE.rglob("*.json*"))
    shutil.copy(trace, tmp_path)
    result = tmp_path / "result.json"
    done = run(empty / "rankscope", "analyze", tmp_path, "--json", result, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(result.read_text())["ranks"]) == 1


def test_wheel_serves_without_torch(empty: Path, tmp_path: Path) -> None:
    command = [str(empty / "rankscope"), "serve", "--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    options = {"stdout": subprocess.PIPE, "text": True, "env": clean_environment(), "cwd": tmp_path}
    with subprocess.Popen([*command, "--announce"], **options) as server:  # type: ignore[call-overload]
        try:
            announced = json.loads(server.stdout.readline())
            assert announced["endpoint"].startswith("tcp://127.0.0.1:")
            url = announced["metrics_url"].removesuffix("/metrics")
            done = run(empty / "rankscope", "status", "--url", url, env=clean_environment())
            assert done.stdout == "no run has reported to this collector\n"
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(LONGEST_S) == 0


def test_source_distribution_installs_and_watches_a_training_with_torch(built: list[Path], tmp_path: Path) -> None:
    programs = make_environment(built[1], tmp_path / "environment")
    lend_torch(programs)
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(30):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    environment = clean_environment(**ALONE, RANKSCOPE_RUN="from-sdist")
    done = run(programs / "python", "-m", "rankscope.agent", script, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "30 steps" in done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the oldest numpy that is asked for has no build for it")
def test_a_job_is_watched_by_the_oldest_versions_that_are_asked_for(built: list[Path], tmp_path: Path) -> None:
    lowest = tmp_path / "lowest.txt"
    lowest.write_text(render())
    programs = make_environment(built[0], tmp_path / "environment", "--constraint", lowest, "--only-binary", ":all:")
    asked = {name: Version(version) for name, version in read_lowest().items()}
    frozen = run(programs / "python", "-m", "pip", "freeze").stdout.lower().replace("_", "-").splitlines()
    installed = {name: Version(version) for name, _, version in (line.partition("==") for line in frozen) if version}
    assert set(installed) <= set(asked)  # nothing else comes along
    assert all(installed[name] == asked[name] for name in set(installed) & set(asked))
    assert {"msgspec", "numpy", "nvidia-ml-py", "psutil", "pyzmq"} <= set(installed)
    lend_torch(programs)
    result = tmp_path / "result.json"
    command = ("demo", "--ranks", "2", "--steps", "84", "--fault", "compute", "--slow-rank", "1", "--slow-from", "40")
    done = run(programs / "rankscope", *command, "--json", result, env=clean_environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(result.read_text())
    assert [rank["steps"] for rank in told["ranks"]] == [84, 84]
    assert [found["rank"] for found in told["findings"] if found["rank"] is not None] == [1]
    assert told["metrics_sample_count"] > 100
    assert not [line for line in done.stderr.splitlines() if "Warning" in line or "Traceback" in line]
