"""Keep a fault of ours in one table or comparison from costing the report: it becomes the reason for not judging."""

import os
from collections.abc import Callable
from typing import TypeVar

from rankscope.measure.errors import RankscopeError

Made = TypeVar("Made")
Otherwise = TypeVar("Otherwise")

DEBUG_VARIABLE = "RANKSCOPE_DEBUG"


def describe_fault(error: Exception) -> str:
    """Return an error that should not be as a reason.

    >>> describe_fault(ZeroDivisionError("division by zero"))
    'rankscope failed at it (ZeroDivisionError: division by zero); RANKSCOPE_DEBUG=1 shows where: please report it'
    """
    text = (str(error).splitlines() or [""])[0]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"rankscope failed at it ({what}); {DEBUG_VARIABLE}=1 shows where: please report it"


def attempt(make: Callable[[], Made], otherwise: Callable[[str], Otherwise]) -> Made | Otherwise:
    """Return what `make` does; where it fails by a fault of ours, what `otherwise` makes of the reason. What is meant
    for the user, a RankscopeError, is raised, and with RANKSCOPE_DEBUG=1 everything.
    """
    try:
        return make()
    except (RankscopeError, MemoryError):
        raise
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}:
            raise
        return otherwise(describe_fault(error))
