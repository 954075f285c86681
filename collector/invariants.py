"""Check invariants of state, which tests do after every event."""


class InvariantError(AssertionError):
    """The state of a run contradicts itself."""


def require(holds: object, text: str) -> None:
    """Raise InvariantError with this text unless the condition holds.

    >>> require(1 + 1 == 2, "arithmetic")
    """
    if not holds:
        raise InvariantError(text)
