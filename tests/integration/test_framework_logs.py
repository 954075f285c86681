"""The callbacks log with the loggers of their frameworks what the collector has sent: read back in each format."""

import csv
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankscope.measure.messages import OpenFinding, RunSummary
from tests.integration.listening_collector import listening
from tests.integration.torchrun import ALONE, CHECKOUT, OFTEN, Ended, Forked, run
from tests.integration.wandb_files import read_history

SENTENCE = "Rank 2: 1.50x slower than its 3 peers"
SUMMARY = RunSummary(
    slowdown_ratio=1.5, goodput_ratio=0.75, exposed_communication_ratio=0.25, data_wait_ratio=0.0,
    absent={"mfu": "rank 0: no GPU is in use"},
    findings=(OpenFinding(1, "straggler", "host_cpu", "rank 2", SENTENCE, severity="warning"),),
)  # fmt: skip
NUMBERS = {
    "rankscope/slowdown_ratio": 1.5,
    "rankscope/goodput_ratio": 0.75,
    "rankscope/exposed_communication_ratio": 0.25,
    "rankscope/data_wait_ratio": 0.0,
    "rankscope/open_findings": 1.0,
}
"""What is to be logged: MFU is not known, and no number."""
JOBS = {"lightning": "callbacks/lightning_logs.py", "transformers": "callbacks/transformers_logs.py"}
LOGGERS = ("tensorboard", "mlflow", "wandb")

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, LOGGERS)),
    reason=f"one of {', '.join(LOGGERS)} is not installed; the extra `test` has them from Python 3.11 on",
)


def train(script: str, folder: Path) -> Ended:
    with listening(SUMMARY) as collector:
        environment = {**OFTEN, **ALONE, "RANKSCOPE_COLLECTOR": collector.endpoint, "PYTHONPATH": CHECKOUT}
        ended = run(Forked((script, str(folder))), environment)
    assert (ended.exit_code, ended.heard_of_agent, ended.left) == (0, [], ()), ended.stderr
    return ended


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "tuple[Path, Future[Ended]]"]]:
    """Each trains once, both at a time."""
    folders = {name: tmp_path_factory.mktemp(name) for name in JOBS}
    with ThreadPoolExecutor(2) as pool:
        yield {name: (folders[name], pool.submit(train, script, folders[name])) for name, script in JOBS.items()}


@pytest.fixture
def folder(request: pytest.FixtureRequest, jobs: dict[str, "tuple[Path, Future[Ended]]"]) -> Path:
    """Where the job of that name has logged."""
    path, ended = jobs[request.param]
    ended.result()
    return path


of_lightning = pytest.mark.parametrize("folder", ["lightning"], indirect=True)
of_transformers = pytest.mark.parametrize("folder", ["transformers"], indirect=True)


def read_events(folder: Path, prefix: str = "") -> tuple[dict[str, float], str]:
    """Return the last value of each of NUMBERS in event files, and the last text."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - may be absent

    events = EventAccumulator(str(folder)).Reload()
    names = [name for name in events.Tags()["scalars"] if name.startswith(f"{prefix}rankscope/")]
    scalars = {name.removeprefix(prefix): events.Scalars(name)[-1].value for name in names}
    text = events.Tensors(f"{prefix}rankscope/findings/text_summary")[-1].tensor_proto.string_val[0].decode()
    return scalars, text


@of_lightning
def test_lightning_logs_with_tensorboard(folder: Path) -> None:
    assert read_events(folder / "tensorboard") == (NUMBERS, f"- warning: {SENTENCE}")


@of_lightning
def test_lightning_logs_numbers_with_any_logger(folder: Path) -> None:
    with (folder / "csv" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["rankscope/slowdown_ratio"]]
    assert {name: float(rows[-1][name]) for name in NUMBERS} == NUMBERS
    assert "rankscope/mfu" not in rows[-1]


@of_lightning
def test_lightning_logs_with_wandb(folder: Path) -> None:
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    row = next(row for row in read_history(path) if "rankscope/slowdown_ratio" in row)
    assert {name: row[name] for name in NUMBERS} == NUMBERS
    assert row["rankscope/findings"] == f"warning: {SENTENCE}"
    assert row["trainer/global_step"] >= 0  # that of the first batch is 0, as for its own values


@of_lightning
def test_lightning_logs_with_mlflow(folder: Path) -> None:
    (tag,) = (folder / "mlflow").glob("*/*/tags/rankscope.findings")
    assert tag.read_text() == f"warning: {SENTENCE}"
    for name, value in NUMBERS.items():
        (path,) = (folder / "mlflow").glob(f"*/*/metrics/{name}")
        assert {float(line.split()[1]) for line in path.read_text().splitlines()} == {value}  # time, value, step


@of_transformers
def test_trainers_logs_have_the_run_in_them(folder: Path) -> None:
    assert read_events(folder / "tensorboard", prefix="train/") == (NUMBERS, f"warning: {SENTENCE}")
