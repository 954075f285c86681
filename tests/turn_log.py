"""Turns that are written down."""

import contextlib
from collections.abc import Iterator


class TurnLog:
    """Gives turns to whoever asks; `said` is what happened, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """One turn, begun and ended."""
        self.said.append("begins")
        yield
        self.said.append("ends")
