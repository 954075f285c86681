"""The images, built in a folder from exactly what their Dockerfiles copy, and started."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.integration.docker_builds import Build, send_context
from tests.integration.environments import LONGEST_S, clean_environment, lend_torch, run
from tests.integration.torchrun import ALONE

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
SECRETS = ("deploy/docker/keys/collector.key", "deploy/docker/keys/agent.key", "somewhere/agent.key", ".git/config")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the builder is sent."""
    sent = tmp_path_factory.mktemp("images") / "context"
    send_context(ROOT, sent)
    return sent


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a Python that has nothing installed. The collector's image has an environment of its own, so
    that only the training's installs into this one.
    """
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=True)
    return folder / "bin"


def build(name: str, context: Path, base: Path, folder: Path) -> Build:
    """Build an image."""
    made = Build(context, folder / "root", f"{base}:{os.environ['PATH']}")
    made.root.mkdir()
    made.run(DOCKER / name)
    return made


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the image's own pins ask for Python 3.11 or later")
def test_collector_image_holds_a_collector_that_answers(context: Path, base: Path, tmp_path: Path) -> None:
    made = build("Dockerfile.collector", context, base, tmp_path)
    program, *arguments = made.command
    (tmp_path / "root" / "var" / "lib" / "rankscope").mkdir(parents=True)
    command = [str(tmp_path / "root" / "opt" / "rankscope" / "bin" / program), *arguments]
    command += ["--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--announce"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean_environment(), cwd=tmp_path
    ) as collector:
        try:
            assert collector.stdout is not None
            url = json.loads(collector.stdout.readline())["metrics_url"].removesuffix("/metrics")
            with urllib.request.urlopen(f"{url}/healthz", timeout=LONGEST_S) as answer:
                assert answer.status == 200
        finally:
            collector.send_signal(signal.SIGTERM)
        assert collector.wait(LONGEST_S) == 0
    assert (tmp_path / "root" / "var" / "lib" / "rankscope" / "incidents.db").exists()


def test_training_image_watches_a_training(context: Path, base: Path, tmp_path: Path) -> None:
    build("Dockerfile.training", context, base, tmp_path)
    lend_torch(base)
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(30):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    environment = clean_environment(**ALONE, RANKSCOPE="1", RANKSCOPE_RUN="in-the-image")
    done = run(base / "python", script, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "30 steps" in done.stderr


def test_builder_is_sent_no_secret_and_no_environment(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (*SECRETS, ".venv/bin/python", "tests/test_x.py", "agent/__pycache__/x.pyc", "agent/session.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    (tree / ".dockerignore").write_text((ROOT / ".dockerignore").read_text())
    send_context(tree, tmp_path / "sent")
    assert [path.name for path in (tmp_path / "sent").rglob("*") if path.is_file()] == ["session.py"]
