"""Ranks that answer orders of captures as the agent does, without an agent."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from rankscope.measure.messages import CaptureOrder, CapturePart, CapturePartWanted, CaptureState, Message


@dataclass
class AnsweringRank:
    """A rank at `next_step`, whose capture has `content`. It writes at once what it accepts."""

    content: bytes = b"trace"
    next_step: int = 10
    refusal: str = ""
    is_mute: bool = False
    orders: list[CaptureOrder] = field(default_factory=list)

    def answer(self, message: Message) -> CaptureState | CapturePart | None:
        """Return what it says to a message; None: nothing."""
        if isinstance(message, CaptureOrder):
            self.orders.append(message)
        if self.is_mute:
            return None
        if isinstance(message, CapturePartWanted):
            data = self.content[message.offset : message.offset + message.length]
            return CapturePart(id=message.id, offset=message.offset, data=data)
        if not isinstance(message, CaptureOrder) or message.is_over:
            return None
        if self.refusal or self.next_step > message.first_step:
            reason = self.refusal or "it is past the first step"
            return CaptureState(id=message.id, state="refused", reason=reason, next_step=self.next_step)
        return CaptureState(
            id=message.id, state="written", next_step=message.last_step + 1,
            first_step=message.first_step, last_step=message.last_step, pause_ns=250_000_000,
            size_bytes=len(self.content), sha256=hashlib.sha256(self.content).hexdigest(),
        )  # fmt: skip


@dataclass
class AnsweringRanks:
    """Several of them, by boot id. What they say goes to `take`."""

    ranks: dict[str, AnsweringRank]
    take: Callable[[str, CaptureState | CapturePart], object] = lambda _boot_id, _message: None

    def send(self, boot_id: str, message: Message) -> None:
        """Send a message to one of them."""
        said = self.ranks[boot_id].answer(message)
        if said is not None:
            self.take(boot_id, said)
