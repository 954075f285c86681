"""The log of a run for Weights & Biases: `WandbLog()` once, `log.update()` after each step.

What is new becomes part of the row that W&B has open: the script's own step stays the axis, and none of its rows is
dropped.
"""

from typing import Any

from rankscope.agent.integrations.run_log import FINDINGS, LogEntry, RunLog

try:
    import wandb
except ImportError as error:
    raise ImportError(
        "rankscope.agent.integrations.wandb needs Weights & Biases, which cannot be imported "
        f"({error}); `pip install wandb` installs it."
    ) from error

__all__ = ["WandbLog"]


class WandbLog(RunLog):
    """The log of the run in `run`, what `wandb.init` has returned; None: the run that is active when something is
    logged. Findings are a text of the history, `rankscope/findings`, wherever they have changed. A step passed to
    `update` is ignored: W&B drops rows at steps before its own, and another step here would cost the script such rows.
    """

    def __init__(self, run: Any = None) -> None:
        super().__init__(self._write_entry)
        self._run = run

    def _write_entry(self, entry: LogEntry, _step: int | None) -> None:
        run = wandb.run if self._run is None else self._run
        if run is None:
            raise RuntimeError("no W&B run is active on rank 0: call wandb.init() before, or pass its result")
        row: dict[str, Any] = dict(entry.scalars)
        if entry.findings is not None:
            row[FINDINGS] = entry.findings
        run.log(row, commit=False)
