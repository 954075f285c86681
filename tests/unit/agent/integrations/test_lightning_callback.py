"""Tests that the callback restores the trainer after training, however it ended, and logs with each of its loggers."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning
import pytest

from rankscope.agent.integrations import lightning as module
from rankscope.agent.integrations import run_log
from rankscope.agent.integrations.lightning import RankscopeCallback, find_log_step
from rankscope.agent.run_report import ReceivedSummary, RunReport, build_report
from rankscope.measure.messages import OpenFinding, RunSummary


class Trainer:
    """The parts of Lightning's that the callback touches."""

    def __init__(self) -> None:
        self.global_step = 0
        self.saved: list[tuple[str, bool]] = []

    def save_checkpoint(self, path: str, *, weights_only: bool = False) -> str:
        if not path:
            raise OSError("disk full")
        self.saved.append((path, weights_only))
        return "saved"


def end(callback: Any, trainer: Trainer) -> None:
    callback.on_train_end(trainer, None)


def fail(callback: Any, trainer: Trainer) -> None:
    callback.on_validation_start(trainer, None)
    callback.on_exception(trainer, None, KeyboardInterrupt())


@pytest.mark.parametrize("over", [end, fail])
def test_trainer_is_as_before_when_training_is_over(over: Callable[[Any, Trainer], None]) -> None:
    callback, trainer = RankscopeCallback(), Trainer()
    for _ in range(2):
        before = dict(vars(trainer))
        callback.on_train_start(trainer, None)
        assert "save_checkpoint" in vars(trainer)
        over(callback, trainer)
        assert vars(trainer) == before


def test_wrapped_checkpoint_passes_options_and_errors() -> None:
    callback, trainer = RankscopeCallback(), Trainer()
    callback.on_train_start(trainer, None)
    assert trainer.save_checkpoint("here", weights_only=True) == "saved"
    assert trainer.saved == [("here", True)]
    with pytest.raises(OSError, match="disk full"):
        trainer.save_checkpoint("")


def test_foreign_save_checkpoint_is_kept() -> None:
    callback, trainer = RankscopeCallback(), Trainer()
    mine: Any = lambda _path: "mine"  # noqa: E731 - it is one object that is looked for again
    trainer.save_checkpoint = mine  # type: ignore[method-assign]
    callback.on_train_start(trainer, None)
    callback.on_train_end(trainer, None)
    assert trainer.save_checkpoint is mine


def test_repeated_hooks_are_harmless_without_a_session() -> None:
    callback, trainer = RankscopeCallback(), Trainer()
    for hook in (callback.on_validation_end, callback.on_train_end, callback.on_validation_start):
        hook(trainer, None)
        hook(trainer, None)
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, None, {}, None, 0)
    assert trainer.saved == []


class Logger:
    """One of Lightning's, which only keeps its rows, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: list[tuple[dict[str, float], int | None]] = []
        self._fails = fails

    def log_metrics(self, metrics: dict[str, float], step: int | None) -> None:
        if self._fails:
            raise OSError("the disk is full")
        self.rows.append((metrics, step))


class MLFlowLogger(Logger):
    """Named as Lightning's, whose own calls wait for a server: only its client may be called, on another thread."""

    def __init__(self) -> None:
        super().__init__(fails=True)
        self.experiment, self.run_id = self, "run-1"
        self.batches: list[tuple[str, dict[str, Any]]] = []
        self.threads: list[threading.Thread] = []

    def log_batch(self, run_id: str, **batch: Any) -> None:
        self.threads.append(threading.current_thread())
        self.batches.append((run_id, batch))


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each read of the report takes 10 s and has a new summary; the lines logged."""
    lines: list[str] = []
    finding = OpenFinding(1, "straggler", "host_cpu", "rank 2", "Rank 2 is slow.", severity="warning")
    now_s = [100.0]
    opened = run_log.RunLog

    def open_run_log(write: Any, **options: Any) -> run_log.RunLog:
        received = ReceivedSummary(RunSummary(mfu=0.5, findings=(finding,)), 0)

        def read_report() -> RunReport:
            now_s[0] += 10.0
            return build_report("bert", 0, received, 0)

        return opened(write, read_report, lambda: now_s[0], **options)

    monkeypatch.setattr(module, "RunLog", open_run_log)
    monkeypatch.setattr(run_log, "log_line", lines.append)
    return lines


def train(callback: Any, trainer: Any, steps: int) -> None:
    callback.on_train_start(trainer, None)
    for _ in range(steps):
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, {}, None, 0)
    callback.on_train_end(trainer, None)


def test_logger_that_fails_costs_the_others_nothing(reported: list[str]) -> None:
    trainer: Any = Trainer()
    before, broken, after = Logger(), Logger(fails=True), Logger()
    trainer.loggers = [before, broken, after]
    train(RankscopeCallback(), trainer, 5)
    assert [step for _, step in before.rows] == [step for _, step in after.rows] == [1, 2, 3, 4, 5]
    assert [line.split(" (")[0].split(";")[0] for line in reported] == [
        "the run could not be logged with Logger",
        "the run is not logged with Logger any more, since that failed or was slow 3 times in a row",
    ]


def test_mlflow_is_written_to_on_another_thread(reported: list[str]) -> None:
    pytest.importorskip("mlflow")
    trainer: Any = Trainer()
    logger = MLFlowLogger()
    trainer.loggers = [logger]
    train(RankscopeCallback(), trainer, 1)
    for thread in threading.enumerate():
        if thread.name == "rankscope-run-log":
            thread.join()
    ((run_id, batch),) = logger.batches
    assert (run_id, batch["synchronous"]) == ("run-1", True)
    assert [(one.key, one.value, one.step) for one in batch["metrics"]] == [
        ("rankscope/mfu", 0.5, 1), ("rankscope/open_findings", 1.0, 1),
    ]  # fmt: skip
    assert [(one.key, one.value) for one in batch["tags"]] == [("rankscope.findings", "warning: Rank 2 is slow.")]
    assert logger.threads[0] is not threading.current_thread()
    assert reported == []


def test_step_is_that_of_lightnings_own_values() -> None:
    trainer: Any = Trainer()
    trainer.global_step = 8  # two optimizers
    assert find_log_step(trainer) == 8
    trainer.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=4))
    assert find_log_step(trainer) == 4


@pytest.mark.filterwarnings("ignore")  # a Trainer warns of what this machine has and it does not use
def test_this_lightning_has_the_step_of_its_own_values() -> None:
    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, enable_model_summary=False, accelerator="cpu")
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == 0
