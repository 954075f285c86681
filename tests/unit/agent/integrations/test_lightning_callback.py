"""Tests that the callback restores the trainer after training, however it ended."""

from collections.abc import Callable
from typing import Any

import pytest

from rankscope.agent.integrations.lightning import RankscopeCallback


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
