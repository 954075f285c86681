"""Compute slots that are written down."""

import contextlib
from collections.abc import Iterator


class SlotLog:
    """Gives a slot at once; `events` is what happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Context of one slot, logged as begun and ended."""
        self.events.append("begins")
        yield
        self.events.append("ends")
