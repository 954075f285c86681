"""Carry out one capture, from its order to its analysis, and write down how far it is. For the captures thread only.

orders.py decides, store.py writes, trace_analysis.py reads the traces. An error of the disk in a rank's file loses that
file, any other one the capture.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.captures.capture import ANALYZING, COMPLETE, ENDED, FAILED, Capture
from rankscope.collector.captures.orders import DiscardFile, Effect, FinishFile, Orders, Send, WriteBytes
from rankscope.collector.captures.store import CaptureStore, KeptCapture, describe_disk_error, name_of
from rankscope.collector.captures.trace_analysis import TraceAnalysis
from rankscope.measure.capture_limits import MODULES, SHAPES
from rankscope.measure.messages import CapturePart, CaptureState, Message

LOG = logging.getLogger("rankscope.collector")

PROBLEMS_SHOWN: Final = 8
TABLES: Final[Mapping[str, Sequence[str]]] = {MODULES: ("--modules",), SHAPES: ("--shapes", "--flops")}
"""Options of `rankscope analyze` for what a capture has recorded by an option of its own."""


class CaptureSurroundings(NamedTuple):
    """What a capture works with: where it is kept, the way to a rank process by its boot id, the time of the wall
    clock in s, and who is told each time when it has changed.
    """

    store: CaptureStore
    send: Callable[[str, Message], object]
    read_wall_s: Callable[[], float]
    on_changed: Callable[[Capture], object]


class CaptureWork:
    """A capture that has not ended. `orders` is None once all files are there."""

    def __init__(self, capture: Capture, orders: Orders | None, around: CaptureSurroundings) -> None:
        self.capture = capture
        self.orders = orders
        self._around = around
        self._analysis: TraceAnalysis | None = None
        self._kept: KeptCapture | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is complete or has failed."""
        return self.capture.state in ENDED

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._around.store.folder_of(self.capture.id)

    @property
    def is_analyzing(self) -> bool:
        """Whether a child process may run for it."""
        return self._analysis is not None

    def take(self, boot_id: str, message: CaptureState | CapturePart, now_s: float) -> None:
        """Take what a rank process says, if it is one of this capture. Raises OSError."""
        if self.orders is None or boot_id not in self.orders.boot_ids:
            return
        if isinstance(message, CaptureState):
            self._carry_out(self.orders, self.orders.take_state(boot_id, message, now_s))
        else:
            self._carry_out(self.orders, self.orders.take_part(boot_id, message, now_s))

    def go_on(self, now_s: float, ended: Mapping[str, str], *, may_analyze: bool) -> None:
        """Do what is due. `ended` has how rank processes have ended, by boot id. Raises OSError."""
        orders = self.orders
        if self.is_over:
            return
        if orders is not None:
            if self._kept is None:
                self._keep()  # before the first order: a restarted collector knows of it
            self._carry_out(orders, orders.tick(now_s, ended))
            first_step, last_step = orders.steps
            self._change(state=orders.state, ranks=orders.ranks, first_step=first_step, last_step=last_step)
            if orders.is_over:
                self._end_orders(orders)
        elif self._analysis is not None:
            if self._analysis.poll():
                self._complete(self._analysis)
        elif may_analyze:
            names = [one.file for one in self.capture.ranks if one.file]
            tables = [table for option in self.capture.options for table in TABLES.get(option, ())]
            self._analysis = TraceAnalysis(self.folder, names, tables=tables)

    def fail(self, reason: str) -> None:
        """End it with a reason, and delete its files. Never raises OSError."""
        orders, self.orders = self.orders, None
        for effect in () if orders is None else orders.call_off(reason):
            if isinstance(effect, Send):
                self._around.send(effect.boot_id, effect.message)
        self.close()
        self._around.store.remove_files(self.capture.id)
        known = self.capture.ranks if orders is None else orders.ranks
        ranks = tuple(
            msgspec.structs.replace(one, state="failed", reason=reason, file="") if one.file else one for one in known
        )
        LOG.error("run %r: capture %s has failed: %s", self.capture.run_id, self.capture.id, reason)
        with contextlib.suppress(OSError):  # a full disk may be the reason; a restarted collector tries again
            self._change(state=FAILED, problem=reason, ranks=ranks, files=())

    def close(self) -> None:
        """End the child process, where one runs."""
        if self._analysis is not None:
            self._analysis.close()
            self._analysis = None

    # -- parts of that ------------------------------------------------------------------------------------------------

    def _end_orders(self, orders: Orders) -> None:
        """Go on to the analysis where there is any file."""
        self.orders = None
        lost = [one for one in orders.ranks if not one.file]
        problem = "; ".join(f"rank {one.rank}: {one.reason}" for one in lost[:PROBLEMS_SHOWN])
        if len(lost) > PROBLEMS_SHOWN:
            problem += f"; and {len(lost) - PROBLEMS_SHOWN} more ranks"
        if len(lost) < len(orders.ranks):
            files = self._around.store.list_files(self.capture.id)
            self._change(state=ANALYZING, problem=problem, files=files)
            return
        self._change(state=FAILED, problem=problem)
        LOG.warning("run %r: capture %s has failed: %s", self.capture.run_id, self.capture.id, problem)

    def _complete(self, analysis: TraceAnalysis) -> None:
        self._analysis = None
        problem = "; ".join(one for one in (self.capture.problem, analysis.problem) if one)
        files = self._around.store.list_files(self.capture.id)
        self._change(state=COMPLETE, problem=problem, verdict=analysis.read_verdict(), files=files)
        but = f", but {problem}" if problem else ""
        LOG.warning("run %r: capture %s is complete%s", self.capture.run_id, self.capture.id, but)

    def _carry_out(self, orders: Orders, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._around.send(effect.boot_id, effect.message)
            else:
                self._carry_out(orders, self._use_disk(orders, effect))

    def _use_disk(self, orders: Orders, effect: WriteBytes | FinishFile | DiscardFile) -> Iterable[Effect]:
        """Change a file; return what follows."""
        store, capture_id = self._around.store, self.capture.id
        try:
            match effect:
                case WriteBytes(rank, offset, data):
                    store.write_part(capture_id, rank, offset, data)
                case FinishFile(rank, size_bytes, sha256):
                    problem = store.finish(capture_id, rank, size_bytes, sha256)
                    return orders.note_file(rank, name_of(rank), problem)
                case DiscardFile(rank):
                    store.discard(capture_id, rank)
        except OSError as error:
            problem = f"its file cannot be written: {describe_disk_error(error, self.folder)}"
            return orders.note_file(effect.rank, "", problem)
        return ()

    def _change(self, **changes: object) -> None:
        """Change the capture and keep it; nothing where it stays the same. Raises OSError, after it was told."""
        changed = msgspec.structs.replace(self.capture, **changes)
        if changed == self.capture:
            return
        self.capture = msgspec.structs.replace(changed, changed_wall_s=self._around.read_wall_s())
        self._around.on_changed(self.capture)
        self._keep()

    def _keep(self) -> None:
        """Write the description, where more than the number of bytes that have arrived has changed."""
        kept = KeptCapture(self.capture, None if self.orders is None else self.orders.progress)
        if self._kept is None or _without_bytes(kept) != _without_bytes(self._kept):
            self._around.store.write(kept)
            self._kept = kept


def _without_bytes(kept: KeptCapture) -> object:
    ranks = tuple(msgspec.structs.replace(one, fetched_bytes=0) for one in kept.capture.ranks)
    return msgspec.structs.replace(kept.capture, ranks=ranks, changed_wall_s=0.0), kept.progress
