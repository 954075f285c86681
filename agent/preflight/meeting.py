"""Bring the ranks of a pre-flight together in the store of torch.distributed: rank 0 reads what each has, and answers.

The store is used and not a collective, since it says who is missing: the key of a rank that has died or hangs is not
there. Whoever waits for too long ends with IncompleteError; rank 0 gives the reason to all others first.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from rankscope.measure.errors import UnavailableError

MISSING_NAMED_MAX: Final = 8
LEAVING_S: Final = 5.0
"""How long rank 0 stays for the others to read its last answer: the store may be in its process."""


class IncompleteError(UnavailableError):
    """A rank did not answer, or the store is gone. The text is for the user."""


class _Answer(msgspec.Struct, frozen=True):
    """Answer of rank 0: the bytes of the stage, or the reason why the pre-flight ends."""

    body: str = ""
    end: str = ""


class Meeting:
    """The ranks of one pre-flight. `names` has a text for each rank that a user knows it by."""

    def __init__(self, store: Any, rank: int, world_size: int, wait_s: float) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._wait_s = wait_s
        self.names: Sequence[str] = [f"rank {number}" for number in range(world_size)]

    def exchange(self, stage: str, body: str, answer: Callable[[list[str]], str], *, planned_s: float = 0.0) -> str:
        """Return rank 0's answer, made of the bodies of all ranks, at every rank. Raise IncompleteError.

        A rank that is not there `planned_s` and the waiting time after the first is missing.
        """
        limit_s = planned_s + self._wait_s
        try:
            self._store.set(f"{stage}/{self._rank}", body)
            if self._rank:
                return self._wait_for_answer(stage, limit_s)
            made = answer(self._read_all(stage, limit_s))
            self._store.set(f"{stage}/answer", msgspec.json.encode(_Answer(made)).decode())
        except (RuntimeError, OSError) as error:  # torch's errors of a store that is gone are RuntimeErrors
            raise IncompleteError(f"the store of torch.distributed is gone at {stage}: {_first_line(error)}") from error
        return made

    def leave(self) -> None:
        """Return when the others have read the last answer, or LEAVING_S later. Raise nothing."""
        try:
            if self._store.add("left", 1) == self._world_size:
                self._store.set("all_left", "1")
            if self._rank == 0:
                self._wait(["all_left"], LEAVING_S)
        except (RuntimeError, OSError):
            return

    def _wait_for_answer(self, stage: str, limit_s: float) -> str:
        key = f"{stage}/answer"
        # Twice: rank 0 may wait for as long for the last rank, and then answers who is missing.
        if not self._wait([key], 2 * limit_s):
            raise IncompleteError(f"{self.names[0]} did not answer within {2 * limit_s:.0f} s at {stage}")
        answer = msgspec.json.decode(self._store.get(key), type=_Answer)
        if answer.end:
            raise IncompleteError(answer.end)
        return answer.body

    def _read_all(self, stage: str, limit_s: float) -> list[str]:
        keys = [f"{stage}/{rank}" for rank in range(self._world_size)]
        if self._wait(keys, limit_s):
            return [self._store.get(key).decode() for key in keys]
        missing = [self.names[rank] for rank, key in enumerate(keys) if not self._store.check([key])]
        more = f" and {len(missing) - MISSING_NAMED_MAX} others" if len(missing) > MISSING_NAMED_MAX else ""
        reason = f"{', '.join(missing[:MISSING_NAMED_MAX])}{more} did not answer within {limit_s:.0f} s at {stage}"
        self._store.set(f"{stage}/answer", msgspec.json.encode(_Answer(end=reason)).decode())
        raise IncompleteError(reason)

    def _wait(self, keys: list[str], limit_s: float) -> bool:
        """Return whether the keys are there within the time. Raise RuntimeError where the store is gone."""
        try:
            self._store.wait(keys, timedelta(seconds=limit_s))
        except RuntimeError:
            return bool(self._store.check(keys))  # raises again where it was not the time
        return True


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
