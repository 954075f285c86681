"""`rankscope log` beside a real job with a slow rank: what MLflow and W&B have of its ranks and their node."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.loggers.rows import name_node
from tests.integration.ordering_collectors import running
from tests.integration.serving import wait_for
from tests.integration.torchrun import AGENT, OFTEN, forked_ranks, started
from tests.integration.wandb_files import read_history

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("mlflow", "wandb"))),
    reason="mlflow or wandb is not installed; the extra `test` has them from Python 3.11 on",
)
COST_S = 0.06
"""What rank 1 sleeps in each step (scripts/costly_lines.py)."""
OWN = re.compile(r"rankscope/rank/(\d+)/own_s")


@pytest.fixture(scope="module")
def monkeypatch_of_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch_of_module: pytest.MonkeyPatch) -> Path:
    """Where both have written. The training's own run of MLflow is the one of the experiment `training`."""
    import mlflow  # noqa: PLC0415 - only where it is installed

    folder = tmp_path_factory.mktemp("log")
    wish = folder / "wish"
    wish.write_text("sleep", encoding="utf-8")
    monkeypatch_of_module.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking = (folder / "mlflow").as_uri()
    client = mlflow.MlflowClient(tracking)
    run_id = client.create_run(client.create_experiment("training")).info.run_id
    client.log_metric(run_id, "loss", 1.0)
    environment = {
        **os.environ, "MLFLOW_TRACKING_URI": tracking, "WANDB_MODE": "offline", "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true", "HOME": str(folder),
    }  # fmt: skip
    with running(folder) as service:
        url = service.metrics_url.removesuffix("/metrics")
        with started(
            forked_ranks(2, *AGENT, "costly_lines.py", str(wish)), {**OFTEN, "RANKSCOPE_COLLECTOR": service.endpoint}
        ) as training:
            (run,) = wait_for(lambda: service.snapshot.runs or None, lambda: "no run is known")
            command = [
                sys.executable,
                "-m",
                "rankscope.collector",
                "log",
                run.run_id,
                "--url",
                url,
                "--interval",
                "0.5",
            ]
            logs = [
                subprocess.Popen([*command, *to], env=environment, cwd=folder, stdout=subprocess.PIPE)
                for to in (("--to", "mlflow", "--into", run_id), ("--to", "wandb", "--project", "nodes"))
            ]
            try:
                wait_for(lambda: has_verdict(service) or None, lambda: str(service.snapshot.runs))
                wait_for(lambda: read_mlflow(folder, "rankscope/rank/1/own_s") or None, lambda: "nothing in MLflow")
                wait_for(lambda: find_wandb(folder) or None, lambda: "no run of W&B")
                wish.write_text("stop", encoding="utf-8")
                assert training.wait().exit_code == 0
                outputs = [log.communicate(timeout=120)[0].decode() for log in logs]
            finally:
                for log in logs:
                    log.kill()
                    log.wait()
    assert [log.returncode for log in logs] == [0, 0]
    assert all(re.search(rf"\d+ rows of {run.run_id} written to", output) for output in outputs), outputs
    return folder


def has_verdict(service: Any) -> bool:
    return all(rank.own_ns_median is not None for run in service.snapshot.runs for rank in run.ranks)


def find_wandb(folder: Path) -> list[Path]:
    return list(folder.glob("wandb/offline-run-*/run-*.wandb"))


def read_mlflow(folder: Path, name: str) -> list[tuple[float, int]]:
    """The values of a metric with their steps, of the only run that has it."""
    found = list((folder / "mlflow").glob(f"*/*/metrics/{name}"))
    if not found:
        return []
    assert len(found) == 1
    return [(float(value), int(step)) for _, value, step in map(str.split, found[0].read_text().splitlines())]


def test_mlflow_own_times_differ_by_the_sleep_of_the_slow_rank(folder: Path) -> None:
    (fast, _), (slow, step) = (read_mlflow(folder, f"rankscope/rank/{rank}/own_s")[-1] for rank in (0, 1))
    assert slow - fast > COST_S / 2
    assert slow >= COST_S
    assert step > 0
    assert read_mlflow(folder, f"rankscope/node/{name_node(os.uname().nodename)}/ranks_up")[0][0] in {1.0, 2.0}


def test_training_run_has_own_times_beside_its_loss_and_goes_on(folder: Path) -> None:
    (loss,) = (folder / "mlflow").glob("*/*/metrics/loss")
    assert (loss.parent / "rankscope" / "rank" / "1" / "own_s").exists()
    assert "status: 1" in (loss.parents[1] / "meta.yaml").read_text()  # RUNNING: the training ends it


def test_wandb_has_them_by_the_steps_of_the_training(folder: Path) -> None:
    (path,) = find_wandb(folder)
    own = {f"rankscope/rank/{rank}/own_s" for rank in (0, 1)}  # ranks do not end at the same moment
    rows = [row for row in read_history(path) if own <= row.keys()]
    assert rows[-1]["rankscope/rank/1/own_s"] - rows[-1]["rankscope/rank/0/own_s"] > COST_S / 2
    steps = [row["rankscope/step"] for row in rows]
    assert steps == sorted(steps)
    assert steps[0] > 0


def test_what_cannot_be_is_said_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "bert", "--to", "mlflow", "--interval", "0"]) == 2
    assert main(["log", "bert", "--to", "mlflow", "--ranks", "-1"]) == 2
    assert main(["log", "bert", "--to", "mlflow", "--url", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "rankscope: --interval is 0; it must be from 0.1 to 3600 seconds."
    assert said[1] == "rankscope: --ranks is -1; the smallest allowed is 0."
