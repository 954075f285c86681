"""Check what must always hold: of state, which tests do after every event, and of numbers before they are told."""

from typing import Final, NamedTuple


class InvariantError(AssertionError):
    """The state of a run contradicts itself."""


def require(holds: object, text: str) -> None:
    """Raise InvariantError with this text unless the condition holds.

    >>> require(1 + 1 == 2, "arithmetic")
    """
    if not holds:
        raise InvariantError(text)


class Impossible(NamedTuple):
    """Numbers of one kind that cannot be, and so were made unknown: how many, and the first with its inputs."""

    kind: str
    times: int
    inputs: str


KINDS_MAX: Final = 64
"""Kinds that are kept until they are read: there are fewer in the code, and one for each name of a share or a time."""


class ImpossibleNumbers:
    """Count numbers that cannot be: a time below 0, a share above 1, a loss above the time it was lost of. Whoever
    meets one makes it unknown and notes it here, since a wrong number that is told is worse than none.
    """

    def __init__(self) -> None:
        self._noted: dict[str, Impossible] = {}

    def note(self, kind: str, inputs: str, count: int = 1) -> None:
        """Note that so many numbers of a kind were made unknown; `inputs` says what one of them was made of.

        >>> numbers = ImpossibleNumbers()
        >>> numbers.note("own_time", "step 7 of rank 2: 50 ms less 57 ms of waiting")
        >>> numbers.note("own_time", "step 9 of rank 1: 50 ms less 99 ms of waiting", count=2)
        >>> numbers.pop()
        [Impossible(kind='own_time', times=3, inputs='step 7 of rank 2: 50 ms less 57 ms of waiting')]
        """
        known = self._noted.get(kind, Impossible(kind, 0, inputs))
        if known.times or len(self._noted) < KINDS_MAX:
            self._noted[kind] = known._replace(times=known.times + count)

    def pop(self) -> list[Impossible]:
        """Return what was noted since the last call."""
        found = list(self._noted.values())
        self._noted.clear()
        return found
