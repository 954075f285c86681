"""An exception amid code of the agent, as a signal handler raises one: at each line of an action, in turn."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from rankscope.measure.own_files import is_own_file


class Interruption:
    """Raises KeyboardInterrupt once, before the line with this number of all those that an action executes."""

    def __init__(self, place: int) -> None:
        self._left = place
        self.has_come = False

    def run(self, action: Callable[[], object]) -> BaseException | None:
        """Run the action, and return the exception if it comes out of it."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            action()
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.settrace(before)
        return None

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not is_own_file(frame.f_code.co_filename):
            return None
        if event == "line" and not self.has_come:
            if not self._left:
                self.has_come = True
                raise KeyboardInterrupt
            self._left -= 1
        return self._trace


def interrupt_each_line(
    make: Callable[[], Any], act: Callable[[Any], object], check: Callable[[Any, Any], object]
) -> int:
    """Make something, act on it with an interruption at its first line, and check it, given what came out; then at its
    second, and so on. Return the number of lines.
    """
    place = 0
    while True:
        made, interruption = make(), Interruption(place)
        came_out = interruption.run(functools.partial(act, made))
        if not interruption.has_come:
            return place
        check(made, came_out)
        place += 1
