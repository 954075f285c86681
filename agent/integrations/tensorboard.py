"""The log of a run for TensorBoard: `TensorBoardLog(writer)` once, `log.update(step)` after each step."""

from typing import Any

from rankscope.agent.integrations.run_log import FINDINGS, LogEntry, RunLog

__all__ = ["TensorBoardLog", "write_to_summary"]


class TensorBoardLog(RunLog):
    """The log of the run in a writer with `add_scalar` and `add_text`: torch.utils.tensorboard's SummaryWriter, or
    tensorboardX's. It may be None on ranks other than 0, where nothing is logged.
    """

    def __init__(self, writer: Any) -> None:
        super().__init__(self._write_entry)
        self._writer = writer

    def _write_entry(self, entry: LogEntry, step: int | None) -> None:
        if self._writer is None:
            raise RuntimeError("there is no writer on rank 0: pass a SummaryWriter to TensorBoardLog")
        write_to_summary(self._writer, entry, step)


def write_to_summary(writer: Any, entry: LogEntry, step: int | None) -> None:
    """Write an entry with a SummaryWriter. Texts are Markdown there: each finding becomes an item of a list."""
    for name, value in entry.scalars.items():
        writer.add_scalar(name, value, step)
    if entry.findings is not None:
        items = "\n".join(f"- {line}" for line in entry.findings.splitlines())
        writer.add_text(FINDINGS, items, step)
